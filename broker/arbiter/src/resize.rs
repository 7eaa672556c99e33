//! A lease gets a new reserve and a new limit, on all its devices or on none.

use gpulease_words::{Bytes, DeviceId, LeaseId, SessionId};

use crate::allocate::within_lease;
use crate::lease::Lease;
use crate::ledger::{Bucket, plus};
use crate::line::ask::Stage;
use crate::terms::sized;
use crate::{Arbiter, Denial, Effect, Pinning, RequestId};

impl Arbiter {
    pub(crate) fn resize(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        reserve: Bytes,
        limit: Bytes,
    ) -> Result<(), Denial> {
        self.session(session)?;
        let of = self.leases.get(&lease).filter(|l| l.owner.session == Some(session));
        let of = of.ok_or(Denial::NoSuchLease)?;
        of.active()?;
        sized(reserve, limit)?;
        let more = lacking(of, reserve);
        self.may_extend(of, reserve, &more)?;
        for (device, bytes) in more {
            self.charge(lease, device, Bucket::SetAside, bytes);
        }
        let of = self.lease_mut(lease);
        (of.reserve, of.limit) = (reserve, limit);
        self.take_stock_everywhere(lease);
        let devices: Vec<DeviceId> = self.leases[&lease].shares.keys().copied().collect();
        for device in devices {
            self.review(lease, device);
        }
        self.emit(Effect::Resized { request, lease });
        self.refuse_beyond(lease);
        Ok(())
    }

    /// Refuses what waits to grow beyond a limit that was lowered.
    fn refuse_beyond(&mut self, lease: LeaseId) {
        for id in self.leases[&lease].growing.clone().into_iter().rev() {
            // What waits for its own reserve is within it, whatever drains beside it.
            let grows = self.line.get(id).stage != Stage::OwnDrain;
            if grows && let Err(denial) = within_lease(&self.leases[&lease], &self.wanted(id)) {
                self.refuse_ask(id, denial);
            }
        }
    }

    /// Whether more of the lease can be pinned, or copied to host memory. A guarantee that covered it is not asked
    /// again: what it is given beyond counts as pinned where it can't move.
    fn stockable(&self, lease: &Lease, more: &[(DeviceId, Bytes)]) -> Result<(), Denial> {
        if !self.accounts.stores.bind() {
            return Ok(());
        }
        match lease.pinning {
            Pinning::Pinned => {
                let full = more.iter().find(|(device, bytes)| *bytes > self.accounts.pinned_room(*device));
                full.map_or(Ok(()), |(device, bytes)| Err(self.pinned_full(*device, *bytes)))
            }
            Pinning::Movable => {
                let asked = more.iter().fold(Bytes::ZERO, |sum, (_, bytes)| plus(sum, *bytes));
                self.copyable(asked)
            }
        }
    }

    /// Whether there is host memory for copies of so much more.
    pub(crate) fn copyable(&self, asked: Bytes) -> Result<(), Denial> {
        let (used, capacity) = self.accounts.arena_figures();
        let free = capacity.saturating_sub(used);
        if asked <= self.accounts.arena_room() {
            Ok(())
        } else {
            Err(Denial::ArenaFull { capacity, free, asked })
        }
    }

    /// Whether there is room now for what a larger reserve takes; a resize does not wait.
    fn may_extend(&self, lease: &Lease, reserve: Bytes, more: &[(DeviceId, Bytes)]) -> Result<(), Denial> {
        if more.is_empty() {
            return Ok(());
        }
        if lease.is_overdue() && reserve > lease.reserve {
            return Err(Denial::Overdue);
        }
        let sum = more.iter().fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes));
        self.within_limits(lease.account, lease.charge().total().saturating_add(sum), 1, Bytes::ZERO)?;
        for (device, asked) in more {
            let Some(room) = self.line.available(*device, &self.ledger) else {
                return Err(Denial::DeviceLost { device: *device });
            };
            if *asked > room {
                return Err(Denial::NoRoom { asked: *asked, room, device: *device });
            }
        }
        self.stockable(lease, more)?;
        self.affordable(lease.account, more.iter().fold(Bytes::ZERO, |sum, (_, bytes)| plus(sum, *bytes)))
    }
}

/// What has to be set aside in addition.
fn lacking(lease: &Lease, reserve: Bytes) -> Vec<(DeviceId, Bytes)> {
    let lack = lease
        .shares
        .iter()
        .map(|(device, share)| (*device, share.owed(reserve).saturating_sub(share.charge.set_aside)));
    lack.filter(|(_, bytes)| !bytes.is_zero()).collect()
}
