//! Memory that is the driver's and not a segment: it counts against the lease before it is asked for, and until the
//! driver has freed it.
//!
//! The broker sees it in the card's own figures, as it sees contexts, and charges the lease for it. Where the broker keeps
//! the whole card, what the driver gives comes out of the room that it leaves for contexts, which is topped up as it is used.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpulease_client::Bytes;

use crate::code::{Code, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS};
use crate::driver;
use crate::job::Job;
use crate::report::Once;

/// What the driver refuses is asked for again so long: the broker makes room within a second of a use that it sees.
const ROOM_WITHIN: Duration = Duration::from_millis(1500);
const LOOK: Duration = Duration::from_millis(25);

/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`
const GRAPHS_RESERVED: c_uint = 2;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
const POOL_RESERVED: c_uint = 5;

/// What the driver gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Given {
    /// Managed memory, by address.
    At(u64),
    Array(usize),
    Mipmap(usize),
    /// A handle of its virtual memory management.
    Handle(u64),
    /// Variables of a module, of a library.
    Module(usize),
    Library(usize),
    /// The heap of kernels, their stacks, or what they print into, by device.
    Limit(c_int, c_uint),
}

/// All that counts of this process.
#[derive(Default)]
pub(crate) struct Charges {
    inner: Mutex<Inner>,
    /// One thread looks whether there is room, and takes it, at a time.
    asking: Mutex<()>,
    /// Whether any was asked for yet: most programs never do.
    any: AtomicBool,
}

/// On which device, and how much.
type Counted = (c_int, Bytes);

#[derive(Default)]
struct Inner {
    given: BTreeMap<Given, Counted>,
    /// Asked for at this moment.
    under_way: BTreeMap<c_int, Bytes>,
}

impl Charges {
    /// Asks the driver for memory on a device where the lease has room for it, and counts what `given` names.
    pub(crate) fn take(
        &self,
        job: &'static Job,
        device: c_int,
        bytes: Bytes,
        ask: impl Fn() -> Code,
        given: impl FnOnce() -> Given,
    ) -> Code {
        if job.device(device).is_none() {
            return OUT_OF_MEMORY;
        }
        let aside = match self.set_aside(job, device, bytes) {
            Ok(aside) => aside,
            Err(code) => return code,
        };
        let code = patiently(ask);
        if code == SUCCESS {
            let given = given();
            aside.count(|| {
                self.lock().given.insert(given, (device, bytes));
            });
        }
        code
    }

    /// The driver has freed it.
    pub(crate) fn give(&self, given: Given) {
        self.strike(given);
    }

    /// It does not count for now. What counted for it.
    pub(crate) fn strike(&self, given: Given) -> Option<Counted> {
        self.lock().given.remove(&given)
    }

    /// The driver has kept it after all.
    pub(crate) fn keep(&self, given: Given, counted: Option<Counted>) {
        self.lock().given.extend(counted.map(|counted| (given, counted)));
    }

    /// What counts on a device beside segments.
    pub(crate) fn on(&self, device: c_int) -> Bytes {
        let inner = self.lock();
        let given = inner.given.values().filter(|(of, _)| *of == device).map(|(_, bytes)| *bytes);
        let counted: Bytes = given.chain(inner.under_way.get(&device).copied()).sum();
        counted.saturating_add(graphs(device))
    }

    /// Whether the lease has room for so much more of the driver's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where it has not; said once.
    pub(crate) fn room(&self, job: &'static Job, device: c_int, bytes: Bytes) -> Result<(), Code> {
        self.any.store(true, Ordering::SeqCst);
        self.fits(job, device, bytes)
    }

    /// Sets bytes aside while a segment of this size is asked for, where it has room beside what is the driver's; of segments
    /// alone the broker knows.
    ///
    /// # Errors
    /// As [`Self::room`].
    pub(crate) fn beside(&self, job: &'static Job, device: c_int, bytes: Bytes) -> Result<Aside<'_>, Code> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.any.load(Ordering::SeqCst) && !self.of_driver(job, device).is_zero() {
            self.fits(job, device, bytes)?;
        }
        Ok(self.aside(device, bytes))
    }

    /// Sets bytes aside while the driver is asked for them, where the lease has room.
    ///
    /// # Errors
    /// As [`Self::room`].
    pub(crate) fn set_aside(
        &self,
        job: &'static Job,
        device: c_int,
        bytes: Bytes,
    ) -> Result<Aside<'_>, Code> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        self.room(job, device, bytes)?;
        Ok(self.aside(device, bytes))
    }

    fn aside(&self, device: c_int, bytes: Bytes) -> Aside<'_> {
        let mut inner = self.lock();
        let under_way = inner.under_way.entry(device).or_default();
        *under_way = under_way.saturating_add(bytes);
        Aside { charges: self, device, bytes }
    }

    fn fits(&self, job: &'static Job, device: c_int, bytes: Bytes) -> Result<(), Code> {
        static FULL: Once = Once::new();
        let held = job.device(device).map_or(Bytes::ZERO, |leased| job.held(leased.id));
        let (drivers, limit) = (self.of_driver(job, device), job.limit());
        let taken = held.saturating_add(drivers);
        if taken.saturating_add(bytes) <= limit {
            return Ok(());
        }
        FULL.say(|| {
            format!(
                "no memory for {bytes} in lease {}: its limit is {limit} a device, and this process has {taken} of that, \
                 {drivers} of them the driver's own; free some, or run with a larger -m",
                job.lease.id()
            )
        });
        Err(OUT_OF_MEMORY)
    }

    /// What is the driver's and counts, that of its pools included.
    fn of_driver(&self, job: &'static Job, device: c_int) -> Bytes {
        self.on(device).saturating_add(job.pools.of_driver(device))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that somebody is asking for: nobody else gets them meanwhile.
pub(crate) struct Aside<'c> {
    charges: &'c Charges,
    device: c_int,
    bytes: Bytes,
}

impl Aside<'_> {
    /// They are had, and count elsewhere from now on: once, for whoever looks for room meanwhile.
    pub(crate) fn count(self, elsewhere: impl FnOnce()) {
        let _asking = self.charges.asking.lock().unwrap_or_else(PoisonError::into_inner);
        elsewhere();
        drop(self);
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        let mut inner = self.charges.lock();
        let under_way = inner.under_way.entry(self.device).or_default();
        *under_way = under_way.saturating_sub(self.bytes);
    }
}

/// Asks the driver, and again for a while where it has no memory: the broker may have to let go of some first.
pub(crate) fn patiently(ask: impl Fn() -> Code) -> Code {
    let until = Instant::now() + ROOM_WITHIN;
    loop {
        let code = ask();
        if code != OUT_OF_MEMORY || Instant::now() >= until || crate::capture::is_under_way() {
            return code;
        }
        thread::sleep(LOOK);
    }
}

/// Whether the lease was pinned for this process.
#[derive(Default)]
pub(crate) struct Pinned(Mutex<Pin>);

#[derive(Default, PartialEq, Eq)]
enum Pin {
    #[default]
    NotYet,
    Done,
}

/// Memory that other processes are to use stays where it is, and so does the lease's.
///
/// # Errors
/// `CUDA_ERROR_NOT_PERMITTED` where the broker does not let the lease be pinned; said once.
pub(crate) fn pin(job: &'static Job, what: &str) -> Result<(), Code> {
    static REFUSED: Once = Once::new();
    let mut pinned = job.pinned.0.lock().unwrap_or_else(PoisonError::into_inner);
    if *pinned == Pin::NotYet {
        job.lease.pin().map_err(|why| {
            REFUSED.say(|| {
                format!("no {what}: lease {} would have to stay on its device: {why}", job.lease.id())
            });
            NOT_PERMITTED
        })?;
        *pinned = Pin::Done;
    }
    Ok(())
}

/// What the driver keeps for the allocations of graphs on a device.
fn graphs(device: c_int) -> Bytes {
    let mut reserved = 0_u64;
    // SAFETY: the value of this attribute is a number of 64 bits.
    let code =
        unsafe { driver::cuDeviceGetGraphMemAttribute(device, GRAPHS_RESERVED, (&raw mut reserved).cast()) };
    if code == SUCCESS { Bytes::new(reserved) } else { Bytes::ZERO }
}

/// What the driver keeps for a pool.
pub(crate) fn of_pool(pool: *mut c_void) -> Bytes {
    let mut reserved = 0_u64;
    // SAFETY: as above.
    let code = unsafe {
        crate::entries::real::cuMemPoolGetAttribute(pool, POOL_RESERVED, (&raw mut reserved).cast())
    };
    if code == SUCCESS { Bytes::new(reserved) } else { Bytes::ZERO }
}
