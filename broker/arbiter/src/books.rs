//! Moves of bytes, each in the three places that know of it: the device's book, the lease and, where
//! bytes become charged or free, the accounts.

use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId};

use crate::Arbiter;
use crate::lease::Lease;
use crate::ledger::{Bucket, minus};
use crate::segment::State;

impl Arbiter {
    pub(crate) fn lease_mut(&mut self, lease: LeaseId) -> &mut Lease {
        self.leases.get_mut(&lease).expect("a lease stays while a segment, ask or member names it")
    }

    /// Free bytes become the lease's.
    pub(crate) fn charge(&mut self, lease: LeaseId, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        self.ledger.charge(device, bucket, bytes);
        self.charged(lease, device, bucket, bytes);
    }

    /// Bytes that are taken already become the lease's, whether they were free or not.
    pub(crate) fn charge_taken(&mut self, lease: LeaseId, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        self.ledger.charge_taken(device, bucket, bytes);
        self.charged(lease, device, bucket, bytes);
    }

    fn charged(&mut self, lease: LeaseId, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        let of = self.lease_mut(lease);
        of.share_mut(device).charge.put(bucket, bytes);
        let account = of.account;
        self.accounts.charge(account, device, bytes);
        self.take_stock(lease, device);
    }

    /// Bytes of the lease become free.
    pub(crate) fn credit(&mut self, lease: LeaseId, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        self.ledger.credit(device, bucket, bytes);
        let of = self.lease_mut(lease);
        of.share_mut(device).charge.take(bucket, bytes);
        let account = of.account;
        self.accounts.credit(account, device, bytes);
        self.take_stock(lease, device);
    }

    /// Bytes of the lease become something else.
    pub(crate) fn shift(&mut self, lease: LeaseId, device: DeviceId, from: Bucket, to: Bucket, bytes: Bytes) {
        self.ledger.shift(device, from, to, bytes);
        let charge = &mut self.lease_mut(lease).share_mut(device).charge;
        charge.take(from, bytes);
        charge.put(to, bytes);
        self.take_stock(lease, device);
    }

    /// Counts the lease anew in the stores and among those who could give.
    pub(crate) fn take_stock(&mut self, lease: LeaseId, device: DeviceId) {
        if !self.accounts.stores.bind() {
            return;
        }
        let of = self.lease_mut(lease);
        let after = of.stock(device);
        let (before, since) = (std::mem::replace(&mut of.share_mut(device).stock, after), of.residence.since);
        if before == after {
            return;
        }
        let (pinned, arena) = (self.accounts.stores.pinned(device), self.accounts.stores.arena());
        self.accounts.restock(pinned, before.pinned, after.pinned);
        self.accounts.restock(arena, before.copies, after.copies);
        self.holders.recount((lease, since), device, before, after);
    }

    /// As [`Self::take_stock`], on each of its devices: its state, its right or its size changed.
    pub(crate) fn take_stock_everywhere(&mut self, lease: LeaseId) {
        let devices: Vec<DeviceId> = self.leases[&lease].shares.keys().copied().collect();
        for device in devices {
            self.take_stock(lease, device);
        }
    }

    /// What is set aside beyond what is to be becomes free.
    pub(crate) fn trim(&mut self, lease: LeaseId, device: DeviceId) {
        let of = &self.leases[&lease];
        let excess = minus(of.share(device).charge.set_aside, of.owed(device));
        self.credit(lease, device, Bucket::SetAside, excess);
    }

    /// The bytes of a segment that is no more go where they are owed: to what the lease has set
    /// aside, up to its reserve, and what is beyond becomes free.
    pub(crate) fn bring_back(&mut self, id: SegmentId, from: Bucket) {
        let segment = self.segments.remove(&id).expect("its caller looked");
        let (lease, device) = (segment.lease, segment.device);
        let mapped = matches!(segment.state, State::Live(_) | State::Back(_));
        assert!(!mapped, "{id} is credited while it may be mapped");
        self.shift(lease, device, from, Bucket::SetAside, segment.bytes);
        if from == Bucket::Quarantined {
            // The device could give more again: what a guarantee had no hope for it may cover now.
            self.accounts.ease_all();
        }
        self.lease_mut(lease).segments.remove(&id);
        if let Some(process) = self.processes.get_mut(&segment.process) {
            process.segments.remove(&id);
        }
        self.review(lease, device);
        // What was asked back may have been a segment that the device could not make.
        self.weigh_recall(lease);
        self.bury(lease);
        self.move_on(lease);
    }
}
