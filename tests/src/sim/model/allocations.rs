//! What is due to an allocation: within the reserve yes, above it by the rules of the line.

use gpulease_arbiter::{Event, RequestId, SegmentKind};
use gpulease_words::{Bytes, DeviceId, LeaseId, Reason, SessionId};

use super::ledger::add;
use super::{Aim, AskFact, Journey, Model, Standing, Verdict};

impl Model {
    pub(super) fn judge_allocate(&mut self, request: RequestId, event: &Event) -> Verdict {
        let Event::Allocate { session, lease, device, bytes, kind, patience, guard, .. } = event else {
            unreachable!("it was looked at")
        };
        let (bytes, device, lease) = (*bytes, *device, *lease);
        if let Err(no) = self.visible(*session, lease) {
            return no;
        }
        if let Some(no) = self.allocation_refused(*session, lease, device, bytes, *kind) {
            return no;
        }
        let aim = Aim::Growth { lease, device, bytes, kind: *kind, guard: *guard };
        let mut ask = AskFact {
            patience: *patience,
            request: Some(request),
            ..AskFact::new(*session, self.sessions[session].peer.clone(), aim, self.now)
        };
        if self.is_within_reserve(lease, device, bytes) {
            ask.standing = Standing::OwnDrain;
        }
        self.asks.push(ask);
        Verdict::InLine
    }

    /// Whether so many bytes more fit the reserve, once what drains is back.
    pub(super) fn is_within_reserve(&self, lease: LeaseId, device: DeviceId, bytes: Bytes) -> bool {
        let charge = self.charge_on(lease, device);
        let there = add(charge.held, add(charge.quarantined, self.promised(lease, device)));
        there.saturating_add(bytes) <= self.leases[&lease].reserve
    }

    fn allocation_refused(
        &self,
        session: SessionId,
        id: LeaseId,
        device: DeviceId,
        bytes: Bytes,
        kind: SegmentKind,
    ) -> Option<Verdict> {
        let fact = &self.leases[&id];
        let mut reasons = Vec::new();
        if fact.ended {
            return Some(Verdict::No(vec![Reason::Ending]));
        }
        if !fact.is_resident() {
            return Some(Verdict::No(vec![Reason::Suspended]));
        }
        if bytes.is_zero() || !bytes.is_granular() {
            return Some(Verdict::No(vec![Reason::Malformed]));
        }
        if !fact.devices.contains(&device) {
            reasons.push(Reason::NoSuchDevice);
            return Some(Verdict::No(reasons));
        }
        if self.device(device).is_none_or(|fact| fact.lost) {
            return Some(Verdict::No(vec![Reason::DeviceLost]));
        }
        let growing =
            self.hoping().filter(|(_, ask)| matches!(ask.aim, Aim::Growth { lease, .. } if lease == id));
        if self.segments_of(id).count() + growing.count() >= self.policy.segments_per_lease as usize {
            return Some(Verdict::No(vec![Reason::TooMany]));
        }
        if let Some(no) = self.may_not_be_pinned(session, id, kind) {
            return Some(no);
        }
        if !self.is_within_reserve(id, device, bytes) {
            reasons.extend(self.growth_refused(session, id, device, bytes));
        }
        (!reasons.is_empty()).then_some(Verdict::No(reasons))
    }

    /// A lease of which a second process takes a segment, or that gives out CUDA IPC handles, moves no more.
    fn may_not_be_pinned(&self, session: SessionId, id: LeaseId, kind: SegmentKind) -> Option<Verdict> {
        let (fact, process) = (&self.leases[&id], self.sessions[&session].peer.process);
        let stays = kind == SegmentKind::CudaIpc || self.holders(id).iter().any(|holder| *holder != process);
        if !fact.movable || !stays {
            return None;
        }
        if fact.journey != Journey::Active {
            return Some(Verdict::No(vec![Reason::Suspended]));
        }
        (!self.may_be_pinned(id)).then(|| Verdict::No(vec![Reason::PinnedFull]))
    }

    fn growth_refused(&self, session: SessionId, id: LeaseId, device: DeviceId, bytes: Bytes) -> Vec<Reason> {
        let (fact, mut reasons) = (&self.leases[&id], Vec::new());
        if self.is_beyond(id, device, bytes) {
            return vec![Reason::BeyondLease];
        }
        if fact.journey != Journey::Active {
            return vec![Reason::Suspended];
        }
        if self.is_overdue(id) {
            reasons.push(Reason::Overdue);
        }
        let process = self.sessions[&session].peer.process;
        if self.line_is_full(self.sessions[&session].peer.uid) {
            reasons.push(Reason::TooMany);
        }
        let (charge, takes) = (self.charge_on(id, device), self.growth_takes(id, device, bytes));
        let kept = add(add(charge.held, charge.quarantined), self.context_alone(process, device));
        if self.device(device).is_some_and(|fact| bytes > fact.capacity.saturating_sub(kept)) {
            reasons.push(Reason::TooLarge);
        }
        let alone = add(self.charge(id).total(), takes);
        let over = |node: &super::Node| self.budget(node).limit.is_some_and(|limit| alone > limit);
        if self.path_of_lease(fact).iter().any(over) {
            reasons.push(Reason::OverBudget);
        }
        reasons
    }

    /// Whether so many bytes more are above the lease's own limit; what drains is there until it is proven free.
    pub(super) fn is_beyond(&self, id: LeaseId, device: DeviceId, bytes: Bytes) -> bool {
        let charge = self.charge_on(id, device);
        let there = add(charge.held, add(charge.draining, charge.quarantined));
        there.saturating_add(bytes) > self.leases[&id].limit
    }
}
