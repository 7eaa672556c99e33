//! Processes and their sessions.
//!
//! ```text
//! session:  present <-> adrift --grace--> away (its leases are overdue) --> gone
//!              `------------`--------------'  Rejoined: present again; Close, Died: gone
//! ```
//!
//! A process is known from its first session, or from when it was admitted to a lease, until it
//! died, or neither a session nor a lease needs it. It has one context on a device however many
//! leases it is a member of: the first of them there is charged for it. When that lease is gone
//! while the process lives, the next one is charged; without a next one the charge ends,
//! and the witness counts what the process keeps as any outsider's.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

use crate::Peer;

/// Where a context's figure is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    Estimated,
    Measured,
}

/// What a process takes of a device outside of segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) bytes: Bytes,
    pub(crate) figure: Figure,
    /// The lease that is charged for it.
    pub(crate) lease: LeaseId,
}

/// A living process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) peer: Peer,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// It is a member of.
    pub(crate) leases: BTreeSet<LeaseId>,
    /// That it may have mapped or is about to: not those that drain.
    pub(crate) segments: BTreeSet<SegmentId>,
    pub(crate) asks: BTreeSet<AskId>,
    pub(crate) contexts: BTreeMap<DeviceId, Context>,
    /// What the witness last said of it, charged or not.
    pub(crate) measured: BTreeMap<DeviceId, Bytes>,
}

impl Process {
    pub(crate) const fn new(peer: Peer) -> Self {
        Self {
            peer,
            sessions: BTreeSet::new(),
            leases: BTreeSet::new(),
            segments: BTreeSet::new(),
            asks: BTreeSet::new(),
            contexts: BTreeMap::new(),
            measured: BTreeMap::new(),
        }
    }

    /// Whether anything needs it to be watched.
    pub(crate) fn is_needed(&self) -> bool {
        !self.sessions.is_empty() || !self.leases.is_empty()
    }
}

/// Whether a session's stream is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It is.
    Present,
    /// It broke; the client may come back.
    Adrift,
    /// It stayed away: its leases are overdue.
    Away,
}

/// What became of an ask that a session named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Waiting(AskId),
    Granted(LeaseId),
}

/// An open session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) process: ProcessId,
    pub(crate) presence: Presence,
    pub(crate) asks: BTreeMap<u64, Named>,
    /// It owns, those that drain not included.
    pub(crate) leases: BTreeSet<LeaseId>,
}

impl Session {
    pub(crate) const fn new(process: ProcessId) -> Self {
        Self { process, presence: Presence::Present, asks: BTreeMap::new(), leases: BTreeSet::new() }
    }
}
