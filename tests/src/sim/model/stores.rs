//! What is bounded beside the accounts: what can't be moved of each device, and host memory for copies.

use gpulease_arbiter::Pinning;
use gpulease_words::{Bytes, DeviceId, LeaseId};

use super::ledger::add;
use super::line::Kept;
use super::{Aim, AskFact, Model};

/// What is bounded beside the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Pinned(DeviceId),
    Arena,
}

impl Model {
    /// Whether anything is bounded beside the accounts, so that memory may move or be owed.
    pub(in crate::sim) fn binds(&self) -> bool {
        let policy = &self.policy;
        !policy.arena.is_zero() || policy.pinned_max.is_some() || self.guarantees_anything()
    }

    /// What may be pinned of a device beyond guarantees.
    pub(super) fn pinned_max(&self, device: DeviceId) -> Bytes {
        let capacity = self.device(device).map_or(Bytes::ZERO, |fact| fact.capacity);
        let left = capacity.saturating_sub(self.guaranteed_in_all()).saturating_sub(self.policy.headroom);
        match self.policy.pinned_max {
            Some(most) => most,
            None if self.policy.arena.is_zero() => left,
            None => left.min(Bytes::new(capacity.get() / 2)),
        }
    }

    /// What of a lease on a device can't be moved and is covered by no guarantee.
    pub(super) fn pinned_of(&self, id: LeaseId, device: DeviceId, movable: bool) -> Bytes {
        let (lease, charge) = (&self.leases[&id], self.charge_on(id, device));
        let own = add(charge.set_aside, charge.in_segments());
        match (movable, lease.guaranteed) {
            (false, false) => add(own, charge.overhead),
            (true, false) => charge.overhead,
            (false, true) => own.saturating_sub(lease.reserve),
            (true, true) => Bytes::ZERO,
        }
    }

    /// Host memory that copies of a lease need, now or later.
    fn copies_of(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let (lease, charge) = (&self.leases[&id], self.charge_on(id, device));
        if !lease.movable {
            return Bytes::ZERO;
        }
        let own = add(charge.set_aside, charge.in_segments());
        let least = if lease.ended { Bytes::ZERO } else { lease.reserve };
        least.max(add(own, self.away_of(id, device)))
    }

    /// What of a lease is in its host copy only.
    pub(super) fn away_of(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let away = self.segments_of(id).filter(|(_, segment)| segment.is_away() && segment.device == device);
        away.map(|(_, segment)| segment.bytes).sum()
    }

    pub(super) fn pinned_used(&self, device: DeviceId) -> Bytes {
        let here = self.standing_leases().filter(|(_, lease)| lease.devices.contains(&device));
        here.map(|(id, lease)| self.pinned_of(id, device, lease.movable)).sum()
    }

    pub(super) fn arena_used(&self) -> Bytes {
        let each = |id: LeaseId, devices: &[DeviceId]| -> Bytes {
            devices.iter().map(|device| self.copies_of(id, *device)).sum()
        };
        self.standing_leases().map(|(id, lease)| each(id, &lease.devices)).sum()
    }

    /// What a newcomer may still pin of a device.
    pub(super) fn pinned_room(&self, kept: &Kept, device: DeviceId) -> Bytes {
        if kept.pinned_closed.contains(&device) {
            return Bytes::ZERO;
        }
        let pledged = kept.pinned.get(&device).copied().unwrap_or(Bytes::ZERO);
        self.pinned_max(device).saturating_sub(self.pinned_used(device)).saturating_sub(pledged)
    }

    /// Host memory that a newcomer may still have copies in.
    pub(super) fn arena_room(&self, kept: &Kept) -> Bytes {
        if kept.arena_closed {
            return Bytes::ZERO;
        }
        self.policy.arena.saturating_sub(self.arena_used()).saturating_sub(kept.arena)
    }

    /// Whether an ask would hold its lease as one that may be suspended.
    pub(super) fn would_move(&self, ask: &AskFact) -> bool {
        match &ask.aim {
            Aim::Lease { terms, .. } => {
                let may = terms.pinning == Pinning::Movable
                    && self.path_of(ask).iter().all(|node| self.budget(node).pinning == Pinning::Movable);
                let count = u64::try_from(Self::devices_wanted(terms)).expect("few devices");
                let copies = Bytes::new(terms.reserve.get().saturating_mul(count));
                may && !self.policy.arena.is_zero() && copies <= self.policy.arena
            }
            Aim::Growth { lease, .. } => self.leases[lease].movable,
            Aim::Resume { .. } => true,
        }
    }

    /// What of so much a new lease, or growth, can't move.
    pub(super) fn would_pin(&self, ask: &AskFact, device: DeviceId, moves: bool) -> Bytes {
        let (context, amount) = match &ask.aim {
            Aim::Lease { terms, .. } => (self.new_context(ask.peer.process, device), terms.reserve),
            Aim::Growth { .. } => (Bytes::ZERO, self.need(ask, device)),
            Aim::Resume { .. } => return Bytes::ZERO,
        };
        if moves { context } else { add(amount, context) }
    }

    /// What a barrier takes at the stores beside the accounts, in its order.
    pub(super) fn store_steps(&self, ask: &AskFact, devices: &[DeviceId]) -> Vec<(Store, Bytes)> {
        let mut steps = Vec::new();
        if !self.binds() || matches!(ask.aim, Aim::Resume { .. }) {
            return steps;
        }
        let lent = !ask.guaranteed && !ask.returning;
        let (mut copies, moves) = (self.needs(ask, devices), self.would_move(ask));
        for device in devices.iter().filter(|_| lent) {
            let pinned = self.would_pin(ask, *device, moves).min(self.need(ask, *device));
            copies = copies.saturating_sub(pinned);
            steps.push((Store::Pinned(*device), pinned));
        }
        if moves && (lent || matches!(ask.aim, Aim::Growth { .. })) {
            steps.push((Store::Arena, copies));
        }
        steps
    }

    pub(super) fn store_passes(&self, kept: &mut Kept, store: &Store, bytes: Bytes) -> bool {
        if bytes.is_zero() {
            return true;
        }
        let room = match store {
            Store::Pinned(device) => self.pinned_room(kept, *device),
            Store::Arena => self.arena_room(kept),
        };
        match (store, bytes <= room) {
            (Store::Pinned(device), true) => {
                let there = kept.pinned.entry(*device).or_default();
                *there = add(*there, bytes);
            }
            (Store::Arena, true) => kept.arena = add(kept.arena, bytes),
            (Store::Pinned(device), false) => drop(kept.pinned_closed.insert(*device)),
            (Store::Arena, false) => kept.arena_closed = true,
        }
        bytes <= room
    }
}
