//! The state as plain data.

use std::collections::BTreeSet;

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId};

use crate::lease::Lease;
use crate::line::ask::{Ask, Right, Stage, Want};
use crate::process::{Figure, Presence};
use crate::segment::State;
use crate::{
    Arbiter, ArenaView, AskView, DeviceView, DeviceWish, Idleness, LeaseView, MemberView, Pinning, Purpose,
    Snapshot, Time,
};

impl Arbiter {
    /// The state as plain data. Its cost grows with all there is: make it on demand, a few times a second.
    #[must_use]
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let latest = self.latest();
        let view = |ask: AskId| AskView { at_latest: latest.get(&ask).copied(), ..self.ask_view(ask) };
        Snapshot {
            generation: self.generation,
            at: now,
            devices: self.device_views(),
            leases: self.leases.iter().map(|(id, lease)| self.lease_view(*id, lease)).collect(),
            waiting: self.line.in_order().into_iter().map(view).collect(),
            accounts: self.accounts.views(),
            sessions: u32::try_from(self.sessions.len()).expect("sessions are bounded by a 32-bit number"),
            arena: self.arena_view(),
        }
    }

    fn device_views(&self) -> Vec<DeviceView> {
        let mut views = self.ledger.views();
        for view in &mut views {
            (view.pinned, view.pinned_max) = self.accounts.pinned_figures(view.id, view.capacity);
        }
        views
    }

    fn arena_view(&self) -> ArenaView {
        let (used, capacity) = self.accounts.arena_figures();
        let filled = self.leases.values().map(|lease| self.copied(lease)).sum::<Bytes>().min(used);
        let (free, set_aside) = (capacity.saturating_sub(used), used.saturating_sub(filled));
        ArenaView { capacity, free, set_aside, filled }
    }

    /// What of the lease is in host copies.
    fn copied(&self, lease: &Lease) -> Bytes {
        let segments = lease.segments.iter().map(|id| &self.segments[id]);
        segments.filter(|segment| segment.state.is_copied()).map(|segment| segment.bytes).sum()
    }

    /// One lease, as the snapshot would show it.
    #[must_use]
    pub fn lease(&self, lease: LeaseId) -> Option<LeaseView> {
        self.leases.get(&lease).map(|found| self.lease_view(lease, found))
    }

    /// Whether the segment exists, on its device or only in its host copy.
    #[must_use]
    pub fn has_segment(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Whether a lease is charged for what the process itself has of the device.
    #[must_use]
    pub fn charges(&self, process: ProcessId, device: DeviceId) -> bool {
        self.processes.get(&process).is_some_and(|known| known.contexts.contains_key(&device))
    }

    /// What runs in a session's process.
    #[must_use]
    pub fn program(&self, session: SessionId) -> Option<&str> {
        self.sessions.get(&session).map(|open| self.process(open.process).peer.program.as_str())
    }

    fn lease_view(&self, id: LeaseId, lease: &Lease) -> LeaseView {
        let charge = lease.charge();
        let adrift = lease.owner.session.is_some_and(|s| self.sessions[&s].presence != Presence::Present);
        LeaseView {
            id,
            name: lease.terms.name.clone(),
            uid: lease.owner.uid,
            pid: lease.owner.pid,
            program: lease.owner.program.clone(),
            session: lease.owner.session,
            state: lease.state,
            overdue: lease.is_overdue(),
            adrift,
            devices: lease.shares.keys().copied().collect(),
            reserve: lease.reserve,
            limit: lease.limit,
            set_aside: charge.set_aside,
            held: charge.held,
            overhead: charge.overhead,
            draining: charge.draining,
            quarantined: charge.quarantined,
            suspects: self.suspects(lease),
            held_peak: lease.held_peak,
            segments: u32::try_from(lease.segments.len()).expect("segments are bounded by a 32-bit number"),
            used: lease.used,
            granted_at: lease.granted_at,
            waited: lease.waited,
            members: lease.members.iter().map(|member| self.member_view(*member, id)).collect(),
            pinned: lease.terms.pinning == Pinning::Pinned,
            movable: lease.pinning == Pinning::Movable,
            guaranteed: lease.right == Right::Guaranteed,
            idle: lease.residence.idleness == Idleness::Idle,
            swapped: self.copied(lease),
            resident_since: lease.resident().is_ok().then_some(lease.residence.since),
            suspensions: lease.residence.suspensions,
        }
    }

    fn suspects(&self, lease: &Lease) -> Vec<Pid> {
        let mut pids: Vec<Pid> = Vec::new();
        for segment in &lease.segments {
            match &self.segments[segment].state {
                State::Quarantined { suspects } | State::Stuck { suspects } => pids.extend(suspects),
                State::Creating(_)
                | State::Live(_)
                | State::Draining
                | State::Departing
                | State::Away
                | State::Restoring
                | State::Back(_) => {}
            }
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn member_view(&self, process: ProcessId, lease: LeaseId) -> MemberView {
        let known = self.process(process);
        let charged = known.contexts.values().filter(|context| context.lease == lease);
        let measured = charged.clone().any(|context| context.figure == Figure::Measured);
        MemberView {
            pid: known.peer.pid,
            program: known.peer.program.clone(),
            overhead: charged.map(|context| context.bytes).sum(),
            measured,
        }
    }

    fn ask_view(&self, id: AskId) -> AskView {
        let ask = self.line.get(id);
        let peer = &self.process(ask.process).peer;
        let obstacle = self.obstacle(ask);
        let (name, reserve, limit) = self.wanted_sizes(ask);
        AskView {
            id,
            lease: ask.lease(),
            name,
            uid: peer.uid,
            pid: peer.pid,
            reserve,
            limit,
            devices_wanted: self.line.shape_of(ask).count(),
            devices: self.bound_devices(ask),
            since: ask.since,
            deadline: ask.deadline,
            barrier: ask.post().is_some(),
            barrier_at: ask.barrier_at,
            reason: obstacle.reason,
            short_by: obstacle.short_by,
            device: obstacle.device,
            account: obstacle.account.map(|account| account.path),
            purpose: match &ask.want {
                Want::Lease { .. } => Purpose::Lease,
                Want::Segment(_) => Purpose::Growth,
                Want::Resume(_) => Purpose::Resume,
            },
            guaranteed: ask.right == Right::Guaranteed,
            recalled: self.recalled_for(ask),
            at_latest: None,
        }
    }

    fn recalled_for(&self, ask: &Ask) -> Vec<LeaseId> {
        if self.moving.is_empty() && self.recalled.is_empty() {
            return Vec::new();
        }
        let devices: BTreeSet<DeviceId> = match self.bound_devices(ask) {
            bound if bound.is_empty() => self.ledger.usable().map(|(device, _)| device).collect(),
            bound => bound.into_iter().collect(),
        };
        self.recalled_on(&devices)
    }

    fn wanted_sizes(&self, ask: &Ask) -> (String, Bytes, Bytes) {
        match &ask.want {
            Want::Lease { terms, .. } => (terms.name.clone(), terms.reserve, terms.limit),
            Want::Segment(wanted) => {
                let lease = &self.leases[&wanted.lease];
                (lease.terms.name.clone(), wanted.bytes, lease.limit)
            }
            Want::Resume(lease) => {
                let lease = &self.leases[lease];
                let most = lease.footprint().into_values().max().unwrap_or_default();
                (lease.terms.name.clone(), most, lease.limit)
            }
        }
    }

    fn bound_devices(&self, ask: &Ask) -> Vec<DeviceId> {
        match (&ask.stage, &self.line.shape_of(ask).wish) {
            (Stage::Barrier { needs, .. }, _) => needs.iter().map(|(device, _)| *device).collect(),
            (_, DeviceWish::These(devices)) => devices.iter().copied().collect(),
            (_, DeviceWish::Any(_)) => Vec::new(),
        }
    }
}
