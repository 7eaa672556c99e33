//! Leases leave their devices.
//!
//! ```text
//!   suspend: gates close        leave: nothing may fail any more    arrive
//!   active ----> draining ----------------> leaving --------------------> suspended
//!                   |  all drained, all       each segment: SwappedOut, Reclaim, Freed
//!                   |  segments settled
//!                   '--> active: deadline, SwapFailed
//! ```
//!
//! Nothing is unmapped before every process that holds a segment has drained. Set-aside bytes go when the
//! lease leaves, a segment's when the device has proven them (I2).

use std::collections::BTreeSet;

use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

use crate::allocate::{Reach, Wanted};
use crate::lease::{Exit, Pace};
use crate::ledger::{Bucket, plus};
use crate::process::Presence;
use crate::segment::{Claim, State};
use crate::{
    Arbiter, Denial, Effect, Idleness, LeaseState, Notice, Occurrence, Pinning, RequestId, SegmentKind, Why,
};

impl Arbiter {
    /// The processes that hold segments of the lease.
    pub(crate) fn holders(&self, lease: LeaseId) -> BTreeSet<ProcessId> {
        let segments = self.leases[&lease].segments.iter().map(|id| &self.segments[id]);
        segments.filter(|segment| segment.state.is_of_process()).map(|segment| segment.process).collect()
    }

    /// Whether each of them can be told something now.
    pub(crate) fn hears(&self, lease: LeaseId) -> bool {
        let present = |session: &SessionId| self.sessions[session].presence == Presence::Present;
        self.holders(lease)
            .iter()
            .all(|holder| self.processes.get(holder).is_some_and(|known| known.sessions.iter().any(present)))
    }

    fn tell_holders(&mut self, lease: LeaseId, notice: &Notice) {
        for holder in self.holders(lease) {
            for session in self.present_sessions(holder) {
                self.emit(Effect::Notify { session, notice: notice.clone() });
            }
        }
    }

    pub(crate) fn present_sessions(&self, process: ProcessId) -> Vec<SessionId> {
        let sessions =
            self.processes.get(&process).into_iter().flat_map(|known| known.sessions.iter().copied());
        sessions.filter(|session| self.sessions[session].presence == Presence::Present).collect()
    }

    /// The lease is to leave.
    pub(crate) fn suspend(&mut self, lease: LeaseId) {
        let (holders, deadline) = (self.holders(lease), self.now.plus(self.policy.drain_deadline));
        let of = self.lease_mut(lease);
        assert!(of.state == LeaseState::Active, "{lease} is {:?} and can't be suspended", of.state);
        of.state = LeaseState::Suspending;
        (of.residence.exit, of.residence.undrained) = (Exit::Draining, holders);
        self.moving.insert(lease);
        self.occurred(lease, Occurrence::Suspending);
        self.tell_holders(lease, &Notice::Suspend { lease, deadline });
        self.timers.set(Why::DrainDue(lease), deadline);
        self.stop_growth(lease, Reach::BeyondReserve, &Denial::Suspended);
        self.take_stock_everywhere(lease);
        self.move_on(lease);
    }

    /// Tells a session that came back what is awaited of its process.
    pub(crate) fn remind_of_moves(&mut self, session: SessionId) {
        let process = self.sessions[&session].process;
        for lease in self.process(process).leases.clone() {
            for notice in self.awaited(process, lease) {
                self.emit(Effect::Notify { session, notice });
            }
        }
    }

    fn awaited(&self, process: ProcessId, lease: LeaseId) -> Vec<Notice> {
        let of = &self.leases[&lease];
        let mine = of.segments.iter().filter(|id| self.segments[id].process == process);
        match of.state {
            LeaseState::Suspending if of.residence.undrained.contains(&process) => {
                let deadline = self.timers.due(Why::DrainDue(lease)).unwrap_or(self.now);
                vec![Notice::Suspend { lease, deadline }]
            }
            LeaseState::Suspending if of.is_leaving() => {
                let live = |id: &&SegmentId| matches!(self.segments[id].state, State::Live(_));
                mine.filter(live).take(1).map(|_| Notice::SwapOut { lease }).collect()
            }
            LeaseState::Resuming => {
                let back = |id: &&SegmentId| matches!(self.segments[id].state, State::Back(_));
                mine.filter(back).map(|id| Notice::SegmentBack { lease, segment: *id }).collect()
            }
            LeaseState::Active | LeaseState::Suspending | LeaseState::Suspended | LeaseState::Draining => {
                Vec::new()
            }
        }
    }

    pub(crate) fn occurred(&mut self, lease: LeaseId, what: Occurrence) {
        self.emit(Effect::Occurred { lease, what });
    }

    /// The lease of a session's process, and the process.
    fn member_at(&self, session: SessionId, lease: LeaseId) -> Option<ProcessId> {
        let process = self.sessions.get(&session)?.process;
        let of = self.leases.get(&lease)?;
        of.members.contains(&process).then_some(process)
    }

    pub(crate) fn drained(&mut self, session: SessionId, lease: LeaseId) {
        let Some(process) = self.member_at(session, lease) else {
            return;
        };
        if self.leases[&lease].is_draining_out() {
            self.lease_mut(lease).residence.undrained.remove(&process);
            self.move_on(lease);
        }
    }

    /// A lease that moves takes its next step, if it can.
    pub(crate) fn move_on(&mut self, lease: LeaseId) {
        let Some(of) = self.leases.get(&lease) else {
            return;
        };
        match (of.state, of.residence.exit) {
            (LeaseState::Suspending, Exit::Draining) if self.can_leave(lease) => self.leave(lease),
            (LeaseState::Suspending, Exit::Leaving) if self.has_left(lease) => self.arrive(lease),
            (LeaseState::Resuming, _) => self.come_on(lease),
            (
                LeaseState::Suspending | LeaseState::Active | LeaseState::Suspended | LeaseState::Draining,
                _,
            ) => {}
        }
    }

    /// Everyone has drained, and each segment is in the hands of its process.
    fn can_leave(&self, lease: LeaseId) -> bool {
        let of = &self.leases[&lease];
        let settled = |id: &SegmentId| match &self.segments[id].state {
            State::Live(Claim::Claimed) | State::Draining | State::Quarantined { .. } => true,
            State::Creating(_)
            | State::Live(Claim::Unclaimed)
            | State::Departing
            | State::Stuck { .. }
            | State::Away
            | State::Restoring
            | State::Back(_) => false,
        };
        of.residence.undrained.is_empty() && of.segments.iter().all(settled)
    }

    /// Nothing of it is mapped, on its way or unproven any more.
    fn has_left(&self, lease: LeaseId) -> bool {
        let mut segments = self.leases[&lease].segments.iter().map(|id| &self.segments[id].state);
        segments.all(|state| match state {
            State::Away | State::Draining | State::Quarantined { .. } => true,
            State::Creating(_)
            | State::Live(_)
            | State::Departing
            | State::Stuck { .. }
            | State::Restoring
            | State::Back(_) => false,
        })
    }

    pub(crate) fn leave(&mut self, lease: LeaseId) {
        self.timers.cancel(Why::DrainDue(lease));
        let of = self.lease_mut(lease);
        (of.state, of.residence.exit) = (LeaseState::Suspending, Exit::Leaving);
        of.residence.undrained.clear();
        let wanted = of.residence.leaves_for.take();
        self.timers.cancel(Why::RestoreAgain(lease));
        wanted.into_iter().for_each(|ask| self.bind_to_what_comes(ask));
        self.stop_growth(lease, Reach::All, &Denial::Suspended);
        self.settle_shares(lease);
        self.tell_holders(lease, &Notice::SwapOut { lease });
        let due = self.now.plus(self.swap_patience(lease));
        self.timers.set(Why::SwapDue(lease), due);
        self.move_on(lease);
    }

    /// What the lease has set aside and what is counted of it is as its state wants it.
    pub(crate) fn settle_shares(&mut self, lease: LeaseId) {
        let devices: Vec<DeviceId> = self.leases[&lease].shares.keys().copied().collect();
        for device in devices {
            self.review(lease, device);
        }
        self.take_stock_everywhere(lease);
    }

    pub(crate) fn swapped_out(&mut self, session: SessionId, lease: LeaseId, id: SegmentId) {
        let Some(process) = self.member_at(session, lease) else {
            return;
        };
        let leaves = self.leases[&lease].is_leaving();
        let Some(segment) = self.segments.get_mut(&id).filter(|s| s.lease == lease && s.process == process)
        else {
            return;
        };
        if !leaves || !matches!(segment.state, State::Live(_)) {
            return;
        }
        segment.state = State::Departing;
        let (device, bytes) = (segment.device, segment.bytes);
        self.shift(lease, device, Bucket::Held, Bucket::Draining, bytes);
        self.emit(Effect::Reclaim { segment: id, device });
        self.weigh_recall(lease);
    }

    /// The device has the bytes of a segment again that is in its host copy.
    pub(crate) fn went_away(&mut self, id: SegmentId, from: Bucket) {
        let segment = self.segments.get_mut(&id).expect("its caller looked");
        segment.state = State::Away;
        let (lease, device, bytes) = (segment.lease, segment.device, segment.bytes);
        let share = self.lease_mut(lease).share_mut(device);
        share.away = plus(share.away, bytes);
        self.shift(lease, device, from, Bucket::SetAside, bytes);
        self.trim(lease, device);
        self.move_on(lease);
    }

    fn arrive(&mut self, lease: LeaseId) {
        self.timers.cancel(Why::SwapDue(lease));
        self.moving.remove(&lease);
        let of = self.lease_mut(lease);
        (of.state, of.residence.pace) = (LeaseState::Suspended, Pace::InTime);
        of.residence.suspensions = of.residence.suspensions.saturating_add(1);
        of.residence.back_off = crate::lease::Residence::FIRST_BACK_OFF;
        self.settle_shares(lease);
        self.occurred(lease, Occurrence::Suspended);
        self.join_line(lease);
    }

    pub(crate) fn drain_due(&mut self, lease: LeaseId) {
        let late = self.leases[&lease].residence.undrained.iter().map(|late| self.process(*late));
        let who: Vec<String> =
            late.map(|late| format!("{} (pid {})", late.peer.program, late.peer.pid)).collect();
        let unclaimed = |id: &SegmentId| matches!(self.segments[id].state, State::Live(Claim::Unclaimed));
        let why = if !who.is_empty() {
            format!("{} did not drain in time", who.join(", "))
        } else if self.leases[&lease].segments.iter().any(unclaimed) {
            "a segment was not fetched by who asked for it".to_owned()
        } else {
            // They did what was asked of them: it may be asked of them again.
            return self.call_off(lease, "a segment was still being made");
        };
        self.stay(lease, &why);
        self.terminate_if_due(lease);
    }

    pub(crate) fn swap_failed(&mut self, session: SessionId, lease: LeaseId, why: String) {
        if self.member_at(session, lease).is_none() {
            return;
        }
        if self.leases[&lease].is_draining_out() {
            self.occurred(lease, Occurrence::SwapFailed(why.clone()));
            self.stay(lease, &why);
        } else if self.leases[&lease].is_leaving() {
            self.occurred(lease, Occurrence::SwapFailed(why.clone()));
            self.head_back(lease, why);
        }
    }

    /// A suspension of which nothing was unmapped is given up, and the lease is left alone for a while.
    fn stay(&mut self, lease: LeaseId, why: &str) {
        let now = self.now;
        self.lease_mut(lease).residence.step_back(now);
        self.call_off(lease, why);
    }

    /// A suspension of which nothing was unmapped is given up.
    pub(crate) fn call_off(&mut self, lease: LeaseId, why: &str) {
        self.timers.cancel(Why::DrainDue(lease));
        self.moving.remove(&lease);
        let of = self.lease_mut(lease);
        of.state = LeaseState::Active;
        of.residence.undrained.clear();
        self.settle_shares(lease);
        self.tell_holders(lease, &Notice::SuspendCancelled { lease, why: why.to_owned() });
        self.occurred(lease, Occurrence::SuspendCancelled(why.to_owned()));
        self.answer_resumers(lease);
    }

    /// The lease should have left by now: its process hangs with what is not out yet.
    pub(crate) fn swap_due(&mut self, lease: LeaseId) {
        self.becomes_overdue(lease, |lease| lease.residence.pace = Pace::Late);
        self.terminate_if_due(lease);
    }

    pub(crate) fn idle(&mut self, session: SessionId, lease: LeaseId, idleness: Idleness) {
        if self.member_at(session, lease).is_some() {
            self.lease_mut(lease).residence.idleness = idleness;
        }
    }

    /// A lease of which a second process takes a segment, or that gives out CUDA IPC handles, moves no more.
    pub(crate) fn stay_if_needed(&mut self, process: ProcessId, wanted: &Wanted) -> Result<(), Denial> {
        let lease = wanted.lease;
        if self.leases[&lease].pinning == Pinning::Pinned {
            return Ok(());
        }
        let why = match wanted.kind {
            SegmentKind::CudaIpc => "it gives out CUDA IPC handles",
            SegmentKind::Descriptor if self.holders(lease).iter().any(|holder| *holder != process) => {
                "a second process holds segments of it"
            }
            SegmentKind::Descriptor => return Ok(()),
        };
        self.leases[&lease].active()?;
        self.pin_down(lease, why)
    }

    pub(crate) fn pin(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        let of = self.lease_of_member(process, lease)?;
        of.active()?;
        if of.pinning == Pinning::Movable {
            self.pin_down(lease, "its process asked for it")?;
        }
        self.emit(Effect::Done { request });
        Ok(())
    }

    /// The lease moves no more, if a guarantee covers it or enough may be pinned.
    fn pin_down(&mut self, lease: LeaseId, why: &str) -> Result<(), Denial> {
        let of = &self.leases[&lease];
        for device in of.shares.keys().copied() {
            let more =
                of.stock_if(device, Pinning::Pinned).pinned.saturating_sub(of.share(device).stock.pinned);
            if self.accounts.stores.bind() && more > self.accounts.pinned_room(device) {
                return Err(self.pinned_full(device, more));
            }
        }
        self.lease_mut(lease).pinning = Pinning::Pinned;
        self.take_stock_everywhere(lease);
        let devices: Vec<DeviceId> = self.leases[&lease].shares.keys().copied().collect();
        for device in devices {
            self.refit(lease, device);
        }
        self.occurred(lease, Occurrence::Pinned(why.to_owned()));
        self.tell_holders(lease, &Notice::Pinned { lease });
        Ok(())
    }

    pub(crate) fn pinned_full(&self, device: DeviceId, asked: Bytes) -> Denial {
        let (pinned, pinned_max) = self.accounts.pinned_figures(device, self.ledger.book(device).capacity);
        Denial::PinnedFull { device, pinned_max, pinned, asked }
    }

    /// How growth of the lease is held.
    pub(crate) fn growth_hold(&self, lease: LeaseId) -> Pinning {
        self.leases[&lease].pinning
    }
}
