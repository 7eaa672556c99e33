//! What barriers hold back on each device.
//!
//! For an ask that is no barrier a device has `free - (sum of what barriers collect there)` to
//! give; for a barrier, `free - (sum of what those before it collect there)`. Their order is by
//! [`Turn`], the same on all devices, so two barriers never wait for each other.
//!
//! The oldest barrier on a device that is not granted needs more than is free there, or waits for
//! another device; so a walk by age soon finds nothing left and stops. Its cost grows with the
//! barriers on several devices that fit on this one and wait for another, not with all of them.
//!
//! A barrier that needs more than a device could give if every lease on it ended (outsiders have
//! the rest, or it can't be proven free) is hopeless for now: it holds nothing back, else one
//! outsider would keep everybody off the card.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::ledger::Ledger;
use crate::line::ask::{Ask, Post, Turn};

/// What barriers do on one device.
#[derive(Debug, Default)]
struct Pile {
    collecting: BTreeMap<Turn, Bytes>,
    held_back: u128,
    /// All barriers that are not hopeless, by what they need.
    hopeful: BTreeSet<(Bytes, AskId)>,
    hopeless: BTreeSet<(Bytes, AskId)>,
}

/// The piles of all devices.
#[derive(Debug, Default)]
pub(crate) struct Piles {
    on: BTreeMap<DeviceId, Pile>,
    /// Who is hopeless, and what is needed on each device that can't give it.
    hopeless: BTreeMap<AskId, Vec<(DeviceId, Bytes)>>,
}

impl Piles {
    /// What the device has to give to a barrier of that turn, `None` for one that is no barrier.
    pub(crate) fn left(&self, device: DeviceId, free: Bytes, turn: Option<Turn>) -> Bytes {
        let Some(pile) = self.on.get(&device) else {
            return free;
        };
        let Some(turn) = turn else {
            return u64::try_from(pile.held_back)
                .map_or(Bytes::ZERO, |held| free.saturating_sub(Bytes::new(held)));
        };
        let mut left = free;
        for (_, need) in pile.collecting.range(..turn) {
            if left.is_zero() {
                break;
            }
            left = left.saturating_sub(*need);
        }
        left
    }

    /// A barrier that is not hopeless comes to its devices.
    pub(crate) fn hope(&mut self, ask: AskId, needs: &[(DeviceId, Bytes)]) {
        for (device, need) in needs {
            self.pile(*device).hopeful.insert((*need, ask));
        }
    }

    /// A barrier starts to hold back what it needs.
    pub(crate) fn collect(&mut self, turn: Turn, needs: &[(DeviceId, Bytes)]) {
        for (device, need) in needs {
            let pile = self.pile(*device);
            let before = pile.collecting.insert(turn, *need);
            assert!(before.is_none(), "{turn:?} collects twice on device {device}");
            pile.held_back += u128::from(need.get());
        }
    }

    /// A barrier stops to hold anything back.
    pub(crate) fn let_go(&mut self, turn: Turn, needs: &[(DeviceId, Bytes)]) {
        for (device, _) in needs {
            let pile = self.pile(*device);
            if let Some(need) = pile.collecting.remove(&turn) {
                pile.held_back -= u128::from(need.get());
            }
        }
    }

    /// A barrier, already forgotten, finds that these devices can't give so much.
    pub(crate) fn despair(&mut self, ask: AskId, of: Vec<(DeviceId, Bytes)>) {
        for (device, need) in &of {
            self.pile(*device).hopeless.insert((*need, ask));
        }
        let before = self.hopeless.insert(ask, of);
        assert!(before.is_none(), "{ask} despairs twice");
    }

    /// A barrier is none any more.
    pub(crate) fn forget(&mut self, turn: Turn, needs: &[(DeviceId, Bytes)]) {
        self.let_go(turn, needs);
        let ask = turn.ask;
        for (device, need) in needs {
            let pile = self.pile(*device);
            pile.hopeful.remove(&(*need, ask));
        }
        for (device, need) in self.hopeless.remove(&ask).unwrap_or_default() {
            self.pile(device).hopeless.remove(&(need, ask));
        }
    }

    /// A barrier whose outlook changed: the device can't give so much any more, or can again.
    pub(crate) fn turned(&self, device: DeviceId, ledger: &Ledger) -> Option<AskId> {
        let pile = self.on.get(&device)?;
        let ceiling = ledger.book(device).ceiling();
        let lost = pile.hopeful.last().filter(|(need, _)| *need > ceiling);
        let found = pile.hopeless.first().filter(|(need, _)| *need <= ceiling);
        lost.or(found).map(|(_, ask)| *ask)
    }

    /// The oldest barrier for which there is room on all its devices.
    pub(crate) fn first_fit<'a>(
        &self,
        ledger: &Ledger,
        needs: impl Fn(AskId) -> &'a [(DeviceId, Bytes)],
    ) -> Option<AskId> {
        let mut left: BTreeMap<DeviceId, Bytes> = BTreeMap::new();
        let mut heads: BTreeMap<DeviceId, _> = BTreeMap::new();
        for (device, pile) in self.on.iter().filter(|(_, pile)| !pile.collecting.is_empty()) {
            left.insert(*device, ledger.book(*device).free);
            heads.insert(*device, pile.collecting.keys().copied().peekable());
        }
        loop {
            heads.retain(|device, head| !left[device].is_zero() && head.peek().is_some());
            let next = heads.values_mut().filter_map(|head| head.peek().copied()).min()?;
            let wanted = needs(next.ask);
            if wanted.iter().all(|(device, need)| left[device] >= *need) {
                return Some(next.ask);
            }
            for (device, need) in wanted {
                let here = left.get_mut(device).expect("the ask collects on all its devices");
                *here = here.saturating_sub(*need);
            }
            for head in heads.values_mut() {
                head.next_if_eq(&next);
            }
        }
    }

    /// Barriers that hold nothing back, because nobody could give what they need.
    pub(crate) fn hopeless(&self) -> impl Iterator<Item = AskId> {
        self.hopeless.keys().copied()
    }

    /// Those who collect on the device, in their order, with what they need there.
    pub(crate) fn collecting(&self, device: DeviceId) -> impl Iterator<Item = (Turn, Bytes)> {
        let pile = self.on.get(&device);
        pile.into_iter().flat_map(|pile| pile.collecting.iter().map(|(turn, need)| (*turn, *need)))
    }

    /// Panics when the sums are not what they should be, or the barriers other than the line's.
    pub(crate) fn check<'a>(&self, barriers: impl Iterator<Item = &'a Ask> + Clone) {
        for (device, pile) in &self.on {
            let sum: u128 = pile.collecting.values().map(|need| u128::from(need.get())).sum();
            assert_eq!(sum, pile.held_back, "what barriers hold back on device {device}");
            let here = barriers.clone().filter_map(|ask| {
                let need = ask.needs().iter().find(|(d, _)| d == device)?;
                Some((ask.turn(), need.1, ask.post()?))
            });
            let with = |wanted: fn(Post, DeviceId) -> bool| {
                here.clone()
                    .filter(move |(_, _, post)| wanted(*post, *device))
                    .map(|(turn, need, _)| (need, turn))
            };
            let collecting: BTreeSet<_> = pile.collecting.iter().map(|(turn, need)| (*need, *turn)).collect();
            assert_eq!(
                collecting,
                with(|post, _| post.collects()).collect(),
                "who collects on device {device}"
            );
            let hopeful = with(|post, _| post != Post::Hopeless).map(|(need, turn)| (need, turn.ask));
            assert_eq!(pile.hopeful, hopeful.collect());
        }
        let hopeless = barriers.filter(|ask| ask.post() == Some(Post::Hopeless)).map(|ask| ask.id);
        assert!(self.hopeless.keys().copied().eq(hopeless), "who is hopeless");
        let here = self.hopeless.iter().flat_map(|(ask, of)| of.iter().map(|(d, need)| (*d, (*need, *ask))));
        let there = self.on.iter().flat_map(|(d, pile)| pile.hopeless.iter().map(|entry| (*d, *entry)));
        assert_eq!(here.collect::<BTreeSet<_>>(), there.collect(), "who is hopeless where");
    }

    fn pile(&mut self, device: DeviceId) -> &mut Pile {
        self.on.entry(device).or_default()
    }
}
