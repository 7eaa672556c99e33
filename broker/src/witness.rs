//! The witness: what the card itself says is used, and by whom.
//!
//! It reads, it never decides. Without NVML there is no witness, and every figure it would have
//! given is unknown, never zero.

use gpulease_words::{Bytes, Pid, Uid};

/// What a card says at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// All that is in use, the driver's own reserve not counted.
    pub used: Bytes,
    /// What may be used at all.
    pub usable: Bytes,
    /// Use by process, the broker and its helpers included; `None`: the card does not tell it.
    pub processes: Option<Vec<ProcessUse>>,
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
