//! Suspended leases come back.
//!
//! A resume is an ask in the line for the lease's footprint, on its own devices. What it is granted
//! is the lease's own again at once, and goes into its segments one after the other:
//!
//! ```text
//!   away --Restore--> restoring --Created--> back --Restored--> live
//! ```
//!
//! A lease whose swap failed half way comes back in the same way, before all others. The host copies stay
//! valid until the last segment is restored.

use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

use crate::lease::Pace;
use crate::ledger::{Bucket, minus, plus};
use crate::line::ask::{Ask, Right, Seniority, Stage, Want};
use crate::line::shape::Shape;
use crate::overlap::Receding;
use crate::segment::{Claim, State};
use crate::{Arbiter, Denial, Effect, Idleness, LeaseState, Notice, Occurrence, RequestId, Why};

/// Through which a lease is asked for of which no member has a session: ids begin at one.
const NOBODY: SessionId = SessionId::new(0);
/// After so long a segment is tried again that the device could not make.
const RESTORE_AGAIN: Duration = Duration::from_secs(1);
/// A swap that takes so many times as long as the link should need is overdue.
const SWAP_SLACK: u32 = 4;
/// So long is never overdue, however little there is to swap.
const SWAP_LEAST: Duration = Duration::from_secs(10);

impl Arbiter {
    pub(crate) fn resume(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        let of = self.lease_of_member(process, lease)?;
        of.lasting()?;
        if of.state == LeaseState::Active {
            self.emit(Effect::Resumed { request, lease });
            return Ok(());
        }
        if of.residence.resumers.len() >= self.policy.asks_per_uid as usize {
            return Err(crate::session::too_many("resumes", lease.to_string(), self.policy.asks_per_uid));
        }
        if of.residence.ask.is_none() && of.state != LeaseState::Resuming {
            self.want_back(lease, process, session, Right::Lent)?;
        }
        let residence = &mut self.lease_mut(lease).residence;
        residence.resumers.insert(request, (process, session));
        let asked = residence.last_ask;
        self.resuming.insert(request, lease);
        // One whose swap failed may have all it needs on its way back; nothing was asked for then.
        if let Some(ask) = asked {
            self.emit(Effect::Queued { request, ask });
        }
        Ok(())
    }

    /// An ask for the lease's memory, which waits aside until the lease is away.
    fn want_back(
        &mut self,
        lease: LeaseId,
        process: ProcessId,
        session: SessionId,
        right: Right,
    ) -> Result<(), Denial> {
        let id = self.ids.ask.next().map_err(|_| Denial::OutOfIds)?;
        self.ids.ask = id;
        let of = &self.leases[&lease];
        let account = of.account;
        let (shape, amount) = Shape::resume(&of.footprint());
        let stage = if of.state == LeaseState::Suspending { Stage::Leaving } else { Stage::InLine };
        let ask = Ask {
            id,
            request: None,
            process,
            session,
            account,
            since: self.now,
            barrier_at: self.now.plus(self.accounts.max_wait(account, &self.policy)),
            deadline: None,
            shape: self.line.shapes.enter(shape),
            amount,
            stage,
            seniority: Seniority::Junior,
            right: Right::Lent,
            covered_at: self.now,
            uncovered_in: 0,
            trimmed_as: None,
            covered: Vec::new(),
            want: Want::Resume(lease),
        };
        let residence = &mut self.lease_mut(lease).residence;
        (residence.ask, residence.last_ask) = (Some(id), Some(id));
        self.wait(ask);
        if right == Right::Returning {
            self.line.set_right(id, right, &mut self.accounts, &self.ledger);
        } else {
            self.promote(id);
        }
        Ok(())
    }

    /// The ask for a lease that is away by now stands in the line.
    pub(crate) fn join_line(&mut self, lease: LeaseId) {
        let of = &self.leases[&lease];
        let Some(id) = of.residence.ask else {
            return;
        };
        let (shape, amount) = Shape::resume(&of.footprint());
        self.reshape(id, shape, amount);
        let ask = self.line.get_mut(id);
        if ask.stage != Stage::Leaving {
            return;
        }
        let ask = ask.clone();
        if ask.seniority == Seniority::Junior {
            self.set_ask_timers(&ask);
        }
        self.line.stand_in(id, &mut self.accounts, &self.ledger);
        self.promote(id);
    }

    /// What a lease gets back is its own from now on.
    pub(crate) fn grant_resume(&mut self, lease: LeaseId, needs: &[(DeviceId, Bytes)]) {
        let of = self.lease_mut(lease);
        let starts = of.state == LeaseState::Suspended;
        of.state = LeaseState::Resuming;
        if starts {
            // What it had the last time it came back is not its own any more.
            let shares = of.shares.values_mut();
            shares
                .for_each(|share| share.regained = plus(share.charge.set_aside, share.charge.in_segments()));
        }
        for (device, need) in needs {
            let of = self.lease_mut(lease);
            let share = of.share_mut(*device);
            let own = plus(share.charge.set_aside, share.charge.in_segments());
            share.regained = plus(own, *need);
            self.charge(lease, *device, Bucket::SetAside, *need);
        }
        self.moving.insert(lease);
        self.take_stock_everywhere(lease);
        if starts {
            self.occurred(lease, Occurrence::Resuming);
        }
        self.move_on(lease);
    }

    /// A lease that was leaving comes back before all others: its swap failed.
    pub(crate) fn head_back(&mut self, lease: LeaseId, why: String) {
        self.timers.cancel(Why::SwapDue(lease));
        let of = self.lease_mut(lease);
        of.state = LeaseState::Resuming;
        (of.residence.broken, of.residence.pace) = (Some(why), Pace::InTime);
        for share in of.shares.values_mut() {
            share.regained = plus(share.charge.set_aside, share.charge.in_segments());
        }
        let waits = of.residence.ask;
        let holder = self.holders(lease).into_iter().next().or(self.leases[&lease].members.first().copied());
        if let Some(ask) = waits {
            drop(self.take_ask(ask));
        }
        self.recede_for(lease);
        self.settle_shares(lease);
        let lacks = self.leases[&lease].footprint().values().any(|need| !need.is_zero());
        if lacks && let Some(process) = holder {
            let session = self.processes.get(&process).and_then(|known| known.sessions.first().copied());
            // Without an id left nobody else could ask for its memory either.
            drop(self.want_back(lease, process, session.unwrap_or(NOBODY), Right::Returning));
        }
        self.move_on(lease);
    }

    /// Makes what there is room for again, and sees whether all of it is back.
    pub(crate) fn come_on(&mut self, lease: LeaseId) {
        if self.recede_if_wanted(lease) == Receding::Wanted {
            return;
        }
        for id in self.leases[&lease].segments.clone() {
            let Some(segment) = self.segments.get_mut(&id).filter(|s| s.state == State::Away) else {
                continue;
            };
            let (device, bytes, process) = (segment.device, segment.bytes, segment.process);
            if bytes > self.leases[&lease].share(device).charge.set_aside {
                continue;
            }
            segment.state = State::Restoring;
            let share = self.lease_mut(lease).share_mut(device);
            share.away = minus(share.away, bytes);
            self.shift(lease, device, Bucket::SetAside, Bucket::Held, bytes);
            self.emit(Effect::Restore { segment: id, lease, device, bytes, process });
        }
        let copied = |id: &SegmentId| self.segments[id].state.is_copied();
        let of = &self.leases[&lease];
        let whole = of.residence.ask.is_none() && of.footprint().values().all(|lack| lack.is_zero());
        if whole && !of.segments.iter().any(copied) {
            self.is_back(lease);
        }
    }

    pub(crate) fn made_again(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("its caller looked");
        segment.state = State::Back(Claim::Unclaimed);
        let (lease, process) = (segment.lease, segment.process);
        for session in self.present_sessions(process) {
            self.emit(Effect::Notify { session, notice: Notice::SegmentBack { lease, segment: id } });
        }
    }

    /// The device could not make it: without a hold somebody may have taken the room. It is tried again.
    pub(crate) fn not_made_again(&mut self, id: SegmentId) {
        let segment = self.segments.get_mut(&id).expect("its caller looked");
        segment.state = State::Away;
        let (lease, device, bytes) = (segment.lease, segment.device, segment.bytes);
        let share = self.lease_mut(lease).share_mut(device);
        share.away = plus(share.away, bytes);
        self.shift(lease, device, Bucket::Held, Bucket::SetAside, bytes);
        self.trim(lease, device);
        self.timers.set(Why::RestoreAgain(lease), self.now.plus(RESTORE_AGAIN));
    }

    pub(crate) fn restored(&mut self, session: SessionId, lease: LeaseId, id: SegmentId) {
        let Some(process) = self.sessions.get(&session).map(|open| open.process) else {
            return;
        };
        let Some(segment) = self.segments.get_mut(&id).filter(|s| s.lease == lease && s.process == process)
        else {
            return;
        };
        if matches!(segment.state, State::Back(_)) {
            segment.state = State::Live(Claim::Claimed);
            self.move_on(lease);
        }
    }

    fn is_back(&mut self, lease: LeaseId) {
        self.moving.remove(&lease);
        self.timers.cancel(Why::RestoreAgain(lease));
        let now = self.now;
        let of = self.lease_mut(lease);
        of.state = LeaseState::Active;
        (of.residence.since, of.residence.idleness) = (now, Idleness::Busy);
        of.residence.last_ask = None;
        let broken = of.residence.broken.take();
        if broken.is_some() {
            of.residence.step_back(now);
        }
        let (account, devices) =
            (of.account, of.shares.keys().map(|d| (*d, Bytes::ZERO)).collect::<Vec<_>>());
        let right = self.right_of(account, &devices);
        self.lease_mut(lease).right = right;
        self.settle_shares(lease);
        self.occurred(lease, Occurrence::Resumed);
        if let Some(why) = broken {
            self.tell_back(lease, &why);
        }
        self.answer_resumers(lease);
    }

    fn tell_back(&mut self, lease: LeaseId, why: &str) {
        for holder in self.holders(lease) {
            for session in self.present_sessions(holder) {
                let notice = Notice::SuspendCancelled { lease, why: why.to_owned() };
                self.emit(Effect::Notify { session, notice });
            }
        }
        self.occurred(lease, Occurrence::SuspendCancelled(why.to_owned()));
    }

    pub(crate) fn answer_resumers(&mut self, lease: LeaseId) {
        if let Some(ask) = self.leases[&lease].residence.ask {
            drop(self.take_ask(ask));
        }
        for request in std::mem::take(&mut self.lease_mut(lease).residence.resumers).into_keys() {
            self.resuming.remove(&request);
            self.emit(Effect::Resumed { request, lease });
        }
    }

    pub(crate) fn refuse_resumers(&mut self, lease: LeaseId, denial: &Denial) {
        for request in std::mem::take(&mut self.lease_mut(lease).residence.resumers).into_keys() {
            self.resuming.remove(&request);
            self.deny(request, denial.clone());
        }
    }

    /// Whoever waited for the lease went away. With the last one goes the ask, unless the lease has to come back.
    pub(crate) fn drop_resumer(&mut self, lease: LeaseId, request: RequestId) {
        self.resuming.remove(&request);
        let residence = &mut self.lease_mut(lease).residence;
        residence.resumers.remove(&request);
        let (alone, ask) = (residence.resumers.is_empty(), residence.ask);
        if let Some(ask) = ask.filter(|ask| alone && !self.must_come_back(self.line.get(*ask))) {
            drop(self.drop_ask(ask));
        }
    }

    /// A process or a session goes that may wait for leases: others who wait for them are heard again.
    pub(crate) fn lose_waiter(&mut self, lease: LeaseId, gone: impl Fn(ProcessId, SessionId) -> bool) {
        let resumers = self.leases[&lease].residence.resumers.clone();
        for (request, _) in resumers.iter().filter(|(_, (process, session))| gone(*process, *session)) {
            self.resuming.remove(request);
            self.lease_mut(lease).residence.resumers.remove(request);
            self.deny(*request, Denial::Withdrawn);
        }
        let Some(id) = self.leases[&lease].residence.ask else {
            return;
        };
        let ask = self.line.get(id);
        if !gone(ask.process, ask.session) {
            return;
        }
        let right = if self.must_come_back(ask) { Right::Returning } else { Right::Lent };
        drop(self.drop_ask(id));
        let others = self.leases[&lease].residence.resumers.values().copied();
        let member = self.leases[&lease]
            .members
            .iter()
            .filter_map(|member| Some((*member, self.processes.get(member)?.sessions.first().copied()?)));
        // A lease that has begun to come back has to: where no member speaks to the broker, it is asked for all the same.
        let silent = self.leases[&lease].members.iter().map(|member| (*member, NOBODY));
        let mut heirs = others.chain(member.chain(silent).filter(|_| right == Right::Returning));
        if let Some((process, session)) = heirs.find(|(process, session)| !gone(*process, *session)) {
            drop(self.want_back(lease, process, session, right));
        }
    }

    /// How long the lease may take to leave before it is overdue.
    pub(crate) fn swap_patience(&self, lease: LeaseId) -> Duration {
        let held = self.leases[&lease].charge().held;
        self.swap_time(held).saturating_mul(SWAP_SLACK).max(SWAP_LEAST)
    }

    /// How long so many bytes take over the link.
    pub(crate) fn swap_time(&self, bytes: Bytes) -> Duration {
        let rate = self.policy.swap_bytes_per_second.get().max(1);
        let millis = match bytes.get().checked_mul(1_000) {
            Some(thousandfold) => thousandfold / rate,
            None => u64::try_from(u128::from(bytes.get()) * 1_000 / u128::from(rate)).unwrap_or(u64::MAX),
        };
        Duration::from_millis(millis)
    }
}
