//! By when an ask is granted at the latest (I6, I7), computed from the facts; and whether that was kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_arbiter::{DeviceWish, Time};
use gpulease_words::{Bytes, DeviceId};

use super::ledger::{Tally, add};
use super::line::Kept;
use super::{Aim, Model, Standing};

/// What devices and the kernel take, which the promise does not count.
const PROMISE_SLACK: Duration = Duration::from_secs(2);

impl Model {
    /// The asks with the time that the rules promise to each, and how many go before it; whom nothing bounds is not in it.
    pub(super) fn promises(&self) -> BTreeMap<usize, (Time, u32)> {
        let mut promises = BTreeMap::new();
        if !self.binds() {
            return promises;
        }
        let tally = self.tally();
        let kept = self.kept(&tally, |_| true);
        let mut all: Vec<usize> = self.hoping().map(|(i, _)| i).collect();
        all.sort_by_key(|i| self.turn(*i));
        let mut before: BTreeMap<DeviceId, u32> = BTreeMap::new();
        // Devices for which somebody waits whom nothing bounds.
        let mut open: BTreeSet<DeviceId> = BTreeSet::new();
        for index in all {
            let devices = self.could_be_on(index);
            let ahead = devices.iter().filter_map(|device| before.get(device)).max().copied().unwrap_or(0);
            let ask = &self.asks[index];
            let lent = !ask.guaranteed && !ask.returning;
            let behind_open = lent && devices.iter().any(|device| open.contains(device));
            let promise = self.promise(&tally, &kept, index, &devices, ahead).filter(|_| !behind_open);
            promises.extend(promise.map(|at| (index, (at, ahead))));
            let hopeless = self.is_barrier(ask) && self.is_hopeless(&tally, ask, &devices);
            if lent && !hopeless && !self.is_bounded(&tally, &kept, index, &devices) {
                open.extend(devices.iter().copied());
            }
            devices.into_iter().for_each(|device| *before.entry(device).or_default() += 1);
        }
        promises
    }

    /// Nobody to whom a time is promised waits longer than the rules allow, counted from when it was promised
    /// without a break: the asks before it then, and those that guarantees put before it since, have a round each.
    pub(super) fn keep_promises(
        &mut self,
        promises: &BTreeMap<usize, (Time, u32)>,
    ) -> Result<(), super::Broken> {
        let (now, covered) = (self.now, std::mem::take(&mut self.newly_covered));
        for (index, ask) in self.asks.iter_mut().enumerate() {
            ask.promised = promises.get(&index).map(|(_, ahead)| {
                let (since, most) = ask.promised.unwrap_or((now, *ahead));
                (since, most.max(*ahead).saturating_add(covered))
            });
        }
        for (index, ask) in self.asks.iter().enumerate().filter(|_| self.upright) {
            let Some((since, most)) = ask.promised else { continue };
            let largest =
                self.could_be_on(index).into_iter().filter_map(|id| self.device(id)).map(|d| d.capacity);
            let swap = self.swap_time(largest.max().unwrap_or(Bytes::ZERO));
            let answer = self.policy.recall_deadline + self.policy.drain_deadline + swap;
            let round = self.policy.min_residency.max(swap * 10) + answer;
            let at = match ask.guaranteed {
                true => ask.covered_at.max(since).plus(answer),
                false => self.barrier_at(ask).max(since).plus(round * (most + 1)),
            };
            super::ensure!(
                at.plus(PROMISE_SLACK) >= now,
                "I6: {ask:?} was to be granted by {at:?}, and still waits: {}",
                self.describe_all()
            );
        }
        Ok(())
    }

    fn could_be_on(&self, index: usize) -> Vec<DeviceId> {
        let ask = &self.asks[index];
        if self.is_barrier(ask) || ask.guaranteed {
            return self.barrier_devices(index);
        }
        match &ask.aim {
            Aim::Lease { terms, .. } => match &terms.devices {
                DeviceWish::These(these) => these.iter().copied().collect(),
                DeviceWish::Any(_) => {
                    self.devices.iter().filter(|fact| !fact.lost).map(|fact| fact.id).collect()
                }
            },
            Aim::Growth { device, .. } => vec![*device],
            Aim::Resume { lease } => self.leases[lease].devices.clone(),
        }
    }

    fn promise(
        &self,
        tally: &Tally,
        kept: &Kept,
        index: usize,
        devices: &[DeviceId],
        ahead: u32,
    ) -> Option<Time> {
        let ask = &self.asks[index];
        let capacity = |device: &DeviceId| self.device(*device).map(|fact| fact.capacity);
        let largest = devices.iter().filter_map(capacity).max()?;
        let swap = self.swap_time(largest);
        let answer = self.policy.recall_deadline + self.policy.drain_deadline + swap;
        if ask.returning {
            return None;
        }
        if !self.waits_for_devices_alone(tally, kept, index) {
            return None;
        }
        if ask.guaranteed {
            return Some(ask.covered_at.plus(answer));
        }
        if !self.is_bounded(tally, kept, index, devices) {
            return None;
        }
        let round = self.policy.min_residency.max(swap * 10) + answer;
        let rounds = round.checked_mul(ahead.saturating_add(1)).unwrap_or(Duration::MAX);
        Some(self.barrier_at(ask).plus(rounds))
    }

    /// Whether a lent ask is served in one round, once its accounts have room for it.
    fn is_bounded(&self, tally: &Tally, kept: &Kept, index: usize, devices: &[DeviceId]) -> bool {
        let grows = matches!(self.asks[index].aim, Aim::Growth { .. });
        !grows && !self.policy.arena.is_zero() && self.is_within_promise(tally, kept, index, devices)
    }

    /// Whether its accounts and the stores have room for it.
    fn waits_for_devices_alone(&self, tally: &Tally, kept: &Kept, index: usize) -> bool {
        let ask = &self.asks[index];
        if self.is_barrier(ask) {
            return kept.collecting.contains(&index);
        }
        let mut devices = self.could_be_on(index);
        if let Aim::Lease { terms, .. } = &ask.aim {
            let missing = |device: &DeviceId| {
                let need = self.need(ask, *device);
                let pins = self.would_pin(ask, *device, self.would_move(ask)) > self.pinned_max(*device);
                let beyond =
                    need > self.ceiling(tally, *device) || (pins && !ask.guaranteed && !ask.returning);
                (beyond, need.saturating_sub(self.room(tally, kept, *device)), *device)
            };
            if matches!(terms.devices, DeviceWish::Any(_)) {
                devices.sort_by_key(missing);
                devices.truncate(Self::devices_wanted(terms));
            }
        }
        let cost: Bytes = devices.iter().map(|device| self.need(ask, *device)).sum();
        self.accounts_allow(tally, kept, ask, cost) && self.stores_allow(kept, ask, &devices)
    }

    fn stores_allow(&self, kept: &Kept, ask: &super::AskFact, devices: &[DeviceId]) -> bool {
        let moves = self.would_move(ask);
        let held = |moves: bool| {
            let pins = |device: &DeviceId| self.would_pin(ask, *device, moves);
            let copies = |device: &DeviceId| self.need(ask, *device).saturating_sub(pins(device));
            let pinned = devices.iter().all(|device| pins(device) <= self.pinned_room(kept, *device));
            pinned && (!moves || devices.iter().map(copies).sum::<Bytes>() <= self.arena_room(kept))
        };
        match ask.aim {
            Aim::Resume { .. } => true,
            Aim::Growth { .. } => held(moves),
            Aim::Lease { .. } => held(false) || (moves && held(true)),
        }
    }

    /// What is still mapped of leases that were given back: nobody can ask for it.
    fn lingering(&self, device: DeviceId) -> Bytes {
        let ended =
            self.standing_leases().filter(|(_, lease)| lease.ended && lease.devices.contains(&device));
        ended.map(|(id, _)| self.charge_on(id, device).held).sum()
    }

    /// Whether all that can't be recalled leaves enough for it, on as many devices as it wants.
    fn is_within_promise(&self, tally: &Tally, kept: &Kept, index: usize, devices: &[DeviceId]) -> bool {
        let ask = &self.asks[index];
        let fits = |device: &&DeviceId| {
            let (pinned, most) = (self.pinned_used(**device), self.pinned_max(**device));
            let pledged = kept.pinned.get(*device).copied().unwrap_or(Bytes::ZERO);
            let may = match self.is_barrier(ask) {
                true => pinned.max(most.saturating_sub(most.saturating_sub(pinned).saturating_sub(pledged))),
                false => pinned.max(most),
            };
            if self.device(**device).is_none_or(|fact| fact.lost) {
                return false;
            }
            let kept = self.kept_from(ask, **device);
            let taken = [tally.devices[*device].overhead, kept, may, self.lingering(**device)];
            let taken = taken.into_iter().fold(Bytes::ZERO, add);
            let need = match ask.aim {
                // One whose lease is still on its way out will need all of it.
                Aim::Resume { lease } if ask.standing == Standing::Leaving => self.whole(lease, **device),
                Aim::Lease { .. } | Aim::Growth { .. } | Aim::Resume { .. } => self.need(ask, **device),
            };
            need <= self.ceiling(tally, **device).saturating_sub(taken)
        };
        let count = match &ask.aim {
            Aim::Lease { terms, .. } => Self::devices_wanted(terms),
            Aim::Growth { .. } => 1,
            Aim::Resume { lease } => self.leases[lease].devices.len(),
        };
        devices.iter().filter(fits).count() >= count
    }
}
