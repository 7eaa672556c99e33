//! Leases.
//!
//! ```text
//!                          .--- deadline, SwapFailed: nothing was unmapped
//!                          v                   \
//!   (granted) --------> active --recall--> suspending: draining --all drained--> suspending: leaving
//!                          ^                                                        |         |
//!                          |                             SwapFailed: what is out ---'         | all away
//!                          |                             comes back  |                        v
//!                          '-- all restored -- resuming <------------'<--Resume, room-- suspended
//!
//!   any of them --release, close, no member left--> draining --nothing in segments--> gone
//! ```
//!
//! On each of its devices a lease that is active, or suspending and not yet leaving, has set aside, at all times,
//!
//! ```text
//!   max(0, reserve - held - draining - quarantined, promised - draining)
//! ```
//!
//! so that what it holds, what comes back to it and what is set aside add up to the reserve, and a
//! wait for its own draining bytes (`promised`) can't be robbed by its own growth. Quarantined bytes
//! count like held ones: they are the lease's until proven free. One that leaves, is suspended or ends has
//! nothing set aside; one that resumes has what it was granted back and has not yet put into segments.
//!
//! `overdue` stops growth only: what was promised stays promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid};

use crate::accounts::NodeId;
use crate::ledger::{Charge, plus};
use crate::line::ask::Right;
use crate::overlap::Receding;
use crate::{Denial, Idleness, LeaseState, Pinning, RequestId, Terms, Time};

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
    /// Of segments that are away.
    pub(crate) away: Bytes,
    /// While it resumes: what of the device is its own again.
    pub(crate) regained: Bytes,
    /// How it stands in what is counted beside the book.
    pub(crate) stock: Stock,
}

/// What is counted of a lease on a device while the stores bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stock {
    /// It can't be moved and no guarantee covers it.
    pub(crate) pinned: Bytes,
    /// Host memory for copies of it.
    pub(crate) copies: Bytes,
    /// What a suspension would bring.
    pub(crate) gives: Bytes,
    /// What it holds above its reserve.
    pub(crate) surplus: Bytes,
}

/// How far a lease that is suspending has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Its members drain; nothing is unmapped.
    #[default]
    Draining,
    /// Its segments are swapped out.
    Leaving,
}

/// Whether a lease that leaves takes longer than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    InTime,
    Late,
}

/// Whether a lease has its memory, and what it takes to get it back.
#[derive(Clone, Debug)]
pub(crate) struct Residence {
    /// Since when it has its memory.
    pub(crate) since: Time,
    pub(crate) idleness: Idleness,
    /// While it is suspending.
    pub(crate) exit: Exit,
    /// Whether it should have left by now.
    pub(crate) pace: Pace,
    /// Processes that have not drained.
    pub(crate) undrained: BTreeSet<ProcessId>,
    /// Who waits for it to be back, and through which session.
    pub(crate) resumers: BTreeMap<RequestId, (ProcessId, SessionId)>,
    /// The ask for its memory that waits in the line, and the last one that did.
    pub(crate) ask: Option<AskId>,
    pub(crate) last_ask: Option<AskId>,
    /// For whom it is suspending.
    pub(crate) leaves_for: Option<AskId>,
    /// Whether it is to leave again before it is back.
    pub(crate) receding: Receding,
    /// Why it comes back without having been away altogether.
    pub(crate) broken: Option<String>,
    /// It is left alone until then.
    pub(crate) not_before: Time,
    /// For how long it is left alone after the next failure.
    pub(crate) back_off: Duration,
    pub(crate) suspensions: u32,
}

impl Residence {
    /// For how long a lease is left alone after its first failed suspension.
    pub(crate) const FIRST_BACK_OFF: Duration = Duration::from_secs(60);
    /// The longest, so that a job that learned to drain is asked again within the hour.
    const LONGEST_BACK_OFF: Duration = Duration::from_secs(3_600);

    pub(crate) const fn new(since: Time) -> Self {
        Self {
            since,
            idleness: Idleness::Busy,
            exit: Exit::Draining,
            pace: Pace::InTime,
            undrained: BTreeSet::new(),
            resumers: BTreeMap::new(),
            ask: None,
            last_ask: None,
            leaves_for: None,
            receding: Receding::No,
            broken: None,
            not_before: Time::START,
            back_off: Self::FIRST_BACK_OFF,
            suspensions: 0,
        }
    }

    /// A suspension failed: the lease is left alone for a while, each time for longer.
    pub(crate) fn step_back(&mut self, now: Time) {
        self.not_before = now.plus(self.back_off);
        self.back_off = self.back_off.saturating_mul(2).min(Self::LONGEST_BACK_OFF);
    }
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

    /// As it stands once all that drains is back.
    pub(crate) fn once_drained(&self, reserve: Bytes) -> Self {
        let mut after = self.clone();
        after.charge.draining = Bytes::ZERO;
        after.charge.set_aside = after.owed(reserve);
        after
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
    /// On each device, now; no more than devices and budgets could ever give when it was granted or resized.
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
    /// Whether it can be suspended, now.
    pub(crate) pinning: Pinning,
    /// Whether a guarantee covered it when it was granted or came back.
    pub(crate) right: Right,
    pub(crate) residence: Residence,
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

    /// # Errors
    /// `Ending` once it is being given back; one that is away is not.
    pub(crate) const fn lasting(&self) -> Result<(), Denial> {
        match self.state {
            LeaseState::Active | LeaseState::Suspending | LeaseState::Suspended | LeaseState::Resuming => {
                Ok(())
            }
            LeaseState::Draining => Err(Denial::Ending),
        }
    }

    /// # Errors
    /// `Ending` or `Suspended` where it has no memory to give to its members.
    pub(crate) const fn resident(&self) -> Result<(), Denial> {
        match (self.state, self.residence.exit) {
            (LeaseState::Active, _) | (LeaseState::Suspending, Exit::Draining) => Ok(()),
            (LeaseState::Suspending, Exit::Leaving) | (LeaseState::Suspended | LeaseState::Resuming, _) => {
                Err(Denial::Suspended)
            }
            (LeaseState::Draining, _) => Err(Denial::Ending),
        }
    }

    /// What is to be set aside on the device.
    pub(crate) fn owed(&self, device: DeviceId) -> Bytes {
        let share = self.share(device);
        match (self.state, self.residence.exit) {
            (LeaseState::Active, _) | (LeaseState::Suspending, Exit::Draining) => share.owed(self.reserve),
            (LeaseState::Resuming, _) => share.regained.saturating_sub(share.charge.in_segments()),
            (LeaseState::Suspending, Exit::Leaving) | (LeaseState::Suspended | LeaseState::Draining, _) => {
                Bytes::ZERO
            }
        }
    }

    /// What it needs of each device to be back.
    pub(crate) fn footprint(&self) -> BTreeMap<DeviceId, Bytes> {
        let need = |share: &Share| {
            let has = plus(share.charge.set_aside, share.charge.in_segments());
            // What is set aside of a lease that comes back is for what is away.
            let whole = self.reserve.max(plus(share.charge.in_segments(), share.away));
            match self.state {
                LeaseState::Suspended => self.reserve.max(share.away),
                LeaseState::Active | LeaseState::Suspending | LeaseState::Resuming | LeaseState::Draining => {
                    whole.saturating_sub(has)
                }
            }
        };
        self.shares.iter().map(|(device, share)| (*device, need(share))).collect()
    }

    /// What it will need of the device once all of it is away.
    pub(crate) fn whole(&self, device: DeviceId) -> Bytes {
        let share = self.share(device);
        self.reserve.max(plus(share.charge.in_segments(), share.away))
    }

    /// Whether its members are asked to drain, and nothing is unmapped.
    pub(crate) const fn is_draining_out(&self) -> bool {
        matches!((self.state, self.residence.exit), (LeaseState::Suspending, Exit::Draining))
    }

    /// Whether its segments are being swapped out.
    pub(crate) const fn is_leaving(&self) -> bool {
        matches!((self.state, self.residence.exit), (LeaseState::Suspending, Exit::Leaving))
    }

    /// How it is to be counted beside the book of the device.
    pub(crate) fn stock(&self, device: DeviceId) -> Stock {
        self.stock_if(device, self.pinning)
    }

    /// How it would be counted there if it were held so.
    pub(crate) fn stock_if(&self, device: DeviceId, pinning: Pinning) -> Stock {
        let share = self.share(device);
        let charge = &share.charge;
        let own = plus(charge.set_aside, charge.in_segments());
        let pinned = match (pinning, self.right) {
            (Pinning::Pinned, Right::Lent | Right::Returning) => plus(own, charge.overhead),
            (Pinning::Movable, Right::Lent | Right::Returning) => charge.overhead,
            (Pinning::Pinned, Right::Guaranteed) => own.saturating_sub(self.reserve),
            (Pinning::Movable, Right::Guaranteed) => Bytes::ZERO,
        };
        let active = self.state == LeaseState::Active;
        let least = if self.lasting().is_ok() { self.reserve } else { Bytes::ZERO };
        let (copies, gives) = match pinning {
            Pinning::Pinned => (Bytes::ZERO, Bytes::ZERO),
            Pinning::Movable => {
                let gives = if active { plus(charge.set_aside, charge.held) } else { Bytes::ZERO };
                (least.max(plus(own, share.away)), gives)
            }
        };
        let surplus = if active { charge.held.saturating_sub(self.reserve) } else { Bytes::ZERO };
        Stock { pinned, copies, gives, surplus }
    }

    /// It is being given back from now on.
    ///
    /// # Panics
    /// When it is already.
    pub(crate) fn end(&mut self, id: LeaseId) {
        assert!(self.state != LeaseState::Draining, "{id} is {:?} and can't become Draining", self.state);
        self.state = LeaseState::Draining;
    }

    /// Whether it may not grow because a deadline passed.
    pub(crate) fn is_overdue(&self) -> bool {
        let missed = self.recall.as_ref().is_some_and(|recall| recall.outcome == Outcome::Missed);
        missed || self.attendance == Attendance::Away || self.residence.pace == Pace::Late
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

    /// What it is charged over all devices once all that drains is back.
    pub(crate) fn charge_once_drained(&self) -> Bytes {
        self.shares.values().map(|share| share.once_drained(self.reserve).charge.total()).sum()
    }

    pub(crate) fn share(&self, device: DeviceId) -> &Share {
        self.shares.get(&device).expect("the lease is on every device that its segments and asks name")
    }

    pub(crate) fn share_mut(&mut self, device: DeviceId) -> &mut Share {
        self.shares.get_mut(&device).expect("the lease is on every device that its segments and asks name")
    }
}
