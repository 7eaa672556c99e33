//! By what right an ask goes, and a lease stays.
//!
//! An ask that a guarantee covers is a barrier from then on, before all that is lent: it waits for
//! nothing but what is recalled for it. It is looked for when it comes, and whenever less counts
//! towards a guarantee than before. What it needs counts towards the guarantee while it waits.
//!
//! A lease is marked when it is granted or comes back. One that is lent is protected
//! all the same while everything that its account is charged is covered.

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId};

use crate::accounts::NodeId;
use crate::accounts::guarantee::Departures;
use crate::lease::{Lease, Outcome};
use crate::line::ask::{Ask, Right, Stage};
use crate::line::shape::{Shape, Use};
use crate::{Arbiter, DeviceWish, Pinning};

impl Arbiter {
    /// An ask that a guarantee covers goes by that from now on.
    pub(crate) fn promote(&mut self, id: AskId) {
        let ask = self.line.get(id);
        let waits = match ask.stage {
            Stage::InLine | Stage::Barrier { .. } => true,
            Stage::OwnDrain | Stage::AtLimit | Stage::Leaving => false,
        };
        if !waits || !self.accounts.stores.bind() {
            return;
        }
        if let Some(needs) = self.covered_needs(ask) {
            self.cover(id, needs);
        }
    }

    pub(crate) fn cover(&mut self, id: AskId, needs: Vec<(DeviceId, Bytes)>) {
        let account = self.line.get(id).account;
        for (device, need) in &needs {
            self.accounts.count(account, *device, *need);
        }
        let (now, generation) = (self.now, self.generation);
        let ask = self.line.get_mut(id);
        ask.covered = needs;
        if ask.uncovered_in != generation {
            ask.covered_at = now;
        }
        self.line.set_right(id, Right::Guaranteed, &mut self.accounts, &self.ledger);
    }

    /// The ask counts towards no guarantee any more.
    pub(crate) fn demote(&mut self, id: AskId) {
        let generation = self.generation;
        let ask = self.line.get_mut(id);
        if ask.right != Right::Guaranteed {
            return;
        }
        ask.uncovered_in = generation;
        let (account, covered) = (ask.account, std::mem::take(&mut ask.covered));
        self.uncover(account, &covered);
        self.line.set_right(id, Right::Lent, &mut self.accounts, &self.ledger);
    }

    pub(crate) fn uncover(&mut self, account: NodeId, covered: &[(DeviceId, Bytes)]) {
        for (device, need) in covered {
            self.accounts.uncount(account, *device, *need);
        }
    }

    /// The ask needs something else than before.
    pub(crate) fn reshape(&mut self, id: AskId, shape: Shape, amount: Bytes) {
        let ask = self.line.get(id);
        if ask.amount == amount && *self.line.shape_of(ask) == shape {
            return;
        }
        self.demote(id);
        self.line.reshape(id, shape, amount, &mut self.accounts, &self.ledger);
        self.promote(id);
    }

    /// What the ask needs on devices of its wish where a guarantee covers it.
    fn covered_needs(&self, ask: &Ask) -> Option<Vec<(DeviceId, Bytes)>> {
        if ask.right != Right::Lent || !self.line.lacks(ask) {
            return None;
        }
        let mut needs = self.line.needs_anywhere(ask, &self.ledger);
        let all = needs.len();
        needs.retain(|(device, need)| {
            let has_hope = *need <= self.ledger.book(*device).ceiling();
            has_hope && self.accounts.covers(ask.account, *device, *need)
        });
        match &self.line.shape_of(ask).wish {
            DeviceWish::These(_) => (needs.len() == all).then_some(needs),
            DeviceWish::Any(n) => {
                let missing = |(device, need): &(DeviceId, Bytes)| {
                    let room = self.line.available(*device, &self.ledger).unwrap_or_default();
                    (need.saturating_sub(room), *device)
                };
                needs.sort_by_key(missing);
                needs.truncate(n.get() as usize);
                (needs.len() == n.get() as usize).then_some(needs)
            }
        }
    }

    /// Of the asks in accounts of which less counts than before, one that is covered now: the first of each
    /// in the fair order. The rosters are up to date.
    pub(crate) fn next_covered(&mut self) -> Option<(AskId, Vec<(DeviceId, Bytes)>)> {
        while let Some(node) = self.accounts.first_eased() {
            if let Some(found) = self.newly_covered(node) {
                return Some(found);
            }
            self.accounts.pop_eased();
        }
        None
    }

    fn newly_covered(&self, node: NodeId) -> Option<(AskId, Vec<(DeviceId, Bytes)>)> {
        if !self.accounts.is_there(node) {
            return None;
        }
        let below = |id: &AskId| {
            let mut path = self.accounts.path(self.line.get(*id).account);
            path.any(|(above, _)| above == node)
        };
        let barriers = self.accounts.node(node).bytes.asks().map(|turn| turn.ask);
        // One that nothing but a guarantee could give what it needs stands at no gate.
        let barriers = barriers.chain(self.line.piles.hopeless().filter(below)).map(|id| self.line.get(id));
        let lent = barriers.filter(|ask| ask.right == Right::Lent).take(LOOKED_AT);
        let found = lent.filter_map(|ask| Some((ask.id, self.covered_needs(ask)?))).next();
        found.or_else(|| {
            let room = |device| Some(self.accounts.coverable_below(node, device));
            self.line.first_covered(node, &self.ledger, &room, &|ask| self.covered_needs(ask))
        })
    }

    /// Whether a guarantee covers so much more on the devices.
    pub(crate) fn right_of(&self, account: NodeId, needs: &[(DeviceId, Bytes)]) -> Right {
        let covered = |(device, need): &(DeviceId, Bytes)| self.accounts.covers(account, *device, *need);
        if needs.iter().all(covered) { Right::Guaranteed } else { Right::Lent }
    }

    /// Whether the lease keeps its memory against all recalls but of surplus.
    pub(crate) fn is_protected(&self, lease: &Lease) -> bool {
        self.is_protected_without(lease, &Departures::default())
    }

    /// Whether it does once these have left.
    pub(crate) fn is_protected_without(&self, lease: &Lease, gone: &Departures) -> bool {
        let missed = lease.recall.as_ref().is_some_and(|recall| recall.outcome == Outcome::Missed);
        let covered =
            |device: &DeviceId| self.accounts.covers_without(lease.account, *device, Bytes::ZERO, gone);
        !missed && (lease.right == Right::Guaranteed || lease.shares.keys().all(covered))
    }

    /// Whether its guarantee covers a lease that is charged so much more, beside the others that it covers.
    pub(crate) fn stays_covered(&self, lease: LeaseId, more: &[(DeviceId, Bytes)]) -> bool {
        let mut others = Departures::default();
        for (_, of) in self.leases.iter().filter(|(id, of)| **id != lease && of.right != Right::Guaranteed) {
            let user = self.accounts.guarantors(of.account).0;
            of.shares.iter().for_each(|(device, share)| others.add(user, *device, share.charge.total()));
        }
        for ask in self.line.asks.values() {
            let user = self.accounts.guarantors(ask.account).0;
            ask.covered.iter().for_each(|(device, need)| others.add(user, *device, *need));
        }
        let of = &self.leases[&lease];
        of.shares.keys().all(|device| {
            let more = more.iter().find(|(on, _)| on == device).map_or(Bytes::ZERO, |(_, bytes)| *bytes);
            self.accounts.covers_without(of.account, *device, more, &others)
        })
    }

    /// How an ask of these terms would hold its lease: movable where it may be and the arena could take it.
    pub(crate) fn hold_of(&self, account: NodeId, wanted: Pinning, cost: Bytes) -> Pinning {
        let (_, arena) = self.accounts.arena_figures();
        match (wanted, self.accounts.pinning(account)) {
            (Pinning::Movable, Pinning::Movable) if !arena.is_zero() && cost <= arena => Pinning::Movable,
            (Pinning::Movable | Pinning::Pinned, Pinning::Movable | Pinning::Pinned) => Pinning::Pinned,
        }
    }

    /// How a lease is held that the line just gave to an ask on these devices.
    pub(crate) fn held_how(&self, ask: &Ask, shape: &Shape, devices: &[DeviceId]) -> Pinning {
        if shape.hold == Pinning::Pinned || !self.accounts.stores.bind() || shape.purpose != Use::Lease {
            return shape.hold;
        }
        let copies = Bytes::new(ask.amount.get().saturating_mul(devices.len() as u64));
        let (used, all) = self.accounts.arena_figures();
        let room = match ask.post() {
            // It pledged there, or goes before all who did.
            Some(_) => all.saturating_sub(used),
            None => self.accounts.arena_room(),
        };
        if copies <= room { Pinning::Movable } else { Pinning::Pinned }
    }
}

/// The barriers of an account that are looked at when less counts towards its guarantee: each is
/// granted, or covered, or leaves, before many more have risen.
const LOOKED_AT: usize = 16;
