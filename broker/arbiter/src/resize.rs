//! A lease gets a new reserve and a new limit, on all its devices or on none.

use gpulease_words::{Bytes, DeviceId, LeaseId, SessionId};

use crate::allocate::within_lease;
use crate::lease::Lease;
use crate::ledger::{Bucket, plus};
use crate::line::ask::{Right, Stage};
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
        let process = self.session(session)?.process;
        let of = self.leases.get(&lease).filter(|l| l.owner.session == Some(session));
        let of = of.ok_or(Denial::NoSuchLease)?;
        of.active()?;
        sized(reserve, limit)?;
        let more = lacking(of, reserve);
        let right = if more.is_empty() || of.right != Right::Guaranteed || self.stays_covered(lease, &more) {
            of.right
        } else {
            Right::Lent
        };
        self.may_extend(of, reserve, right, &more)?;
        for (device, bytes) in more {
            self.charge(lease, device, Bucket::SetAside, bytes);
        }
        let (account, devices) = {
            let of = &self.leases[&lease];
            (of.account, of.shares.keys().copied().collect::<Vec<DeviceId>>())
        };
        let most = self.most(process, account, &devices, reserve);
        let of = self.lease_mut(lease);
        (of.reserve, of.right) = (reserve, right);
        let of = &self.leases[&lease];
        let most = most.min(self.most_pinned(process, of, of.pinning, right).max(reserve));
        self.lease_mut(lease).limit = limit.min(most);
        self.take_stock_everywhere(lease);
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

    /// Whether more of the lease can be pinned, or copied to host memory. All of it counts as pinned if it can't move
    /// and is too much for the guarantee that covered it.
    fn stockable(&self, lease: &Lease, right: Right, more: &[(DeviceId, Bytes)]) -> Result<(), Denial> {
        if !self.accounts.stores.bind() {
            return Ok(());
        }
        match lease.pinning {
            Pinning::Pinned => {
                let pins = |device: DeviceId| {
                    let more =
                        more.iter().find(|(on, _)| *on == device).map_or(Bytes::ZERO, |(_, bytes)| *bytes);
                    if right == lease.right { more } else { plus(more, lease.covered_now(device)) }
                };
                let mut pins = lease.shares.keys().map(|device| (*device, pins(*device)));
                let full = pins.find(|(device, bytes)| *bytes > self.accounts.pinned_room(*device));
                full.map_or(Ok(()), |(device, bytes)| Err(self.pinned_full(device, bytes)))
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
    fn may_extend(
        &self,
        lease: &Lease,
        reserve: Bytes,
        right: Right,
        more: &[(DeviceId, Bytes)],
    ) -> Result<(), Denial> {
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
        self.stockable(lease, right, more)?;
        self.affordable(lease.account, more.iter().fold(Bytes::ZERO, |sum, (_, bytes)| plus(sum, *bytes)))
    }
}

impl Lease {
    /// What of the device is charged to it and does not count as pinned.
    fn covered_now(&self, device: DeviceId) -> Bytes {
        let share = self.share(device);
        share.charge.total().saturating_sub(share.stock.pinned)
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
