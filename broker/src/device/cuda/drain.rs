//! A piece of a segment that is on its way back, and where it may be.

use std::collections::BTreeSet;

use gpulease_words::{Bytes, Pid, SegmentId};

use super::doubts::Doubts;
use super::standing::Standing;

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
    /// The processes that were given the segment.
    pub(super) given: BTreeSet<Pid>,
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
    pub(super) given: BTreeSet<Pid>,
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
        let holders = match (self.came, &grown & &self.given) {
            // Nobody has it, whatever has grown since who knows when.
            (Return::Whole | Return::Part, _) if !in_time => BTreeSet::new(),
            (_, known) if !known.is_empty() => known,
            (Return::Whole | Return::Part, _) => BTreeSet::new(),
            (Return::Nothing | Return::Unknown, _) => {
                doubts.others_that_have_it(grown, self.bytes, since.free)
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
    pub(super) fn elsewhere(&self) -> Place {
        match self.missing {
            Missing::Nothing => Place::Back,
            Missing::Perhaps => Place::Unlisted,
        }
    }

    /// The one process that is believed to have it and was never given it.
    pub(super) fn doubtful_holder(&self) -> Option<Pid> {
        let Place::Listed(holders) = &self.place else { return None };
        let is_alone = holders.len() == 1 && self.came != Return::Unknown;
        holders.first().copied().filter(|pid| is_alone && !self.given.contains(pid))
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
