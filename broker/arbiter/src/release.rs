//! Leases and segments are given back.
//!
//! A released lease loses at once what it has set aside. What is in its segments stays charged
//! until their processes free them or die, because until then they are mapped, and then until the
//! device proves that it has the bytes again. Members' overhead stays charged while the lease
//! drains: their contexts are there.

use gpulease_words::{DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId};

use crate::allocate::Reach;
use crate::ledger::{Bucket, minus};
use crate::segment::{Claim, State};
use crate::{Arbiter, Authority, Denial, Effect, LeaseState, Notice, RequestId, Why};

impl Arbiter {
    pub(crate) fn release(
        &mut self,
        request: RequestId,
        authority: Authority,
        lease: LeaseId,
    ) -> Result<(), Denial> {
        self.may_release(authority, lease)?;
        let state = self.leases[&lease].state;
        if state != LeaseState::Draining {
            self.announce_end(authority, lease);
        }
        let draining = self.leases[&lease].charge();
        let draining = crate::ledger::plus(draining.held, draining.draining);
        self.emit(Effect::Released { request, lease, draining });
        self.end_lease(lease);
        Ok(())
    }

    fn may_release(&self, authority: Authority, lease: LeaseId) -> Result<(), Denial> {
        if let Authority::Session(session) = authority {
            self.session(session)?;
        }
        let owner = &self.leases.get(&lease).ok_or(Denial::NoSuchLease)?.owner;
        let may = match authority {
            Authority::Session(session) => owner.session == Some(session),
            Authority::User(uid) => owner.uid == uid,
            Authority::Operator => true,
        };
        if may { Ok(()) } else { Err(Denial::NoSuchLease) }
    }

    /// Tells those who use the lease that another ends it.
    fn announce_end(&mut self, authority: Authority, lease: LeaseId) {
        match authority {
            Authority::Session(_) => {}
            Authority::User(_) | Authority::Operator => {
                self.notify(lease, &Notice::Ended { lease, denial: Denial::EndedByOther });
            }
        }
    }

    /// A lease is given back from now on; one that is already is left alone.
    pub(crate) fn end_lease(&mut self, lease: LeaseId) {
        if self.leases[&lease].state == LeaseState::Draining {
            return;
        }
        self.lease_mut(lease).end(lease);
        self.stop_growth(lease, Reach::All, &Denial::Ending);
        self.disappoint(lease, &Denial::Ending);
        self.forget_name(lease);
        self.forget_journey(lease);
        self.lease_mut(lease).recall = None;
        self.recalled.remove(&lease);
        self.timers.cancel(Why::RecallDue(lease));
        self.timers.cancel(Why::GrantUnclaimed(lease));
        let devices: Vec<DeviceId> = self.leases[&lease].shares.keys().copied().collect();
        for device in devices {
            self.trim(lease, device);
        }
        self.take_stock_everywhere(lease);
        for segment in self.leases[&lease].segments.clone() {
            self.abandon_copy(segment);
        }
        self.bury(lease);
    }

    /// A lease that ends neither leaves nor comes back any more.
    fn forget_journey(&mut self, lease: LeaseId) {
        self.moving.remove(&lease);
        if let Some(ask) = self.leases[&lease].residence.ask {
            drop(self.drop_ask(ask));
        }
        self.refuse_resumers(lease, &Denial::Ending);
        for why in
            [Why::DrainDue(lease), Why::SwapDue(lease), Why::RestoreAgain(lease), Why::GraceEnds(lease)]
        {
            self.timers.cancel(why);
        }
    }

    /// Nobody wants the host copy of a segment any more; what it takes of the device comes back.
    fn abandon_copy(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("a lease's segments exist");
        let process = segment.process;
        segment.state = match &mut segment.state {
            State::Departing => State::Draining,
            State::Stuck { suspects } => State::Quarantined { suspects: std::mem::take(suspects) },
            State::Restoring => State::Creating(None),
            State::Away => return self.forget_segment(id),
            State::Creating(_)
            | State::Live(_)
            | State::Back(_)
            | State::Draining
            | State::Quarantined { .. } => {
                return;
            }
        };
        if segment.state == State::Creating(None) {
            return;
        }
        if let Some(process) = self.processes.get_mut(&process) {
            process.segments.remove(&id);
        }
    }

    /// A segment that is away is no more.
    fn forget_segment(&mut self, id: SegmentId) {
        let segment = self.segments.remove(&id).expect("its caller looked");
        let (lease, device) = (segment.lease, segment.device);
        if let Some(process) = self.processes.get_mut(&segment.process) {
            process.segments.remove(&id);
        }
        let of = self.lease_mut(lease);
        of.segments.remove(&id);
        let share = of.share_mut(device);
        share.away = minus(share.away, segment.bytes);
        self.take_stock(lease, device);
        self.emit(Effect::Forget { segment: id });
    }

    /// The owner's session may use the ask's name again.
    fn forget_name(&mut self, lease: LeaseId) {
        let owner = &self.leases[&lease].owner;
        let ask_name = owner.ask_name;
        if let Some(session) = owner.session.and_then(|session| self.sessions.get_mut(&session)) {
            session.leases.remove(&lease);
            session.asks.remove(&ask_name);
        }
    }

    /// A lease of which nothing is in segments any more is gone.
    pub(crate) fn bury(&mut self, lease: LeaseId) {
        if !self.leases.get(&lease).is_some_and(|l| l.is_spent()) {
            return;
        }
        let members = self.leases[&lease].members.clone();
        for member in &members {
            self.process_mut(*member).leases.remove(&lease);
            self.drop_contexts(*member, lease);
        }
        let gone = self.leases.remove(&lease).expect("it was just there");
        assert!(gone.charge().total().is_zero(), "{lease} goes while it is charged: {:?}", gone.charge());
        self.accounts.remove_lease(gone.account);
        self.accounts.leave(gone.account);
        self.emit(Effect::LeaseGone { lease });
        for member in members {
            self.retire_process(member);
        }
    }

    pub(crate) fn free(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        segment: SegmentId,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        self.lease_of_member(process, lease)?;
        let known = self.segments.get(&segment).filter(|s| s.lease == lease && s.process == process);
        let drains = match known.map(|s| &s.state) {
            Some(State::Live(_) | State::Back(_)) => true,
            Some(State::Departing | State::Stuck { .. } | State::Away | State::Restoring) => false,
            Some(State::Creating(_) | State::Draining | State::Quarantined { .. }) | None => {
                return Err(Denial::NoSuchSegment);
            }
        };
        self.emit(Effect::Done { request });
        if drains {
            self.drain(segment);
        } else {
            self.abandon_copy(segment);
            self.move_on(lease);
        }
        Ok(())
    }

    /// The device takes the segment back and proves it.
    pub(crate) fn drain(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("its caller looked");
        segment.drain(id);
        let device = segment.device;
        self.emit(Effect::Reclaim { segment: id, device });
        self.send_back(id);
    }

    /// Nobody wants what the device is making: it drains once it is made. Who wanted it, where somebody still did.
    pub(crate) fn forsake_segment(&mut self, id: SegmentId) -> Option<RequestId> {
        let request = self.segments.get_mut(&id).expect("its caller looked").forsake()?;
        self.creating.remove(&request);
        self.send_back(id);
        Some(request)
    }

    /// The segment's bytes are on their way back.
    fn send_back(&mut self, id: SegmentId) {
        let segment = &self.segments[&id];
        let (lease, device, process, bytes) = (segment.lease, segment.device, segment.process, segment.bytes);
        if let Some(process) = self.processes.get_mut(&process) {
            process.segments.remove(&id);
        }
        self.shift(lease, device, Bucket::Held, Bucket::Draining, bytes);
        // What waits for the lease's own bytes may be covered by these now, and needs less set aside.
        self.review(lease, device);
        self.weigh_recall(lease);
        self.move_on(lease);
    }

    /// The process is dead: it maps nothing any more.
    pub(crate) fn drain_all_of(&mut self, process: ProcessId) {
        for id in self.process(process).segments.clone() {
            match self.segments[&id].state {
                State::Creating(Some(request)) => {
                    self.forsake_segment(id);
                    self.deny(request, Denial::Withdrawn);
                }
                State::Live(_) | State::Back(_) => self.drain(id),
                State::Departing | State::Stuck { .. } | State::Away | State::Restoring => {
                    self.abandon_copy(id)
                }
                State::Creating(None) | State::Draining | State::Quarantined { .. } => {
                    unreachable!("a process's set has no segments that were given back")
                }
            }
        }
    }

    pub(crate) fn claimed(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        if let State::Live(claim) | State::Back(claim) = &mut segment.state {
            *claim = Claim::Claimed;
        }
        let lease = segment.lease;
        self.lease_mut(lease).used = true;
        self.move_on(lease);
    }

    pub(crate) fn freed(&mut self, id: SegmentId) {
        let from = match self.segments.get(&id).map(|segment| &segment.state) {
            Some(State::Draining) => Bucket::Draining,
            Some(State::Quarantined { .. }) => Bucket::Quarantined,
            Some(State::Departing) => return self.went_away(id, Bucket::Draining),
            Some(State::Stuck { .. }) => return self.went_away(id, Bucket::Quarantined),
            // A late or doubled word of the device: what it was about was settled.
            Some(State::Creating(_) | State::Live(_) | State::Away | State::Restoring | State::Back(_))
            | None => {
                return;
            }
        };
        self.bring_back(id, from);
    }

    pub(crate) fn unproven(&mut self, id: SegmentId, now: Vec<Pid>) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let (lease, device, bytes) = (segment.lease, segment.device, segment.bytes);
        match &mut segment.state {
            State::Draining => {
                segment.state = State::Quarantined { suspects: now };
                self.shift(lease, device, Bucket::Draining, Bucket::Quarantined, bytes);
                self.review(lease, device);
            }
            State::Departing => {
                segment.state = State::Stuck { suspects: now };
                self.shift(lease, device, Bucket::Draining, Bucket::Quarantined, bytes);
            }
            State::Quarantined { suspects } | State::Stuck { suspects } => *suspects = now,
            State::Creating(_) | State::Live(_) | State::Away | State::Restoring | State::Back(_) => {}
        }
    }
}
