//! The naive model: what the rules say of a history.
//!
//! It keeps facts and no sums. Every figure is added up from the facts each time it is wanted,
//! every order is sorted anew, and nothing is taken from the arbiter but its ids and the devices
//! it binds a barrier to. [`Model::hear`] takes an event in and settles what must be answered;
//! [`Model::see`] judges one effect; [`Model::settle`] compares the whole state once the effects
//! are drained.

mod allocations;
mod asks;
mod bound;
mod demands;
mod facts;
mod fates;
mod grants;
mod guarantee;
mod hear;
mod journey;
mod ledger;
mod line;
mod passage;
mod placement;
mod recall;
mod returns;
mod see;
mod settle;
mod stores;
mod telling;
mod verdicts;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use gpulease_arbiter::{Budgets, DeviceSpec, Policy, RequestId, Time};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

pub(super) use facts::{
    Aim, AskFact, Before, DeviceFact, Journey, LeaseFact, Node, ProcessFact, RecallFact, RequestFact,
    SegmentFact, SegmentState, SessionFact, Standing, Verdict,
};

/// A rule that was broken, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

/// Fails with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::sim::model::Broken(format!($($words)+)));
        }
    };
}
pub(super) use ensure;

/// The history and the rules.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) now: Time,
    /// Everybody answers in time, so that what was promised must be kept.
    pub(super) upright: bool,
    pub(super) figures: Figures,
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) devices: Vec<DeviceFact>,
    pub(super) specs: Vec<DeviceSpec>,
    /// In the step that is judged now.
    pub(super) budgets_changed: bool,
    pub(super) processes: BTreeMap<ProcessId, ProcessFact>,
    pub(super) sessions: BTreeMap<SessionId, SessionFact>,
    /// In the order in which they came.
    pub(super) asks: Vec<AskFact>,
    pub(super) leases: BTreeMap<LeaseId, LeaseFact>,
    pub(super) segments: BTreeMap<SegmentId, SegmentFact>,
    pub(super) requests: BTreeMap<RequestId, RequestFact>,
    /// What a lease has on a device of its own bytes that just came back, before what is above its
    /// reserve becomes free: its own waits may take it.
    pub(super) untrimmed: Option<(LeaseId, DeviceId, Bytes)>,
    /// The lease that is charged for a process's context on a device.
    pub(super) contexts: BTreeMap<(ProcessId, DeviceId), LeaseId>,
    /// Devices that barriers are bound to by now; when in the course of the effects, nobody says.
    pub(super) rebound: BTreeMap<usize, Vec<DeviceId>>,
    /// Where new leases are, as the arbiter shows it, for a sentence.
    pub(super) shown: BTreeMap<LeaseId, Vec<DeviceId>>,
    /// The asks that wait after the step that is judged now.
    pub(super) still_waits: BTreeSet<gpulease_words::AskId>,
    /// Which new leases may be suspended, and which a guarantee covers, as the arbiter shows it.
    pub(super) marks: BTreeMap<LeaseId, (bool, bool)>,
    /// Whose they are, and since when they were asked for.
    pub(super) shown_since: BTreeMap<LeaseId, (gpulease_words::Pid, Time)>,
    /// Asks that guarantees put before others in the step that is judged now.
    pub(super) newly_covered: u32,
    /// What was measured of those contexts.
    pub(super) measured: BTreeMap<(ProcessId, DeviceId), Bytes>,
}

/// Whether what the arbiter shows of its settings and of who waits is judged, or what it does alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figures {
    Judged,
    Ignored,
}

impl Model {
    pub(super) fn new(policy: Policy, budgets: Budgets, devices: &[DeviceSpec]) -> Self {
        let device = |spec: &DeviceSpec| DeviceFact {
            id: spec.id,
            capacity: spec.capacity,
            estimate: spec.overhead_estimate,
            off_book: None,
            lost: false,
        };
        Self {
            now: Time::START,
            upright: false,
            figures: Figures::Judged,
            policy,
            budgets,
            devices: devices.iter().map(device).collect(),
            specs: devices.to_vec(),
            budgets_changed: false,
            processes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            asks: Vec::new(),
            leases: BTreeMap::new(),
            segments: BTreeMap::new(),
            requests: BTreeMap::new(),
            untrimmed: None,
            contexts: BTreeMap::new(),
            rebound: BTreeMap::new(),
            shown: BTreeMap::new(),
            still_waits: BTreeSet::new(),
            newly_covered: 0,
            marks: BTreeMap::new(),
            shown_since: BTreeMap::new(),
            measured: BTreeMap::new(),
        }
    }

    pub(super) fn device(&self, id: DeviceId) -> Option<&DeviceFact> {
        self.devices.iter().find(|device| device.id == id)
    }

    pub(super) fn open_session(&self, id: SessionId) -> Option<&SessionFact> {
        self.sessions.get(&id).filter(|session| session.open)
    }

    /// Whether the process has a session open.
    pub(super) fn speaks(&self, process: ProcessId) -> bool {
        self.sessions.values().any(|session| session.open && session.peer.process == process)
    }

    /// Leases that have not gone.
    pub(super) fn standing_leases(&self) -> impl Iterator<Item = (LeaseId, &LeaseFact)> {
        self.leases.iter().filter(|(_, lease)| !lease.gone).map(|(id, lease)| (*id, lease))
    }

    /// Segments of a lease whose bytes were not credited.
    pub(super) fn segments_of(&self, lease: LeaseId) -> impl Iterator<Item = (SegmentId, &SegmentFact)> {
        let its = move |(_, segment): &(&SegmentId, &SegmentFact)| {
            segment.lease == lease && segment.state != SegmentState::Gone
        };
        self.segments.iter().filter(its).map(|(id, segment)| (*id, segment))
    }

    /// Asks that stand in the line, in the order in which they came.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, &AskFact)> {
        self.asks.iter().enumerate().filter(|(_, ask)| ask.standing == Standing::Waiting)
    }
}
