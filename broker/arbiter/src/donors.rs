//! Which leases give their memory up for an ask, the least harmful first.
//!
//! Idle ones come first, then those of the accounts that are furthest beyond their share, counted from
//! the top of the tree, and of one job the one that has had its memory for the longest time.
//!
//! | the ask | takes the memory of |
//! |---|---|
//! | is covered by a guarantee | any lease that no guarantee protects |
//! | is a barrier | those of them that have had it for `min_residency` |
//! | is neither | those that are idle, or whose account would still have the larger share afterwards |
//!
//! A guarantee protects as much of its account as it covers: once what leaves is gone, that is.
//!
//! More for a lease that has its memory, beyond guarantees, is never worth more than a trim or an idle lease.

use std::cmp::Reverse;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId};

use crate::accounts::NodeId;
use crate::accounts::guarantee::Departures;
use crate::lease::{Lease, Pace};
use crate::ledger::{minus, plus};
use crate::line::shape::Use;
use crate::shortage::{Asker, Plan, Pool, Urgency};
use crate::{Arbiter, Idleness, LeaseState, Pinning, Time};

/// A lease keeps its memory for so many times as long as it takes to swap it, at least.
const SWAPS_OF_RESIDENCY: u32 = 10;

/// Whether a lease may be suspended for an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fitness {
    Now,
    /// From then on.
    Later(Time),
    Never,
}

/// The order of donors.
type Harm = (u8, Reverse<Vec<u128>>, Time, LeaseId);

impl Arbiter {
    /// Leases that bring together what is missing, if there are such; else when there may be.
    pub(crate) fn leases_to_suspend(&self, asker: &Asker, missing: &Pool) -> Plan {
        let mut plan = Plan::default();
        let missing = &self.less_what_returns(asker, missing);
        let (mut lacks, mut gone) = (missing.clone(), self.departures());
        for device in missing.keys() {
            let mut donors: Vec<(Harm, LeaseId)> = Vec::new();
            let movable = self.holders.on(*device).into_iter().flat_map(|holding| holding.movable.iter());
            for (since, lease) in movable.copied().filter(|(_, lease)| Some(*lease) != asker.lease) {
                let earliest = self.earliest(asker, since);
                if earliest > self.now {
                    // Those after it have theirs for a shorter time still.
                    plan.look_at(earliest);
                    break;
                }
                match self.fitness(asker, lease) {
                    Fitness::Now => donors.push((self.harm(lease), lease)),
                    Fitness::Later(at) => plan.look_at(at),
                    Fitness::Never => {}
                }
            }
            donors.sort_unstable();
            for (_, lease) in donors {
                if lacks.get(device).is_none_or(|lack| lack.is_zero()) {
                    break;
                }
                let of = &self.leases[&lease];
                if plan.leases.contains(&lease) || self.is_protected_without(of, &gone) {
                    continue;
                }
                if self.stays_fair(asker, lease, &plan.leases) {
                    self.count_off(lease, &mut lacks);
                    self.depart(of, &mut gone);
                    plan.leases.push(lease);
                }
            }
        }
        if lacks.values().any(|lack| !lack.is_zero()) {
            plan.leases.clear();
        } else {
            plan.look_again = None;
            self.spare_needless(&mut plan.leases, missing);
        }
        plan
    }

    /// What leases that are coming back can be asked for as soon as they are back, for one to whom it is owed: the
    /// others need not wait for them.
    fn less_what_returns(&self, asker: &Asker, missing: &Pool) -> Pool {
        let mut lacks = missing.clone();
        for id in self.moving.iter().filter(|_| asker.urgency == Urgency::Owed) {
            let lease = &self.leases[id];
            let returns = lease.state == LeaseState::Resuming && lease.pinning == Pinning::Movable;
            if !returns || self.is_protected(lease) || asker.lease == Some(*id) {
                continue;
            }
            for (device, share) in &lease.shares {
                if let Some(lack) = lacks.get_mut(device) {
                    *lack = lack.saturating_sub(plus(share.charge.set_aside, share.charge.held));
                }
            }
        }
        lacks
    }

    /// What is on its way out of every account.
    fn departures(&self) -> Departures {
        let mut gone = Departures::default();
        let moving = self.moving.iter().map(|id| &self.leases[id]);
        let leave = moving.filter(|lease| lease.state == LeaseState::Suspending);
        leave.filter(|lease| lease.residence.pace == Pace::InTime).for_each(|of| self.depart(of, &mut gone));
        gone
    }

    fn depart(&self, lease: &Lease, gone: &mut Departures) {
        let user = self.accounts.guarantors(lease.account).0;
        for (device, share) in &lease.shares {
            let charge = &share.charge;
            gone.add(user, *device, plus(plus(charge.set_aside, charge.held), charge.draining));
        }
    }

    /// What the lease brings is missing no more.
    fn count_off(&self, lease: LeaseId, lacks: &mut Pool) {
        for (device, share) in &self.leases[&lease].shares {
            if let Some(lack) = lacks.get_mut(device) {
                *lack = lack.saturating_sub(share.stock.gives);
            }
        }
    }

    /// Spares whom the others make needless, the most harmful first.
    fn spare_needless(&self, leases: &mut Vec<LeaseId>, missing: &Pool) {
        for at in (0..leases.len()).rev() {
            let mut lacks = missing.clone();
            for (other, lease) in leases.iter().enumerate() {
                if other != at {
                    self.count_off(*lease, &mut lacks);
                }
            }
            if lacks.values().all(|lack| lack.is_zero()) {
                leases.remove(at);
            }
        }
    }

    /// Before this nothing is taken for the asker from a lease that has its memory since then.
    fn earliest(&self, asker: &Asker, since: Time) -> Time {
        match asker.urgency {
            Urgency::Owed => Time::START,
            Urgency::Barrier | Urgency::InLine => since.plus(self.policy.min_residency),
        }
    }

    fn fitness(&self, asker: &Asker, id: LeaseId) -> Fitness {
        let lease = &self.leases[&id];
        let movable = lease.state == LeaseState::Active && lease.pinning == Pinning::Movable;
        if !movable {
            return Fitness::Never;
        }
        let resident_until = match asker.urgency {
            Urgency::Owed => Time::START,
            Urgency::Barrier | Urgency::InLine => lease.residence.since.plus(self.residency(lease)),
        };
        let from = resident_until.max(lease.residence.not_before);
        if from > self.now {
            // Whether it may be asked then is seen then: to look at all of them each time costs too much.
            return Fitness::Later(from);
        }
        if self.is_protected(lease) || !self.hears(id) {
            return Fitness::Never;
        }
        let idle = lease.residence.idleness == Idleness::Idle;
        let fair = || idle || self.keeps_larger_share(asker, lease, |_| lease_gives(lease));
        let may = match (asker.urgency, asker.purpose) {
            (Urgency::Owed, _) => true,
            (Urgency::Barrier, Use::Lease | Use::Resume) => true,
            (Urgency::Barrier | Urgency::InLine, Use::Growth) => idle,
            (Urgency::InLine, Use::Lease | Use::Resume) => fair(),
        };
        if may { Fitness::Now } else { Fitness::Never }
    }

    /// For how long the lease keeps its memory against all but what is owed to others. Its devices swap side by side, each
    /// over a link of its own: the one on which it has the most takes longest.
    pub(crate) fn residency(&self, lease: &Lease) -> Duration {
        let most = lease.shares.values().map(|share| share.stock.gives).max().unwrap_or_default();
        let swap = self.swap_time(most);
        self.policy.min_residency.max(swap.saturating_mul(SWAPS_OF_RESIDENCY))
    }

    /// The longest that any lease of the device keeps its memory.
    pub(crate) fn longest_residency(&self, capacity: Bytes) -> Duration {
        self.policy.min_residency.max(self.swap_time(capacity).saturating_mul(SWAPS_OF_RESIDENCY))
    }

    fn harm(&self, id: LeaseId) -> Harm {
        let lease = &self.leases[&id];
        let idle = match lease.residence.idleness {
            Idleness::Idle => 0,
            Idleness::Busy => 1,
        };
        (idle, Reverse(self.shares_from_top(lease.account)), lease.residence.since, id)
    }

    /// How much of their shares the accounts of the path have, from the host's child down.
    fn shares_from_top(&self, account: NodeId) -> Vec<u128> {
        let mut shares: Vec<u128> = self.accounts.path(account).map(|(_, node)| node.share()).collect();
        shares.pop();
        shares.reverse();
        shares
    }

    /// Whether the lease may be taken beside those of the plan: what all of them bring counts against their account.
    fn stays_fair(&self, asker: &Asker, id: LeaseId, plan: &[LeaseId]) -> bool {
        let lease = &self.leases[&id];
        match (asker.urgency, lease.residence.idleness) {
            (Urgency::Owed | Urgency::Barrier, _) | (Urgency::InLine, Idleness::Idle) => true,
            (Urgency::InLine, Idleness::Busy) => {
                let below = |node| {
                    let with = plan.iter().map(|id| &self.leases[id]);
                    with.filter(move |lease| self.accounts.path(lease.account).any(|(id, _)| id == node))
                };
                let gives =
                    |node| below(node).map(lease_gives).fold(lease_gives(lease), Bytes::saturating_add);
                self.keeps_larger_share(asker, lease, gives)
            }
        }
    }

    /// Whether the donor's account, where its path and the asker's part, would have more of its share left
    /// than the asker's would have then, if the former gives so much.
    fn keeps_larger_share(&self, asker: &Asker, donor: &Lease, gives: impl Fn(NodeId) -> Bytes) -> bool {
        let path = |account| -> Vec<NodeId> {
            let mut path: Vec<NodeId> = self.accounts.path(account).map(|(id, _)| id).collect();
            path.reverse();
            path
        };
        let (theirs, ours) = (path(donor.account), path(asker.account));
        let Some((theirs, ours)) = theirs.iter().zip(&ours).find(|(a, b)| a != b) else {
            return false;
        };
        let gives = gives(*theirs);
        let need: Bytes = asker.needs.iter().map(|(_, need)| *need).sum();
        let (theirs, ours) = (self.accounts.node(*theirs), self.accounts.node(*ours));
        let left = Bytes::new(theirs.bytes.used()).saturating_sub(gives);
        let then = Bytes::new(ours.bytes.used()).saturating_add(need);
        theirs.share_of(left) > ours.share_of(then)
    }

    /// Leases that hold more than their reserve on the device and may be asked for it, those first whose
    /// accounts are furthest beyond their share.
    pub(crate) fn surplus_donors(&self, asker: &Asker, device: DeviceId) -> Vec<LeaseId> {
        let elastic = self.holders.on(device).into_iter().flat_map(|holding| holding.elastic.iter());
        let mut donors: Vec<(Reverse<Vec<u128>>, LeaseId)> = Vec::new();
        for id in elastic.copied().filter(|lease| Some(*lease) != asker.lease) {
            let lease = &self.leases[&id];
            let surplus = minus(lease.share(device).charge.held, lease.reserve);
            let asked = lease.recall.as_ref().is_some_and(|recall| recall.targets.contains_key(&device));
            let may = match asker.urgency {
                Urgency::Owed | Urgency::Barrier => true,
                Urgency::InLine => {
                    lease.residence.idleness == Idleness::Idle
                        || self.keeps_larger_share(asker, lease, |_| surplus)
                }
            };
            if may && !asked && !lease.is_overdue() {
                donors.push((Reverse(self.shares_from_top(lease.account)), id));
            }
        }
        donors.sort_unstable();
        donors.into_iter().map(|(_, lease)| lease).collect()
    }
}

/// What a suspension of the lease brings over all devices.
fn lease_gives(lease: &Lease) -> Bytes {
    lease.shares.values().map(|share| share.stock.gives).sum()
}
