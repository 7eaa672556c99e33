//! A piece of a segment that is on its way back, and where it may be.

use std::collections::BTreeSet;

use gpulease_words::{Bytes, Pid, SegmentId, Uid};

use super::doubts::Doubts;
use super::standing::Standing;
use crate::witness::people;

/// What the broker saw of a piece in the instant in which it gave the handle up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// All of it came free, or was made anew.
    Whole,
    /// Some of it.
    Part,
    /// None of it.
    Nothing,
    /// The card did not say.
    Unknown,
}

/// How a segment's handles were given up.
#[derive(Clone, Debug, Default)]
pub(super) struct Passage {
    /// The standing just before, if the card stood still.
    pub(super) before: Option<Standing>,
    pub(super) tenants: Tenants,
}

/// Who was given a segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenants {
    pub(super) pids: BTreeSet<Pid>,
    /// Their users, where the kernel told.
    users: BTreeSet<Uid>,
}

impl Tenants {
    /// A process was given it, and lives.
    pub(super) fn add(&mut self, pid: Pid) {
        self.pids.insert(pid);
        self.users.extend(people::user(pid));
    }

    /// Those of this user, whoever they are.
    #[cfg(test)]
    pub(super) fn of(pid: Pid, user: Uid) -> Self {
        Self { pids: [pid].into(), users: [user].into() }
    }

    /// Whether they are known and none is of this user.
    pub(super) fn are_others(&self, user: Uid) -> bool {
        !self.users.is_empty() && !self.users.contains(&user)
    }
}

/// A piece on its way back.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) segment: SegmentId,
    pub(super) bytes: Bytes,
    pub(super) place: Place,
    pub(super) came: Return,
    /// Whether it would be back if nobody's list had it, as it was first looked for.
    pub(super) missing: Missing,
    pub(super) tenants: Tenants,
}

/// Whether what is on no list has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Nothing,
    Perhaps,
}

/// Where a segment's bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not looked for yet; the standing before the release.
    Unseen(Option<Standing>),
    /// On these processes' lists.
    Listed(BTreeSet<Pid>),
    /// On no list, or back.
    Unlisted,
    Back,
}

impl Drain {
    /// Looks for the first time where the bytes are; the holders, if there are any.
    pub(super) fn find(
        &mut self,
        now: &Standing,
        latest: &Standing,
        before_it: Bytes,
        doubts: &mut Doubts,
    ) -> Option<BTreeSet<Pid>> {
        let Place::Unseen(before) = &self.place else { return None };
        let since = before.as_ref().unwrap_or(latest);
        let grown = now.grown(since, self.bytes.saturating_add(before_it));
        let in_time = before.is_some();
        let holders = match (self.came, &grown & &self.tenants.pids) {
            // Nobody has it, whatever has grown since who knows when.
            (Return::Whole | Return::Part, _) if !in_time => BTreeSet::new(),
            (_, known) if !known.is_empty() => known,
            (Return::Whole | Return::Part, _) => BTreeSet::new(),
            (Return::Nothing | Return::Unknown, _) => {
                doubts.holders(grown, self.bytes, &self.tenants, since.free)
            }
        };
        let is_there = match before {
            Some(before) => now.unlisted <= before.unlisted,
            None => self.came == Return::Whole,
        };
        self.missing = if is_there { Missing::Nothing } else { Missing::Perhaps };
        self.place = if holders.is_empty() { self.elsewhere() } else { Place::Listed(holders.clone()) };
        Some(holders)
    }

    /// Where it is if no list has it.
    fn elsewhere(&self) -> Place {
        match self.missing {
            Missing::Nothing => Place::Back,
            Missing::Perhaps => Place::Unlisted,
        }
    }

    pub(super) fn is_with(&self, pid: Pid) -> bool {
        matches!(&self.place, Place::Listed(holders) if holders.contains(&pid))
    }

    pub(super) fn leave(&mut self, pid: Pid) {
        if let Place::Listed(holders) = &mut self.place {
            holders.remove(&pid);
            if holders.is_empty() {
                self.place = Place::Unlisted;
            }
        }
    }
}

pub(super) fn listed(holders: BTreeSet<Pid>) -> Place {
    if holders.is_empty() { Place::Unlisted } else { Place::Listed(holders) }
}
