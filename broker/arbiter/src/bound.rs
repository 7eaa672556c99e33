//! By when an ask is granted at the latest (I6, I7), provided that whoever is recalled answers in time.
//!
//! Let `k` be the asks that go before it on its devices. Each of them, and then the ask itself, is served in
//! one *round*: the last of the leases to be suspended has had its memory for long enough, surplus is
//! not given by its deadline, the members drain at the last moment, and all of the device is swapped out:
//!
//! ```text
//! round    = residency + recall_deadline + drain_deadline + swap
//! lent:       barrier_at + (k + 1) x round
//! guaranteed: covered_at + recall_deadline + drain_deadline + swap
//! ```
//!
//! Nobody gives way for an account's limit, for what may be pinned or for host memory: who waits for these is
//! promised nothing, nor are those behind one whom nothing bounds. Else the first holds for an ask that fits what is
//! left when all that can't be recalled is taken away: outsiders, contexts, what guarantees protect
//! ([`crate::bedrock`]), and what is or may be pinned. ARCHITECTURE.md derives it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::bedrock::Bedrock;
use crate::line::ask::{Ask, Post, Right, Stage, Turn};
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
        // Devices for which somebody waits whom nothing bounds: nor does anything those behind him.
        let mut open: BTreeSet<DeviceId> = BTreeSet::new();
        let bedrock = self.bedrock();
        let mut latest = BTreeMap::new();
        for ask in turns.into_iter().map(|turn| self.line.get(turn.ask)) {
            let devices = self.could_be_on(ask);
            let ahead = devices.iter().filter_map(|device| before.get(device)).max().copied().unwrap_or(0);
            let behind_open = ask.right == Right::Lent && devices.iter().any(|device| open.contains(device));
            let at =
                self.latest_of(ask, &devices, ahead, &bedrock).filter(|at| *at >= self.now && !behind_open);
            latest.extend(at.map(|at| (ask.id, at)));
            if ask.post() != Some(Post::Hopeless) && !self.is_bounded(ask, &bedrock) {
                open.extend(devices.iter().copied());
            }
            devices.into_iter().for_each(|device| *before.entry(device).or_default() += 1);
        }
        latest
    }

    /// Whether the ask, once its accounts have room for it, is served in one round.
    fn is_bounded(&self, ask: &Ask, bedrock: &Bedrock) -> bool {
        match (ask.right, self.line.shape_of(ask).purpose) {
            (Right::Returning | Right::Guaranteed, _) => true,
            (Right::Lent, Use::Lease | Use::Resume) => self.is_within_promise(ask, bedrock),
            (Right::Lent, Use::Growth) => false,
        }
    }

    fn could_be_on(&self, ask: &Ask) -> Vec<DeviceId> {
        match ask.needs() {
            [] => self.line.needs_anywhere(ask, &self.ledger).into_iter().map(|(device, _)| device).collect(),
            needs => needs.iter().map(|(device, _)| *device).collect(),
        }
    }

    fn latest_of(&self, ask: &Ask, devices: &[DeviceId], ahead: u32, bedrock: &Bedrock) -> Option<Time> {
        let largest = devices.iter().map(|device| self.ledger.book(*device).capacity).max()?;
        let answer = self.policy.recall_deadline + self.policy.drain_deadline + self.swap_time(largest);
        match ask.right {
            Right::Returning => None,
            Right::Guaranteed => self.waits_for_devices_alone(ask).then(|| ask.covered_at.plus(answer)),
            Right::Lent => {
                let bounded = self.waits_for_devices_alone(ask) && self.is_bounded(ask, bedrock);
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
    fn is_within_promise(&self, ask: &Ask, bedrock: &Bedrock) -> bool {
        let arena = self.policy.arena;
        let fits = |(device, need): &&(DeviceId, Bytes)| {
            let book = self.ledger.book(*device);
            let pinned = self.could_be_pinned(ask, *device);
            let taken = [book.charge.overhead, pinned, self.out_of_reach(bedrock, ask, *device)];
            let left = taken.into_iter().fold(book.ceiling(), Bytes::saturating_sub);
            *need <= left
        };
        let needs = match (ask.needs(), &ask.stage, ask.lease()) {
            (_, Stage::Leaving, Some(lease)) => {
                let of = &self.leases[&lease];
                of.shares.keys().map(|device| (*device, of.whole(*device))).collect()
            }
            ([], ..) => self.line.needs_anywhere(ask, &self.ledger),
            (bound, ..) => bound.to_vec(),
        };
        !arena.is_zero() && needs.iter().filter(fits).count() >= self.line.shape_of(ask).count() as usize
    }
}
