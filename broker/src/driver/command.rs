//! What the driver is told: commands of the edges, which wait for a place in its queue, and what
//! the world does, which cannot wait and is bounded by what is under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpulease_arbiter::{
    Budgets, Denial, Guard, Idleness, LeaseState, Patience, Place, RequestId, SegmentKind, Terms, Time,
};
use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, ProcessId, Reason, SegmentId, SessionId, Uid};
use tokio::sync::{mpsc, oneshot};

use super::view::View;
use crate::credentials::Secret;
use crate::device::{Completion, IpcHandle};
use crate::liveness::Caller;
use crate::tickets::Ticket;
use crate::witness::Testimony;

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The arbiter or the driver said no.
    #[error("{0}")]
    Denied(Denial),
    /// The broker is going away.
    #[error("the broker is stopping; what is mapped stays usable, ask again when it is back")]
    Stopping,
}

impl Refusal {
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Denied(denial) => denial.reason(),
            Self::Stopping => Reason::Stopping,
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

/// Where the answer to one request goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// A session as a request names it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) session: SessionId,
    pub(crate) secret: Vec<u8>,
}

/// What an edge wants.
#[derive(Debug)]
pub(crate) enum Command {
    /// A request of somebody.
    Ask { request: RequestId, caller: Caller, body: Body },
    /// Budgets that are to be in force instead, and the first group of each user.
    Budgets { request: RequestId, budgets: Box<Budgets>, groups: BTreeMap<Uid, String>, reply: Reply<()> },
    /// The state, and the time now.
    Look { reply: oneshot::Sender<(Arc<View>, Time)> },
}

/// What is asked for.
#[derive(Debug)]
pub(crate) enum Body {
    Open {
        program: String,
        rejoin: Option<Shown>,
        reply: Reply<Opened>,
    },
    /// Something that only the session's own process may ask.
    Session {
        shown: Shown,
        act: Act,
    },
    /// A lease is given back on the word of the caller's user or of an operator.
    End {
        authority: Standing,
        lease: LeaseId,
        reply: Reply<Bytes>,
    },
    Recall {
        lease: LeaseId,
        bytes: Bytes,
        within: Duration,
        reply: Reply<Bytes>,
    },
}

/// A process that is to be admitted.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) caller: Caller,
    pub(crate) program: String,
    pub(crate) place: Place,
}

/// What a session asks for.
#[derive(Debug)]
pub(crate) enum Act {
    Close { reply: Reply<()> },
    Acquire { ask_name: u64, terms: Terms, updates: mpsc::UnboundedSender<AskUpdate> },
    Withdraw { ask_name: u64, reply: Reply<()> },
    Join { lease: LeaseId, token: Vec<u8>, ancestors: Vec<Pid>, reply: Reply<LeaseTerms> },
    Admit { lease: LeaseId, guest: Guest, reply: Reply<()> },
    Resize { lease: LeaseId, reserve: Bytes, limit: Bytes, reply: Reply<LeaseTerms> },
    Release { lease: LeaseId, reply: Reply<Bytes> },
    Allocate { wish: SegmentWish, reply: Reply<Segment> },
    Free { lease: LeaseId, segment: SegmentId, reply: Reply<()> },
    Report { lease: LeaseId, news: News, reply: Reply<()> },
    Resume { lease: LeaseId, updates: mpsc::UnboundedSender<AskUpdate> },
    Pin { lease: LeaseId, reply: Reply<()> },
}

/// What a member says of its lease's suspension or return, and of its guards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    Drained,
    SwappedOut(SegmentId),
    SwapFailed(String),
    Restored(SegmentId),
    Guards(Idleness),
}

impl Body {
    /// Says no without asking the arbiter.
    pub(super) fn refuse(self, refusal: Refusal) {
        match self {
            Self::Open { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Session { act, .. } => act.refuse(refusal),
            Self::End { reply, .. } | Self::Recall { reply, .. } => drop(reply.send(Err(refusal))),
        }
    }
}

impl Act {
    /// Says no without asking the arbiter.
    pub(super) fn refuse(self, refusal: Refusal) {
        match self {
            Self::Acquire { updates, .. } | Self::Resume { updates, .. } => {
                drop(updates.send(AskUpdate::Refused(refusal)));
            }
            Self::Close { reply }
            | Self::Withdraw { reply, .. }
            | Self::Admit { reply, .. }
            | Self::Free { reply, .. }
            | Self::Report { reply, .. }
            | Self::Pin { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Join { reply, .. } | Self::Resize { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Release { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Allocate { reply, .. } => drop(reply.send(Err(refusal))),
        }
    }

    /// Whether the caller left before his turn came.
    pub(super) fn is_deserted(&self) -> bool {
        match self {
            Self::Acquire { updates, .. } | Self::Resume { updates, .. } => updates.is_closed(),
            Self::Allocate { reply, .. } => reply.is_closed(),
            Self::Close { .. }
            | Self::Withdraw { .. }
            | Self::Join { .. }
            | Self::Admit { .. }
            | Self::Resize { .. }
            | Self::Release { .. }
            | Self::Free { .. }
            | Self::Report { .. }
            | Self::Pin { .. } => false,
        }
    }
}

/// On whose word a lease is given back, where it is not its session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The caller's user.
    User,
    /// An operator.
    Operator,
}

/// A segment that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentWish {
    pub(crate) lease: LeaseId,
    pub(crate) device: DeviceId,
    pub(crate) bytes: Bytes,
    pub(crate) kind: SegmentKind,
    pub(crate) patience: Patience,
    pub(crate) guard: Guard,
    /// 0: it has none.
    pub(crate) ask_name: u64,
}

/// A session that was opened or taken up again.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) session: SessionId,
    pub(crate) secret: Secret,
    /// How suspended leases stand of which a rejoining session's process is a member.
    pub(crate) standings: Vec<LeaseStanding>,
    /// How large the leases are of which a rejoining session's process is a member.
    pub(crate) sizes: Vec<LeaseSizes>,
    pub(crate) notices: mpsc::Receiver<SessionNotice>,
    /// Why the stream ends, once the notices are over.
    pub(crate) end: oneshot::Receiver<StreamEnd>,
    /// Tells the driver when the stream is dropped.
    pub(crate) departure: Departure,
}

/// How a lease stands that is not active, to one who may have missed notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseStanding {
    pub(crate) lease: LeaseId,
    pub(crate) state: LeaseState,
    /// Segments that the process has to do without.
    pub(crate) away: Vec<SegmentId>,
}

/// How large a lease is, on each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseSizes {
    pub(crate) lease: LeaseId,
    pub(crate) reserve: Bytes,
    pub(crate) limit: Bytes,
}

/// Why the driver ends a session's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The session was closed, or its process died.
    Closed,
    /// The session has a newer stream.
    Replaced,
    /// Its client left too many notices unread.
    Unread,
    /// The broker is stopping.
    Stopping,
}

/// What a session's stream carries.
#[derive(Debug)]
pub(crate) enum SessionNotice {
    Recall { lease: LeaseId, device: DeviceId, bytes: Bytes, within: Duration },
    Ended { lease: LeaseId, denial: Denial },
    Suspend { lease: LeaseId, within: Duration },
    SwapOut { lease: LeaseId },
    SuspendCancelled { lease: LeaseId, why: String },
    SegmentBack { lease: LeaseId, segment: SegmentId, ticket: Ticket },
    Pinned { lease: LeaseId },
    Resized(LeaseSizes),
}

/// How an ask stands.
#[derive(Debug)]
pub(crate) enum AskUpdate {
    /// It waits; how it stands is in the views.
    Queued(AskId),
    Granted(Grant),
    /// A lease's memory is back, after so long.
    Resumed(LeaseId, Duration),
    Refused(Refusal),
}

/// A lease that was granted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) terms: LeaseTerms,
    pub(crate) token: Secret,
    pub(crate) waited: Duration,
}

/// A lease as its members know it.
#[derive(Clone, Debug)]
pub(crate) struct LeaseTerms {
    pub(crate) lease: LeaseId,
    pub(crate) name: String,
    pub(crate) devices: Vec<DeviceId>,
    pub(crate) reserve: Bytes,
    pub(crate) limit: Bytes,
}

/// A segment that was made.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) segment: SegmentId,
    pub(crate) bytes: Bytes,
    pub(crate) access: Access,
    /// Whether a host copy comes with it.
    pub(crate) movable: bool,
}

/// How the process gets at it.
#[derive(Debug)]
pub(crate) enum Access {
    Ticket(Ticket),
    CudaIpc(IpcHandle),
}

/// What happened outside.
#[derive(Debug)]
pub(crate) enum World {
    /// A device did something.
    Device(Completion),
    /// A process died.
    Died(ProcessId),
    /// The witness looked at a device.
    Witness(DeviceId, Testimony),
    /// A caller or a stream went away.
    Left(Left),
    /// A process fetched a segment's descriptors for the first time.
    Claimed(SegmentId),
    /// It has them.
    Acknowledged(SegmentId),
    /// Host copies were touched or given up.
    Arena,
    /// Answer nothing more but `Stopping`.
    Stop,
}

/// Who went away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    /// The caller of this request.
    Request(RequestId),
    /// The stream of a session; a session's later stream has a larger number.
    Stream(SessionId, u64),
}

/// Tells the driver, when dropped, that somebody left.
#[derive(Debug)]
pub(crate) struct Departure {
    told: Option<(mpsc::UnboundedSender<World>, Left)>,
}

impl Departure {
    pub(super) const fn new(world: mpsc::UnboundedSender<World>, left: Left) -> Self {
        Self { told: Some((world, left)) }
    }

    /// Nobody needs to be told any more.
    pub(crate) fn disarm(&mut self) {
        self.told = None;
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some((world, left)) = self.told.take() {
            // The driver is gone only when the broker stops, and then there is nobody to tell.
            drop(world.send(World::Left(left)));
        }
    }
}
