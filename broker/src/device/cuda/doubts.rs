//! What was credited although somebody may still have it.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{Bytes, Pid};

use super::standing::Standing;

/// A card with less free than this beside what is asked for is full: the last of it can't be had.
const ROOM: Bytes = Bytes::new(64 << 20);

/// Who was believed to have allocated what came free in the same instant, while he has it.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// The most that is credited so at one time.
    pub(super) most: Bytes,
    with: BTreeMap<Pid, Bytes>,
}

impl Doubts {
    /// Whether a process that has more by so much, and was never given the segment, allocated it: with so much free
    /// before he had no other way to it.
    pub(super) fn allocated(&mut self, pid: Pid, bytes: Bytes, free_before: Bytes) -> bool {
        let sum: Bytes = self.with.values().copied().chain([bytes]).sum();
        let did = free_before < bytes.saturating_add(ROOM) && sum <= self.most;
        if did {
            let with = self.with.entry(pid).or_default();
            *with = with.saturating_add(bytes);
            tracing::info!(%pid, "has {bytes} more since as much came free, and is believed to have allocated it");
        }
        did
    }

    /// Of those that have more by a piece of this size the ones that have the piece itself.
    pub(super) fn others_that_have_it(
        &mut self,
        grown: BTreeSet<Pid>,
        bytes: Bytes,
        free_before: Bytes,
    ) -> BTreeSet<Pid> {
        match grown.first() {
            Some(pid) if self.allocated(*pid, bytes, free_before) => BTreeSet::new(),
            Some(_) | None => grown,
        }
    }

    /// Who has less than what is in doubt with him has given it back.
    pub(super) fn settle(&mut self, now: &Standing) {
        for (pid, bytes) in &mut self.with {
            *bytes = now.of(*pid).min(*bytes);
        }
        self.with.retain(|_, bytes| !bytes.is_zero());
    }
}
