//! When the arbiter wants to be woken, each wake-up with its one reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Time, Why};

/// At most one time for each reason; the earliest is found and taken in O(log n).
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(Time, Why)>,
    by_why: BTreeMap<Why, Time>,
}

impl Timers {
    /// Wakes at `at` for this reason, instead of any earlier setting.
    pub(crate) fn set(&mut self, why: Why, at: Time) {
        if self.due(why) == Some(at) {
            return;
        }
        self.cancel(why);
        self.by_why.insert(why, at);
        self.by_time.insert((at, why));
    }

    /// Forgets the wake-up, if one was set.
    pub(crate) fn cancel(&mut self, why: Why) {
        if let Some(at) = self.by_why.remove(&why) {
            self.by_time.remove(&(at, why));
        }
    }

    /// When the wake-up for this reason is due.
    pub(crate) fn due(&self, why: Why) -> Option<Time> {
        self.by_why.get(&why).copied()
    }

    /// The earliest wake-up.
    pub(crate) fn first(&self) -> Option<(Time, Why)> {
        self.by_time.first().copied()
    }

    /// Takes the earliest wake-up that is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Why> {
        let (_, why) = self.first().filter(|(at, _)| *at <= now)?;
        self.cancel(why);
        Some(why)
    }

    /// Every reason that has a wake-up.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = Why> {
        self.by_why.keys().copied()
    }
}
