//! Segments.
//!
//! ```text
//!                CreateFailed: credited
//!               /
//!   creating --+--Created--> live --Free, death, no member--> draining --Freed--> credited
//!      |                                                      |      ^
//!      | the asker went away, died, or the lease ended   Unproven    |
//!      v                                                      v      |
//!   creating for nobody --Created-----------------------> draining  quarantined --Freed--> credited
//! ```
//!
//! Its bytes count as held from the moment the device is told to make it, and as draining from the
//! moment nobody wants it, made or not. It belongs to the process that allocated it.

use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId};

use crate::RequestId;

/// Whether anyone took its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Unclaimed,
    Claimed,
}

/// Where a segment stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The device makes it, for whoever asked; nobody, where that one is gone.
    Creating(Option<RequestId>),
    /// Its process may have it mapped.
    Live(Claim),
    /// Given back, not yet proven free.
    Draining,
    /// It can't be proven that nobody maps it.
    Quarantined { suspects: Vec<Pid> },
}

/// A piece of memory in a lease.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) lease: LeaseId,
    pub(crate) process: ProcessId,
    pub(crate) device: DeviceId,
    pub(crate) bytes: Bytes,
    pub(crate) state: State,
}

impl Segment {
    /// The device made it. Who is told; `None` where nobody wants it any more and it drains.
    ///
    /// # Panics
    /// When it is not being made.
    pub(crate) fn made(&mut self, id: SegmentId) -> Option<RequestId> {
        let State::Creating(request) = self.state else {
            panic!("{id} is {:?} and can't become live", self.state);
        };
        self.state = if request.is_some() { State::Live(Claim::Unclaimed) } else { State::Draining };
        request
    }

    /// Nobody wants what is being made. Who wanted it, where somebody still did.
    pub(crate) fn forsake(&mut self) -> Option<RequestId> {
        match &mut self.state {
            State::Creating(request) => request.take(),
            State::Live(_) | State::Draining | State::Quarantined { .. } => None,
        }
    }

    /// It is given back.
    ///
    /// # Panics
    /// When it is not live.
    pub(crate) fn drain(&mut self, id: SegmentId) {
        let State::Live(_) = self.state else {
            panic!("{id} is {:?} and can't become draining", self.state);
        };
        self.state = State::Draining;
    }
}
