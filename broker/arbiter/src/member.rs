//! Processes join leases; their contexts are charged.

use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SessionId};

use crate::ledger::{Bucket, minus};
use crate::line::ask::Want;
use crate::line::gate::Standing;
use crate::process::{Context, Figure, Process};
use crate::session::too_many;
use crate::{Arbiter, Denial, Effect, Peer, Place, RequestId};

impl Arbiter {
    pub(crate) fn join(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        ancestors: &[ProcessId],
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        let uid = self.process(process).peer.uid;
        self.leases.get(&lease).filter(|l| l.admits(uid)).ok_or(Denial::NoSuchLease)?;
        let (starter, given) = self.left_by_a_starter(process, lease, ancestors);
        self.may_join(process, lease, &given)?;
        self.hand_contexts_over(starter, process, &given);
        self.enlist(process, lease);
        // A member that gave its context to a process which it started, and wants one now.
        self.charge_contexts(process, lease);
        self.emit(Effect::Joined { request, lease });
        Ok(())
    }

    /// A shell or a launcher is a member, and room for a context is set aside for it, though it never has one: it has not
    /// spoken with the broker. The first process that it starts and that joins gets that room. From whom, and where.
    fn left_by_a_starter(
        &self,
        joining: ProcessId,
        lease: LeaseId,
        ancestors: &[ProcessId],
    ) -> (ProcessId, Vec<DeviceId>) {
        let silent =
            |id: &ProcessId| self.processes.get(id).is_some_and(|process| process.sessions.is_empty());
        let left =
            ancestors.iter().filter(|id| silent(id)).map(|id| (*id, self.transferable(*id, joining, lease)));
        left.into_iter().find(|(_, devices)| !devices.is_empty()).unwrap_or((joining, Vec::new()))
    }

    pub(crate) fn admit(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        peer: Peer,
        place: Place,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        let into = self.lease_of_member(process, lease)?;
        if !into.admits(peer.uid) {
            return Err(Denial::NotAllowed(
                "the process is neither the lease's user's nor its guest's; ask for a lease with that user as the guest",
            ));
        }
        self.same_user(&peer)?;
        let admitted = peer.process;
        self.processes.entry(admitted).or_insert_with(|| Process::new(peer));
        let given = match place {
            Place::Own => Vec::new(),
            Place::Callers => self.transferable(process, admitted, lease),
        };
        let member = self.leases[&lease].members.contains(&admitted);
        let verdict =
            if member { self.leases[&lease].lasting() } else { self.may_join(admitted, lease, &given) };
        if verdict.is_ok() {
            self.hand_contexts_over(process, admitted, &given);
            self.enlist(admitted, lease);
            self.emit(Effect::Done { request });
        } else if !self.process(admitted).is_needed() {
            self.processes.remove(&admitted);
        }
        verdict
    }

    /// The devices on which the caller's context may become the admitted process's: it is this lease's, nobody has
    /// seen it on the card, and the process has none of its own there.
    fn transferable(&self, caller: ProcessId, admitted: ProcessId, lease: LeaseId) -> Vec<DeviceId> {
        let theirs = &self.process(admitted).contexts;
        let unseen = |c: &Context| c.lease == lease && c.figure == Figure::Estimated;
        let ours = self.process(caller).contexts.iter().filter(|(_, context)| unseen(context));
        ours.map(|(device, _)| *device).filter(|device| !theirs.contains_key(device)).collect()
    }

    /// The lease is charged as before, for another of its members.
    fn hand_contexts_over(&mut self, caller: ProcessId, admitted: ProcessId, devices: &[DeviceId]) {
        for device in devices {
            let given = self.process_mut(caller).contexts.remove(device);
            let context = given.expect("only contexts that the caller has are handed over");
            self.process_mut(admitted).contexts.insert(*device, context);
            self.book_measured(admitted, *device);
        }
        self.reshape_asks(caller);
    }

    /// Whether the lease, the devices and the accounts have room for the process, beside what it is `given`.
    fn may_join(&self, process: ProcessId, id: LeaseId, given: &[DeviceId]) -> Result<(), Denial> {
        let lease = &self.leases[&id];
        lease.lasting()?;
        let member = lease.members.contains(&process);
        if !member && lease.members.len() >= self.policy.members_per_lease as usize {
            return Err(too_many("members", id.to_string(), self.policy.members_per_lease));
        }
        let mut sum = Bytes::ZERO;
        for device in self.new_contexts(process, id).into_iter().filter(|device| !given.contains(device)) {
            let asked = self.ledger.book(device).overhead_estimate;
            let room = self.line.available(device, &self.ledger).unwrap_or_default();
            if asked > room {
                return Err(Denial::NoRoom { asked, room, device });
            }
            sum = crate::ledger::plus(sum, asked);
        }
        self.affordable(lease.account, sum)
    }

    /// Whether every account of the path has so much left now.
    pub(crate) fn affordable(&self, account: crate::accounts::NodeId, asked: Bytes) -> Result<(), Denial> {
        let mut path = self.accounts.path(account);
        let full = path.find(|(_, node)| node.bytes.room(Standing::Newcomer) < asked.get());
        full.map_or(Ok(()), |(_, node)| {
            let account = node.key.to_string();
            let (limit, charged) = (node.bytes.limit().unwrap_or(u64::MAX), node.bytes.used());
            let (limit, charged) = (Bytes::new(limit), Bytes::new(charged));
            Err(if node.bytes.left() < asked.get() {
                Denial::AccountFull { account, limit, charged, asked }
            } else {
                Denial::AccountDue { account, limit, charged, asked }
            })
        })
    }

    /// The process is a member from now on, and charged for its contexts.
    pub(crate) fn enlist(&mut self, process: ProcessId, lease: LeaseId) {
        // One that is a member has what it was charged, or gave it to a process that it started.
        if self.leases[&lease].members.contains(&process) {
            return;
        }
        self.charge_contexts(process, lease);
        self.lease_mut(lease).members.insert(process);
        self.process_mut(process).leases.insert(lease);
        self.reshape_asks(process);
    }

    /// The lease is charged for the contexts that the process does not have yet.
    fn charge_contexts(&mut self, process: ProcessId, lease: LeaseId) {
        for device in self.new_contexts(process, lease) {
            let bytes = self.ledger.book(device).overhead_estimate;
            self.charge(lease, device, Bucket::Overhead, bytes);
            let context = Context { bytes, figure: Figure::Estimated, lease };
            self.process_mut(process).contexts.insert(device, context);
            self.book_measured(process, device);
        }
        self.reshape_asks(process);
    }

    /// The witness says a figure once; it may have said it before there was a lease to charge. A context that was gone
    /// then says nothing of the one that the lease is charged for.
    fn book_measured(&mut self, process: ProcessId, device: DeviceId) {
        let measured = self.process(process).measured.get(&device).copied();
        if let Some(measured) = measured.filter(|bytes| !bytes.is_zero()) {
            self.overhead(process, device, measured);
        }
    }

    /// The lease's devices on which the process has no context yet.
    fn new_contexts(&self, process: ProcessId, lease: LeaseId) -> Vec<DeviceId> {
        let contexts = &self.process(process).contexts;
        self.leases[&lease].shares.keys().copied().filter(|device| !contexts.contains_key(device)).collect()
    }

    /// The lease is charged for the process's contexts no more: another of its leases on the device is, or none.
    pub(crate) fn drop_contexts(&mut self, process: ProcessId, lease: LeaseId) {
        let contexts = &self.process(process).contexts;
        let dropped: Vec<_> =
            contexts.iter().filter(|(_, context)| context.lease == lease).map(|(d, c)| (*d, *c)).collect();
        for (device, context) in dropped {
            self.credit(lease, device, Bucket::Overhead, context.bytes);
            self.process_mut(process).contexts.remove(&device);
            if let Some(next) = self.next_lease(process, lease, device) {
                self.charge_taken(next, device, Bucket::Overhead, context.bytes);
                self.process_mut(process).contexts.insert(device, Context { lease: next, ..context });
            }
        }
        self.reshape_asks(process);
    }

    fn next_lease(&self, process: ProcessId, but: LeaseId, device: DeviceId) -> Option<LeaseId> {
        let mut leases = self.process(process).leases.iter().copied();
        leases.find(|lease| *lease != but && self.leases[lease].shares.contains_key(&device))
    }

    /// The process's waiting asks need a context more or less.
    fn reshape_asks(&mut self, process: ProcessId) {
        for id in self.process(process).asks.clone() {
            let ask = self.line.get(id);
            if let Want::Lease { terms, .. } = &ask.want {
                let (shape, amount) = (self.shape_for(process, ask.account, terms), ask.amount);
                self.reshape(id, shape, amount);
            }
        }
    }

    pub(crate) fn overhead(&mut self, process: ProcessId, device: DeviceId, bytes: Bytes) {
        let Some(known) = self.processes.get_mut(&process).filter(|_| self.ledger.get(device).is_some())
        else {
            return;
        };
        known.measured.insert(device, bytes);
        let Some(context) = known.contexts.get_mut(&device) else {
            return;
        };
        let bytes = bytes.min(self.ledger.book(device).capacity);
        let (before, lease) = (context.bytes, context.lease);
        *context = Context { bytes, figure: Figure::Measured, lease };
        if bytes >= before {
            self.charge_taken(lease, device, Bucket::Overhead, minus(bytes, before));
        } else {
            self.credit(lease, device, Bucket::Overhead, minus(before, bytes));
        }
    }
}
