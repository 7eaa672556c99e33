//! What the arbiter says of leases that leave and come back.

use std::collections::BTreeSet;

use gpulease_arbiter::{Occurrence, RequestId};
use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId};

use super::journey::FIRST_BACK_OFF;
use super::ledger::add;
use super::{Broken, Journey, Model, SegmentState, Standing, Verdict, ensure};

/// So many barriers of a device may take what comes piece by piece.
const BEGIN_AT_ONCE: usize = 4;

impl Model {
    pub(super) fn see_occurred(&mut self, id: LeaseId, what: &Occurrence) -> Result<(), Broken> {
        let known = self.leases.get(&id).is_some_and(|lease| !lease.gone);
        // An operator's recall may end a holder where nothing moves, too.
        let may_be = self.binds() || *what == Occurrence::Terminated;
        ensure!(known && may_be, "{id} moves and is not known, or nothing moves here: {what:?}");
        match what {
            Occurrence::Suspending => self.see_suspending(id),
            Occurrence::Suspended => self.see_suspended(id),
            Occurrence::Resuming => self.see_resuming(id),
            Occurrence::Resumed => self.see_back(id),
            Occurrence::SuspendCancelled(why) => self.see_cancelled(id, why),
            Occurrence::SwapFailed(_) => Ok(()),
            Occurrence::Pinned(why) => self.see_pinned(id, why),
            Occurrence::Terminated => self.see_terminated(id),
        }
    }

    pub(super) fn see_suspending(&mut self, id: LeaseId) -> Result<(), Broken> {
        self.may_be_suspended(id)?;
        let (undrained, deadline) = (self.holders(id), self.now.plus(self.policy.drain_deadline));
        self.fact(id).journey = Journey::Draining { undrained, deadline };
        self.refuse_growth(id, &[Standing::Waiting, Standing::AtLimit]);
        self.move_on();
        Ok(())
    }

    pub(super) fn see_suspended(&mut self, id: LeaseId) -> Result<(), Broken> {
        let leaves = matches!(self.leases[&id].journey, Journey::Leaving { .. });
        ensure!(leaves, "{id} is away, and was {:?}", self.leases[&id].journey);
        let left = self.segments_of(id).find(|_| !self.has_left(id)).map(|(segment, _)| segment);
        ensure!(left.is_none(), "I2: {id} is said to be away, and the bytes of {left:?} are not proven free");
        let lease = self.fact(id);
        (lease.journey, lease.late, lease.back_off) = (Journey::Suspended, false, FIRST_BACK_OFF);
        lease.suspensions += 1;
        if let Some(index) = self.resume_of(id) {
            self.asks[index].standing = Standing::Waiting;
        }
        Ok(())
    }

    pub(super) fn see_resuming(&mut self, id: LeaseId) -> Result<(), Broken> {
        ensure!(
            self.leases[&id].journey == Journey::Suspended,
            "{id} comes back, and was {:?}",
            self.leases[&id].journey
        );
        ensure!(self.resume_of(id).is_some(), "{id} comes back, and nobody asked for it");
        self.regain(id);
        Ok(())
    }

    /// The lease takes what there is for it; all of it where its ask waits no more.
    pub(super) fn regain(&mut self, id: LeaseId) {
        let index = self.resume_of(id);
        let still = |i: &usize| self.asks[*i].id.is_some_and(|ask| self.still_waits.contains(&ask));
        let waits = index.filter(still);
        for device in self.leases[&id].devices.clone() {
            let need = self.resume_needs(id, device);
            let alone = index.is_none() && !self.leases[&id].asks_itself;
            let takes = match waits {
                Some(index) => self.there_is_for(index, device).min(need),
                None if alone => Bytes::ZERO,
                None => need,
            };
            let charge = self.charge_on(id, device);
            let own = add(charge.set_aside, charge.in_segments());
            self.fact(id).regained.insert(device, add(own, takes));
        }
        self.fact(id).journey = Journey::Resuming { recedes: false };
        match (index, waits) {
            (Some(index), None) => self.asks[index].standing = Standing::Left,
            // Nobody overtakes it any more.
            (_, Some(index)) => self.asks[index].returning |= !self.asks[index].guaranteed,
            (None, None) => {}
        }
    }

    /// What of a device is there for a barrier behind those before it.
    pub(super) fn there_is_for(&self, index: usize, device: DeviceId) -> Bytes {
        let tally = self.tally();
        let collecting = self.kept(&tally, |_| true).collecting;
        let first = self.moving_devices().into_iter().any(|on| {
            let here = self.barriers().filter(|i| collecting.contains(i));
            let mut here = here.filter(|i| self.barrier_devices(*i).contains(&on)).take(BEGIN_AT_ONCE);
            here.any(|i| i == index)
        });
        if !first {
            return Bytes::ZERO;
        }
        let kept = self.kept(&tally, |other| self.turn(other) < self.turn(index));
        self.room(&tally, &kept, device).round_down()
    }

    pub(super) fn moving_devices(&self) -> BTreeSet<DeviceId> {
        let moves = self.standing_leases().filter(|(_, lease)| !lease.ended);
        let moves = moves.filter(|(_, lease)| match lease.journey {
            Journey::Active | Journey::Suspended => false,
            Journey::Draining { .. } | Journey::Leaving { .. } | Journey::Resuming { .. } => true,
        });
        moves.flat_map(|(_, lease)| lease.devices.iter().copied()).collect()
    }

    pub(super) fn see_back(&mut self, id: LeaseId) -> Result<(), Broken> {
        let comes = matches!(self.leases[&id].journey, Journey::Resuming { recedes: false });
        ensure!(comes, "{id} is back, and was {:?}", self.leases[&id].journey);
        self.regain(id);
        ensure!(self.resume_of(id).is_none(), "{id} is back, and waits for more of its memory");
        let copied =
            self.segments_of(id).find(|(_, segment)| segment.is_copied()).map(|(segment, _)| segment);
        ensure!(copied.is_none(), "{id} is back, and {copied:?} of it is not");
        // One whose last member dies may be whole for the moment before it ends.
        let lasting = !self.leases[&id].ended;
        let reserve = if lasting { self.leases[&id].reserve } else { Bytes::ZERO };
        for device in self.leases[&id].devices.clone() {
            let charge = self.charge_on(id, device);
            let own = add(charge.set_aside, charge.in_segments());
            ensure!(own >= reserve, "{id} is back with {own} of its reserve of {reserve} on device {device}");
        }
        let now = self.now;
        let lease = self.fact(id);
        (lease.journey, lease.since, lease.idle) = (Journey::Active, now, false);
        if lease.broken {
            self.step_back(id);
        }
        self.end_resumes(id);
        Ok(())
    }

    /// Everyone who waits for the lease must be told now that it is there.
    pub(super) fn end_resumes(&mut self, id: LeaseId) {
        if let Some(index) = self.resume_of(id) {
            self.asks[index].standing = Standing::Left;
        }
        for request in std::mem::take(&mut self.fact(id).resumers).into_keys() {
            self.requests.get_mut(&request).expect("it asked").verdict = Verdict::Resumed;
        }
    }

    pub(super) fn see_cancelled(&mut self, id: LeaseId, why: &str) -> Result<(), Broken> {
        match self.leases[&id].journey {
            Journey::Draining { .. } => {
                ensure!(!why.is_empty(), "I11: {id} stays, and nobody says why");
                self.fact(id).journey = Journey::Active;
                self.end_resumes(id);
            }
            Journey::Active => {
                ensure!(self.leases[&id].broken, "{id} was not on its way, and is told to stay: {why}");
                self.fact(id).broken = false;
            }
            Journey::Leaving { .. } | Journey::Suspended | Journey::Resuming { .. } => {
                return Err(Broken(format!("{id} stays, and was {:?}", self.leases[&id].journey)));
            }
        }
        Ok(())
    }

    pub(super) fn see_pinned(&mut self, id: LeaseId, why: &str) -> Result<(), Broken> {
        ensure!(self.leases[&id].movable, "{id} is pinned twice: {why}");
        self.fact(id).movable = false;
        Ok(())
    }

    pub(super) fn see_restore(&mut self, id: SegmentId, bytes: Bytes) -> Result<(), Broken> {
        let segment = self.segments.get(&id).cloned().ok_or_else(|| Broken(format!("{id} is unknown")))?;
        let (lease, device) = (segment.lease, segment.device);
        ensure!(segment.is_away(), "{id} comes back as it is {:?}", segment.state);
        ensure!(segment.bytes == bytes, "{id} of {} comes back with {bytes}", segment.bytes);
        let comes = matches!(self.leases[&lease].journey, Journey::Resuming { recedes: false });
        ensure!(comes, "{id} comes back, and {lease} is {:?}", self.leases[&lease].journey);
        if self.charge_on(lease, device).set_aside < bytes {
            self.regain(lease);
        }
        let aside = self.charge_on(lease, device).set_aside;
        ensure!(
            bytes <= aside,
            "{id} of {bytes} comes back, and {lease} has {aside} for it on device {device}"
        );
        let segment = self.segments.get_mut(&id).expect("it was just there");
        (segment.state, segment.claimed, segment.doomed) = (SegmentState::Restoring, false, false);
        self.fact(lease).retries = false;
        Ok(())
    }

    pub(super) fn see_forget(&mut self, id: SegmentId) -> Result<(), Broken> {
        let gone = self.segments.get(&id).is_some_and(|segment| segment.forgotten);
        ensure!(gone, "the copy of {id} is dropped, and it is {:?}", self.segments.get(&id));
        self.segments.get_mut(&id).expect("it was just there").forgotten = false;
        Ok(())
    }

    pub(super) fn see_resumed(&mut self, request: RequestId, lease: LeaseId) -> Result<(), Broken> {
        let fact =
            self.requests.get(&request).ok_or_else(|| Broken(format!("{request:?} was never made")))?;
        ensure!(
            fact.verdict == Verdict::Resumed,
            "{lease} is said to be there, and due is {:?}",
            fact.verdict
        );
        self.answered(request)
    }
}
