//! The arbiter: one mutation at a time.
//!
//! `handle` sends each event to the file that knows its subject, then grants what can be granted
//! ([`Arbiter::settle`]) and checks the books of the devices that were touched.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpulease_words::{AskId, LeaseId, ProcessId, SegmentId, SessionId, Uid};

use crate::accounts::Accounts;
use crate::allocate::Refused;
use crate::holders::Holders;
use crate::lease::Lease;
use crate::ledger::Ledger;
use crate::line::Line;
use crate::overlap::Poured;
use crate::process::{Process, Session};
use crate::segment::Segment;
use crate::timers::Timers;
use crate::{Budgets, Denial, DeviceSpec, Effect, Event, Policy, RequestId, Time};

/// The most that one call of [`Arbiter::handle_timeout`] does: some milliseconds of work.
pub const WAKE_UPS: u32 = 256;

/// Why the arbiter wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// An ask's patience ends.
    PatienceEnds(AskId),
    /// An ask becomes a barrier.
    BarrierRises(AskId),
    /// An ask's stream stayed broken.
    UnattendedTooLong(AskId),
    /// A lease was granted to a broken stream and nobody came for it.
    GrantUnclaimed(LeaseId),
    /// A session stayed away.
    AdriftTooLong(SessionId),
    /// A recall's deadline.
    RecallDue(LeaseId),
    /// The deadline for a lease's members to drain.
    DrainDue(LeaseId),
    /// A lease should have left by now.
    SwapDue(LeaseId),
    /// A segment of a resuming lease could not be made; it is tried again.
    RestoreAgain(LeaseId),
    /// The time that a holder has between the two signals.
    GraceEnds(LeaseId),
    /// A lease may be suspended that could not be before.
    LookAgain,
}

/// What one user has at the broker, but for leases, which his account counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sessions: u32,
    pub(crate) asks: u32,
}

/// The last id given of each kind.
#[derive(Debug)]
pub(crate) struct Ids {
    pub(crate) session: SessionId,
    pub(crate) ask: AskId,
    pub(crate) lease: LeaseId,
    pub(crate) segment: SegmentId,
}

/// The state machine.
#[derive(Debug)]
pub struct Arbiter {
    pub(crate) policy: Policy,
    pub(crate) now: Time,
    pub(crate) generation: u64,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) ids: Ids,
    pub(crate) ledger: Ledger,
    pub(crate) accounts: Accounts,
    pub(crate) line: Line,
    pub(crate) timers: Timers,
    pub(crate) users: BTreeMap<Uid, Tally>,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) segments: BTreeMap<SegmentId, Segment>,
    /// The asks for segments that wait, by whom to answer.
    pub(crate) waiting: BTreeMap<RequestId, AskId>,
    /// Growth to be looked at once all that can be granted is: whether it may wait.
    pub(crate) hasty: Vec<AskId>,
    /// The segments that are being made, by whom to answer.
    pub(crate) creating: BTreeMap<RequestId, SegmentId>,
    /// The leases that are waited for, by whom to answer.
    pub(crate) resuming: BTreeMap<RequestId, LeaseId>,
    /// Leases that are suspending or resuming.
    pub(crate) moving: BTreeSet<LeaseId>,
    /// Leases of which surplus is wanted.
    pub(crate) recalled: BTreeSet<LeaseId>,
    pub(crate) holders: Holders,
}

impl Arbiter {
    /// An arbiter with nothing leased.
    ///
    /// # Panics
    /// When two devices have one id, or the budgets don't [fit](Budgets::fit).
    #[must_use]
    pub fn new(policy: Policy, budgets: Budgets, devices: &[DeviceSpec]) -> Self {
        if let Err(denial) = budgets.fit(&policy, devices) {
            panic!("{denial}");
        }
        let mut new = Self {
            now: Time::START,
            generation: 0,
            effects: VecDeque::new(),
            ids: Ids {
                session: SessionId::new(0),
                ask: AskId::new(0),
                lease: LeaseId::new(0),
                segment: SegmentId::new(0),
            },
            ledger: Ledger::new(devices),
            accounts: Accounts::new(budgets, &policy),
            policy,
            line: Line::default(),
            timers: Timers::default(),
            users: BTreeMap::new(),
            processes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            segments: BTreeMap::new(),
            waiting: BTreeMap::new(),
            hasty: Vec::new(),
            creating: BTreeMap::new(),
            resuming: BTreeMap::new(),
            moving: BTreeSet::new(),
            recalled: BTreeSet::new(),
            holders: Holders::default(),
        };
        new.accounts.set_stores(&new.policy, &new.ledger);
        new
    }

    /// The world speaks. Never fails; a refusal is an effect.
    pub fn handle(&mut self, now: Time, event: Event) {
        self.advance(now);
        self.dispatch(event);
        self.settle();
        self.call_in();
    }

    /// Time has passed; a spurious call is harmless. Does at most [`WAKE_UPS`] of what is due, so that
    /// events don't wait for thousands of asks that turn old at once: call it until [`Self::poll_timeout`]
    /// is in the future.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        for _ in 0..WAKE_UPS {
            let Some(why) = self.timers.pop_due(self.now) else {
                return;
            };
            self.wake(why);
            self.settle();
            self.call_in();
        }
    }

    /// The next thing to do; after each mutation drain to `None`.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When to call `handle_timeout`, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, Why)> {
        self.timers.first()
    }

    /// Grows with each mutation: whether a snapshot is stale.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// The books of all devices.
    #[must_use]
    pub fn books(&self) -> Vec<crate::DeviceView> {
        self.ledger.views()
    }

    /// The lease a segment is in.
    #[must_use]
    pub fn lease_of(&self, segment: SegmentId) -> Option<LeaseId> {
        self.segments.get(&segment).map(|segment| segment.lease)
    }

    fn advance(&mut self, now: Time) {
        // A clock that steps back would reorder deadlines: the latest time seen counts.
        self.now = self.now.max(now);
        self.generation += 1;
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Open { request, peer } => self.answer(request, |a| a.open(request, peer)),
            Event::Adrift { session } => self.adrift(session),
            Event::Rejoined { session } => self.rejoined(session),
            Event::Close { request, session } => self.answer(request, |a| a.close(request, session)),
            Event::Died { process } => self.died(process),
            Event::Acquire { request, session, ask_name, terms } => {
                self.answer(request, |a| a.acquire(request, session, ask_name, terms));
            }
            Event::Unattended { session, ask_name } => self.unattended(session, ask_name),
            Event::Withdraw { request, session, ask_name } => {
                self.answer(request, |a| a.withdraw(request, session, ask_name));
            }
            Event::Join { request, session, lease, ancestors } => {
                self.answer(request, |a| a.join(request, session, lease, &ancestors));
            }
            Event::Admit { request, session, lease, peer, place } => {
                self.answer(request, |a| a.admit(request, session, lease, peer, place));
            }
            Event::Resize { request, session, lease, reserve, limit } => {
                self.answer(request, |a| a.resize(request, session, lease, reserve, limit));
            }
            Event::Release { request, authority, lease } => {
                self.answer(request, |a| a.release(request, authority, lease));
            }
            Event::Allocate { request, session, lease, device, bytes, kind, patience, guard } => {
                let wanted = crate::allocate::Wanted { lease, device, bytes, kind, patience, guard };
                self.answer(request, |a| a.allocate(request, session, wanted));
            }
            Event::Abandoned { request } => self.abandoned(request),
            Event::Created { segment } => self.created(segment),
            Event::CreateFailed { segment, why } => self.create_failed(segment, why),
            Event::Claimed { segment } => self.claimed(segment),
            Event::Free { request, session, lease, segment } => {
                self.answer(request, |a| a.free(request, session, lease, segment));
            }
            Event::Freed { segment } => self.freed(segment),
            Event::Unproven { segment, suspects } => self.unproven(segment, suspects),
            Event::OffBook { device, bytes } => self.off_book(device, bytes),
            Event::Overhead { process, device, bytes } => self.overhead(process, device, bytes),
            Event::DeviceLost { device } => self.device_lost(device),
            Event::Recall { request, lease, bytes, within } => {
                self.answer(request, |a| a.recall(request, lease, bytes, within));
            }
            Event::Drained { session, lease } => self.drained(session, lease),
            Event::SwappedOut { session, lease, segment } => self.swapped_out(session, lease, segment),
            Event::SwapFailed { session, lease, why } => self.swap_failed(session, lease, why),
            Event::Resume { request, session, lease } => {
                self.answer(request, |a| a.resume(request, session, lease));
            }
            Event::Restored { session, lease, segment } => self.restored(session, lease, segment),
            Event::Idle { session, lease, idleness } => self.idle(session, lease, idleness),
            Event::Pin { request, session, lease } => {
                self.answer(request, |a| a.pin(request, session, lease))
            }
            Event::SetBudgets { request, budgets } => {
                self.answer(request, |a| a.set_budgets(request, *budgets))
            }
        }
    }

    fn wake(&mut self, why: Why) {
        match why {
            Why::PatienceEnds(ask) => self.patience_ends(ask),
            Why::BarrierRises(ask) => self.line.grow_old(ask, &mut self.accounts, &self.ledger),
            Why::UnattendedTooLong(ask) => drop(self.drop_ask(ask)),
            Why::GrantUnclaimed(lease) => self.grant_unclaimed(lease),
            Why::AdriftTooLong(session) => self.stayed_away(session),
            Why::RecallDue(lease) => self.recall_due(lease),
            Why::DrainDue(lease) => self.drain_due(lease),
            Why::SwapDue(lease) => self.swap_due(lease),
            Why::RestoreAgain(lease) => self.move_on(lease),
            Why::GraceEnds(lease) => self.grace_ends(lease),
            // Whoever is short is looked at after each mutation.
            Why::LookAgain => {}
        }
    }

    /// Grants what can be granted, one after the other, and checks the devices that were touched.
    pub(crate) fn settle(&mut self) {
        loop {
            for device in self.ledger.touched() {
                self.line.look_up(device, &mut self.accounts, &self.ledger);
            }
            self.hold_to_what_began();
            self.line.refresh(&mut self.accounts, &self.ledger);
            if let Some((id, needs)) = self.next_covered() {
                self.cover(id, needs);
                continue;
            }
            let next = self.line.first_fit(&self.accounts, &self.ledger);
            #[cfg(test)]
            {
                let slowly = self.line.first_the_slow_way(&self.accounts, &self.ledger);
                assert_eq!(next.as_ref().map(|(ask, _)| *ask), slowly, "the next in line");
            }
            match next {
                Some((ask, devices)) => self.grant(ask, &devices),
                None if self.pour() == Poured::Something => {}
                None if self.turn_away() == Refused::Somebody => {}
                None => break,
            }
        }
        self.ledger.settle();
    }

    pub(crate) fn emit(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    pub(crate) fn deny(&mut self, request: RequestId, denial: Denial) {
        self.emit(Effect::Denied { request, denial });
    }

    fn answer(&mut self, request: RequestId, work: impl FnOnce(&mut Self) -> Result<(), Denial>) {
        if let Err(denial) = work(self) {
            self.deny(request, denial);
        }
    }
}
