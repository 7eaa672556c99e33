//! The arbiter: one mutation at a time.

use gpulease_words::{AskId, LeaseId, SegmentId, SessionId};

use crate::{Budgets, DeviceSpec, Effect, Event, LeaseView, Policy, Snapshot, Time};

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
}

/// The state machine.
#[derive(Debug)]
pub struct Arbiter {}

impl Arbiter {
    /// An arbiter with nothing leased.
    ///
    /// # Panics
    /// When two devices have one id.
    #[must_use]
    pub fn new(policy: Policy, budgets: Budgets, devices: &[DeviceSpec]) -> Self {
        let _ = (policy, budgets, devices);
        Self {}
    }

    /// The world speaks. Never fails; a refusal is an effect.
    pub fn handle(&mut self, now: Time, event: Event) {
        let _ = (now, event);
        todo!("the arbiter's author is at it")
    }

    /// Time has passed; a spurious call is harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        let _ = now;
    }

    /// The next thing to do; after each mutation drain to `None`.
    #[must_use]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        None
    }

    /// When to call `handle_timeout`, and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, Why)> {
        None
    }

    /// The state as plain data.
    #[must_use]
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let _ = now;
        todo!("the arbiter's author is at it")
    }

    /// Grows with each mutation: whether a snapshot is stale.
    #[must_use]
    pub fn generation(&self) -> u64 {
        0
    }

    /// One lease, as the snapshot would show it.
    #[must_use]
    pub fn lease(&self, lease: LeaseId) -> Option<LeaseView> {
        let _ = lease;
        None
    }

    /// The lease a segment is in.
    #[must_use]
    pub fn lease_of(&self, segment: SegmentId) -> Option<LeaseId> {
        let _ = segment;
        None
    }

    /// Panics when an invariant is broken (I1 and what the tables say of each other): the
    /// simulator calls it after every step, and `handle` checks the devices it touched.
    pub fn check(&self) {}
}
