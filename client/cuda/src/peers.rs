//! Which devices may use one another's memory as far as it is mapped here. A program says so once for two devices, and
//! means all that is and will be there; mappings know of access one by one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::device::Device;
use crate::error::CudaError;
use crate::site::Site;

static PEERS: Mutex<Peers> = Mutex::new(Peers { pairs: Vec::new(), sites: Vec::new() });

struct Peers {
    /// CUDA's numbers of whose memory it is, and of who may use it.
    pairs: Vec<(usize, Device)>,
    sites: Vec<Weak<Site>>,
}

/// Lets a device use the memory of another one that is mapped in this process, and that will be.
///
/// # Errors
/// What the driver says; some of the memory may be open then.
pub fn let_in(owner: Device, guest: Device) -> Result<(), CudaError> {
    let mut peers = peers();
    if owner.ordinal() == guest.ordinal()
        || peers.guests_of(owner).any(|known| known.ordinal() == guest.ordinal())
    {
        return Ok(());
    }
    peers.pairs.push((owner.ordinal(), guest));
    let there: Vec<Arc<Site>> = peers.sites.iter().filter_map(Weak::upgrade).collect();
    // Unlocked: who is mapping at this moment reads the pairs, and holds what is looked at next.
    drop(peers);
    let of_owner = there.iter().filter(|site| site.context().device().ordinal() == owner.ordinal());
    of_owner.map(|site| site.let_in(guest)).fold(Ok(()), Result::and)
}

/// Who may use a device's memory beside itself.
pub(crate) fn of(owner: Device) -> Vec<Device> {
    peers().guests_of(owner).collect()
}

/// From now on, until it is gone, it hears of new pairs.
pub(crate) fn note(site: &Arc<Site>) {
    let mut peers = peers();
    if peers.sites.len() == peers.sites.capacity() {
        peers.sites.retain(|site| site.strong_count() > 0);
    }
    peers.sites.push(Arc::downgrade(site));
}

fn peers() -> MutexGuard<'static, Peers> {
    PEERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peers {
    fn guests_of(&self, owner: Device) -> impl Iterator<Item = Device> {
        self.pairs.iter().filter(move |(of, _)| *of == owner.ordinal()).map(|(_, guest)| *guest)
    }
}
