//! Who has what came back, where a process that was never given it has more by as much.
//!
//! One who takes a piece in the instant in which it comes free shows the same figures as one who
//! has it mapped by a descriptor that was passed on: its use has grown, and the card's has not. No
//! reading tells them apart, so it goes by who he is. Of another user than those who were given the
//! segment he took it for himself: it is off the book, under his name. One of the same user has the
//! segment where the card had room, since nobody has to wait for that instant then. Where it had none
//! he took it for himself, too, but only up to an amount, since a tenant who passes descriptors on to
//! himself could have all of the card in this way. Beyond it the segment stays with him, and is
//! charged to its lease.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{Bytes, Pid, Uid};

use super::drain::Tenants;
use super::standing::Standing;
use crate::witness::people;

/// A card with less free than this beside what is asked for is full: the last of it can't be had.
const ROOM: Bytes = Bytes::new(64 << 20);

/// What was credited although a process of the tenant's own user may still have it.
#[derive(Debug)]
pub(super) struct Doubts {
    most: Bytes,
    with: BTreeMap<Pid, Bytes>,
    user_of: fn(Pid) -> Option<Uid>,
}

impl Default for Doubts {
    fn default() -> Self {
        Self { most: Bytes::ZERO, with: BTreeMap::new(), user_of: people::user }
    }
}

impl Doubts {
    /// None but those of these users are known.
    #[cfg(test)]
    pub(super) fn among(user_of: fn(Pid) -> Option<Uid>) -> Self {
        Self { user_of, ..Self::default() }
    }

    /// So much is credited in doubt at one time from now on.
    pub(super) fn at_most(&mut self, bytes: Bytes) {
        self.most = bytes;
    }

    /// Of those that have more by a piece of this size and were never given it, the ones that have the piece itself.
    pub(super) fn holders(
        &mut self,
        grown: BTreeSet<Pid>,
        bytes: Bytes,
        tenants: &Tenants,
        free_before: Bytes,
    ) -> BTreeSet<Pid> {
        grown.into_iter().filter(|pid| !self.is_his_own(*pid, bytes, tenants, free_before)).collect()
    }

    /// Whether a process that has more by so much, and was never given a segment, is believed to have taken it for
    /// itself, where so much was free before.
    pub(super) fn is_his_own(
        &mut self,
        pid: Pid,
        bytes: Bytes,
        tenants: &Tenants,
        free_before: Bytes,
    ) -> bool {
        if (self.user_of)(pid).is_some_and(|user| tenants.are_others(user)) {
            return true;
        }
        let sum: Bytes = self.with.values().copied().chain([bytes]).sum();
        let had_to_wait = free_before < bytes.saturating_add(ROOM) && sum <= self.most;
        if had_to_wait {
            let with = self.with.entry(pid).or_default();
            *with = with.saturating_add(bytes);
            tracing::info!(%pid, "has {bytes} more since as much came free, and is believed to have allocated it");
        }
        had_to_wait
    }

    /// What a process has less than at the latest reading, or all where it is gone, is in doubt no more.
    pub(super) fn settle(&mut self, latest: &Standing, now: &Standing) {
        for (pid, bytes) in &mut self.with {
            let fallen = match now.listed.contains_key(pid) {
                true => latest.growth_since(now, *pid),
                false => Bytes::MAX,
            };
            *bytes = bytes.saturating_sub(fallen);
        }
        self.with.retain(|_, bytes| !bytes.is_zero());
    }
}
