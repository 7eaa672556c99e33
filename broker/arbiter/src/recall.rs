//! Surplus is asked back.
//!
//! ```text
//!   asked --enough given back--> (none)
//!     \--deadline--> missed: the lease is overdue --enough given back--> (none)
//! ```
//!
//! What is asked on a device is a ceiling on what the lease may go on holding there; it is met
//! as soon as the holder has freed enough, whether or not the device has proven it yet.

use std::collections::BTreeMap;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId, SessionId};

use crate::allocate::Reach;
use crate::lease::{Lease, Outcome, Recall};
use crate::ledger::minus;
use crate::process::Presence;
use crate::{Arbiter, Denial, Effect, Notice, Occurrence, OnOverdue, RequestId, Signal, Why};

impl Arbiter {
    pub(crate) fn recall(
        &mut self,
        request: RequestId,
        lease: LeaseId,
        bytes: Bytes,
        within: Duration,
    ) -> Result<(), Denial> {
        let of = self.leases.get(&lease).ok_or(Denial::NoSuchLease)?;
        of.active()?;
        let targets = targets(of, bytes);
        let asked = targets.values().map(|(_, asked)| *asked).sum();
        self.emit(Effect::Recalled { request, lease, bytes: asked });
        if !targets.is_empty() {
            self.start_recall(lease, targets, self.now.plus(within));
        }
        Ok(())
    }

    pub(crate) fn start_recall(
        &mut self,
        lease: LeaseId,
        targets: BTreeMap<DeviceId, (Bytes, Bytes)>,
        deadline: crate::Time,
    ) {
        let of = self.lease_mut(lease);
        let outcome = of.recall.as_ref().map_or(Outcome::Pending, |before| before.outcome);
        // A later word does not take an earlier one back: the lower ceiling counts.
        let mut all = of.recall.take().map_or_else(BTreeMap::new, |before| before.targets);
        for (device, (ceiling, asked)) in targets {
            let target = all.entry(device).or_insert((ceiling, asked));
            *target = (target.0.min(ceiling), asked);
        }
        of.recall = Some(Recall { targets: all, deadline, outcome });
        self.recalled.insert(lease);
        self.timers.set(Why::RecallDue(lease), deadline);
        for notice in self.notices(lease) {
            self.notify(lease, &notice);
        }
    }

    fn notices(&self, lease: LeaseId) -> Vec<Notice> {
        let of = &self.leases[&lease];
        let Some(recall) = &of.recall else {
            return Vec::new();
        };
        let open = recall.targets.iter().filter_map(|(device, (ceiling, _))| {
            let bytes = of.share(*device).charge.held.saturating_sub(*ceiling);
            let notice = Notice::Recall { lease, device: *device, bytes, deadline: recall.deadline };
            (!bytes.is_zero()).then_some(notice)
        });
        open.collect()
    }

    /// Tells a session that came back what is still asked of its lease.
    pub(crate) fn remind(&mut self, session: SessionId, lease: LeaseId) {
        if self.sessions[&session].presence == Presence::Present {
            for notice in self.notices(lease) {
                self.emit(Effect::Notify { session, notice });
            }
        }
    }

    /// Ends a recall of which enough was given back.
    pub(crate) fn weigh_recall(&mut self, lease: LeaseId) {
        let of = self.lease_mut(lease);
        if of.recall.as_ref().is_some_and(|recall| of.meets(recall)) {
            of.recall = None;
            self.recalled.remove(&lease);
            self.timers.cancel(Why::RecallDue(lease));
            self.timers.cancel(Why::GraceEnds(lease));
        }
    }

    pub(crate) fn recall_due(&mut self, lease: LeaseId) {
        self.becomes_overdue(lease, |lease| {
            let recall = lease.recall.as_mut().expect("the timer goes with the recall");
            recall.outcome = Outcome::Missed;
        });
        self.terminate_if_due(lease);
    }

    /// Policy may end a holder that let a deadline pass: told first, after the grace made.
    pub(crate) fn terminate_if_due(&mut self, lease: LeaseId) {
        let OnOverdue::Terminate { grace } = self.accounts.on_overdue(self.leases[&lease].account) else {
            return;
        };
        let holders = self.holders(lease);
        if holders.is_empty() || self.timers.due(Why::GraceEnds(lease)).is_some() {
            return;
        }
        self.emit(Effect::Occurred { lease, what: Occurrence::Terminated });
        for process in holders {
            self.emit(Effect::Signal { process, signal: Signal::Term });
        }
        self.timers.set(Why::GraceEnds(lease), self.now.plus(grace));
    }

    pub(crate) fn grace_ends(&mut self, lease: LeaseId) {
        for process in self.holders(lease) {
            self.emit(Effect::Signal { process, signal: Signal::Kill });
        }
    }

    /// A deadline passed: the lease may not grow.
    pub(crate) fn becomes_overdue(&mut self, lease: LeaseId, mark: impl FnOnce(&mut Lease)) {
        let of = self.lease_mut(lease);
        let was = of.is_overdue();
        mark(of);
        if !was {
            self.emit(Effect::Overdue { lease });
            self.stop_growth(lease, Reach::BeyondReserve, &Denial::Overdue);
        }
    }
}

impl Lease {
    fn meets(&self, recall: &Recall) -> bool {
        recall.targets.iter().all(|(device, (ceiling, _))| self.share(*device).charge.held <= *ceiling)
    }
}

/// What the lease may go on holding on each device, and what is asked there; `bytes` in all, or all surplus.
fn targets(lease: &Lease, bytes: Bytes) -> BTreeMap<DeviceId, (Bytes, Bytes)> {
    let mut left = if bytes.is_zero() { Bytes::MAX } else { bytes };
    let mut targets = BTreeMap::new();
    for (device, share) in &lease.shares {
        let held = share.charge.held;
        let asked = held.saturating_sub(lease.reserve).min(left);
        if !asked.is_zero() {
            left = minus(left, asked);
            targets.insert(*device, (minus(held, asked), asked));
        }
    }
    targets
}
