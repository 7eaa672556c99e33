//! Leases.
//!
//! ```text
//!   (granted) --> active --release, close, no member left--> draining --nothing in segments--> gone
//! ```
//!
//! On each of its devices an active lease has set aside, at all times,
//!
//! ```text
//!   max(0, reserve - held - draining - quarantined, promised - draining)
//! ```
//!
//! so that what it holds, what comes back to it and what is set aside add up to the reserve, and a
//! wait for its own draining bytes (`promised`) can't be robbed by its own growth. Quarantined bytes
//! count like held ones: they are the lease's until proven free. A draining lease has nothing set aside.
//!
//! `overdue` stops growth only: what was promised stays promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid};

use crate::accounts::NodeId;
use crate::ledger::Charge;
use crate::{Denial, LeaseState, Terms, Time};

/// Who asked for a lease.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) uid: Uid,
    pub(crate) pid: Pid,
    pub(crate) program: String,
    /// While it is open.
    pub(crate) session: Option<SessionId>,
    /// What the session called the ask.
    pub(crate) ask_name: u64,
}

/// A lease on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Share {
    pub(crate) charge: Charge,
    /// What allocations within the reserve wait for, out of what drains.
    pub(crate) promised: Bytes,
    /// Those allocations.
    pub(crate) waits: BTreeSet<AskId>,
}

impl Share {
    /// What is to be set aside.
    pub(crate) fn owed(&self, reserve: Bytes) -> Bytes {
        reserve.saturating_sub(self.charge.in_segments()).max(self.bound())
    }

    /// What is set aside and nobody waits for.
    pub(crate) fn spare(&self) -> Bytes {
        self.charge.set_aside.saturating_sub(self.bound())
    }

    /// What `bytes` more would take of what is free.
    pub(crate) fn beyond(&self, bytes: Bytes) -> Bytes {
        bytes.saturating_sub(self.spare())
    }

    /// Whether `bytes` more fit the reserve, once what drains is back.
    pub(crate) fn is_within(&self, reserve: Bytes, bytes: Bytes) -> bool {
        let [held, stuck, promised] = [self.charge.held, self.charge.quarantined, self.promised];
        let sum = [stuck, promised, bytes].into_iter().try_fold(held, Bytes::checked_add);
        sum.is_some_and(|sum| sum <= reserve)
    }

    fn bound(&self) -> Bytes {
        self.promised.saturating_sub(self.charge.draining)
    }
}

/// Bytes asked back from a lease.
#[derive(Clone, Debug)]
pub(crate) struct Recall {
    /// What it may still hold on a device, and what was asked there.
    pub(crate) targets: BTreeMap<DeviceId, (Bytes, Bytes)>,
    pub(crate) deadline: Time,
    pub(crate) outcome: Outcome,
}

/// How a recall goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Pending,
    /// The deadline passed with too little given back.
    Missed,
}

/// Whether the owner's session stayed away too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attendance {
    Attended,
    Away,
}

/// A right to device memory.
#[derive(Debug)]
pub(crate) struct Lease {
    /// As it was asked for.
    pub(crate) terms: Terms,
    pub(crate) owner: Owner,
    pub(crate) account: NodeId,
    pub(crate) state: LeaseState,
    /// On each device, now.
    pub(crate) reserve: Bytes,
    /// On each device, now.
    pub(crate) limit: Bytes,
    pub(crate) shares: BTreeMap<DeviceId, Share>,
    pub(crate) members: BTreeSet<ProcessId>,
    pub(crate) segments: BTreeSet<SegmentId>,
    /// Asks for growth that wait in the line.
    pub(crate) growing: BTreeSet<AskId>,
    pub(crate) recall: Option<Recall>,
    pub(crate) attendance: Attendance,
    pub(crate) granted_at: Time,
    pub(crate) waited: Duration,
    pub(crate) held_peak: Bytes,
    pub(crate) used: bool,
}

impl Lease {
    /// # Errors
    /// `Ending` once it is being given back.
    pub(crate) const fn active(&self) -> Result<(), Denial> {
        match self.state {
            LeaseState::Active => Ok(()),
            LeaseState::Suspending | LeaseState::Suspended | LeaseState::Resuming => Err(Denial::Suspended),
            LeaseState::Draining => Err(Denial::Ending),
        }
    }

    /// It is being given back from now on.
    ///
    /// # Panics
    /// When it is already.
    pub(crate) fn end(&mut self, id: LeaseId) {
        assert!(self.state == LeaseState::Active, "{id} is {:?} and can't become Draining", self.state);
        self.state = LeaseState::Draining;
    }

    /// Whether it may not grow because a deadline passed.
    pub(crate) fn is_overdue(&self) -> bool {
        let missed = self.recall.as_ref().is_some_and(|recall| recall.outcome == Outcome::Missed);
        missed || self.attendance == Attendance::Away
    }

    /// Whether nothing of it is in segments any more.
    pub(crate) fn is_spent(&self) -> bool {
        self.state == LeaseState::Draining && self.segments.is_empty()
    }

    /// Whether the user may take part.
    pub(crate) fn admits(&self, uid: Uid) -> bool {
        self.owner.uid == uid || self.terms.guest == Some(uid)
    }

    /// Its figures over all devices.
    pub(crate) fn charge(&self) -> Charge {
        let mut sum = Charge::default();
        self.shares.values().for_each(|share| sum.add(&share.charge));
        sum
    }

    pub(crate) fn share(&self, device: DeviceId) -> &Share {
        self.shares.get(&device).expect("the lease is on every device that its segments and asks name")
    }

    pub(crate) fn share_mut(&mut self, device: DeviceId) -> &mut Share {
        self.shares.get_mut(&device).expect("the lease is on every device that its segments and asks name")
    }
}
