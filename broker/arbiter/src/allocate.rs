//! Segments are asked for and made.
//!
//! Within the reserve nothing is refused for lack of room. Where the lease's own draining bytes
//! stand in between, the allocation waits for them whatever its patience and whatever guard its
//! process is in: the wait is for the device alone, for nobody's guard. It does not stand in the
//! line. If those bytes turn out to be quarantined, or the reserve is lowered, it is growth after all.
//!
//! Above the reserve it is growth: what is set aside is used first, the rest comes out of what is
//! free, by the rules of the line. Where only the lease's own draining bytes keep it above the lease's
//! limit, it stands aside until those are back. And who would not wait, or may not, is refused only
//! when his own lease gets nothing back any more that could help.

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

use crate::acquire::deadline;
use crate::lease::Lease;
use crate::ledger::{Bucket, minus, plus};
use crate::line::ask::{Ask, Right, Seniority, Stage, Want};
use crate::line::shape::Shape;
use crate::segment::{Segment, State};
use crate::session::too_many;
use crate::terms::listed;
use crate::{Arbiter, Denial, Effect, Guard, Patience, RequestId, SegmentKind};

/// A segment that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) lease: LeaseId,
    pub(crate) device: DeviceId,
    pub(crate) bytes: Bytes,
    pub(crate) kind: SegmentKind,
    pub(crate) patience: Patience,
    pub(crate) guard: Guard,
}

impl Arbiter {
    pub(crate) fn allocate(
        &mut self,
        request: RequestId,
        session: SessionId,
        wanted: Wanted,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        let lease = self.lease_of_member(process, wanted.lease)?;
        lease.resident()?;
        self.sound_segment(lease, &wanted)?;
        self.stay_if_needed(process, &wanted)?;
        let lease = &self.leases[&wanted.lease];
        let share = lease.share(wanted.device);
        if !share.is_within(lease.reserve, wanted.bytes) {
            return self.grow(request, session, process, wanted);
        }
        if wanted.bytes <= share.charge.set_aside {
            return self.make(Some(request), process, &wanted);
        }
        self.wait_for_own_drain(request, session, process, wanted)
    }

    /// The lease, if the process is a member of it.
    pub(crate) fn lease_of_member(&self, process: ProcessId, lease: LeaseId) -> Result<&Lease, Denial> {
        self.leases.get(&lease).filter(|lease| lease.members.contains(&process)).ok_or(Denial::NoSuchLease)
    }

    fn sound_segment(&self, lease: &Lease, wanted: &Wanted) -> Result<(), Denial> {
        if wanted.bytes.is_zero() || !wanted.bytes.is_granular() {
            return Err(Denial::Malformed(
                "a segment is a multiple of 2 MiB, and at least that; round it up",
            ));
        }
        if !lease.shares.contains_key(&wanted.device) {
            let devices = listed(lease.shares.keys().copied());
            return Err(Denial::NoSuchDevice { device: wanted.device, devices });
        }
        self.usable(wanted.device)?;
        if lease.segments.len() + lease.growing.len() >= self.policy.segments_per_lease as usize {
            return Err(too_many("segments", wanted.lease.to_string(), self.policy.segments_per_lease));
        }
        Ok(())
    }

    /// Grants growth at once, or lets it wait, or refuses it.
    fn grow(
        &mut self,
        request: RequestId,
        session: SessionId,
        process: ProcessId,
        wanted: Wanted,
    ) -> Result<(), Denial> {
        let lease = &self.leases[&wanted.lease];
        let stage = match within_lease(lease, &wanted)? {
            Fits::Now => Stage::InLine,
            Fits::OnceDrained => Stage::AtLimit,
        };
        lease.active()?;
        if lease.is_overdue() {
            return Err(Denial::Overdue);
        }
        self.could_ever_grow(lease, process, &wanted)?;
        self.bounded(self.process(process).peer.uid)?;
        let id = self.wait_for_segment(request, session, process, wanted, stage)?;
        self.promote(id);
        self.hasty.push(id);
        self.settle();
        Ok(())
    }

    /// Refuses growth that must not wait any longer. Whether there was any.
    pub(crate) fn turn_away(&mut self) -> Refused {
        let mut refused = Refused::Nobody;
        for id in std::mem::take(&mut self.hasty) {
            if let Some(denial) = self.impatience(id) {
                self.refuse_ask(id, denial);
                refused = Refused::Somebody;
            }
        }
        refused
    }

    /// Why growth that was not granted must not wait, if it must not. For what its own lease gets back it waits
    /// whatever its patience and its guard: that takes the device alone, and ends.
    pub(crate) fn impatience(&self, id: AskId) -> Option<Denial> {
        let ask = self.line.asks.get(&id).filter(|ask| ask.stage != Stage::AtLimit)?;
        let Want::Segment(wanted) = &ask.want else {
            return None;
        };
        if wanted.patience != Patience::None && wanted.guard == Guard::Outside {
            return None;
        }
        let lease = &self.leases[&wanted.lease];
        if let Err(denial) = within_lease(lease, wanted) {
            return Some(denial);
        }
        let (obstacle, draining) = (self.obstacle(ask), lease.share(wanted.device).charge.draining);
        if !draining.is_zero() && obstacle.short_by <= draining {
            return None;
        }
        match wanted.patience {
            Patience::None => Some(obstacle.denial()),
            Patience::AtMost(_) | Patience::Endless => Some(Denial::WouldDeadlock { asked: wanted.bytes }),
        }
    }

    /// Whether the growth would fit if no other lease were there and nothing of its own drained.
    fn could_ever_grow(&self, lease: &Lease, process: ProcessId, wanted: &Wanted) -> Result<(), Denial> {
        let share = lease.share(wanted.device);
        let more = share.once_drained(lease.reserve).beyond(wanted.bytes);
        let charged = lease.charge_once_drained();
        self.within_limits(lease.account, charged.saturating_add(more), 1, Bytes::ZERO)?;
        let overhead = self.overhead_alone(process, wanted.device);
        let room = self.ledger.book(wanted.device).capacity.saturating_sub(overhead);
        let kept = share.charge.held.saturating_add(share.charge.quarantined);
        let largest = room.saturating_sub(kept);
        if wanted.bytes > largest {
            return Err(Denial::TooLarge { asked: wanted.bytes, overhead, largest: largest.round_down() });
        }
        Ok(())
    }

    pub(crate) fn wait_for_segment(
        &mut self,
        request: RequestId,
        session: SessionId,
        process: ProcessId,
        wanted: Wanted,
        stage: Stage,
    ) -> Result<AskId, Denial> {
        let id = self.ids.ask.next().map_err(|_| Denial::OutOfIds)?;
        self.ids.ask = id;
        let lease = &self.leases[&wanted.lease];
        let (account, amount) = (lease.account, lease.share(wanted.device).beyond(wanted.bytes));
        let ask = Ask {
            id,
            request: Some(request),
            process,
            session,
            account,
            since: self.now,
            barrier_at: self.now.plus(self.accounts.max_wait(account, &self.policy)),
            deadline: match stage {
                Stage::OwnDrain | Stage::Leaving => None,
                Stage::InLine | Stage::AtLimit | Stage::Barrier { .. } => deadline(wanted.patience, self.now),
            },
            shape: self.line.shapes.enter(Shape::growth(wanted.device, self.growth_hold(wanted.lease))),
            amount,
            stage,
            seniority: Seniority::Junior,
            right: Right::Lent,
            covered_at: self.now,
            uncovered_in: 0,
            trimmed_as: None,
            covered: Vec::new(),
            want: Want::Segment(wanted),
        };
        self.waiting.insert(request, id);
        self.lease_mut(wanted.lease).growing.insert(id);
        self.wait(ask);
        Ok(id)
    }

    /// The lease forgets an ask for a segment that leaves the line.
    pub(crate) fn unlist_growth(&mut self, ask: &Ask) {
        let Want::Segment(wanted) = &ask.want else {
            return;
        };
        if let Some(request) = ask.request {
            self.waiting.remove(&request);
        }
        let lease = self.lease_mut(wanted.lease);
        lease.growing.remove(&ask.id);
        let share = lease.share_mut(wanted.device);
        if share.waits.remove(&ask.id) {
            share.promised = minus(share.promised, wanted.bytes);
        }
    }

    /// The line grants growth. What the lease may have has to be looked at again: it may have grown meanwhile.
    pub(crate) fn grant_segment(&mut self, ask: &Ask, wanted: Wanted) {
        let request = ask.request.expect("an ask for a segment leaves with its asker");
        let granted = within_lease(&self.leases[&wanted.lease], &wanted).and_then(|fits| {
            assert!(fits == Fits::Now, "{} is granted before its lease's own bytes are back", ask.id);
            self.make(Some(request), ask.process, &wanted)
        });
        if let Err(denial) = granted {
            self.deny(request, denial);
        }
    }

    /// Has the device make a segment, out of what is set aside first and then out of what is free.
    pub(crate) fn make(
        &mut self,
        request: Option<RequestId>,
        process: ProcessId,
        wanted: &Wanted,
    ) -> Result<(), Denial> {
        let segment = self.ids.segment.next().map_err(|_| Denial::OutOfIds)?;
        self.ids.segment = segment;
        let Wanted { lease, device, bytes, kind, .. } = *wanted;
        let reserved = self.reserved_part(lease, device, bytes);
        self.shift(lease, device, Bucket::SetAside, Bucket::Held, reserved);
        self.charge(lease, device, Bucket::Held, minus(bytes, reserved));
        let into = self.lease_mut(lease);
        into.segments.insert(segment);
        into.held_peak = into.held_peak.max(into.charge().held);
        self.process_mut(process).segments.insert(segment);
        let state = State::Creating(request);
        self.segments.insert(segment, Segment { lease, process, device, bytes, state });
        if let Some(request) = request {
            self.creating.insert(request, segment);
        }
        let pinning = self.leases[&lease].pinning;
        self.emit(Effect::Create { segment, lease, device, bytes, kind, pinning });
        self.refit(lease, device);
        Ok(())
    }

    fn reserved_part(&self, lease: LeaseId, device: DeviceId, bytes: Bytes) -> Bytes {
        let lease = &self.leases[&lease];
        let share = lease.share(device);
        let usable =
            if share.is_within(lease.reserve, bytes) { share.charge.set_aside } else { share.spare() };
        usable.min(bytes)
    }

    pub(crate) fn abandoned(&mut self, request: RequestId) {
        if let Some(ask) = self.waiting.get(&request).copied() {
            drop(self.drop_ask(ask));
        } else if let Some(segment) = self.creating.get(&request).copied() {
            self.forsake(segment);
        } else if let Some(lease) = self.resuming.get(&request).copied() {
            self.drop_resumer(lease, request);
        }
    }

    pub(crate) fn created(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else {
            return;
        };
        let (process, lease, device) = (segment.process, segment.lease, segment.device);
        match segment.state {
            State::Creating(_) => match segment.made(id) {
                Some(request) => {
                    self.creating.remove(&request);
                    self.emit(Effect::Allocated { request, segment: id, process });
                }
                None => self.emit(Effect::Reclaim { segment: id, device }),
            },
            State::Restoring => self.made_again(id),
            State::Live(_)
            | State::Draining
            | State::Quarantined { .. }
            | State::Departing
            | State::Stuck { .. }
            | State::Away
            | State::Back(_) => return,
        }
        self.move_on(lease);
    }

    pub(crate) fn create_failed(&mut self, id: SegmentId, why: String) {
        let Some(segment) = self.segments.get(&id) else {
            return;
        };
        match segment.state {
            State::Creating(request) => {
                let from = if request.is_some() { Bucket::Held } else { Bucket::Draining };
                if let Some(request) = request {
                    self.creating.remove(&request);
                    self.deny(request, Denial::DeviceRefused { why });
                }
                self.bring_back(id, from);
            }
            State::Restoring => self.not_made_again(id),
            State::Live(_)
            | State::Draining
            | State::Quarantined { .. }
            | State::Departing
            | State::Stuck { .. }
            | State::Away
            | State::Back(_) => {}
        }
    }

    /// Nobody waits for the segments that the lease has in the making any more.
    pub(crate) fn disappoint(&mut self, lease: LeaseId, denial: &Denial) {
        for id in self.leases[&lease].segments.clone() {
            if let Some(request) = self.forsake(id) {
                self.deny(request, denial.clone());
            }
        }
    }

    pub(crate) fn wanted(&self, id: AskId) -> Wanted {
        match &self.line.get(id).want {
            Want::Segment(wanted) => *wanted,
            Want::Lease { .. } | Want::Resume(_) => unreachable!("only asks for segments wait in a lease"),
        }
    }

    /// Refuses what waits for memory in the lease.
    pub(crate) fn stop_growth(&mut self, lease: LeaseId, reach: Reach, denial: &Denial) {
        // The youngest first: an older one that leaves would let a younger one pass.
        for id in self.leases[&lease].growing.clone().into_iter().rev() {
            let Some(ask) = self.line.asks.get(&id) else { continue };
            if reach == Reach::All || ask.stage != Stage::OwnDrain {
                self.refuse_ask(id, denial.clone());
            }
        }
    }
}

/// Which waiting allocations are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All of them.
    All,
    /// Those that need more than the reserve.
    BeyondReserve,
}

/// Whether anybody was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Nobody,
    Somebody,
}

/// When a lease's own limit allows something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fits {
    Now,
    /// Once what drains of the lease is back.
    OnceDrained,
}

/// # Errors
/// `BeyondLease` where the lease's own limit is in the way, whatever comes back to it.
pub(crate) fn within_lease(lease: &Lease, wanted: &Wanted) -> Result<Fits, Denial> {
    let share = lease.share(wanted.device);
    let beside = |there: Bytes| there.checked_add(wanted.bytes).is_some_and(|sum| sum <= lease.limit);
    let kept = plus(share.charge.held, share.charge.quarantined);
    // What was promised will be held, and comes out of what drains first.
    let held = plus(kept, share.promised);
    if beside(held.max(plus(kept, share.charge.draining))) {
        return Ok(Fits::Now);
    }
    if beside(held) {
        return Ok(Fits::OnceDrained);
    }
    Err(Denial::BeyondLease { limit: lease.limit, held, asked: wanted.bytes })
}
