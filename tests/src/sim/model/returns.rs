//! Who waits for a lease that is away, who loses it, and what must not stand still.

use gpulease_arbiter::RequestId;
use gpulease_words::{DeviceId, LeaseId, ProcessId, Reason, SegmentId, SessionId};

use super::{
    Aim, AskFact, Broken, Journey, LeaseFact, Model, SegmentFact, SegmentState, Standing, Verdict, ensure,
};

impl Model {
    pub(super) fn judge_resume(&mut self, request: RequestId, session: SessionId, id: LeaseId) -> Verdict {
        if let Err(no) = self.visible(session, id) {
            return no;
        }
        let lease = &self.leases[&id];
        if lease.ended {
            return Verdict::No(vec![Reason::Ending]);
        }
        if lease.journey == Journey::Active {
            return Verdict::Resumed;
        }
        if lease.resumers.len() >= self.policy.asks_per_uid as usize {
            return Verdict::No(vec![Reason::TooMany]);
        }
        let resumes = matches!(lease.journey, Journey::Resuming { .. });
        if self.resume_of(id).is_none() && !resumes {
            let standing = match self.leases[&id].journey {
                Journey::Draining { .. } | Journey::Leaving { .. } => Standing::Leaving,
                Journey::Active | Journey::Suspended | Journey::Resuming { .. } => Standing::Waiting,
            };
            let peer = self.sessions[&session].peer.clone();
            let ask = self.resume_ask(session, peer, id, standing);
            self.asks.push(ask);
        }
        self.fact(id).resumers.insert(request, session);
        Verdict::Returning(id)
    }

    pub(super) fn resume_ask(
        &self,
        session: SessionId,
        peer: gpulease_arbiter::Peer,
        lease: LeaseId,
        standing: Standing,
    ) -> AskFact {
        AskFact {
            standing,
            patience: gpulease_arbiter::Patience::Endless,
            ..AskFact::new(session, peer, Aim::Resume { lease }, self.now)
        }
    }

    pub(super) fn judge_pin(&mut self, session: SessionId, id: LeaseId) -> Verdict {
        if let Err(no) = self.visible(session, id) {
            return no;
        }
        let lease = &self.leases[&id];
        if lease.ended {
            return Verdict::No(vec![Reason::Ending]);
        }
        if lease.journey != Journey::Active {
            return Verdict::No(vec![Reason::Suspended]);
        }
        if lease.movable && !self.may_be_pinned(id) {
            Verdict::No(vec![Reason::PinnedFull])
        } else {
            Verdict::Yes
        }
    }

    /// Whether enough may be pinned for a lease that is to stay where it is.
    pub(super) fn may_be_pinned(&self, id: LeaseId) -> bool {
        let tally = self.tally();
        let kept = self.kept(&tally, |_| true);
        let more = |device: DeviceId| {
            self.pinned_of(id, device, false).saturating_sub(self.pinned_of(id, device, true))
        };
        let mut devices = self.leases[&id].devices.iter();
        !self.binds() || devices.all(|device| more(*device) <= self.pinned_room(&kept, *device))
    }

    /// A process or a session goes that waits for leases: it is told, and others are heard again.
    pub(super) fn lose_waiters(&mut self, gone: impl Fn(ProcessId, SessionId) -> bool) {
        let ids: Vec<LeaseId> = self.standing_leases().map(|(id, _)| id).collect();
        for id in ids {
            let waiters: Vec<RequestId> = self.leases[&id]
                .resumers
                .iter()
                .filter(|(_, session)| gone(self.sessions[session].peer.process, **session))
                .map(|(request, _)| *request)
                .collect();
            for request in waiters {
                self.fact(id).resumers.remove(&request);
                self.must_deny(request, &[Reason::Withdrawn]);
            }
            if let Some(index) = self.resume_of(id)
                && gone(self.asks[index].peer.process, self.asks[index].session)
            {
                // Whether another takes its place the state shows.
                self.asks[index].standing = Standing::Left;
                let lease = self.fact(id);
                lease.asks_itself = matches!(lease.journey, Journey::Resuming { .. });
            }
        }
    }

    /// Nobody waits for a lease that is given back.
    pub(super) fn forget_journey(&mut self, id: LeaseId) {
        if let Some(index) = self.resume_of(id) {
            self.asks[index].standing = Standing::Left;
        }
        for request in std::mem::take(&mut self.fact(id).resumers).into_keys() {
            self.must_deny(request, &[Reason::Ending]);
        }
        let copies: Vec<SegmentId> =
            self.segments_of(id).filter(|(_, s)| s.is_copied()).map(|(id, _)| id).collect();
        copies.into_iter().for_each(|segment| self.abandon_copy(segment));
    }

    /// Nobody wants the host copy of a segment; what it takes of the device comes back.
    pub(super) fn abandon_copy(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("it is known");
        match segment.state {
            SegmentState::Departing => segment.state = SegmentState::Draining,
            SegmentState::Stuck => segment.state = SegmentState::Quarantined,
            SegmentState::Restoring => {
                (segment.state, segment.doomed, segment.reclaimed) = (SegmentState::Creating, true, false);
            }
            SegmentState::Away => (segment.state, segment.forgotten) = (SegmentState::Gone, true),
            SegmentState::Creating
            | SegmentState::Live
            | SegmentState::Back
            | SegmentState::Draining
            | SegmentState::Quarantined
            | SegmentState::Gone => {}
        }
    }

    pub(super) fn hear_abandoned_resume(&mut self, request: RequestId) {
        let ids: Vec<LeaseId> = self.leases.keys().copied().collect();
        for id in ids {
            if self.fact(id).resumers.remove(&request).is_none() {
                continue;
            }
            self.requests.get_mut(&request).expect("it asked").verdict = Verdict::Nobody;
            let alone = self.leases[&id].resumers.is_empty();
            let begun = matches!(self.leases[&id].journey, Journey::Resuming { .. });
            if let Some(index) = self.resume_of(id).filter(|i| alone && !begun && !self.asks[*i].returning) {
                self.asks[index].standing = Standing::Left;
            }
        }
    }

    /// Nothing that moves has stopped, and nothing that could be made again waits.
    pub(super) fn nothing_stands_still(&self) -> Result<(), Broken> {
        for (id, lease) in self.standing_leases().filter(|(_, lease)| !lease.ended) {
            match &lease.journey {
                Journey::Draining { undrained, deadline } => {
                    ensure!(
                        *deadline > self.now,
                        "{id} is to be drained by {deadline:?}, and nothing came of it"
                    );
                    let ready = undrained.is_empty() && self.can_leave(id);
                    ensure!(!ready, "{id} has drained and does not leave");
                }
                Journey::Leaving { .. } => {
                    ensure!(!self.has_left(id), "all of {id} is away, and it is not called so")
                }
                Journey::Resuming { recedes } => self.comes_on(id, lease, *recedes)?,
                Journey::Active | Journey::Suspended => {}
            }
        }
        Ok(())
    }

    pub(super) fn comes_on(&self, id: LeaseId, lease: &LeaseFact, recedes: bool) -> Result<(), Broken> {
        ensure!(!recedes || self.is_on_its_way_back(id), "{id} is to leave again and does not");
        let fits = |segment: &SegmentFact| segment.bytes <= self.charge_on(id, segment.device).set_aside;
        let waits = self.segments_of(id).find(|(_, s)| s.is_away() && fits(s)).map(|(segment, _)| segment);
        ensure!(
            recedes || lease.retries || waits.is_none(),
            "{waits:?} of {id} could be made again and is not"
        );
        let all = self.resume_of(id).is_none() && self.segments_of(id).all(|(_, s)| !s.is_copied());
        ensure!(!all, "all of {id} is back, and nobody is told");
        Ok(())
    }
}
