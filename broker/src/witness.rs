//! The witness: what the card itself says is used, and by whom.
//!
//! It reads, it never decides. Without NVML there is no witness, and every figure it would have
//! given is unknown, never zero.
//!
//! One thread looks at every card once a second and whenever it is asked to; what is the same as
//! before it keeps to itself.

mod book;
mod card;
mod doctor;
pub(crate) mod people;
mod unsettled;
mod watch;

pub use card::{Card, Cards};
pub use doctor::{Finding, Verdict, doctor};
pub use watch::Witness;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use gpulease_words::{Bytes, DeviceId, Pid, ProcessId, Uid};

use crate::device::Gauge;

/// What a card says at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// All that is in use, the driver's own reserve not counted.
    pub used: Bytes,
    /// What may be used at all.
    pub usable: Bytes,
    /// Use by process in order of pids, the broker and its helpers included; `None`: the card does not tell it.
    pub processes: Option<Vec<ProcessUse>>,
}

impl Reading {
    /// What is left.
    #[must_use]
    pub fn free(&self) -> Bytes {
        self.usable.saturating_sub(self.used)
    }
}

/// What one process uses of a card, beside leased segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its number in the broker's pid namespace.
    pub pid: Pid,
    /// Its use.
    pub bytes: Bytes,
}

/// A process that uses a card and that no lease covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Its number.
    pub pid: Pid,
    /// Its user, where the kernel tells.
    pub uid: Option<Uid>,
    /// Its command, where the kernel tells.
    pub command: String,
    /// Its use.
    pub bytes: Bytes,
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, uid, command, bytes } = self;
        let user = uid.map_or_else(|| "a user that nobody knows".to_owned(), |uid| format!("user {uid}"));
        write!(f, "pid {pid} ({} of {user}) uses {bytes}", crate::text::shown(command))
    }
}

/// A card to watch.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The device it is.
    pub device: DeviceId,
    /// Its UUID.
    pub uuid: String,
    /// What of it may be leased.
    pub capacity: Bytes,
    /// What is set aside for a process's context until it is measured.
    pub overhead_estimate: Bytes,
    /// What exists on it by the broker's hand.
    pub gauge: Arc<Gauge>,
}

/// The living processes that have a session or are members of a lease, by number. The driver
/// writes it, the witness reads it to tell members from strangers.
pub type Roster = Arc<Mutex<BTreeMap<Pid, ProcessId>>>;

/// What the witness says of a device, once the broker's own part is taken off. Whoever books it raises what has grown
/// before he lowers the rest, so that no byte is free in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Testimony {
    /// What the device itself says is in use; `None`: it does not say.
    pub used: Option<Bytes>,
    /// What outsiders have taken within the capacity; `None`: nobody can tell.
    pub off_book: Option<Bytes>,
    /// What of the card is neither leased nor with any of them.
    pub unmanaged: Bytes,
    /// What members' contexts and libraries take, and what they allocated themselves. A member that never used the
    /// device is not among them; one that no longer does has zero.
    pub overheads: Vec<(ProcessId, Bytes)>,
    /// Users that no lease covers; `None`: the device does not tell.
    pub strangers: Option<Vec<Stranger>>,
}
