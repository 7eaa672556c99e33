//! Leases leave and come back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, Reason, SegmentId, SessionId};

use super::ledger::add;
use super::{Aim, AskFact, Journey, LeaseFact, Model, SegmentFact, SegmentState, Standing};

/// So long a lease is left alone after its first failed suspension, and at the most.
pub(super) const FIRST_BACK_OFF: Duration = Duration::from_secs(60);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3_600);
/// A swap is late when it takes so many times as long as the link needs, and so long at least.
const SLACK_OF_SWAP: u32 = 4;
const LEAST_SWAP: Duration = Duration::from_secs(10);

impl SegmentFact {
    pub(super) fn is_away(&self) -> bool {
        self.state == SegmentState::Away
    }

    /// Whether its process has its descriptors: it is there until that process gives it back.
    pub(in crate::sim) fn is_in_hand(&self) -> bool {
        matches!(self.state, SegmentState::Live | SegmentState::Back)
    }

    /// Whether its process has it, mapped, on its way or in the host copy.
    pub(super) fn is_of_process(&self) -> bool {
        match self.state {
            SegmentState::Creating => !self.doomed,
            SegmentState::Live
            | SegmentState::Departing
            | SegmentState::Stuck
            | SegmentState::Away
            | SegmentState::Restoring
            | SegmentState::Back => true,
            SegmentState::Draining | SegmentState::Quarantined | SegmentState::Gone => false,
        }
    }

    /// Whether what is in it is in its host copy, wholly or in part.
    pub(super) fn is_copied(&self) -> bool {
        match self.state {
            SegmentState::Departing
            | SegmentState::Stuck
            | SegmentState::Away
            | SegmentState::Restoring
            | SegmentState::Back => true,
            SegmentState::Creating
            | SegmentState::Live
            | SegmentState::Draining
            | SegmentState::Quarantined
            | SegmentState::Gone => false,
        }
    }
}

impl LeaseFact {
    /// Whether its members may have memory of it now.
    pub(super) fn is_resident(&self) -> bool {
        matches!(self.journey, Journey::Active | Journey::Draining { .. })
    }
}

impl Model {
    /// The processes that hold segments of a lease.
    pub(in crate::sim) fn holders(&self, id: LeaseId) -> BTreeSet<ProcessId> {
        let held = self.segments_of(id).filter(|(_, segment)| segment.is_of_process());
        held.map(|(_, segment)| segment.process).collect()
    }

    /// Whether a process can be told something now.
    pub(super) fn hears(&self, process: ProcessId) -> bool {
        let mut open = self.sessions.values().filter(|s| s.open && s.peer.process == process);
        open.any(|session| session.adrift_since.is_none())
    }

    /// How long so many bytes take over the link.
    pub(in crate::sim) fn swap_time(&self, bytes: Bytes) -> Duration {
        let rate = u128::from(self.policy.swap_bytes_per_second.get().max(1));
        let millis = u128::from(bytes.get()) * 1_000 / rate;
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// For how long a lease keeps its memory against all but what is owed: by the device that takes longest to swap.
    pub(super) fn residency(&self, id: LeaseId) -> Duration {
        let devices = self.leases[&id].devices.iter();
        let swaps = devices.map(|device| self.swap_time(self.gives_on(id, *device)));
        self.policy.min_residency.max(swaps.max().unwrap_or_default() * 10)
    }

    /// What a suspension of the lease would bring.
    pub(super) fn gives(&self, id: LeaseId) -> Bytes {
        self.leases[&id].devices.iter().map(|device| self.gives_on(id, *device)).sum()
    }

    fn gives_on(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let charge = self.charge_on(id, device);
        add(charge.set_aside, charge.held)
    }

    /// The ask for a lease's memory that waits.
    pub(super) fn resume_of(&self, id: LeaseId) -> Option<usize> {
        let wants = |ask: &AskFact| {
            matches!(ask.standing, Standing::Waiting | Standing::Leaving)
                && matches!(ask.aim, Aim::Resume { lease } if lease == id)
        };
        self.asks.iter().position(wants)
    }

    /// What a lease needs of a device to be back.
    pub(super) fn resume_needs(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let (lease, charge) = (&self.leases[&id], self.charge_on(id, device));
        let (away, has) = (self.away_of(id, device), add(charge.set_aside, charge.in_segments()));
        match lease.journey {
            Journey::Suspended => lease.reserve.max(away),
            Journey::Active
            | Journey::Draining { .. }
            | Journey::Leaving { .. }
            | Journey::Resuming { .. } => {
                lease.reserve.max(add(charge.in_segments(), away)).saturating_sub(has)
            }
        }
    }

    /// What a lease will need of a device once all of it is away.
    pub(super) fn whole(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let there = add(self.charge_on(id, device).in_segments(), self.away_of(id, device));
        self.leases[&id].reserve.max(there)
    }

    pub(super) fn fact(&mut self, id: LeaseId) -> &mut LeaseFact {
        self.leases.get_mut(&id).expect("a lease that is named is known")
    }

    // What events do.

    /// The process of a session that is a member of the lease.
    pub(super) fn member_at(&self, session: SessionId, lease: LeaseId) -> Option<ProcessId> {
        let process = self.open_session(session)?.peer.process;
        let lease = self.leases.get(&lease).filter(|lease| !lease.gone)?;
        lease.members.contains(&process).then_some(process)
    }

    pub(super) fn hear_drained(&mut self, session: SessionId, lease: LeaseId) {
        let Some(process) = self.member_at(session, lease) else { return };
        if let Journey::Draining { undrained, .. } = &mut self.fact(lease).journey {
            undrained.remove(&process);
        }
    }

    pub(super) fn hear_swapped_out(&mut self, session: SessionId, lease: LeaseId, id: SegmentId) {
        let Some(process) = self.member_at(session, lease) else { return };
        let fact = &self.leases[&lease];
        let leaves = !fact.ended && matches!(fact.journey, Journey::Leaving { .. });
        let segment = self.segments.get_mut(&id).filter(|s| s.lease == lease && s.process == process);
        if let Some(segment) = segment.filter(|s| leaves && s.state == SegmentState::Live) {
            (segment.state, segment.reclaimed) = (SegmentState::Departing, false);
        }
    }

    pub(super) fn hear_restored(&mut self, session: SessionId, lease: LeaseId, id: SegmentId) {
        let Some(process) = self.open_session(session).map(|s| s.peer.process) else { return };
        let segment = self.segments.get_mut(&id).filter(|s| s.lease == lease && s.process == process);
        if let Some(segment) = segment.filter(|s| s.state == SegmentState::Back) {
            (segment.state, segment.claimed) = (SegmentState::Live, true);
        }
    }

    pub(super) fn hear_swap_failed(&mut self, session: SessionId, lease: LeaseId) {
        if self.member_at(session, lease).is_none() || self.leases[&lease].ended {
            return;
        }
        match self.leases[&lease].journey {
            Journey::Draining { .. } => self.step_back(lease),
            Journey::Leaving { .. } => self.head_back(lease),
            Journey::Active | Journey::Suspended | Journey::Resuming { .. } => {}
        }
    }

    /// A suspension failed: the lease is left alone for a while.
    pub(super) fn step_back(&mut self, id: LeaseId) {
        let now = self.now;
        let lease = self.fact(id);
        lease.not_before = now.plus(lease.back_off);
        lease.back_off = (lease.back_off * 2).min(LONGEST_BACK_OFF);
    }

    /// A lease whose swap failed half way comes back; whoever began to take its memory gives it up.
    pub(super) fn head_back(&mut self, id: LeaseId) {
        let devices = self.leases[&id].devices.clone();
        let own = |device: &DeviceId| {
            let charge = self.charge_on(id, *device);
            (*device, add(charge.set_aside, charge.in_segments()))
        };
        let regained: BTreeMap<DeviceId, Bytes> = devices.iter().map(own).collect();
        if let Some(index) = self.resume_of(id) {
            self.asks[index].standing = Standing::Left;
        }
        let lease = self.fact(id);
        (lease.journey, lease.regained) = (Journey::Resuming { recedes: false }, regained);
        (lease.broken, lease.late, lease.retries, lease.asks_itself) = (true, false, false, true);
        let others: Vec<LeaseId> = self.standing_leases().map(|(other, _)| other).collect();
        for other in others.into_iter().filter(|other| *other != id) {
            let fact = &self.leases[&other];
            let begun = !fact.ended && !fact.broken && matches!(fact.journey, Journey::Resuming { .. });
            let here = fact.devices.iter().any(|device| devices.contains(device));
            if let Some(index) = self.resume_of(other).filter(|_| begun && here) {
                let ask = &mut self.asks[index];
                (ask.standing, ask.guaranteed, ask.returning) = (Standing::Leaving, false, false);
                self.fact(other).journey = Journey::Resuming { recedes: true };
            }
        }
    }

    pub(super) fn hear_idle(&mut self, session: SessionId, lease: LeaseId, idle: bool) {
        if self.member_at(session, lease).is_some() {
            self.fact(lease).idle = idle;
        }
    }

    /// Deadlines of leases that move.
    pub(super) fn hear_time_of_moves(&mut self) {
        let now = self.now;
        let mut failed = Vec::new();
        for (id, lease) in self.leases.iter_mut().filter(|(_, lease)| !lease.gone && !lease.ended) {
            match &lease.journey {
                Journey::Draining { undrained, deadline } if *deadline <= now => {
                    // Where all have drained, and only a segment was on its way, nobody failed.
                    failed.extend((!undrained.is_empty()).then_some(*id));
                }
                Journey::Leaving { due } if *due <= now => lease.late = true,
                Journey::Active
                | Journey::Draining { .. }
                | Journey::Leaving { .. }
                | Journey::Suspended
                | Journey::Resuming { .. } => {}
            }
        }
        failed.into_iter().for_each(|id| self.step_back(id));
    }

    /// Leases that can take their next step do so: nobody has to be told for that.
    pub(super) fn move_on(&mut self) {
        let ids: Vec<LeaseId> =
            self.standing_leases().filter(|(_, lease)| !lease.ended).map(|(id, _)| id).collect();
        for id in ids {
            match &self.leases[&id].journey {
                Journey::Draining { undrained, .. } if undrained.is_empty() && self.can_leave(id) => {
                    self.leave_device(id);
                }
                Journey::Resuming { recedes: true } if !self.is_on_its_way_back(id) => self.leave_device(id),
                Journey::Active
                | Journey::Draining { .. }
                | Journey::Leaving { .. }
                | Journey::Suspended
                | Journey::Resuming { .. } => {}
            }
        }
    }

    pub(super) fn can_leave(&self, id: LeaseId) -> bool {
        let settled = |segment: &SegmentFact| match segment.state {
            SegmentState::Live => segment.claimed,
            SegmentState::Draining | SegmentState::Quarantined => true,
            SegmentState::Creating
            | SegmentState::Departing
            | SegmentState::Stuck
            | SegmentState::Away
            | SegmentState::Restoring
            | SegmentState::Back
            | SegmentState::Gone => false,
        };
        self.segments_of(id).all(|(_, segment)| settled(segment))
    }

    pub(super) fn is_on_its_way_back(&self, id: LeaseId) -> bool {
        let mut states = self.segments_of(id).map(|(_, segment)| segment.state);
        states.any(|state| matches!(state, SegmentState::Restoring | SegmentState::Back))
    }

    /// Nothing of it is mapped, on its way or unproven any more.
    pub(super) fn has_left(&self, id: LeaseId) -> bool {
        self.segments_of(id).all(|(_, segment)| {
            matches!(segment.state, SegmentState::Away | SegmentState::Draining | SegmentState::Quarantined)
        })
    }

    pub(super) fn leave_device(&mut self, id: LeaseId) {
        let patience = (self.swap_time(self.charge(id).held) * SLACK_OF_SWAP).max(LEAST_SWAP);
        let due = self.now.plus(patience);
        let lease = self.fact(id);
        lease.journey = Journey::Leaving { due };
        self.refuse_growth(id, &[Standing::Waiting, Standing::AtLimit, Standing::OwnDrain]);
    }

    pub(super) fn refuse_growth(&mut self, id: LeaseId, of: &[Standing]) {
        let waits = self.hoping().filter(|(_, ask)| {
            of.contains(&ask.standing) && matches!(ask.aim, Aim::Growth { lease, .. } if lease == id)
        });
        let hit: Vec<usize> = waits.map(|(i, _)| i).collect();
        hit.into_iter().for_each(|i| self.leave(i, &[Reason::Suspended]));
    }
}
