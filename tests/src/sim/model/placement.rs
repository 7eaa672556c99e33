//! Where an ask can be granted that is held in one way or the other, and whom it would overtake.

use gpulease_arbiter::DeviceWish;
use gpulease_words::{Bytes, DeviceId};

use super::ledger::Tally;
use super::line::Kept;
use super::{Aim, AskFact, Model, Node};

impl Model {
    /// Where a barrier for any device, whose accounts have room for it where it is bound, can be
    /// granted behind all others. Where that costs more, the accounts must have this too.
    pub(super) fn elsewhere(&self, tally: &Tally, kept: &Kept, index: usize) -> Option<Vec<DeviceId>> {
        let ask = &self.asks[index];
        let Aim::Lease { terms, .. } = &ask.aim else { return None };
        let DeviceWish::Any(count) = terms.devices else { return None };
        let bound = self.barrier_devices(index);
        let mut before = self.kept(tally, |other| self.turn(other) < self.turn(index));
        let collects = !self.is_hopeless(tally, ask, &bound) && self.climbs(tally, &mut before, ask, &bound);
        if !collects {
            return None;
        }
        let passing = |devices: Vec<DeviceId>| {
            let more = self.needs(ask, &devices).saturating_sub(self.needs(ask, &bound));
            let passes = |node: &Node| self.bytes_pass(tally, kept, node, more);
            (more.is_zero() || self.path_of(ask).iter().all(passes)).then_some(devices)
        };
        if self.binds() && !ask.guaranteed && !ask.returning {
            let pins = |device| self.would_pin(ask, device, self.would_move(ask));
            let offer = |device| {
                let allowed = pins(device) <= self.pinned_room(kept, device);
                allowed.then(|| self.room(tally, kept, device))
            };
            let context = |device| self.new_context(ask.peer.process, device);
            let count = count.get();
            let roomiest = self.offered(ask, count, &offer, &|_| Bytes::ZERO).and_then(passing);
            return roomiest.or_else(|| self.offered(ask, count, &offer, &context).and_then(passing));
        }
        let roomiest = self.fitting(tally, kept, ask, count.get(), |_| Bytes::ZERO).and_then(passing);
        let context = |device| self.new_context(ask.peer.process, device);
        roomiest.or_else(|| self.fitting(tally, kept, ask, count.get(), context).and_then(passing))
    }

    /// Where an ask that is no barrier can be granted now, held in one way or the other.
    pub(super) fn routed_placement(
        &self,
        tally: &Tally,
        kept: &Kept,
        ask: &AskFact,
    ) -> Option<Vec<DeviceId>> {
        let routes: &[bool] = match (&ask.aim, self.would_move(ask)) {
            (Aim::Lease { .. }, true) => &[true, false],
            (_, true) => &[true],
            (_, false) => &[false],
        };
        routes.iter().find_map(|moves| self.placement_held(tally, kept, ask, *moves))
    }

    pub(super) fn placement_held(
        &self,
        tally: &Tally,
        kept: &Kept,
        ask: &AskFact,
        moves: bool,
    ) -> Option<Vec<DeviceId>> {
        let (named, count) = match &ask.aim {
            Aim::Growth { device, .. } => (Some(vec![*device]), 1),
            Aim::Resume { lease } => (Some(self.leases[lease].devices.clone()), 1),
            Aim::Lease { terms, .. } => match &terms.devices {
                DeviceWish::These(these) => (Some(these.iter().copied().collect::<Vec<_>>()), these.len()),
                DeviceWish::Any(count) => (None, count.get() as usize),
            },
        };
        let context = |device| match ask.aim {
            Aim::Lease { .. } => self.new_context(ask.peer.process, device),
            Aim::Growth { .. } | Aim::Resume { .. } => Bytes::ZERO,
        };
        let offer = |device: DeviceId| {
            let usable = self.device(device).is_some_and(|fact| !fact.lost);
            let given = usable.then(|| self.room(tally, kept, device))?;
            if matches!(ask.aim, Aim::Resume { .. }) {
                return Some(given);
            }
            let pinned = self.pinned_room(kept, device);
            if !moves {
                return Some(given.min(pinned));
            }
            let copies = Bytes::new(self.arena_room(kept).get() / count as u64);
            (context(device) <= pinned).then(|| given.min(copies.saturating_add(context(device))))
        };
        let paid = |devices: Vec<DeviceId>| {
            let cost = self.needs(ask, &devices);
            (cost.is_zero() && !matches!(ask.aim, Aim::Lease { .. })
                || self.accounts_allow(tally, kept, ask, cost))
            .then_some(devices)
        };
        if let Some(named) = named {
            let fits =
                |device: &DeviceId| offer(*device).is_some_and(|given| self.need(ask, *device) <= given);
            return named.iter().all(fits).then_some(named).and_then(paid);
        }
        let count = u32::try_from(count).ok()?;
        let roomiest = self.offered(ask, count, &offer, &|_| Bytes::ZERO).and_then(paid);
        roomiest.or_else(|| self.offered(ask, count, &offer, &context).and_then(paid))
    }

    /// So many of the devices that offer enough: those that cost least, then those that offer most.
    pub(super) fn offered(
        &self,
        ask: &AskFact,
        count: u32,
        offer: &dyn Fn(DeviceId) -> Option<Bytes>,
        cost: &dyn Fn(DeviceId) -> Bytes,
    ) -> Option<Vec<DeviceId>> {
        let usable = self.devices.iter().filter(|fact| !fact.lost);
        let offers = usable.filter_map(|fact| Some((fact.id, offer(fact.id)?)));
        let mut fitting: Vec<_> =
            offers.filter(|(device, given)| self.need(ask, *device) <= *given).collect();
        fitting.sort_by_key(|(device, given)| (cost(*device), std::cmp::Reverse(*given), *device));
        let count = usize::try_from(count).ok().filter(|count| *count <= fitting.len())?;
        fitting.truncate(count);
        let mut devices: Vec<DeviceId> = fitting.into_iter().map(|(device, _)| device).collect();
        devices.sort();
        Some(devices)
    }

    /// Whether it overtakes a barrier wherever those for any device are bound: as they were before this step,
    /// or as they are after it. Of one that is granted or bound elsewhere in this step nobody can say.
    pub(super) fn overtakes_however_bound(&self, index: usize, devices: &[DeviceId]) -> Option<usize> {
        let found = self.overtakes(index, devices, &|_| true)?;
        let mut after = self.clone();
        after.bind();
        for ask in after.asks.iter_mut().filter(|ask| ask.standing == super::Standing::Waiting) {
            if ask.id.is_some_and(|id| !self.still_waits.contains(&id)) {
                ask.bound = ask.bound.take().map(|_| Vec::new());
            }
        }
        let stayed = |other: usize| after.asks[other].bound == self.asks[other].bound;
        after.overtakes(index, devices, &stayed).map(|_| found)
    }

    /// Whether an ask that is granted on these devices takes what a barrier before it keeps there, of those that count.
    pub(super) fn overtakes(
        &self,
        index: usize,
        devices: &[DeviceId],
        counts: &dyn Fn(usize) -> bool,
    ) -> Option<usize> {
        let (tally, ask) = (self.tally(), &self.asks[index]);
        let covered = ask.returning || self.may_be_covered(ask);
        let barrier = ask.risen || ask.senior || ask.before.barrier;
        // Who was a barrier before this step and is one after it was one all the time.
        let stays = |other: usize| {
            let fact = &self.asks[other];
            fact.risen && fact.before.barrier && fact.guaranteed == fact.before.guaranteed && other != index
        };
        let first = |other: usize| match self.turn(other).0 {
            0 => true,
            1 => !covered,
            _ => !covered && (!barrier || other < index),
        };
        let all = self.kept(&tally, |other| other != index);
        let kept = self.kept(&tally, stays);
        for device in devices {
            let need = self.need(ask, *device);
            let mut left = tally.free[device];
            for other in self.barriers().filter(|other| stays(*other) && first(*other)) {
                let collects = kept.collecting.contains(&other) && all.collecting.contains(&other);
                if !collects || !counts(other) || !self.barrier_devices(other).contains(device) {
                    continue;
                }
                left = left.saturating_sub(self.need(&self.asks[other], *device));
                if need > left && !need.is_zero() {
                    return Some(other);
                }
            }
        }
        None
    }
}
