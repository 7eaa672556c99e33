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
mod watch;

pub use card::{Card, Cards};
pub use doctor::{Finding, Verdict, doctor};
pub use watch::Witness;

use std::collections::BTreeMap;
use std::sync::Arc;

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

/// A card to watch.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The device it is.
    pub device: DeviceId,
    /// Its UUID.
    pub uuid: String,
    /// What of it may be leased.
    pub capacity: Bytes,
    /// What exists on it by the broker's hand.
    pub gauge: Arc<Gauge>,
}

/// The living processes of leases: whose use of a card is overhead and not a stranger's.
pub type Members = BTreeMap<Pid, ProcessId>;

/// How a card stands, sent when it has changed. Whoever books it raises what has grown before lowering the rest, so that
/// no byte is free in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Which device.
    pub device: DeviceId,
    /// All that is in use; `None`: the card does not say.
    pub used: Option<Bytes>,
    /// What outsiders take of the capacity; `None`: nobody can tell.
    pub off_book: Option<Bytes>,
    /// What each member's context and libraries take, and what it allocated itself. A member that never used the card
    /// is not among them; one that no longer does has zero.
    pub overheads: BTreeMap<ProcessId, Bytes>,
    /// Who else uses the card.
    pub strangers: Vec<Stranger>,
}
