//! What happened, kept for the whole run: nothing is ever taken out, and no sum is kept beside it.

use std::collections::{BTreeMap, BTreeSet};

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
}

/// Where an ask stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Standing {
    /// In the line.
    Waiting,
    /// Within the reserve: for bytes of its own lease that are on their way back.
    OwnDrain,
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
