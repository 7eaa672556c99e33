//! What the world tells the arbiter.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid};

use crate::Budgets;

/// The number by which the driver finds who asked; each is answered exactly once, except that an
/// [`Event::Acquire`] or [`Event::Resume`] may be answered [`Effect::Queued`](crate::Effect::Queued) first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A process, as the kernel vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The broker's own id of the process, one for each living process however often it connects.
    pub process: ProcessId,
    /// Its number, for people.
    pub pid: Pid,
    /// Its user.
    pub uid: Uid,
    /// The first group of the budgets that lists the user, if any does.
    pub group: Option<String>,
    /// Its command, for people.
    pub program: String,
}

/// What an ask is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Name of the lease and of its job account.
    pub name: String,
    /// Set aside on each device from the grant on; a positive multiple of the granularity.
    pub reserve: Bytes,
    /// How far it may grow on each device; at least the reserve.
    pub limit: Bytes,
    /// Where.
    pub devices: DeviceWish,
    /// How long to wait.
    pub patience: Patience,
    /// Whether it may ever be suspended.
    pub pinning: Pinning,
    /// Another user whose processes may join.
    pub guest: Option<Uid>,
}

/// The devices an ask wants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceWish {
    /// Any so many.
    Any(NonZeroU32),
    /// Just these.
    These(BTreeSet<DeviceId>),
}

/// How long an ask waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// At most so long.
    AtMost(Duration),
    /// Until it is granted or withdrawn.
    Endless,
}

/// Whether a lease may be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pinning {
    /// It may.
    Movable,
    /// Never.
    Pinned,
}

/// What a segment is handed over as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// The device's own descriptor.
    Descriptor,
    /// A CUDA IPC handle.
    CudaIpc,
}

/// Whether the process that allocates is inside a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It is: it must not wait for others, who may wait for it.
    Inside,
    /// It is not.
    Outside,
}

/// Whose place an admitted process takes on the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One of its own: its context needs room beside the others.
    Own,
    /// The caller's, who only starts it: what is set aside for the caller's context goes over to it.
    Callers,
}

/// Whether a lease is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idleness {
    /// No guard of it has lived for [`Policy::idle_after`](crate::Policy::idle_after).
    Idle,
    /// A guard was taken again.
    Busy,
}

/// On whose word a lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// Its owner session.
    Session(SessionId),
    /// A process of its owner's user, without a session.
    User(Uid),
    /// An operator.
    Operator,
}

/// What happened. Sent by the driver task only; who told the driver stands with each variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A process opens a session (grpc). Answered by `Opened` or `Denied`.
    Open { request: RequestId, peer: Peer },
    /// The session's stream broke while its process lives (grpc). No answer.
    Adrift { session: SessionId },
    /// The session's stream is back (grpc, after checking the secret and the process). No answer.
    Rejoined { session: SessionId },
    /// The client ends its session in good order (grpc). Answered by `Done` or `Denied`.
    Close { request: RequestId, session: SessionId },
    /// The process is gone: its pidfd became readable (liveness). No answer.
    Died { process: ProcessId },
    /// The session asks for a lease (grpc). Answered by `Granted`, `Denied`, or `Queued` first and one of them later.
    /// The name of an ask that the session already has takes that ask up again, under the new request.
    Acquire { request: RequestId, session: SessionId, ask_name: u64, terms: Terms },
    /// The stream of an ask broke (grpc). No answer; the ask is withdrawn, and its lease released if it was granted and
    /// nobody used it, unless it is taken up again within the grace.
    Unattended { session: SessionId, ask_name: u64 },
    /// The client gives an ask up, or the lease that it became (grpc). Answered by `Done` or `Denied`.
    Withdraw { request: RequestId, session: SessionId, ask_name: u64 },
    /// The session's process joins a lease whose token it showed (grpc, after checking the token); who started it, the
    /// nearest first. Answered by `Joined` or `Denied`.
    Join { request: RequestId, session: SessionId, lease: LeaseId, ancestors: Vec<ProcessId> },
    /// A member's session admits another process (grpc). Answered by `Done` or `Denied`.
    Admit { request: RequestId, session: SessionId, lease: LeaseId, peer: Peer, place: Place },
    /// The owner's session changes a lease (grpc). Answered by `Resized` or `Denied`.
    Resize { request: RequestId, session: SessionId, lease: LeaseId, reserve: Bytes, limit: Bytes },
    /// A lease is given back (grpc). Answered by `Released` or `Denied`.
    Release { request: RequestId, authority: Authority, lease: LeaseId },
    /// A member wants memory (grpc). Answered by `Allocated` once the device made it, or by `Denied`.
    Allocate {
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        device: DeviceId,
        bytes: Bytes,
        kind: SegmentKind,
        patience: Patience,
        guard: Guard,
    },
    /// The caller of a waiting `Allocate` or `Resume` went away (grpc). No answer.
    Abandoned { request: RequestId },
    /// The device made the segment (device). No answer but the pending `Allocated`.
    Created { segment: SegmentId },
    /// The device could not make the segment, for lack of memory or another reason (device). Leads to `Denied`.
    CreateFailed { segment: SegmentId, why: String },
    /// A process took the segment's descriptors (hand-over). No answer.
    Claimed { segment: SegmentId },
    /// The member has unmapped a segment and gives it back (grpc). Answered by `Done` or `Denied`.
    Free { request: RequestId, session: SessionId, lease: LeaseId, segment: SegmentId },
    /// The device has the segment's bytes again, proven (device). The only credit. No answer.
    Freed { segment: SegmentId },
    /// The device cannot prove that nobody maps the segment any more (device). It stays charged, as quarantined; `Freed` may still come. No answer.
    Unproven { segment: SegmentId, suspects: Vec<Pid> },
    /// What outsiders have taken of the device's capacity; `None`: nobody can tell (witness). No answer.
    OffBook { device: DeviceId, bytes: Option<Bytes> },
    /// What a process's context and libraries take of a device, measured (witness). No answer.
    Overhead { process: ProcessId, device: DeviceId, bytes: Bytes },
    /// The device is lost; nothing more is granted on it (device). No answer.
    DeviceLost { device: DeviceId },
    /// An operator asks a holder for surplus; zero bytes: all of it (grpc). Answered by `Recalled` or `Denied`.
    Recall { request: RequestId, lease: LeaseId, bytes: Bytes, within: Duration },
    /// The guards of a member are gone and its gate is closed: the answer to `Notice::Suspend` (grpc). No answer.
    Drained { session: SessionId, lease: LeaseId },
    /// A segment's bytes are in its host copy and it is unmapped: one answer to `Notice::SwapOut` for each segment (grpc). No
    /// answer; leads to `Reclaim`.
    SwappedOut { session: SessionId, lease: LeaseId, segment: SegmentId },
    /// A member can't be suspended; nothing of the segments that are not swapped out was unmapped (grpc). No answer; what is
    /// out comes back, and the lease is left alone for a while.
    SwapFailed { session: SessionId, lease: LeaseId, why: String },
    /// A member wants its lease's memory: it enters (grpc). Answered by `Resumed`, by `Denied`, or by `Queued` first and one of
    /// them later. A lease that is active is `Resumed` at once.
    Resume { request: RequestId, session: SessionId, lease: LeaseId },
    /// A segment that came back is mapped and filled: the answer to `Notice::SegmentBack` (grpc). No answer.
    Restored { session: SessionId, lease: LeaseId, segment: SegmentId },
    /// The lease is idle, or busy again (grpc). No answer.
    Idle { session: SessionId, lease: LeaseId, idleness: Idleness },
    /// The lease is to stay where it is from now on: it exports memory, say (grpc). Answered by `Done` or `Denied`.
    Pin { request: RequestId, session: SessionId, lease: LeaseId },
    /// All budgets anew (an operator, or the file read again). Answered by `Done` or `Denied`; nobody loses what he has.
    SetBudgets { request: RequestId, budgets: Box<Budgets> },
}
