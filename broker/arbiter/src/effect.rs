//! What the arbiter wants done.

use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

use crate::{Denial, Pinning, RequestId, SegmentKind, Time};

/// What to do next, in this order. Who does it stands with each variant; an effect with a
/// `request` answers that request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// The session is open (grpc answers; the driver makes its secret).
    Opened { request: RequestId, session: SessionId },
    /// Refused (grpc answers).
    Denied { request: RequestId, denial: Denial },
    /// Done, nothing more to say (grpc answers).
    Done { request: RequestId },
    /// The ask waits in the line (grpc tells how it stands, from snapshots, until `Granted` or `Denied`).
    Queued { request: RequestId, ask: gpulease_words::AskId },
    /// The lease exists (the driver makes its token, writes the record, then grpc answers). `request` is `None` where the
    /// asker's stream is broken: the grant waits for it to come back.
    Granted { request: Option<RequestId>, lease: LeaseId },
    /// The process is a member (grpc answers).
    Joined { request: RequestId, lease: LeaseId },
    /// The lease has its new size (grpc answers).
    Resized { request: RequestId, lease: LeaseId },
    /// The lease is being given back; so much of it is still mapped (grpc answers).
    Released { request: RequestId, lease: LeaseId, draining: Bytes },
    /// So many bytes were asked of the holder (grpc answers).
    Recalled { request: RequestId, lease: LeaseId, bytes: Bytes },
    /// Make this segment (device; answers with `Created` or `CreateFailed`). A movable one gets a host copy, which the driver
    /// keeps until the segment is `Freed` or forgotten, but through suspensions.
    Create {
        segment: SegmentId,
        lease: LeaseId,
        device: DeviceId,
        bytes: Bytes,
        kind: SegmentKind,
        pinning: Pinning,
    },
    /// Make this segment again, whose bytes are in its host copy (device; answers with `Created` or `CreateFailed`). Once
    /// created, `Notice::SegmentBack` tells its process.
    Restore { segment: SegmentId, lease: LeaseId, device: DeviceId, bytes: Bytes, process: ProcessId },
    /// The segment is no more and only its host copy was left (the driver drops that). No answer.
    Forget { segment: SegmentId },
    /// The lease's memory is back: guards pass (grpc answers).
    Resumed { request: RequestId, lease: LeaseId },
    /// Policy ends a holder that kept what was recalled (liveness sends the signal).
    Signal { process: ProcessId, signal: Signal },
    /// Something that people want to read of a lease later (event log).
    Occurred { lease: LeaseId, what: Occurrence },
    /// The segment is made: hand it to this process (the driver issues the ticket, grpc answers).
    Allocated { request: RequestId, segment: SegmentId, process: ProcessId },
    /// Take this segment back and prove it (device; answers with `Freed` or `Unproven`). Its tickets are void.
    Reclaim { segment: SegmentId, device: DeviceId },
    /// Tell the session (grpc, on its stream).
    Notify { session: SessionId, notice: Notice },
    /// The lease let a recall's deadline pass or its session stayed away (event log).
    Overdue { lease: LeaseId },
    /// The lease is no more: every byte of it was credited (the driver forgets its token).
    LeaseGone { lease: LeaseId },
    /// The session is no more (the driver forgets its secret).
    SessionGone { session: SessionId },
    /// No session and no lease needs the process any more (liveness may stop watching it).
    ProcessGone { process: ProcessId },
}

/// Something a session is told without having asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Bytes are wanted back on a device by a time.
    Recall { lease: LeaseId, device: DeviceId, bytes: Bytes, deadline: Time },
    /// The lease ends by another's word.
    Ended { lease: LeaseId, denial: Denial },
    /// Close the gate, wait for the guards, let the device finish, and say `Drained`, by the deadline.
    Suspend { lease: LeaseId, deadline: Time },
    /// Every member has drained: copy out, unmap, release, and say `SwappedOut`, segment by segment.
    SwapOut { lease: LeaseId },
    /// The gate opens again: a suspension was given up, and what was out of it is back.
    SuspendCancelled { lease: LeaseId, why: String },
    /// The segment is there again (the driver adds its ticket): map it where it was, copy in, and say `Restored`.
    SegmentBack { lease: LeaseId, segment: SegmentId },
    /// The lease moves no more: its host copies are of no use any more.
    Pinned { lease: LeaseId },
}

/// What is sent to a process that policy ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM.
    Term,
    /// SIGKILL.
    Kill,
}

/// A step of a lease that stands in the event log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// Its members are asked to drain.
    Suspending,
    /// All of it is in host memory.
    Suspended,
    /// Its memory comes back.
    Resuming,
    /// All of it is back.
    Resumed,
    /// A suspension was given up; why.
    SuspendCancelled(String),
    /// A swap failed; why.
    SwapFailed(String),
    /// It moves no more; why.
    Pinned(String),
    /// Policy ends it, because of what it kept.
    Terminated,
}
