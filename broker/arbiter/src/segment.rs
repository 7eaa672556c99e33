//! Segments.
//!
//! ```text
//!                CreateFailed: credited
//!               /
//!   creating --+--Created--> live --Free, death, no member--> draining --Freed--> credited
//!      |                     | ^                            |      ^
//!      | asker went away,    | |                        Unproven   |
//!      v died, lease ended   | |                            v      |
//!   creating for nobody -----|-|-- Created --> draining  quarantined --Freed--> credited
//!                            | |
//!                 SwappedOut | | Restored
//!                            v |
//!            departing      back <--Created-- restoring
//!             |     \                            ^  |
//!             |  Unproven: stuck                 |  | CreateFailed
//!        Freed|     / Freed            its bytes |  v
//!             v    v                   are there |
//!              away ----------------------------'
//! ```
//!
//! Its bytes count as held from the moment the device is told to make it, and as draining from the
//! moment nobody wants it, made or not. It belongs to the process that allocated it. One that is away
//! takes nothing of the device: its bytes are in its host copy, and when it dies or is freed there,
//! the copy is dropped.

use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId};

use crate::RequestId;
use crate::ledger::Bucket;

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
    /// Swapped out, its memory not yet proven free.
    Departing,
    /// Swapped out, and it can't be proven that nobody maps its memory.
    Stuck { suspects: Vec<Pid> },
    /// In its host copy only.
    Away,
    /// The device makes it again.
    Restoring,
    /// Made again; its process fills it.
    Back(Claim),
}

impl State {
    /// What its bytes are charged as.
    pub(crate) const fn bucket(&self) -> Option<Bucket> {
        match self {
            Self::Creating(Some(_)) | Self::Live(_) | Self::Restoring | Self::Back(_) => Some(Bucket::Held),
            Self::Creating(None) | Self::Draining | Self::Departing => Some(Bucket::Draining),
            Self::Quarantined { .. } | Self::Stuck { .. } => Some(Bucket::Quarantined),
            Self::Away => None,
        }
    }

    /// Whether its process still has it, mapped, on its way or in the host copy.
    pub(crate) const fn is_of_process(&self) -> bool {
        match self {
            Self::Creating(Some(_))
            | Self::Live(_)
            | Self::Departing
            | Self::Stuck { .. }
            | Self::Away
            | Self::Restoring
            | Self::Back(_) => true,
            Self::Creating(None) | Self::Draining | Self::Quarantined { .. } => false,
        }
    }

    /// Whether what is in it is in its host copy, wholly or in part.
    pub(crate) const fn is_copied(&self) -> bool {
        match self {
            Self::Departing | Self::Stuck { .. } | Self::Away | Self::Restoring | Self::Back(_) => true,
            Self::Creating(_) | Self::Live(_) | Self::Draining | Self::Quarantined { .. } => false,
        }
    }
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
            State::Live(_)
            | State::Draining
            | State::Quarantined { .. }
            | State::Departing
            | State::Stuck { .. }
            | State::Away
            | State::Restoring
            | State::Back(_) => None,
        }
    }

    /// It is given back.
    ///
    /// # Panics
    /// When its process can't have it mapped.
    pub(crate) fn drain(&mut self, id: SegmentId) {
        let (State::Live(_) | State::Back(_)) = self.state else {
            panic!("{id} is {:?} and can't become draining", self.state);
        };
        self.state = State::Draining;
    }
}
