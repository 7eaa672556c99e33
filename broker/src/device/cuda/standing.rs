//! How a card stands.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{Bytes, Pid};

use crate::witness::{ProcessUse, Reading};

/// A reading, brought to what matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Negative where the card counts the memory of two importers twice.
    pub(super) unlisted: i64,
    pub(super) listed: BTreeMap<Pid, Bytes>,
    /// What nobody has.
    pub(super) free: Bytes,
}

impl Standing {
    /// The standing at a reading, while the broker had handles of `handled` bytes. Those would be on its own list if
    /// its process had a context, as one that a broker is embedded in may have; so that list is left out.
    pub(super) fn new(reading: &Reading, handled: Bytes) -> Self {
        let own = Pid::new(std::process::id());
        let uses = reading.processes.iter().flatten().filter(|process| process.pid != own);
        let listed: BTreeMap<Pid, Bytes> = uses.map(|&ProcessUse { pid, bytes }| (pid, bytes)).collect();
        let unlisted =
            signed(reading.used) - listed.values().map(|b| signed(*b)).sum::<i64>() - signed(handled);
        Self { unlisted, listed, free: reading.free() }
    }

    /// The processes whose use is at least this.
    pub(super) fn at_least(&self, bytes: Bytes) -> BTreeSet<Pid> {
        self.listed.iter().filter(|(_, used)| **used >= bytes).map(|(pid, _)| *pid).collect()
    }

    /// The processes whose use has grown by at least this.
    pub(super) fn grown(&self, earlier: &Self, bytes: Bytes) -> BTreeSet<Pid> {
        self.listed.keys().copied().filter(|pid| self.growth_since(earlier, *pid) >= bytes).collect()
    }

    /// By how much a process's use is above what it was.
    pub(super) fn growth_since(&self, earlier: &Self, pid: Pid) -> Bytes {
        self.of(pid).saturating_sub(earlier.of(pid))
    }

    pub(super) fn of(&self, pid: Pid) -> Bytes {
        self.listed.get(&pid).copied().unwrap_or_default()
    }
}

pub(super) fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).expect("no card has 2^63 bytes")
}
