//! Who is short of bytes, and what is asked back for him.
//!
//! After each mutation those are looked at who come next: on each device the first barriers in their
//! order, and of all others the first in the fair order who would fit if everything that can be recalled
//! were free. What is on its way already is taken off what they lack; for the rest
//!
//! 1. surplus above reserves is asked back, with a deadline;
//! 2. leases are suspended for what surplus can't bring, if they can bring all of it together.
//!
//! A surplus that is not given by its deadline counts no more, so that the second step follows then. An ask gives
//! holders one such deadline, and another as a barrier; what turns surplus later is asked for only where
//! suspensions can't bring what is missing: else each new one would put off the end.
//! Nothing is done for one who lacks more than could be recalled: it would harm others and help nobody.
//!
//! Nothing of this happens while the stores don't bind: then operators recall, and nothing moves.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId};

use crate::accounts::NodeId;
use crate::lease::{Outcome, Pace};
use crate::ledger::{minus, plus};
use crate::line::ask::{Ask, Right, Stage, Turn};
use crate::line::shape::Use;
use crate::{Arbiter, LeaseState, Time, Why};

/// Barriers of one device that are recalled for at one time: as many as are served before the next look.
const SERVED_AT_ONCE: usize = 4;

/// How urgent an ask is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Bytes are owed to it: a guarantee covers it, or a swap that failed took them.
    Owed,
    /// It has waited long enough.
    Barrier,
    /// It has not.
    InLine,
}

/// One who is short.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) ask: AskId,
    pub(crate) account: NodeId,
    pub(crate) lease: Option<LeaseId>,
    pub(crate) purpose: Use,
    pub(crate) urgency: Urgency,
    pub(crate) needs: Vec<(DeviceId, Bytes)>,
}

/// What each device has to give, to those who are looked at one after the other.
pub(crate) type Pool = BTreeMap<DeviceId, Bytes>;

impl Arbiter {
    /// Recalls what those lack who come next.
    pub(crate) fn call_in(&mut self) {
        if !self.accounts.stores.bind() {
            return;
        }
        if self.line.asks.is_empty() {
            self.timers.cancel(Why::LookAgain);
            return self.call_off_needless(&Pool::new());
        }
        let usable: Vec<DeviceId> = self.ledger.usable().map(|(device, _)| device).collect();
        let has = |device: &DeviceId| plus(self.ledger.book(*device).free, self.coming(*device));
        let pool = usable.iter().map(|device| (*device, has(device))).collect();
        let mut look = Look { pool, wanted: Pool::new(), again: None, stirred: false };
        for asker in self.next_barriers(&usable) {
            self.serve_asker(&asker, &mut look);
        }
        self.settle_if_stirred(&mut look);
        match self.giving(&usable) {
            Giving::Now => {
                if let Some(asker) = self.next_in_line() {
                    self.serve_asker(&asker, &mut look);
                    self.settle_if_stirred(&mut look);
                }
            }
            Giving::From(at) => look.look_at(at),
            Giving::Never => {}
        }
        match look.again {
            Some(at) => self.timers.set(Why::LookAgain, at),
            None => self.timers.cancel(Why::LookAgain),
        }
        self.call_off_needless(&look.wanted);
    }

    /// Whether anybody can be asked for anything for those who are no barriers: it takes a walk through the line to
    /// find the first of them whom it would help.
    fn giving(&self, devices: &[DeviceId]) -> Giving {
        let is_quiet = self.moving.is_empty() && self.recalled.is_empty();
        let has_barriers = |device: &DeviceId| self.line.piles.collecting(*device).next().is_some();
        if !is_quiet || devices.iter().any(has_barriers) {
            return Giving::Now;
        }
        let held = || devices.iter().filter_map(|device| self.holders.on(*device));
        if held().any(|holding| !holding.elastic.is_empty()) {
            return Giving::Now;
        }
        let longest = held().filter_map(|holding| holding.movable.first()).map(|(since, _)| *since).min();
        match longest.map(|since| since.plus(self.policy.min_residency)) {
            Some(at) if at > self.now => Giving::From(at),
            Some(_) => Giving::Now,
            None => Giving::Never,
        }
    }

    /// A lease with nothing mapped has left at once, and the growth of one that is to leave has left the line.
    fn settle_if_stirred(&mut self, look: &mut Look) {
        if std::mem::take(&mut look.stirred) {
            self.settle();
        }
    }

    /// Takes what the asker needs out of the pool, and recalls what is missing.
    fn serve_asker(&mut self, asker: &Asker, look: &mut Look) {
        // A suspension for those before it may have ended it.
        if !self.line.asks.contains_key(&asker.ask) {
            return;
        }
        let mut missing = Pool::new();
        for (device, need) in &asker.needs {
            let has = look.pool.get(device).copied().unwrap_or_default();
            add(&mut look.wanted, *device, *need);
            if *need > has {
                missing.insert(*device, minus(*need, has));
            }
            look.pool.insert(*device, has.saturating_sub(*need));
        }
        if missing.is_empty() {
            return;
        }
        let first = self.line.get(asker.ask).trimmed_as != Some(asker.urgency);
        if first {
            self.line.get_mut(asker.ask).trimmed_as = Some(asker.urgency);
            self.ask_surplus(asker, &mut missing);
        }
        if missing.is_empty() {
            return;
        }
        let plan = self.leases_to_suspend(asker, &missing);
        if plan.leases.is_empty() && !first {
            self.ask_surplus(asker, &mut missing);
        }
        plan.look_again.into_iter().for_each(|at| look.look_at(at));
        look.stirred |= !plan.leases.is_empty();
        for lease in plan.leases {
            self.lease_mut(lease).residence.leaves_for = Some(asker.ask);
            self.suspend(lease);
        }
    }

    /// What is on its way to being free on the device, as far as anyone can say.
    fn coming(&self, device: DeviceId) -> Bytes {
        let mut sum = self.ledger.book(device).charge.draining;
        for lease in self.moving.iter().map(|id| &self.leases[id]) {
            let Some(share) = lease.shares.get(&device) else { continue };
            if lease.state == LeaseState::Suspending && lease.residence.pace == Pace::InTime {
                sum = sum.saturating_add(share.charge.held).saturating_add(share.charge.set_aside);
            }
        }
        for lease in self.recalled.iter().map(|id| &self.leases[id]) {
            let Some(recall) = lease.recall.as_ref().filter(|recall| recall.outcome == Outcome::Pending)
            else {
                continue;
            };
            if lease.state == LeaseState::Active
                && let Some((ceiling, _)) = recall.targets.get(&device)
            {
                sum = sum.saturating_add(lease.share(device).charge.held.saturating_sub(*ceiling));
            }
        }
        sum
    }

    /// The first barriers of each device, in their order.
    fn next_barriers(&self, devices: &[DeviceId]) -> Vec<Asker> {
        let first =
            devices.iter().flat_map(|device| self.line.piles.collecting(*device).take(SERVED_AT_ONCE));
        let turns: BTreeSet<Turn> = first.map(|(turn, _)| turn).collect();
        turns
            .into_iter()
            .map(|turn| self.asker(self.line.get(turn.ask), self.line.get(turn.ask).needs()))
            .collect()
    }

    /// The first in the fair order who would fit if all that can be recalled were free.
    fn next_in_line(&self) -> Option<Asker> {
        let could = |device: DeviceId| {
            let available = self.line.available(device, &self.ledger)?;
            let givable = self.holders.on(device).map_or(Bytes::ZERO, |holding| holding.givable);
            let free = self.ledger.book(device).free;
            let held_back = self
                .line
                .piles
                .collecting(device)
                .fold(Bytes::ZERO, |sum, (_, need)| sum.saturating_add(need));
            let all = plus(free, givable).saturating_add(self.coming(device));
            Some(available.max(all.saturating_sub(held_back)).min(self.ledger.book(device).capacity))
        };
        let (id, devices) = self.line.first_in_turn(&self.accounts, &self.ledger, &could)?;
        let ask = self.line.get(id);
        let shape = self.line.shape_of(ask);
        let needs: Vec<(DeviceId, Bytes)> =
            devices.iter().map(|d| (*d, plus(ask.amount, shape.overhead(*d, &self.ledger)))).collect();
        Some(self.asker(ask, &needs))
    }

    fn asker(&self, ask: &Ask, needs: &[(DeviceId, Bytes)]) -> Asker {
        // What it has begun to take is on its way; others keep their residency against one that merely began.
        let broken = |lease: LeaseId| self.leases[&lease].residence.broken.is_some();
        let began = ask.right == Right::Returning && !ask.lease().is_some_and(broken);
        let urgency = match (ask.right, &ask.stage) {
            (Right::Returning, _) if began => Urgency::Barrier,
            (Right::Returning | Right::Guaranteed, _) => Urgency::Owed,
            (Right::Lent, Stage::Barrier { .. }) => Urgency::Barrier,
            (Right::Lent, Stage::InLine | Stage::OwnDrain | Stage::AtLimit | Stage::Leaving) => {
                Urgency::InLine
            }
        };
        Asker {
            ask: ask.id,
            account: ask.account,
            lease: ask.lease(),
            purpose: self.line.shape_of(ask).purpose,
            urgency,
            needs: needs.to_vec(),
        }
    }

    /// Asks holders for surplus, and takes what they were asked for off what is missing.
    fn ask_surplus(&mut self, asker: &Asker, missing: &mut Pool) {
        let deadline = self.now.plus(self.policy.recall_deadline);
        for device in missing.keys().copied().collect::<Vec<_>>() {
            for donor in self.surplus_donors(asker, device) {
                let lack = missing.get(&device).copied().unwrap_or_default();
                if lack.is_zero() {
                    break;
                }
                let lease = &self.leases[&donor];
                let held = lease.share(device).charge.held;
                let surplus = held.saturating_sub(lease.reserve);
                // Segments are given back whole: what is asked is a ceiling, and may bring more.
                let asked = surplus.min(lack);
                let targets = BTreeMap::from([(device, (minus(held, asked), asked))]);
                self.start_recall(donor, targets, deadline);
                missing.insert(device, minus(lack, asked));
            }
            missing.retain(|_, lack| !lack.is_zero());
        }
    }

    /// A suspension that nobody needs any more is called off while nothing is unmapped.
    fn call_off_needless(&mut self, wanted: &Pool) {
        let draining: Vec<LeaseId> =
            self.moving.iter().copied().filter(|id| self.leases[id].is_draining_out()).collect();
        for lease in draining {
            let enough = |device: &DeviceId| {
                let book = self.ledger.book(*device);
                let others = self.coming(*device).saturating_sub(self.yields(lease, *device));
                wanted.get(device).is_none_or(|need| *need <= plus(book.free, others))
            };
            if self.leases[&lease].shares.keys().all(enough) {
                self.call_off(lease, "what it was asked for is not needed any more");
            }
        }
    }

    fn yields(&self, lease: LeaseId, device: DeviceId) -> Bytes {
        let charge = &self.leases[&lease].share(device).charge;
        plus(charge.held, charge.set_aside)
    }

    /// Leases that are asked for bytes of these devices, or on their way out of them.
    pub(crate) fn recalled_on(&self, devices: &BTreeSet<DeviceId>) -> Vec<LeaseId> {
        let moving = self.moving.iter().filter(|id| self.leases[id].state == LeaseState::Suspending);
        let pending = |id: &&LeaseId| {
            let recall = self.leases[id].recall.as_ref();
            recall.is_some_and(|recall| recall.targets.keys().any(|device| devices.contains(device)))
        };
        let all: BTreeSet<LeaseId> = moving.chain(self.recalled.iter().filter(pending)).copied().collect();
        let here = |id: &LeaseId| self.leases[id].shares.keys().any(|device| devices.contains(device));
        all.into_iter().filter(here).collect()
    }
}

fn add(pool: &mut Pool, device: DeviceId, bytes: Bytes) {
    let sum = pool.entry(device).or_default();
    *sum = sum.saturating_add(bytes);
}

/// A look at all who are short.
#[derive(Debug)]
struct Look {
    /// What each device has to give to those who come after.
    pool: Pool,
    /// What those need who were looked at.
    wanted: Pool,
    /// When more could be suspended than now.
    again: Option<Time>,
    /// Leases are to leave, and nobody has looked since what that lets in.
    stirred: bool,
}

impl Look {
    /// More could be suspended then.
    fn look_at(&mut self, at: Time) {
        self.again = Some(self.again.map_or(at, |before| before.min(at)));
    }
}

/// Whether anybody can be asked for anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Giving {
    Now,
    /// From then on, at the earliest.
    From(Time),
    Never,
}

/// What becomes of a look for leases to suspend.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) leases: Vec<LeaseId>,
    /// When more could be suspended than now.
    pub(crate) look_again: Option<Time>,
}

impl Plan {
    /// More could be suspended then.
    pub(crate) fn look_at(&mut self, at: Time) {
        self.look_again = Some(self.look_again.map_or(at, |before| before.min(at)));
    }
}
