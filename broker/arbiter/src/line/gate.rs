//! A counted resource of an account: its bytes, or its number of leases.
//!
//! A gate is where a limit is kept and where barriers stand in front of it. An ask that became a
//! barrier *pledges* what it needs at each gate of its path, from its job up to the host; where
//! there is not enough, it is *parked* at that gate, and whoever comes later finds the gate closed.
//!
//! ```text
//!             has room                  has room
//!   climbs ------------> pledged here ------------> ... -----> collects on its devices
//!      \                     ^   \
//!       \ no room            |    \ the account was overrun, or an older ask came late: the youngest steps back
//!        `----> parked ------'     `----> parked
//!                     oldest first
//! ```
//!
//! Whoever pledged here goes before whoever is parked, by their [`Turn`]s: an ask that comes late,
//! because it was hopeless for a while, needs more now, or is covered by a guarantee, takes its place.

use std::collections::BTreeMap;

use crate::line::ask::Turn;

/// Whom room is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Anyone: behind all barriers.
    Newcomer,
    /// The oldest barrier parked here.
    Head,
}

/// A limit, what is used of it, and the barriers that stand in front of it. Counts bytes or leases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    limit: Option<u64>,
    used: u64,
    pledged: u128,
    pledges: BTreeMap<Turn, u64>,
    parked: BTreeMap<Turn, u64>,
}

impl Gate {
    /// An unused gate.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The operator says another limit: nobody loses what is used.
    pub(crate) fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    pub(crate) const fn limit(&self) -> Option<u64> {
        self.limit
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// What can be used more; `u64::MAX` where there is no limit.
    pub(crate) fn room(&self, standing: Standing) -> u64 {
        let Some(limit) = self.limit else {
            return u64::MAX;
        };
        let left = u128::from(limit.saturating_sub(self.used)).saturating_sub(self.pledged);
        match standing {
            Standing::Newcomer if !self.parked.is_empty() => 0,
            Standing::Newcomer | Standing::Head => u64::try_from(left).expect("at most the limit"),
        }
    }

    /// What could be used more if no barrier were waiting.
    pub(crate) const fn left(&self) -> u64 {
        match self.limit {
            Some(limit) => limit.saturating_sub(self.used),
            None => u64::MAX,
        }
    }

    pub(crate) fn take(&mut self, amount: u64) {
        self.used = self.used.checked_add(amount).expect("an account's use fits 64 bits");
    }

    pub(crate) fn give(&mut self, amount: u64) {
        let used = self.used;
        self.used = used
            .checked_sub(amount)
            .unwrap_or_else(|| panic!("{amount} of an account's {used} are credited"));
    }

    /// The ask pledges the amount, or is parked where older ones leave too little room. Younger
    /// ones are for [`Self::step_back`] then.
    pub(crate) fn climb(&mut self, ask: Turn, amount: u64) -> Climb {
        if amount > 0 && !self.has_room_behind_older(ask, amount) {
            self.parked.insert(ask, amount);
            return Climb::Parked;
        }
        self.pledge(ask, amount);
        Climb::Through
    }

    /// Looks at as many younger ones as would have to step back, from the youngest on.
    fn has_room_behind_older(&self, ask: Turn, amount: u64) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        if self.parked.first_key_value().is_some_and(|(first, _)| *first < ask) {
            return false;
        }
        let wanted = u128::from(self.used) + self.pledged + u128::from(amount);
        let mut missing = wanted.saturating_sub(u128::from(limit));
        let mut younger = self.pledges.range(ask..).rev();
        while missing > 0 {
            let Some((_, pledged)) = younger.next() else {
                return false;
            };
            missing = missing.saturating_sub(u128::from(*pledged));
        }
        true
    }

    /// The oldest parked ask for which there is room now, pledged.
    pub(crate) fn admit_head(&mut self) -> Option<Turn> {
        let (ask, amount) = self.parked.first_key_value().map(|(ask, amount)| (*ask, *amount))?;
        if self.room(Standing::Head) < amount {
            return None;
        }
        self.parked.remove(&ask);
        self.pledge(ask, amount);
        Some(ask)
    }

    /// The youngest pledge, where more is used and pledged than the limit allows, or an older ask
    /// is parked; it is parked now.
    pub(crate) fn step_back(&mut self) -> Option<Turn> {
        let overrun = u128::from(self.used) + self.pledged > u128::from(self.limit?);
        let youngest = *self.pledges.last_key_value()?.0;
        let overtakes = self.parked.first_key_value().is_some_and(|(oldest, _)| *oldest < youngest);
        if !overrun && !overtakes {
            return None;
        }
        let (ask, amount) = self.pledges.pop_last()?;
        self.pledged -= u128::from(amount);
        self.parked.insert(ask, amount);
        Some(ask)
    }

    /// The ask no longer waits here.
    pub(crate) fn forget(&mut self, ask: Turn) {
        self.parked.remove(&ask);
        if let Some(amount) = self.pledges.remove(&ask) {
            self.pledged -= u128::from(amount);
        }
    }

    /// How the ask stands here.
    pub(crate) fn stand_of(&self, ask: Turn) -> Stand {
        match (self.pledges.get(&ask), self.parked.get(&ask)) {
            (None, None) => Stand::Absent,
            (Some(amount), None) => Stand::Pledged(*amount),
            (None, Some(amount)) => Stand::Parked(*amount),
            (Some(_), Some(_)) => panic!("{ask:?} is both pledged and parked"),
        }
    }

    /// Every ask that stands here.
    pub(crate) fn asks(&self) -> impl Iterator<Item = Turn> {
        self.pledges.keys().chain(self.parked.keys()).copied()
    }

    /// Panics when the sum of the pledges is wrong, or when one that could pass is parked.
    pub(crate) fn check(&self) {
        let sum: u128 = self.pledges.values().map(|amount| u128::from(*amount)).sum();
        assert_eq!(sum, self.pledged, "an account's pledges");
        if let Some((ask, amount)) = self.parked.first_key_value() {
            assert!(self.room(Standing::Head) < *amount, "{ask:?} is parked where there is room for it");
            let youngest = self.pledges.last_key_value().map(|(pledged, _)| *pledged);
            assert!(youngest < Some(*ask), "{youngest:?} pledged and {ask:?}, which goes first, is parked");
        }
    }

    fn pledge(&mut self, ask: Turn, amount: u64) {
        if amount > 0 {
            self.pledged += u128::from(amount);
            self.pledges.insert(ask, amount);
        }
    }
}

/// How a climb at one gate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Climb {
    /// The amount is pledged.
    Through,
    /// There is no room: the ask waits at this gate.
    Parked,
}

/// How an ask stands at a gate, with what it takes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    Absent,
    Pledged(u64),
    Parked(u64),
}
