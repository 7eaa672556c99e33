//! By when an ask is granted at the latest (I6, I7), provided that whoever is recalled answers in time.
//!
//! Let `k` be the asks that go before it on its devices. Each of them, and then the ask itself, is served in
//! one *round*: the last of the leases to be suspended has had its memory for long enough, surplus is
//! not given by its deadline, the members drain at the last moment, and all of the device is swapped out:
//!
//! ```text
//! round    = residency + recall_deadline + drain_deadline + swap
//! lent:       barrier_at + (k + 1) x round
//! guaranteed: since + recall_deadline + drain_deadline + swap
//! ```
//!
//! The first holds for an ask that fits what is left when all that can't be recalled from others is taken away:
//! outsiders, contexts, others' guarantees, and what is or may be pinned. ARCHITECTURE.md derives it.

use std::collections::BTreeMap;
use std::time::Duration;

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::line::ask::{Ask, Right, Turn};
use crate::line::shape::Use;
use crate::{Arbiter, Time};

impl Arbiter {
    /// By when each ask is granted at the latest; whom nothing bounds is not in it.
    pub(crate) fn latest(&self) -> BTreeMap<AskId, Time> {
        if !self.accounts.stores.bind() {
            return BTreeMap::new();
        }
        let mut turns: Vec<Turn> = self.line.asks.values().map(Ask::turn).collect();
        turns.sort_unstable();
        let mut before: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let mut latest = BTreeMap::new();
        for ask in turns.into_iter().map(|turn| self.line.get(turn.ask)) {
            let devices = self.could_be_on(ask);
            let ahead = devices.iter().filter_map(|device| before.get(device)).max().copied().unwrap_or(0);
            if let Some(at) = self.latest_of(ask, &devices, ahead).filter(|at| *at >= self.now) {
                latest.insert(ask.id, at);
            }
            devices.into_iter().for_each(|device| *before.entry(device).or_default() += 1);
        }
        latest
    }

    fn could_be_on(&self, ask: &Ask) -> Vec<DeviceId> {
        match ask.needs() {
            [] => self.line.needs_anywhere(ask, &self.ledger).into_iter().map(|(device, _)| device).collect(),
            needs => needs.iter().map(|(device, _)| *device).collect(),
        }
    }

    fn latest_of(&self, ask: &Ask, devices: &[DeviceId], ahead: u32) -> Option<Time> {
        let largest = devices.iter().map(|device| self.ledger.book(*device).capacity).max()?;
        let answer = self.policy.recall_deadline + self.policy.drain_deadline + self.swap_time(largest);
        match ask.right {
            Right::Returning => None,
            Right::Guaranteed => Some(ask.since.plus(answer)),
            Right::Lent => {
                let bounded = match self.line.shape_of(ask).purpose {
                    Use::Lease | Use::Resume => self.is_within_promise(ask),
                    Use::Growth => false,
                };
                let round = self.longest_residency(largest) + answer;
                let rounds = round.checked_mul(ahead.saturating_add(1)).unwrap_or(Duration::MAX);
                bounded.then(|| ask.barrier_at.plus(rounds))
            }
        }
    }

    /// What is pinned of the device, or may be before the ask is granted: behind a barrier nobody pins more, but
    /// for barriers that pledged it.
    fn could_be_pinned(&self, ask: &Ask, device: DeviceId) -> Bytes {
        let (pinned, pinned_max) = self.accounts.pinned_figures(device, self.ledger.book(device).capacity);
        match ask.post() {
            None => pinned.max(pinned_max),
            Some(_) => pinned.max(pinned_max.saturating_sub(self.accounts.pinned_left(device))),
        }
    }

    /// Whether all that can't be recalled leaves enough for it, on as many devices as it wants.
    fn is_within_promise(&self, ask: &Ask) -> bool {
        let (arena, others) = (self.policy.arena, self.accounts.guaranteed_to_others(ask.account));
        let fits = |(device, need): &&(DeviceId, Bytes)| {
            let book = self.ledger.book(*device);
            let taken = [book.charge.overhead, others, self.could_be_pinned(ask, *device)];
            let left = taken.into_iter().fold(book.ceiling(), Bytes::saturating_sub);
            *need <= left
        };
        let needs = self.line.needs_anywhere(ask, &self.ledger);
        !arena.is_zero() && needs.iter().filter(fits).count() >= self.line.shape_of(ask).count() as usize
    }
}
