//! What ends with what: sessions, processes, leases, segments, waits.

use std::collections::BTreeMap;

use gpulease_arbiter::{RequestId, Time};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, Reason, SegmentId, SessionId};

use super::{Aim, Journey, Model, SegmentState, Standing, Verdict};

impl Model {
    /// A request must be answered with a refusal now, for one of these reasons (none: any).
    pub(super) fn must_deny(&mut self, request: RequestId, reasons: &[Reason]) {
        if let Some(fact) = self.requests.get_mut(&request) {
            fact.verdict = Verdict::No(reasons.to_vec());
        }
    }

    /// An ask leaves the line; whoever listens is told.
    pub(super) fn leave(&mut self, index: usize, reasons: &[Reason]) {
        let ask = &mut self.asks[index];
        ask.standing = Standing::Left;
        if let Some(request) = ask.request {
            self.must_deny(request, reasons);
        }
    }

    /// The session is no more; what it asked for is withdrawn.
    pub(super) fn end_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.open = false;
            session.adrift_since = None;
        }
        self.lose_waiters(|_, waiter| waiter == id);
        let its: Vec<usize> = self.hoping().filter(|(_, ask)| ask.session == id).map(|(i, _)| i).collect();
        its.into_iter().for_each(|i| self.leave(i, &[]));
    }

    /// The session's leases that it owns and that stand.
    pub(super) fn owned(&self, session: SessionId) -> Vec<LeaseId> {
        let its = self.standing_leases().filter(|(_, lease)| lease.owner == session && !lease.ended);
        its.map(|(id, _)| id).collect()
    }

    /// The process is gone.
    pub(super) fn end_process(&mut self, process: ProcessId) {
        let Some(fact) = self.processes.get_mut(&process) else { return };
        fact.alive = false;
        self.lose_waiters(|waiter, _| waiter == process);
        self.measured.retain(|(of, _), _| *of != process);
        self.contexts.retain(|(of, _), _| *of != process);
        let sessions: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.open && s.peer.process == process)
            .map(|(id, _)| *id)
            .collect();
        sessions.into_iter().for_each(|session| self.end_session(session));
        let its = self.segments.iter().filter(|(_, s)| s.process == process).map(|(id, _)| *id);
        its.collect::<Vec<_>>().into_iter().for_each(|segment| self.give_back(segment));
        let leases: Vec<LeaseId> = self
            .standing_leases()
            .filter(|(_, lease)| lease.members.contains(&process))
            .map(|(id, _)| id)
            .collect();
        for id in leases {
            let lease = self.leases.get_mut(&id).expect("it stands");
            lease.members.retain(|member| *member != process);
            if let Journey::Draining { undrained, .. } = &mut lease.journey {
                undrained.remove(&process);
            }
            if lease.members.is_empty() && !lease.ended {
                self.end_lease(id);
            }
        }
    }

    /// The lease is given back: nothing set aside any more, no growth, what is mapped stays charged.
    pub(super) fn end_lease(&mut self, id: LeaseId) {
        let lease = self.leases.get_mut(&id).expect("it stands");
        (lease.ended, lease.recall) = (true, None);
        let waits =
            self.hoping().filter(|(_, ask)| matches!(ask.aim, Aim::Growth { lease, .. } if lease == id));
        waits.map(|(i, _)| i).collect::<Vec<_>>().into_iter().for_each(|i| self.leave(i, &[Reason::Ending]));
        let made: Vec<SegmentId> = self
            .segments_of(id)
            .filter(|(_, s)| s.state == SegmentState::Creating && !s.doomed)
            .map(|(id, _)| id)
            .collect();
        made.into_iter().for_each(|segment| self.doom(segment));
        self.forget_journey(id);
    }

    /// Asks that wait, in the line or for their own bytes.
    pub(super) fn hoping(&self) -> impl Iterator<Item = (usize, &super::AskFact)> {
        let hopes = |(_, ask): &(usize, &super::AskFact)| {
            matches!(
                ask.standing,
                Standing::Waiting | Standing::OwnDrain | Standing::AtLimit | Standing::Leaving
            )
        };
        self.asks.iter().enumerate().filter(hopes)
    }

    /// Allocations that waited for their lease's own bytes and that what is set aside and what drains
    /// does not suffice for any more are growth from now on, the youngest first.
    pub(super) fn uncovered_waits_are_growth(&mut self, id: LeaseId, aside: &BTreeMap<DeviceId, Bytes>) {
        for (device, aside) in aside {
            let coming = super::ledger::add(*aside, self.charge_on(id, *device).draining);
            while self.promised(id, *device) > coming {
                let mine = |ask: &super::AskFact| {
                    ask.standing == Standing::OwnDrain
                        && matches!(ask.aim, Aim::Growth { lease, device: on, .. } if lease == id && on == *device)
                };
                let youngest = self.asks.iter().rposition(mine).expect("something is promised");
                self.asks[youngest].standing = Standing::Waiting;
            }
        }
    }

    /// What a lease has set aside on each of its devices.
    pub(super) fn set_aside_of(&self, id: LeaseId) -> BTreeMap<DeviceId, Bytes> {
        let devices = self.leases[&id].devices.iter();
        devices.map(|device| (*device, self.charge_on(id, *device).set_aside)).collect()
    }

    /// A segment that is being made is for nobody any more.
    fn doom(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("it is being made");
        segment.doomed = true;
        let request = segment.request;
        if self
            .requests
            .get(&request)
            .is_some_and(|fact| fact.answers == 0 && fact.verdict == Verdict::Making)
        {
            self.must_deny(request, &[]);
        }
    }

    /// A segment's process has no use for it any more.
    pub(super) fn give_back(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("it is known");
        match segment.state {
            SegmentState::Creating if !segment.doomed => self.doom(id),
            SegmentState::Live | SegmentState::Back => {
                (segment.state, segment.reclaimed) = (SegmentState::Draining, false);
            }
            SegmentState::Departing | SegmentState::Stuck | SegmentState::Away | SegmentState::Restoring => {
                self.abandon_copy(id);
            }
            SegmentState::Creating
            | SegmentState::Draining
            | SegmentState::Quarantined
            | SegmentState::Gone => {}
        }
    }

    /// Time has passed: patience, graces and deadlines run out.
    pub(in crate::sim) fn hear_time(&mut self, now: Time) {
        self.now = now;
        let over: Vec<usize> =
            self.aging().filter(|(_, ask)| self.patience_is_over(ask)).map(|(i, _)| i).collect();
        over.into_iter().for_each(|i| self.leave(i, &[Reason::WaitOver]));
        let grace = self.policy.unattended_grace;
        let alone: Vec<usize> = self
            .waiting()
            .filter(|(_, ask)| ask.unattended_since.is_some_and(|since| since.plus(grace) <= now))
            .map(|(i, _)| i)
            .collect();
        alone.into_iter().for_each(|i| self.leave(i, &[]));
        let due: Vec<usize> =
            self.aging().filter(|(_, ask)| self.barrier_at(ask) <= now).map(|(i, _)| i).collect();
        for i in due {
            // Where guarantees change the order the arbiter shows who is a barrier, and the model when it may be.
            self.asks[i].risen |= !self.binds();
            self.asks[i].senior = true;
        }
        let recalls = self.leases.values_mut().filter_map(|lease| lease.recall.as_mut());
        recalls.for_each(|recall| recall.missed |= recall.deadline <= now);
        self.hear_time_of_moves();
        self.end_unclaimed(now);
        self.drop_overdue_growth();
        self.place_growth();
    }

    /// Asks that become older: those that stand aside for what was promised to them, or for their lease, do not.
    fn aging(&self) -> impl Iterator<Item = (usize, &super::AskFact)> {
        self.hoping().filter(|(_, ask)| matches!(ask.standing, Standing::Waiting | Standing::AtLimit))
    }

    /// What would not wait at all is refused in the line, when its lease gets nothing back any more.
    fn patience_is_over(&self, ask: &super::AskFact) -> bool {
        let waits = ask.patience != gpulease_arbiter::Patience::None;
        waits && self.deadline(ask).is_some_and(|deadline| deadline <= self.now)
    }

    /// Leases granted to nobody's ear that nobody came for. Where the asker is gone, whom it admitted keeps the lease.
    fn end_unclaimed(&mut self, now: Time) {
        let grace = self.policy.unattended_grace;
        let due = self.asks.iter_mut().filter_map(|ask| {
            let Standing::Granted(lease) = ask.standing else { return None };
            ask.unattended_since.filter(|since| since.plus(grace) <= now)?;
            ask.unattended_since = None;
            Some(lease)
        });
        for lease in due.collect::<Vec<_>>() {
            if self.is_untouched(lease) && self.open_session(self.leases[&lease].owner).is_some() {
                self.end_lease(lease);
            }
        }
    }

    /// Whether nobody uses a lease.
    pub(super) fn is_untouched(&self, id: LeaseId) -> bool {
        let lease = &self.leases[&id];
        let grows = self.hoping().any(|(_, ask)| matches!(ask.aim, Aim::Growth { lease, .. } if lease == id));
        !lease.ended
            && lease.journey == Journey::Active
            && !lease.used
            && !grows
            && lease.members.len() <= 1
            && self.segments_of(id).next().is_none()
    }

    /// Whether a lease may not grow: a recall's deadline passed, or its owner stayed away.
    pub(super) fn is_overdue(&self, id: LeaseId) -> bool {
        let lease = &self.leases[&id];
        !lease.ended && (lease.late || lease.unheard || self.owner_is_away(id) || self.recall_is_overdue(id))
    }

    pub(super) fn owner_is_away(&self, id: LeaseId) -> bool {
        let owner = self.open_session(self.leases[&id].owner);
        let since = owner.and_then(|session| session.adrift_since);
        since.is_some_and(|since| since.plus(self.policy.adrift_grace) <= self.now)
    }

    fn recall_is_overdue(&self, id: LeaseId) -> bool {
        let recall = self.leases[&id].recall.as_ref();
        recall.is_some_and(|recall| recall.missed && !self.is_met(id, recall))
    }

    /// Whether enough was given back, proven or not.
    pub(super) fn is_met(&self, id: LeaseId, recall: &super::RecallFact) -> bool {
        recall.may_hold.iter().all(|(device, most)| self.charge_on(id, *device).held <= *most)
    }

    /// Recalls that are met count no more.
    pub(super) fn drop_met_recalls(&mut self) {
        let ids: Vec<LeaseId> = self.standing_leases().map(|(id, _)| id).collect();
        for id in ids {
            let met = self.leases[&id].recall.as_ref().is_some_and(|recall| self.is_met(id, recall));
            if met {
                self.leases.get_mut(&id).expect("it stands").recall = None;
            }
        }
    }

    /// What waits for growth of a lease that is overdue leaves the line.
    pub(super) fn drop_overdue_growth(&mut self) {
        let overdue =
            |ask: &super::AskFact| matches!(ask.aim, Aim::Growth { lease, .. } if self.is_overdue(lease));
        let hit: Vec<usize> = self.aging().filter(|(_, ask)| overdue(ask)).map(|(i, _)| i).collect();
        // Where it is to leave at the same time, either is a reason.
        hit.into_iter().for_each(|i| self.leave(i, &[Reason::Overdue, Reason::Suspended]));
    }
}
