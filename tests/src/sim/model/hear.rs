//! Takes an event in: which facts it makes, and what must be answered.

use gpulease_arbiter::{Event, Idleness, RequestId, Time};
use gpulease_words::{Bytes, DeviceId, Pid, SegmentId, SessionId};

use super::facts::ProcessFact;
use super::{Model, RequestFact, SegmentState, Standing, Verdict};

/// The request of an event that has one.
fn request_of(event: &Event) -> Option<RequestId> {
    match event {
        Event::Open { request, .. }
        | Event::Close { request, .. }
        | Event::Acquire { request, .. }
        | Event::Withdraw { request, .. }
        | Event::Join { request, .. }
        | Event::Admit { request, .. }
        | Event::Resize { request, .. }
        | Event::Release { request, .. }
        | Event::Allocate { request, .. }
        | Event::Free { request, .. }
        | Event::Recall { request, .. }
        | Event::Resume { request, .. }
        | Event::Pin { request, .. }
        | Event::SetBudgets { request, .. } => Some(*request),
        Event::Drained { .. }
        | Event::SwappedOut { .. }
        | Event::SwapFailed { .. }
        | Event::Restored { .. }
        | Event::Idle { .. } => None,
        Event::Adrift { .. }
        | Event::Rejoined { .. }
        | Event::Died { .. }
        | Event::Unattended { .. }
        | Event::Abandoned { .. }
        | Event::Created { .. }
        | Event::CreateFailed { .. }
        | Event::Claimed { .. }
        | Event::Freed { .. }
        | Event::Unproven { .. }
        | Event::OffBook { .. }
        | Event::Overhead { .. }
        | Event::DeviceLost { .. } => None,
    }
}

impl Model {
    /// An event was handed to the arbiter; gives the request that it made.
    pub(in crate::sim) fn hear(&mut self, now: Time, event: &Event) -> Option<RequestId> {
        self.now = now;
        if let Event::Open { peer, .. } | Event::Admit { peer, .. } = event {
            let new = ProcessFact { peer: peer.clone(), alive: true, forgotten: true };
            self.processes.entry(peer.process).or_insert(new);
        }
        if let Some(request) = request_of(event) {
            let fact =
                RequestFact { event: event.clone(), verdict: Verdict::No(Vec::new()), answers: 0, queued: 0 };
            self.requests.insert(request, fact);
            let verdict = self.verdict(request, event);
            if let Some(fact) = self.requests.get_mut(&request) {
                fact.verdict = verdict;
            }
            self.drop_overdue_growth();
            self.move_on();
            self.place_growth();
            return Some(request);
        }
        self.hear_fact(event);
        self.drop_overdue_growth();
        self.move_on();
        self.place_growth();
        None
    }

    fn hear_fact(&mut self, event: &Event) {
        match event {
            Event::Adrift { session } => self.hear_adrift(*session),
            Event::Rejoined { session } => {
                let now = self.now;
                if let Some(session) = self.sessions.get_mut(session) {
                    session.was_away = session.adrift_since.take().map(|since| (since, now));
                }
            }
            Event::Died { process } => self.end_process(*process),
            Event::Unattended { session, ask_name } => self.hear_unattended(*session, *ask_name),
            Event::Abandoned { request } => self.hear_abandoned(*request),
            Event::Created { segment } => self.hear_created(*segment),
            Event::CreateFailed { segment, .. } => self.hear_failed(*segment),
            Event::Claimed { segment } => self.hear_claimed(*segment),
            Event::Freed { segment } => self.hear_freed(*segment),
            Event::Unproven { segment, suspects } => self.hear_unproven(*segment, suspects),
            Event::OffBook { device, bytes } => {
                if let Some(fact) = self.devices.iter_mut().find(|fact| fact.id == *device) {
                    fact.off_book = bytes.map(|bytes| bytes.min(fact.capacity));
                }
            }
            Event::Overhead { process, device, bytes } => self.hear_overhead(*process, *device, *bytes),
            Event::DeviceLost { device } => self.hear_lost(*device),
            Event::Open { .. }
            | Event::Close { .. }
            | Event::Acquire { .. }
            | Event::Withdraw { .. }
            | Event::Join { .. }
            | Event::Admit { .. }
            | Event::Resize { .. }
            | Event::Release { .. }
            | Event::Allocate { .. }
            | Event::Free { .. }
            | Event::Resume { .. }
            | Event::Pin { .. }
            | Event::SetBudgets { .. }
            | Event::Recall { .. } => unreachable!("it has a request"),
            Event::Drained { session, lease } => self.hear_drained(*session, *lease),
            Event::SwappedOut { session, lease, segment } => {
                self.hear_swapped_out(*session, *lease, *segment);
            }
            Event::SwapFailed { session, lease, .. } => self.hear_swap_failed(*session, *lease),
            Event::Restored { session, lease, segment } => self.hear_restored(*session, *lease, *segment),
            Event::Idle { session, lease, idleness } => {
                self.hear_idle(*session, *lease, *idleness == Idleness::Idle);
            }
        }
    }

    fn hear_adrift(&mut self, session: SessionId) {
        let now = self.now;
        if let Some(session) = self.sessions.get_mut(&session).filter(|session| session.open) {
            session.adrift_since.get_or_insert(now);
        }
    }

    /// The latest ask of this name in a session.
    pub(super) fn named(&self, session: SessionId, name: u64) -> Option<usize> {
        let of = |ask: &super::AskFact| {
            ask.session == session && matches!(ask.aim, super::Aim::Lease { name: n, .. } if n == name)
        };
        self.asks.iter().rposition(of)
    }

    fn hear_unattended(&mut self, session: SessionId, name: u64) {
        let now = self.now;
        let Some(index) = self.named(session, name).filter(|_| self.open_session(session).is_some()) else {
            return;
        };
        let unused =
            matches!(self.asks[index].standing, Standing::Granted(lease) if self.is_untouched(lease));
        let ask = &mut self.asks[index];
        match ask.standing {
            Standing::Waiting => {
                ask.unattended_since = Some(now);
                if let Some(fact) = ask.request.take().and_then(|request| self.requests.get_mut(&request)) {
                    fact.verdict = Verdict::Nobody;
                }
            }
            Standing::Granted(_) if unused => {
                ask.unattended_since = Some(now);
                ask.request = None;
            }
            Standing::Granted(_)
            | Standing::Made(_)
            | Standing::OwnDrain
            | Standing::AtLimit
            | Standing::Leaving
            | Standing::Left => {}
        }
    }

    fn hear_abandoned(&mut self, request: RequestId) {
        self.hear_abandoned_resume(request);
        let growth = self.asks.iter().position(|ask| {
            ask.request == Some(request)
                && matches!(ask.standing, Standing::Waiting | Standing::OwnDrain | Standing::AtLimit)
                && matches!(ask.aim, super::Aim::Growth { .. })
        });
        if let Some(index) = growth {
            self.asks[index].standing = Standing::Left;
            self.asks[index].request = None;
        }
        let made = self
            .segments
            .iter_mut()
            .find(|(_, s)| s.request == request && s.state == SegmentState::Creating && !s.doomed);
        let making = made.is_some_and(|(_, segment)| {
            segment.doomed = true;
            true
        });
        if (growth.is_some() || making)
            && let Some(fact) = self.requests.get_mut(&request)
        {
            fact.verdict = Verdict::Nobody;
        }
    }

    fn hear_created(&mut self, id: SegmentId) {
        let Some(fact) = self.segments.get_mut(&id) else { return };
        match fact.state {
            SegmentState::Creating if fact.doomed => fact.state = SegmentState::Draining,
            SegmentState::Creating => fact.state = SegmentState::Live,
            SegmentState::Restoring => fact.state = SegmentState::Back,
            SegmentState::Live
            | SegmentState::Draining
            | SegmentState::Quarantined
            | SegmentState::Departing
            | SegmentState::Stuck
            | SegmentState::Away
            | SegmentState::Back
            | SegmentState::Gone => {}
        }
    }

    fn hear_failed(&mut self, id: SegmentId) {
        if let Some(fact) = self.segments.get_mut(&id).filter(|s| s.state == SegmentState::Restoring) {
            fact.state = SegmentState::Away;
            let lease = fact.lease;
            self.leases.get_mut(&lease).expect("a segment has a lease").retries = true;
        }
        let fact = self.segments.get_mut(&id).filter(|s| s.state == SegmentState::Creating);
        if let Some(fact) = fact {
            let (request, doomed) = (fact.request, fact.doomed);
            self.comes_back(id);
            if !doomed {
                self.must_deny(request, &[gpulease_words::Reason::DeviceRefused]);
            }
        }
    }

    fn hear_claimed(&mut self, id: SegmentId) {
        let here = |s: &&mut super::SegmentFact| matches!(s.state, SegmentState::Live | SegmentState::Back);
        let Some(segment) = self.segments.get_mut(&id).filter(here) else { return };
        segment.claimed = true;
        if let Some(lease) = self.leases.get_mut(&segment.lease) {
            lease.used = true;
        }
    }

    fn hear_freed(&mut self, id: SegmentId) {
        let Some(fact) = self.segments.get_mut(&id) else { return };
        match fact.state {
            SegmentState::Draining | SegmentState::Quarantined => self.comes_back(id),
            SegmentState::Departing | SegmentState::Stuck => fact.state = SegmentState::Away,
            SegmentState::Creating
            | SegmentState::Live
            | SegmentState::Away
            | SegmentState::Restoring
            | SegmentState::Back
            | SegmentState::Gone => {}
        }
    }

    /// The bytes of a segment are its lease's again, or free.
    fn comes_back(&mut self, id: SegmentId) {
        let fact = self.segments[&id].clone();
        let aside = self.charge_on(fact.lease, fact.device).set_aside;
        self.untrimmed = Some((fact.lease, fact.device, super::ledger::add(aside, fact.bytes)));
        self.segments.get_mut(&id).expect("it was just there").state = SegmentState::Gone;
    }

    fn hear_unproven(&mut self, id: SegmentId, suspects: &[Pid]) {
        if let Some(fact) = self.segments.get_mut(&id).filter(|s| s.state == SegmentState::Departing) {
            fact.state = SegmentState::Stuck;
            let lease = fact.lease;
            self.leases.get_mut(&lease).expect("a segment has a lease").suspects.extend(suspects);
            return;
        }
        let Some(lease) =
            self.segments.get(&id).filter(|s| s.state == SegmentState::Draining).map(|s| s.lease)
        else {
            return;
        };
        let aside = self.set_aside_of(lease);
        self.segments.get_mut(&id).expect("it was just there").state = SegmentState::Quarantined;
        self.uncovered_waits_are_growth(lease, &aside);
        self.leases.get_mut(&lease).expect("a segment has a lease").suspects.extend(suspects);
    }

    fn hear_overhead(&mut self, process: gpulease_words::ProcessId, device: DeviceId, bytes: Bytes) {
        let known = self.processes.get(&process).is_some_and(|fact| fact.alive && !fact.forgotten);
        if let Some(fact) = self.device(device).filter(|_| known) {
            self.measured.insert((process, device), bytes.min(fact.capacity));
        }
    }

    fn hear_lost(&mut self, device: DeviceId) {
        if let Some(fact) = self.devices.iter_mut().find(|fact| fact.id == device) {
            fact.lost = true;
        }
        let hit: Vec<usize> =
            self.hoping().filter(|(_, ask)| self.can_never_be(ask)).map(|(i, _)| i).collect();
        hit.into_iter().for_each(|i| self.leave(i, &[]));
    }
}
