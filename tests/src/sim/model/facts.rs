//! What happened, kept for the whole run: nothing is ever taken out, and no sum is kept beside it.

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use gpulease_arbiter::{Event, Guard, Patience, Peer, RequestId, SegmentKind, Terms, Time};
use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid};

/// A device.
#[derive(Clone, Debug)]
pub(in crate::sim) struct DeviceFact {
    pub(in crate::sim) id: DeviceId,
    pub(in crate::sim) capacity: Bytes,
    pub(in crate::sim) estimate: Bytes,
    pub(in crate::sim) off_book: Option<Bytes>,
    pub(in crate::sim) lost: bool,
}

/// A process that the arbiter was told of.
#[derive(Clone, Debug)]
pub(in crate::sim) struct ProcessFact {
    pub(in crate::sim) peer: Peer,
    pub(in crate::sim) alive: bool,
    /// `ProcessGone` was said and nothing needed it since.
    pub(in crate::sim) forgotten: bool,
}

/// A session.
#[derive(Clone, Debug)]
pub(in crate::sim) struct SessionFact {
    pub(in crate::sim) peer: Peer,
    pub(in crate::sim) open: bool,
    pub(in crate::sim) adrift_since: Option<Time>,
    /// From when to when it was away last.
    pub(in crate::sim) was_away: Option<(Time, Time)>,
    /// `SessionGone` was said.
    pub(in crate::sim) gone: bool,
}

/// What an ask is for.
#[derive(Clone, Debug)]
pub(in crate::sim) enum Aim {
    /// A lease.
    Lease { name: u64, terms: Terms },
    /// A segment of a lease.
    Growth { lease: LeaseId, device: DeviceId, bytes: Bytes, kind: SegmentKind, guard: Guard },
    /// The memory of a suspended lease.
    Resume { lease: LeaseId },
}

/// Where an ask stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Standing {
    /// In the line.
    Waiting,
    /// Within the reserve: for bytes of its own lease that are on their way back.
    OwnDrain,
    /// Above the reserve: its lease's limit allows it once bytes of that are back which are on their way.
    AtLimit,
    /// It wants back a lease that is still on its way out.
    Leaving,
    /// It became this lease.
    Granted(LeaseId),
    /// It became this segment.
    Made(SegmentId),
    /// Refused, withdrawn or ended.
    Left,
}

/// An ask: for a lease, or for a segment.
#[derive(Clone, Debug)]
pub(in crate::sim) struct AskFact {
    /// The arbiter's id, once it was heard.
    pub(in crate::sim) id: Option<AskId>,
    pub(in crate::sim) session: SessionId,
    pub(in crate::sim) peer: Peer,
    pub(in crate::sim) aim: Aim,
    pub(in crate::sim) patience: Patience,
    pub(in crate::sim) since: Time,
    /// Who is to be answered; `None` while its stream is broken.
    pub(in crate::sim) request: Option<RequestId>,
    pub(in crate::sim) unattended_since: Option<Time>,
    pub(in crate::sim) standing: Standing,
    /// It waited so long that it is a barrier, and the arbiter was told the time since.
    pub(in crate::sim) risen: bool,
    /// The devices it was bound to when it became a barrier.
    pub(in crate::sim) bound: Option<Vec<DeviceId>>,
    /// A guarantee covers it, as the arbiter says.
    pub(in crate::sim) guaranteed: bool,
    /// It waited so long that it is a barrier whenever it needs anything.
    pub(in crate::sim) senior: bool,
    /// It was so, or a barrier, before the step that is judged now.
    pub(in crate::sim) before: Before,
    /// Its lease has to come back: a swap failed, or it had begun when its waiter went.
    pub(in crate::sim) returning: bool,
    /// Since when a guarantee covers it.
    pub(in crate::sim) covered_at: Time,
    /// Since when it is promised a time without a break, and the most asks that went before it since then.
    pub(in crate::sim) promised: Option<(Time, u32)>,
}

impl LeaseFact {
    /// A lease that was just granted on these devices.
    pub(in crate::sim) fn new(ask: &AskFact, terms: Terms, devices: Vec<DeviceId>, now: Time) -> Self {
        Self {
            owner: ask.session,
            peer: ask.peer.clone(),
            reserve: terms.reserve,
            limit: terms.limit,
            terms,
            devices,
            members: Vec::new(),
            ended: false,
            gone: false,
            used: false,
            granted_at: now,
            waited: now.since(ask.since),
            end_untold: false,
            recall: None,
            overdue: false,
            suspects: BTreeSet::new(),
            journey: Journey::Active,
            movable: false,
            guaranteed: false,
            guaranteed_before: false,
            since: now,
            idle: false,
            regained: BTreeMap::new(),
            broken: false,
            asks_itself: false,
            late: false,
            not_before: Time::START,
            back_off: super::journey::FIRST_BACK_OFF,
            resumers: BTreeMap::new(),
            unheard: false,
            must_be_guaranteed: false,
            retries: false,
            suspensions: 0,
        }
    }
}

impl AskFact {
    /// Whether its process is inside a guard, so that it must not wait for others.
    pub(in crate::sim) const fn is_inside(&self) -> bool {
        matches!(self.aim, Aim::Growth { guard: Guard::Inside, .. })
    }

    /// An ask that waits from now on, for whom nobody listens yet.
    pub(in crate::sim) const fn new(session: SessionId, peer: Peer, aim: Aim, now: Time) -> Self {
        Self {
            id: None,
            session,
            peer,
            aim,
            patience: Patience::Endless,
            since: now,
            request: None,
            unattended_since: None,
            standing: Standing::Waiting,
            risen: false,
            bound: None,
            guaranteed: false,
            senior: false,
            before: Before { barrier: false, guaranteed: false },
            returning: false,
            covered_at: now,
            promised: None,
        }
    }
}

/// How an ask stood before a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct Before {
    pub(in crate::sim) barrier: bool,
    pub(in crate::sim) guaranteed: bool,
}

/// Whether a lease has its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Journey {
    Active,
    /// These have not drained; by then the suspension is given up.
    Draining {
        undrained: BTreeSet<ProcessId>,
        deadline: Time,
    },
    /// Its segments are swapped out; from then on it is overdue.
    Leaving {
        due: Time,
    },
    Suspended,
    /// It comes back; whether it is to leave again first.
    Resuming {
        recedes: bool,
    },
}

/// A lease.
#[derive(Clone, Debug)]
pub(in crate::sim) struct LeaseFact {
    pub(in crate::sim) owner: SessionId,
    pub(in crate::sim) peer: Peer,
    pub(in crate::sim) terms: Terms,
    pub(in crate::sim) devices: Vec<DeviceId>,
    pub(in crate::sim) reserve: Bytes,
    pub(in crate::sim) limit: Bytes,
    /// Living members, in the order in which they joined.
    pub(in crate::sim) members: Vec<ProcessId>,
    pub(in crate::sim) ended: bool,
    /// `LeaseGone` was said.
    pub(in crate::sim) gone: bool,
    pub(in crate::sim) used: bool,
    pub(in crate::sim) granted_at: Time,
    pub(in crate::sim) waited: std::time::Duration,
    /// Another ended it, and its owner, who is there, has not been told.
    pub(in crate::sim) end_untold: bool,
    /// What was asked of it and is not met.
    pub(in crate::sim) recall: Option<RecallFact>,
    /// `Overdue` was said and not made good.
    pub(in crate::sim) overdue: bool,
    pub(in crate::sim) suspects: BTreeSet<Pid>,
    pub(in crate::sim) journey: Journey,
    /// Whether it can be suspended, and whether a guarantee covered it, as the arbiter says.
    pub(in crate::sim) movable: bool,
    pub(in crate::sim) guaranteed: bool,
    pub(in crate::sim) guaranteed_before: bool,
    /// Since when it has its memory.
    pub(in crate::sim) since: Time,
    pub(in crate::sim) idle: bool,
    /// Of each device, while it resumes: what is its own again.
    pub(in crate::sim) regained: BTreeMap<DeviceId, Bytes>,
    /// It comes back without having been away altogether.
    pub(in crate::sim) broken: bool,
    /// An ask for what it lacks was made in its name in this step, which may be granted already.
    pub(in crate::sim) asks_itself: bool,
    /// It was late when its time to leave was over.
    pub(in crate::sim) late: bool,
    /// It is left alone until then, and for so long after the next failure.
    pub(in crate::sim) not_before: Time,
    pub(in crate::sim) back_off: Duration,
    /// Who waits for it to be back.
    pub(in crate::sim) resumers: BTreeMap<RequestId, SessionId>,
    /// It is overdue for what it was asked when nobody of it could hear it.
    pub(in crate::sim) unheard: bool,
    /// A guarantee covered all that its account is charged when it was granted.
    pub(in crate::sim) must_be_guaranteed: bool,
    /// A segment could not be made again; it is tried once more.
    pub(in crate::sim) retries: bool,
    pub(in crate::sim) suspensions: u32,
}

/// What an operator asked of a holder.
#[derive(Clone, Debug)]
pub(in crate::sim) struct RecallFact {
    pub(in crate::sim) deadline: Time,
    /// A deadline passed.
    pub(in crate::sim) missed: bool,
    /// What may still be held on each device that bytes were asked of.
    pub(in crate::sim) may_hold: BTreeMap<DeviceId, Bytes>,
    /// Of these the owner, who is there, has not been told.
    pub(in crate::sim) untold: BTreeSet<DeviceId>,
}

/// Where a segment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum SegmentState {
    Creating,
    Live,
    Draining,
    Quarantined,
    /// Swapped out, and not yet proven free.
    Departing,
    /// Swapped out, and it can't be proven free.
    Stuck,
    /// In its host copy only.
    Away,
    /// Made again.
    Restoring,
    /// Its process fills it.
    Back,
    Gone,
}

/// A segment.
#[derive(Clone, Debug)]
pub(in crate::sim) struct SegmentFact {
    pub(in crate::sim) lease: LeaseId,
    pub(in crate::sim) device: DeviceId,
    pub(in crate::sim) bytes: Bytes,
    pub(in crate::sim) process: ProcessId,
    pub(in crate::sim) request: RequestId,
    pub(in crate::sim) state: SegmentState,
    /// Its end was decided while it was being made.
    pub(in crate::sim) doomed: bool,
    /// `Reclaim` was said.
    pub(in crate::sim) reclaimed: bool,
    /// `Allocated` was said.
    pub(in crate::sim) handed: bool,
    /// Its process took the descriptors.
    pub(in crate::sim) claimed: bool,
    /// Its host copy is to be dropped.
    pub(in crate::sim) forgotten: bool,
}

/// A request and what is known of its answer.
#[derive(Clone, Debug)]
pub(in crate::sim) struct RequestFact {
    pub(in crate::sim) event: Event,
    pub(in crate::sim) verdict: Verdict,
    pub(in crate::sim) answers: u32,
    pub(in crate::sim) queued: u32,
}

/// What the rules say must be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Verdict {
    /// Yes, before anything else happens.
    Yes,
    /// No, before anything else happens, for one of these reasons.
    No(Vec<gpulease_words::Reason>),
    /// It stands in the line: in its turn, or no.
    InLine,
    /// A segment is being made for it.
    Making,
    /// Nobody is there to be answered, and nobody is.
    Nobody,
    /// The same ask came again: this request may be told so, once, or not at all.
    Superseded,
    /// The ask of this name has its lease already.
    GrantedAlready(LeaseId),
    /// The lease is there: `Resumed` at once.
    Resumed,
    /// It waits for the lease to be back.
    Returning(LeaseId),
}

/// A user's node in the account tree and what is above and below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim) enum Node {
    Host,
    Group(String),
    User(Uid),
    Job(Uid, String),
}

impl Node {
    /// The path by which the snapshot names it.
    pub(in crate::sim) fn path(&self) -> String {
        match self {
            Self::Host => "host".to_owned(),
            Self::Group(name) => format!("group.{name}"),
            Self::User(uid) => format!("user.{uid}"),
            Self::Job(uid, name) => format!("user.{uid}/job.{name}"),
        }
    }
}
