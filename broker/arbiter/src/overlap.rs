//! Out and in at one time: a lease comes back into the memory of one that leaves, piece by piece.
//!
//! A resume that is the next barrier on its devices, and for which what is free and what drained
//! leases are about to give make up all that it needs, takes what is there for it at once, and what
//! arrives as it arrives. It goes on waiting in the line for the rest, from then on before all who don't
//! have to come back and whom no guarantee covers sooner: what it took can't be asked of it until it is back, so
//! that an older ask in front of it, which wants that, would wait for it and it for them.
//!
//! If the lease that leaves fails half way it comes back before all others. Then one that had begun
//! to take its memory recedes: it gives back what it has and waits as before; its gate never opened.

use std::collections::BTreeSet;

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, SegmentId};

use crate::lease::{Exit, Pace};
use crate::ledger::plus;
use crate::line::ask::{Ask, Post, Right, Stage, Want};
use crate::line::shape::Shape;
use crate::segment::State;
use crate::{Arbiter, LeaseState};

/// Barriers of a device that may begin to come back at one time.
const BEGIN_AT_ONCE: usize = 4;

impl Arbiter {
    /// Lets a lease that comes back take what is there for it. Whether one took anything.
    pub(crate) fn pour(&mut self) -> Poured {
        let Some(Taking { id, lease, takes }) = self.next_to_take() else {
            return Poured::Nothing;
        };
        let rest = self.line.get(id).needs().iter().map(|(device, need)| {
            let taken = takes.iter().find(|(d, _)| d == device).map_or(Bytes::ZERO, |(_, bytes)| *bytes);
            (*device, need.saturating_sub(taken))
        });
        let (shape, amount) = Shape::resume(&rest.collect());
        self.reshape(id, shape, amount);
        self.grant_resume(lease, &takes);
        Poured::Something
    }

    /// A lease that has begun to come back by no better right has to, before all others.
    pub(crate) fn hold_to_what_began(&mut self) {
        let moving = self.moving.iter().map(|lease| &self.leases[lease]);
        let begun = moving.filter(|of| of.state == LeaseState::Resuming).filter_map(|of| of.residence.ask);
        let lent: Vec<AskId> = begun.filter(|ask| self.line.get(*ask).right == Right::Lent).collect();
        for ask in lent {
            if self.line.get(ask).stage != Stage::Leaving {
                self.line.set_right(ask, Right::Returning, &mut self.accounts, &self.ledger);
            }
        }
    }

    fn next_to_take(&self) -> Option<Taking> {
        if self.moving.is_empty() {
            return None;
        }
        let devices = self.moving.iter().flat_map(|lease| self.leases[lease].shares.keys().copied());
        let devices: BTreeSet<DeviceId> = devices.collect();
        let turns = devices.iter().flat_map(|d| self.line.piles.collecting(*d).take(BEGIN_AT_ONCE));
        let turns: BTreeSet<_> = turns.map(|(turn, _)| turn).collect();
        turns.into_iter().find_map(|turn| {
            let ask = self.line.get(turn.ask);
            let Want::Resume(lease) = ask.want else { return None };
            let takes = self.could_take(ask, lease)?;
            Some(Taking { id: ask.id, lease, takes })
        })
    }

    /// What of each device is there for it now, if it has begun or may begin.
    fn could_take(&self, ask: &Ask, lease: LeaseId) -> Option<Vec<(DeviceId, Bytes)>> {
        let of = &self.leases[&lease];
        let begun = of.state == LeaseState::Resuming && of.residence.receding == Receding::No;
        let may = begun || of.state == LeaseState::Suspended && self.may_begin(ask);
        if !may || ask.post() != Some(Post::Collecting) {
            return None;
        }
        let there = |(device, need): &(DeviceId, Bytes)| {
            let left = self.line.piles.left(*device, self.ledger.book(*device).free, Some(ask.turn()));
            (*device, left.min(*need).round_down())
        };
        let takes: Vec<(DeviceId, Bytes)> =
            ask.needs().iter().map(there).filter(|(_, bytes)| !bytes.is_zero()).collect();
        (!takes.is_empty()).then_some(takes)
    }

    /// Whether what is free, and what drained leases give, is enough for those before it and for itself.
    fn may_begin(&self, ask: &Ask) -> bool {
        let enough = |(device, need): &(DeviceId, Bytes)| {
            let before = self.line.piles.collecting(*device).take_while(|(turn, _)| *turn < ask.turn());
            let before = before.fold(Bytes::ZERO, |sum, (_, need)| sum.saturating_add(need));
            let there = plus(self.ledger.book(*device).free, self.leaving(*device));
            there.saturating_sub(before) >= *need
        };
        ask.needs().iter().all(enough)
    }

    /// A lease has drained for the ask: if that is a resume, nobody overtakes it any more, so that it can begin.
    pub(crate) fn bind_to_what_comes(&mut self, id: AskId) {
        let resumes = self.line.asks.get(&id).is_some_and(|ask| matches!(ask.want, Want::Resume(_)));
        if resumes {
            self.line.grow_old(id, &mut self.accounts, &self.ledger);
        }
    }

    /// What leases that have drained are about to give of the device.
    fn leaving(&self, device: DeviceId) -> Bytes {
        let leases = self.moving.iter().map(|lease| &self.leases[lease]);
        let gone = leases.filter(|lease| lease.is_leaving() && lease.residence.pace == Pace::InTime);
        let share = gone.filter_map(|lease| lease.shares.get(&device));
        share.fold(Bytes::ZERO, |sum, share| {
            sum.saturating_add(share.charge.held).saturating_add(share.charge.draining)
        })
    }

    /// Those who began to come back into the memory of a lease that stays after all give it up again.
    pub(crate) fn recede_for(&mut self, lease: LeaseId) {
        let devices: Vec<DeviceId> = self.leases[&lease].shares.keys().copied().collect();
        let others: Vec<LeaseId> = self.moving.iter().copied().filter(|other| *other != lease).collect();
        for other in others {
            let of = &self.leases[&other];
            let begun = of.state == LeaseState::Resuming && of.residence.broken.is_none();
            let here = devices.iter().any(|device| of.shares.contains_key(device));
            if let Some(ask) = of.residence.ask.filter(|_| begun && here) {
                self.demote(ask);
                self.line.wait_aside(ask, Stage::Leaving, &mut self.accounts);
                self.line.get_mut(ask).right = Right::Lent;
                self.lease_mut(other).residence.receding = Receding::Wanted;
                self.move_on(other);
            }
        }
    }

    /// A lease that is to recede does so when no segment of it is on its way back.
    pub(crate) fn recede_if_wanted(&mut self, lease: LeaseId) -> Receding {
        let of = &self.leases[&lease];
        let receding = of.residence.receding;
        let on_its_way =
            |id: &SegmentId| matches!(self.segments[id].state, State::Restoring | State::Back(_));
        if receding == Receding::Wanted && !of.segments.iter().any(on_its_way) {
            let of = self.lease_mut(lease);
            (of.residence.receding, of.residence.exit) = (Receding::No, Exit::Leaving);
            self.leave(lease);
        }
        receding
    }

    /// Whether the ask's lease has to come back, asked for or not.
    pub(crate) fn must_come_back(&self, ask: &Ask) -> bool {
        let begun = ask.lease().is_some_and(|lease| self.leases[&lease].state == LeaseState::Resuming);
        ask.right == Right::Returning || begun
    }
}

/// Who takes how much of each device.
struct Taking {
    id: AskId,
    lease: LeaseId,
    takes: Vec<(DeviceId, Bytes)>,
}

/// Whether anyone took anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poured {
    Nothing,
    Something,
}

/// Whether a lease that comes back is to leave again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receding {
    No,
    Wanted,
}
