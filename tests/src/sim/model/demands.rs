//! What takes room at once or not at all: larger reserves, and contexts of new members.

use std::collections::BTreeMap;

use gpulease_arbiter::{Peer, Place};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, Reason, SessionId};

use super::ledger::add;
use super::{LeaseFact, Model, Verdict};

impl Model {
    /// The limit that a lease has after a resize to this one.
    pub(super) fn limit_of(
        &self,
        session: SessionId,
        lease: &LeaseFact,
        reserve: Bytes,
        limit: Bytes,
    ) -> Bytes {
        let process = self.sessions[&session].peer.process;
        limit.min(self.most(process, &self.path_of_lease(lease), &lease.devices, reserve))
    }

    pub(super) fn judge_resize(
        &mut self,
        session: SessionId,
        id: LeaseId,
        reserve: Bytes,
        limit: Bytes,
    ) -> Verdict {
        let lease = match self.visible(session, id) {
            Ok(lease) if lease.owner == session => lease.clone(),
            Ok(_) => return Verdict::No(vec![Reason::NoSuchLease]),
            Err(no) => return no,
        };
        if lease.ended {
            return Verdict::No(vec![Reason::Ending]);
        }
        if lease.journey != super::Journey::Active {
            return Verdict::No(vec![Reason::Suspended]);
        }
        let sane = !reserve.is_zero() && reserve.is_granular() && limit >= reserve;
        if !sane {
            return Verdict::No(vec![Reason::Malformed]);
        }
        let limit = self.limit_of(session, &lease, reserve, limit);
        let mut after = self.clone();
        let fact = after.leases.get_mut(&id).expect("it stands");
        (fact.reserve, fact.limit) = (reserve, limit);
        let more = |device: &DeviceId| {
            let (new, old) = (after.charge_on(id, *device).total(), self.charge_on(id, *device).total());
            (*device, new.saturating_sub(old))
        };
        let takes: BTreeMap<DeviceId, Bytes> = lease.devices.iter().map(more).collect();
        let more = takes.values().any(|bytes| !bytes.is_zero());
        if more && reserve > lease.reserve && self.is_overdue(id) {
            return Verdict::No(vec![Reason::Overdue]);
        }
        if !self.room_for(&lease, &takes) || !self.is_stockable(id, &lease, &takes) {
            return Verdict::No(vec![
                Reason::PinnedFull,
                Reason::ArenaFull,
                Reason::NoRoom,
                Reason::OverBudget,
                Reason::AccountLimit,
                Reason::BehindOthers,
                Reason::TooLarge,
                Reason::DeviceLost,
            ]);
        }
        // What its guarantee does not cover any more counts as pinned altogether.
        let lent = lease.guaranteed && more && self.binds() && !self.stays_covered(id, &takes);
        let resized = LeaseFact { guaranteed: lease.guaranteed && !lent, ..after.leases[&id].clone() };
        let most = self.most_pinned(self.sessions[&session].peer.process, &resized);
        after.fact(id).limit = limit.min(most);
        let mut aside = after.set_aside_of(id);
        for (device, before) in self.set_aside_of(id) {
            aside.entry(device).and_modify(|bytes| *bytes = before.max(*bytes));
        }
        *self = after;
        self.uncovered_waits_are_growth(id, &aside);
        Verdict::Yes
    }

    /// Whether the devices and the accounts have so much for one that is no barrier.
    fn room_for(&self, lease: &LeaseFact, takes: &BTreeMap<DeviceId, Bytes>) -> bool {
        let tally = self.tally();
        let kept = self.kept(&tally, |_| true);
        let all = takes.values().fold(Bytes::ZERO, |sum, bytes| add(sum, *bytes));
        let fits = takes
            .iter()
            .all(|(device, bytes)| bytes.is_zero() || *bytes <= self.room(&tally, &kept, *device));
        let path = self.path_of_lease(lease);
        fits && (all.is_zero() || path.iter().all(|node| self.bytes_pass(&tally, &kept, node, all)))
    }

    /// Whether so much more of a lease can be pinned, or copied to host memory.
    fn is_stockable(&self, id: LeaseId, lease: &LeaseFact, takes: &BTreeMap<DeviceId, Bytes>) -> bool {
        if !self.binds() {
            return true;
        }
        let tally = self.tally();
        let kept = self.kept(&tally, |_| true);
        let all = takes.values().fold(Bytes::ZERO, |sum, bytes| add(sum, *bytes));
        match lease.movable {
            true => all <= self.arena_room(&kept),
            false => {
                // What is too much for its guarantee counts as pinned altogether.
                let lent = lease.guaranteed
                    && takes.values().any(|more| !more.is_zero())
                    && !self.stays_covered(id, takes);
                takes.iter().all(|(device, more)| {
                    let covered = self
                        .charge_on(id, *device)
                        .total()
                        .saturating_sub(self.pinned_of(id, *device, false));
                    let pins = if lent { add(*more, covered) } else { *more };
                    pins <= self.pinned_room(&kept, *device)
                })
            }
        }
    }

    /// Where an admitted process takes over what is set aside for the caller's context: on devices
    /// where this lease is charged for that, nobody has seen it, and it has none of its own.
    pub(super) fn given(
        &self,
        caller: SessionId,
        lease: LeaseId,
        peer: &Peer,
        place: Place,
    ) -> Vec<DeviceId> {
        let caller = self.sessions[&caller].peer.process;
        if place == Place::Callers { self.movable_contexts(caller, lease, peer.process) } else { Vec::new() }
    }

    fn movable_contexts(&self, from: ProcessId, lease: LeaseId, to: ProcessId) -> Vec<DeviceId> {
        let moves = |device: &DeviceId| {
            self.contexts.get(&(from, *device)) == Some(&lease)
                && !self.measured.contains_key(&(from, *device))
                && !self.contexts.contains_key(&(to, *device))
        };
        self.devices.iter().map(|fact| fact.id).filter(moves).collect()
    }

    /// The same for a process that joins below a member which never spoke with the broker: the nearest such member, and where.
    pub(super) fn left_by_a_starter(
        &self,
        joining: ProcessId,
        lease: LeaseId,
        ancestors: &[ProcessId],
    ) -> (ProcessId, Vec<DeviceId>) {
        for above in ancestors {
            let given = self.movable_contexts(*above, lease, joining);
            if !self.speaks(*above) && !given.is_empty() {
                return (*above, given);
            }
        }
        (joining, Vec::new())
    }

    /// Whether there is room for the contexts of a new member.
    pub(super) fn judge_context(&self, peer: &Peer, lease: &LeaseFact, given: &[DeviceId]) -> Verdict {
        let devices = lease.devices.iter().filter(|device| !given.contains(device));
        let takes = devices.map(|device| (*device, self.new_context(peer.process, *device)));
        match self.room_for(lease, &takes.collect()) {
            true => Verdict::Yes,
            false => Verdict::No(vec![
                Reason::NoRoom,
                Reason::AccountLimit,
                Reason::BehindOthers,
                Reason::DeviceLost,
            ]),
        }
    }
}
