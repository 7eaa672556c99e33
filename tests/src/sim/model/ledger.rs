//! The figures of leases, devices and accounts, added up from the facts.

use std::collections::BTreeMap;

use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, Uid};

use super::{Aim, Journey, LeaseFact, Model, Node, SegmentState, Standing};

/// What is charged somewhere, by its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) struct Charge {
    pub(in crate::sim) set_aside: Bytes,
    pub(in crate::sim) overhead: Bytes,
    pub(in crate::sim) held: Bytes,
    pub(in crate::sim) draining: Bytes,
    pub(in crate::sim) quarantined: Bytes,
}

impl Charge {
    pub(in crate::sim) fn total(self) -> Bytes {
        [self.set_aside, self.overhead, self.held, self.draining, self.quarantined].into_iter().sum()
    }

    /// What is made, or was, and not yet credited.
    pub(in crate::sim) fn in_segments(self) -> Bytes {
        add(self.held, add(self.draining, self.quarantined))
    }

    pub(in crate::sim) fn plus(self, other: Self) -> Self {
        Self {
            set_aside: add(self.set_aside, other.set_aside),
            overhead: add(self.overhead, other.overhead),
            held: add(self.held, other.held),
            draining: add(self.draining, other.draining),
            quarantined: add(self.quarantined, other.quarantined),
        }
    }
}

/// All figures at one time.
#[derive(Clone, Debug, Default)]
pub(in crate::sim) struct Tally {
    pub(in crate::sim) devices: BTreeMap<DeviceId, Charge>,
    pub(in crate::sim) free: BTreeMap<DeviceId, Bytes>,
    pub(in crate::sim) charged: BTreeMap<Node, Bytes>,
    pub(in crate::sim) leases: BTreeMap<Node, u32>,
}

/// What a lease has set aside on a device: what it holds, what comes back to it and this add up to
/// its reserve, and what its own allocations wait for is never less than is on its way or aside.
fn set_aside(reserve: Bytes, charge: Charge, promised: Bytes) -> Bytes {
    let there = add(charge.held, add(charge.draining, charge.quarantined));
    reserve.saturating_sub(there).max(promised.saturating_sub(charge.draining))
}

pub(in crate::sim) fn add(a: Bytes, b: Bytes) -> Bytes {
    a.checked_add(b).expect("simulated memory fits 64 bits")
}

impl Model {
    /// What a lease is charged on one device.
    pub(in crate::sim) fn charge_on(&self, id: LeaseId, device: DeviceId) -> Charge {
        let Some(lease) = self.leases.get(&id).filter(|lease| !lease.gone) else { return Charge::default() };
        let mut charge = Charge { overhead: self.contexts_on(id, device), ..Charge::default() };
        for (_, segment) in self.segments_of(id).filter(|(_, segment)| segment.device == device) {
            let part = match segment.state {
                SegmentState::Creating if segment.doomed => &mut charge.draining,
                SegmentState::Creating
                | SegmentState::Live
                | SegmentState::Restoring
                | SegmentState::Back => &mut charge.held,
                SegmentState::Draining | SegmentState::Departing => &mut charge.draining,
                SegmentState::Quarantined | SegmentState::Stuck => &mut charge.quarantined,
                SegmentState::Away | SegmentState::Gone => continue,
            };
            *part = add(*part, segment.bytes);
        }
        charge.set_aside = match lease.journey {
            _ if lease.ended => Bytes::ZERO,
            Journey::Active | Journey::Draining { .. } => {
                set_aside(lease.reserve, charge, self.promised(id, device))
            }
            Journey::Leaving { .. } | Journey::Suspended => Bytes::ZERO,
            Journey::Resuming { .. } => {
                let regained = lease.regained.get(&device).copied().unwrap_or(Bytes::ZERO);
                regained.saturating_sub(charge.in_segments())
            }
        };
        charge
    }

    /// What allocations within the reserve wait for, out of what drains.
    pub(in crate::sim) fn promised(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let waits = self.asks.iter().filter(|ask| ask.standing == Standing::OwnDrain);
        let bytes = waits.filter_map(|ask| match ask.aim {
            Aim::Growth { lease, device: on, bytes, .. } => (lease == id && on == device).then_some(bytes),
            Aim::Lease { .. } | Aim::Resume { .. } => None,
        });
        bytes.sum()
    }

    /// What so many bytes more of a lease take of what is free on a device.
    pub(in crate::sim) fn growth_takes(&self, id: LeaseId, device: DeviceId, bytes: Bytes) -> Bytes {
        let before = self.charge_on(id, device);
        let mut after = Charge { held: add(before.held, bytes), ..before };
        after.set_aside = set_aside(self.leases[&id].reserve, after, self.promised(id, device));
        after.total().saturating_sub(before.total())
    }

    fn contexts_on(&self, id: LeaseId, device: DeviceId) -> Bytes {
        let charged = self.contexts.iter().filter(|((_, on), lease)| *on == device && **lease == id);
        charged.map(|((process, _), _)| self.context(*process, device)).sum()
    }

    /// What a process's context and libraries take of a device, as far as anybody knows.
    pub(in crate::sim) fn context(&self, process: ProcessId, device: DeviceId) -> Bytes {
        let estimate = self.device(device).map_or(Bytes::ZERO, |device| device.estimate);
        self.measured.get(&(process, device)).copied().unwrap_or(estimate)
    }

    /// What a process's context takes of a device, or is taken to take once it has one.
    pub(in crate::sim) fn context_alone(&self, process: ProcessId, device: DeviceId) -> Bytes {
        match self.contexts.contains_key(&(process, device)) {
            true => self.context(process, device),
            false => self.new_context(process, device),
        }
    }

    /// What a process's context will take of a device where it has none yet.
    pub(in crate::sim) fn new_context(&self, process: ProcessId, device: DeviceId) -> Bytes {
        match self.contexts.contains_key(&(process, device)) {
            true => Bytes::ZERO,
            false => self.device(device).map_or(Bytes::ZERO, |device| device.estimate),
        }
    }

    /// What a lease is charged on all its devices.
    pub(in crate::sim) fn charge(&self, id: LeaseId) -> Charge {
        let devices = self.leases.get(&id).map_or(&[][..], |lease| &lease.devices);
        devices.iter().map(|device| self.charge_on(id, *device)).fold(Charge::default(), Charge::plus)
    }

    /// All figures, added up from all leases.
    pub(in crate::sim) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (id, lease) in self.standing_leases() {
            let mut all = Bytes::ZERO;
            for device in &lease.devices {
                let charge = self.charge_on(id, *device);
                all = add(all, charge.total());
                let booked = tally.devices.entry(*device).or_default();
                *booked = booked.plus(charge);
            }
            for node in self.path_of_lease(lease) {
                let charged = tally.charged.entry(node.clone()).or_default();
                *charged = add(*charged, all);
                *tally.leases.entry(node).or_default() += 1;
            }
        }
        for device in &self.devices {
            let booked = tally.devices.entry(device.id).or_default().total();
            let taken = add(booked, device.off_book.unwrap_or(Bytes::ZERO));
            tally.free.insert(device.id, device.capacity.saturating_sub(taken));
        }
        tally
    }

    /// The accounts above a job, from the host down to it.
    pub(in crate::sim) fn path(&self, uid: Uid, group: Option<&str>, job: &str) -> Vec<Node> {
        let group = group.map(|name| Node::Group(name.to_owned()));
        let below = [Node::User(uid), Node::Job(uid, job.to_owned())];
        [Node::Host].into_iter().chain(group).chain(below).collect()
    }

    pub(in crate::sim) fn path_of_lease(&self, lease: &LeaseFact) -> Vec<Node> {
        self.path(lease.peer.uid, lease.peer.group.as_deref(), &lease.terms.name)
    }
}
