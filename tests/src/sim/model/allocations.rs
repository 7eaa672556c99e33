//! What is due to an allocation: within the reserve yes, above it by the rules of the line.

use gpulease_arbiter::{Event, RequestId, SegmentKind};
use gpulease_words::{Bytes, DeviceId, LeaseId, Reason, SessionId};

use super::ledger::add;
use super::{Aim, AskFact, Journey, Model, SegmentState, Standing, Verdict};

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

    /// Growth that its lease's limit allows only once what drains of the lease is back stands aside; what it does not
    /// allow any more then is refused.
    pub(super) fn place_growth(&mut self) {
        let growth: Vec<usize> = self.hoping().map(|(i, _)| i).collect();
        for index in growth {
            let Aim::Growth { lease, device, bytes, .. } = self.asks[index].aim else { continue };
            let beyond = self.is_beyond(lease, device, bytes);
            let full = self.is_full(lease, device, bytes);
            match self.asks[index].standing {
                Standing::Waiting if full && !beyond => {
                    let ask = &mut self.asks[index];
                    (ask.standing, ask.guaranteed) = (Standing::AtLimit, false);
                }
                Standing::AtLimit if beyond => self.leave(index, &[Reason::BeyondLease]),
                Standing::AtLimit if !full => self.asks[index].standing = Standing::Waiting,
                Standing::Waiting
                | Standing::AtLimit
                | Standing::OwnDrain
                | Standing::Leaving
                | Standing::Granted(_)
                | Standing::Made(_)
                | Standing::Left => {}
            }
        }
    }

    /// Whether bytes of its own lease are on their way back on the device where an ask wants more.
    pub(super) fn gets_back(&self, ask: &AskFact) -> bool {
        match ask.aim {
            Aim::Growth { lease, device, .. } => !self.charge_on(lease, device).draining.is_zero(),
            Aim::Lease { .. } | Aim::Resume { .. } => false,
        }
    }

    /// Whether growth could be granted now if what drains of its own lease there were back.
    pub(super) fn fits_once_drained(&self, index: usize) -> bool {
        let Aim::Growth { lease, device, .. } = self.asks[index].aim else { return false };
        if !self.gets_back(&self.asks[index]) {
            return false;
        }
        let after = self.once_drained(lease, &[device]);
        let (tally, ask) = (after.tally(), &after.asks[index]);
        let kept = after.kept(&tally, |_| true);
        let placed = match after.is_barrier(ask) {
            true => after.barrier_placement(&tally, index),
            false => after.placement(&tally, &kept, index),
        };
        placed.is_some()
    }

    /// The facts as they are once all that drains of a lease on these devices is back.
    fn once_drained(&self, lease: LeaseId, devices: &[DeviceId]) -> Self {
        let mut after = self.clone();
        for segment in after.segments.values_mut() {
            let doomed = segment.state == SegmentState::Creating && segment.doomed;
            let here = segment.lease == lease && devices.contains(&segment.device);
            if here && (doomed || segment.state == SegmentState::Draining) {
                segment.state = SegmentState::Gone;
            }
        }
        after
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
        let charge = self.charge_on(id, device);
        let kept = add(add(charge.held, charge.quarantined), self.context_alone(process, device));
        if self.device(device).is_some_and(|fact| bytes > fact.capacity.saturating_sub(kept)) {
            reasons.push(Reason::TooLarge);
        }
        let after = self.once_drained(id, &fact.devices);
        let alone = add(after.charge(id).total(), after.growth_takes(id, device, bytes));
        let over = |node: &super::Node| self.budget(node).limit.is_some_and(|limit| alone > limit);
        if self.path_of_lease(fact).iter().any(over) {
            reasons.push(Reason::OverBudget);
        }
        reasons
    }

    /// Whether so many bytes more are above the lease's own limit even once what drains is back.
    pub(super) fn is_beyond(&self, id: LeaseId, device: DeviceId, bytes: Bytes) -> bool {
        let charge = self.charge_on(id, device);
        let there = add(charge.held, add(self.promised(id, device), charge.quarantined));
        there.saturating_add(bytes) > self.leases[&id].limit
    }

    /// Whether they are now: what drains is there until it is proven free.
    pub(super) fn is_full(&self, id: LeaseId, device: DeviceId, bytes: Bytes) -> bool {
        let charge = self.charge_on(id, device);
        let there = add(charge.held, add(charge.draining, charge.quarantined));
        there.saturating_add(bytes) > self.leases[&id].limit || self.is_beyond(id, device, bytes)
    }
}
