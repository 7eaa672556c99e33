//! The line: who is next, who fits, what barriers keep.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use gpulease_arbiter::{Budget, DeviceWish, Patience, Time};
use gpulease_words::{Bytes, DeviceId};

use super::ledger::{Tally, add};
use super::stores::Store;
use super::{Aim, AskFact, Model, Node};

/// Accounts without a budget of their own are as this one.
static UNLIMITED: std::sync::LazyLock<Budget> = std::sync::LazyLock::new(Budget::default);

/// What barriers keep from those who come after them.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Of each device.
    pub(super) devices: BTreeMap<DeviceId, Bytes>,
    /// Of each account's limit.
    pub(super) bytes: BTreeMap<Node, Bytes>,
    /// Of what may be pinned of each device.
    pub(super) pinned: BTreeMap<DeviceId, Bytes>,
    /// Of host memory.
    pub(super) arena: Bytes,
    /// Where one waits at these: nobody passes.
    pub(super) pinned_closed: BTreeSet<DeviceId>,
    pub(super) arena_closed: bool,
    /// The asks that keep something of their devices.
    pub(super) collecting: BTreeSet<usize>,
    /// Of each account's number of leases.
    leases: BTreeMap<Node, u32>,
    /// Accounts at whose limit one waits: nobody passes.
    pub(super) bytes_closed: BTreeSet<Node>,
    /// The same for the number of leases.
    pub(super) leases_closed: BTreeSet<Node>,
}

impl Model {
    /// The budget of an account.
    pub(in crate::sim) fn budget(&self, node: &Node) -> &Budget {
        let budgets = &self.budgets;
        match node {
            Node::Host => &budgets.host,
            Node::Group(name) => budgets.groups.get(name).unwrap_or(&UNLIMITED),
            Node::User(uid) => budgets.users.get(uid).unwrap_or(&budgets.default_user),
            Node::Job(_, name) => {
                let found = budgets.jobs.iter().find(|(pattern, _)| matches(pattern, name));
                found.map_or(&budgets.default_job, |(_, budget)| budget)
            }
        }
    }

    /// The most leases an account may have.
    pub(super) fn leases_max(&self, node: &Node) -> Option<u32> {
        let policy = match node {
            Node::Host => Some(self.policy.leases_max),
            Node::User(_) => Some(self.policy.leases_per_uid),
            Node::Group(_) | Node::Job(..) => None,
        };
        self.budget(node).leases_max.into_iter().chain(policy).min()
    }

    /// The accounts an ask is charged to, from the host down.
    pub(in crate::sim) fn path_of(&self, ask: &AskFact) -> Vec<Node> {
        match &ask.aim {
            Aim::Lease { terms, .. } => self.path(ask.peer.uid, ask.peer.group.as_deref(), &terms.name),
            Aim::Growth { lease, .. } | Aim::Resume { lease } => self.path_of_lease(&self.leases[lease]),
        }
    }

    /// Whether nothing overtakes an ask. One that takes only what is set aside already is in
    /// nobody's way.
    pub(in crate::sim) fn is_barrier(&self, ask: &AskFact) -> bool {
        if self.binds() {
            return ask.risen;
        }
        ask.risen
            && match ask.aim {
                Aim::Lease { .. } | Aim::Resume { .. } => true,
                Aim::Growth { lease, device, bytes, .. } => {
                    !self.growth_takes(lease, device, bytes).is_zero()
                }
            }
    }

    pub(in crate::sim) fn barrier_at(&self, ask: &AskFact) -> Time {
        let path = self.path_of(ask);
        let said = path.iter().rev().find_map(|node| self.budget(node).max_wait);
        ask.since.plus(said.unwrap_or(self.policy.max_wait))
    }

    /// The place of an ask among barriers: by right, then by age.
    pub(super) fn turn(&self, index: usize) -> (u8, usize) {
        let ask = &self.asks[index];
        let right = match (ask.returning, ask.guaranteed) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        };
        (right, index)
    }

    pub(in crate::sim) fn deadline(&self, ask: &AskFact) -> Option<Time> {
        match ask.patience {
            Patience::None => Some(ask.since),
            Patience::AtMost(span) => Some(ask.since.plus(span)),
            Patience::Endless => None,
        }
    }

    /// What an ask takes of a device's room if it is granted there.
    pub(in crate::sim) fn need(&self, ask: &AskFact, device: DeviceId) -> Bytes {
        match &ask.aim {
            Aim::Lease { terms, .. } => add(terms.reserve, self.new_context(ask.peer.process, device)),
            Aim::Growth { lease, bytes, .. } => self.growth_takes(*lease, device, *bytes),
            Aim::Resume { lease } => self.resume_needs(*lease, device),
        }
    }

    pub(super) fn needs(&self, ask: &AskFact, devices: &[DeviceId]) -> Bytes {
        devices.iter().map(|device| self.need(ask, *device)).sum()
    }

    /// The asks in the order of the line: barriers by age, then by weighted max-min.
    pub(in crate::sim) fn order(&self, tally: &Tally) -> Vec<usize> {
        self.barriers().chain(self.by_shares(tally, &self.fair(), 0)).collect()
    }

    /// The asks that are no barriers.
    pub(super) fn fair(&self) -> Vec<usize> {
        self.waiting().filter(|(_, ask)| !self.is_barrier(ask)).map(|(i, _)| i).collect()
    }

    pub(super) fn barriers(&self) -> impl Iterator<Item = usize> {
        let barriers = self.waiting().filter(|(_, ask)| self.is_barrier(ask)).map(|(i, _)| i);
        let mut barriers: Vec<usize> = barriers.collect();
        barriers.sort_by_key(|i| self.turn(*i));
        barriers.into_iter()
    }

    /// `asks`, which agree on the first `depth` accounts, in the order of their shares below.
    pub(super) fn by_shares(&self, tally: &Tally, asks: &[usize], depth: usize) -> Vec<usize> {
        let mut children: BTreeMap<Node, Vec<usize>> = BTreeMap::new();
        for i in asks {
            if let Some(node) = self.path_of(&self.asks[*i]).get(depth) {
                children.entry(node.clone()).or_default().push(*i);
            }
        }
        if children.is_empty() {
            return asks.to_vec();
        }
        let mut ranked: Vec<(Node, Vec<usize>)> = children.into_iter().collect();
        ranked.sort_by(|(a, of_a), (b, of_b)| self.by_share(tally, a, b).then(of_a[0].cmp(&of_b[0])));
        ranked.iter().flat_map(|(_, asks)| self.by_shares(tally, asks, depth + 1)).collect()
    }

    /// Which of two accounts has the smaller charged / weight.
    pub(super) fn by_share(&self, tally: &Tally, a: &Node, b: &Node) -> Ordering {
        let scaled = |node: &Node, other: &Node| {
            let charged = tally.charged.get(node).copied().unwrap_or(Bytes::ZERO);
            u128::from(charged.get()) * u128::from(self.budget(other).weight.get())
        };
        scaled(a, b).cmp(&scaled(b, a))
    }

    /// What those of the barriers keep that count.
    pub(super) fn kept(&self, tally: &Tally, counts: impl Fn(usize) -> bool) -> Kept {
        let mut kept = Kept::default();
        for index in self.barriers().filter(|i| counts(*i)) {
            let (ask, devices) = (&self.asks[index], self.barrier_devices(index));
            if !self.is_hopeless(tally, ask, &devices) && self.climbs(tally, &mut kept, ask, &devices) {
                kept.collecting.insert(index);
                for device in &devices {
                    let there = kept.devices.entry(*device).or_default();
                    *there = add(*there, self.need(ask, *device));
                }
            }
        }
        kept
    }

    /// Whether a device or an account of this barrier could not give what it needs if every lease
    /// there ended.
    pub(super) fn is_hopeless(&self, tally: &Tally, ask: &AskFact, devices: &[DeviceId]) -> bool {
        let whole = self.needs(ask, devices);
        let beyond = |node: &Node| self.budget(node).limit.is_some_and(|limit| whole > limit);
        devices.iter().any(|device| self.need(ask, *device) > self.ceiling(tally, *device))
            || self.path_of(ask).iter().any(beyond)
            || self.store_steps(ask, devices).iter().any(|(store, bytes)| match store {
                Store::Pinned(device) => *bytes > self.pinned_max(*device),
                Store::Arena => *bytes > self.policy.arena,
            })
    }

    pub(super) fn ceiling(&self, tally: &Tally, device: DeviceId) -> Bytes {
        let Some(fact) = self.device(device).filter(|fact| !fact.lost) else { return Bytes::ZERO };
        let stuck = add(tally.devices[&device].quarantined, fact.off_book.unwrap_or(Bytes::ZERO));
        fact.capacity.saturating_sub(stuck)
    }

    /// Lets a barrier climb from its job to the host, keeping what it needs at each account;
    /// `false`: it is parked at one.
    pub(super) fn climbs(&self, tally: &Tally, kept: &mut Kept, ask: &AskFact, devices: &[DeviceId]) -> bool {
        let need = self.needs(ask, devices);
        let lease = matches!(ask.aim, Aim::Lease { .. });
        for node in self.path_of(ask).iter().rev() {
            if lease && !self.lease_passes(tally, kept, node) {
                kept.leases_closed.insert(node.clone());
                return false;
            }
            *kept.leases.entry(node.clone()).or_default() += u32::from(lease);
            if !need.is_zero() && !self.bytes_pass(tally, kept, node, need) {
                kept.bytes_closed.insert(node.clone());
                return false;
            }
            let there = kept.bytes.entry(node.clone()).or_default();
            *there = add(*there, need);
        }
        let stores = self.store_steps(ask, devices);
        stores.iter().all(|(store, bytes)| self.store_passes(kept, store, *bytes))
    }

    pub(super) fn bytes_pass(&self, tally: &Tally, kept: &Kept, node: &Node, need: Bytes) -> bool {
        let Some(limit) = self.budget(node).limit else { return true };
        let charged = tally.charged.get(node).copied().unwrap_or(Bytes::ZERO);
        let taken = add(charged, kept.bytes.get(node).copied().unwrap_or(Bytes::ZERO));
        !kept.bytes_closed.contains(node) && add(taken, need) <= limit
    }

    pub(super) fn lease_passes(&self, tally: &Tally, kept: &Kept, node: &Node) -> bool {
        let Some(max) = self.leases_max(node) else { return true };
        let there =
            tally.leases.get(node).copied().unwrap_or(0) + kept.leases.get(node).copied().unwrap_or(0);
        !kept.leases_closed.contains(node) && there < max
    }

    /// Whether each account above can take so much more, and one lease more where it is one.
    pub(super) fn accounts_allow(&self, tally: &Tally, kept: &Kept, ask: &AskFact, more: Bytes) -> bool {
        let lease = matches!(ask.aim, Aim::Lease { .. });
        self.path_of(ask).iter().all(|node| {
            self.bytes_pass(tally, kept, node, more) && (!lease || self.lease_passes(tally, kept, node))
        })
    }

    /// The devices a barrier is bound to or named.
    pub(super) fn barrier_devices(&self, index: usize) -> Vec<DeviceId> {
        let ask = &self.asks[index];
        match &ask.aim {
            Aim::Lease { terms, .. } => match &terms.devices {
                DeviceWish::These(these) => these.iter().copied().collect(),
                DeviceWish::Any(_) => ask.bound.clone().unwrap_or_default(),
            },
            Aim::Growth { device, .. } => vec![*device],
            Aim::Resume { lease } => self.leases[lease].devices.clone(),
        }
    }

    /// The room that is left of a device behind what is kept.
    pub(super) fn room(&self, tally: &Tally, kept: &Kept, device: DeviceId) -> Bytes {
        match self.device(device).is_some_and(|fact| !fact.lost) {
            true => {
                tally.free[&device].saturating_sub(kept.devices.get(&device).copied().unwrap_or(Bytes::ZERO))
            }
            false => Bytes::ZERO,
        }
    }

    pub(super) fn fits(&self, tally: &Tally, kept: &Kept, ask: &AskFact, device: DeviceId) -> bool {
        let usable = self.device(device).is_some_and(|fact| !fact.lost);
        usable && self.need(ask, device) <= self.room(tally, kept, device)
    }

    /// Whether an ask can be granted on these devices behind what is kept.
    pub(super) fn passes(&self, tally: &Tally, kept: &Kept, ask: &AskFact, devices: &[DeviceId]) -> bool {
        let fits = devices.iter().all(|device| self.fits(tally, kept, ask, *device));
        // What is set aside already is taken from nobody.
        let free_of_charge = matches!(ask.aim, Aim::Growth { .. }) && self.needs(ask, devices).is_zero();
        let allowed = free_of_charge || self.accounts_allow(tally, kept, ask, self.needs(ask, devices));
        fits && !devices.is_empty() && allowed
    }

    /// Where a barrier can be granted now on the devices it keeps bytes of.
    pub(super) fn barrier_placement(&self, tally: &Tally, index: usize) -> Option<Vec<DeviceId>> {
        let devices = self.barrier_devices(index);
        let mut kept = self.kept(tally, |other| self.turn(other) < self.turn(index));
        let ask = &self.asks[index];
        let passes = match self.binds() {
            false => self.passes(tally, &kept, ask, &devices),
            true => {
                devices.iter().all(|device| self.fits(tally, &kept, ask, *device))
                    && !self.is_hopeless(tally, ask, &devices)
                    && self.climbs(tally, &mut kept, ask, &devices)
            }
        };
        passes.then_some(devices)
    }

    /// Where an ask that is no barrier can be granted now.
    pub(super) fn placement(&self, tally: &Tally, kept: &Kept, index: usize) -> Option<Vec<DeviceId>> {
        let ask = &self.asks[index];
        if self.binds() {
            return self.routed_placement(tally, kept, ask);
        }
        let devices = match &ask.aim {
            Aim::Growth { device, .. } => vec![*device],
            Aim::Resume { lease } => self.leases[lease].devices.clone(),
            Aim::Lease { terms, .. } => match &terms.devices {
                DeviceWish::These(these) => these.iter().copied().collect(),
                DeviceWish::Any(count) => return self.any_placement(tally, kept, ask, count.get()),
            },
        };
        self.passes(tally, kept, ask, &devices).then_some(devices)
    }

    /// The devices with most room; where its accounts can't pay for its contexts there, those that
    /// cost it least.
    pub(super) fn any_placement(
        &self,
        tally: &Tally,
        kept: &Kept,
        ask: &AskFact,
        count: u32,
    ) -> Option<Vec<DeviceId>> {
        let passing = |devices: Vec<DeviceId>| self.passes(tally, kept, ask, &devices).then_some(devices);
        let roomiest = self.fitting(tally, kept, ask, count, |_| Bytes::ZERO).and_then(passing);
        let context = |device| self.new_context(ask.peer.process, device);
        roomiest.or_else(|| self.fitting(tally, kept, ask, count, context).and_then(passing))
    }

    /// So many of the devices on which the ask fits: those that cost least, then those with most room.
    pub(super) fn fitting(
        &self,
        tally: &Tally,
        kept: &Kept,
        ask: &AskFact,
        count: u32,
        cost: impl Fn(DeviceId) -> Bytes,
    ) -> Option<Vec<DeviceId>> {
        let mut fitting: Vec<DeviceId> = self.devices.iter().map(|device| device.id).collect();
        fitting.retain(|device| self.fits(tally, kept, ask, *device));
        fitting.sort_by_key(|device| {
            (cost(*device), std::cmp::Reverse(self.room(tally, kept, *device)), *device)
        });
        let count = usize::try_from(count).ok().filter(|count| *count <= fitting.len())?;
        fitting.truncate(count);
        fitting.sort();
        Some(fitting)
    }

    /// The first in the line that can be granted now, and where.
    pub(in crate::sim) fn next(&self) -> Option<(usize, Vec<DeviceId>)> {
        self.waiting().next()?;
        let tally = self.tally();
        let kept = self.kept(&tally, |_| true);
        let barrier = self.barriers().find_map(|i| Some((i, self.barrier_placement(&tally, i)?)));
        let by_share = || {
            let order = self.by_shares(&tally, &self.fair(), 0);
            order.into_iter().find_map(|i| Some((i, self.placement(&tally, &kept, i)?)))
        };
        let roams = || self.barriers().find_map(|i| Some((i, self.elsewhere(&tally, &kept, i)?)));
        barrier.or_else(roams).or_else(by_share)
    }
}

/// Whether a job's name fits a pattern in which `*` stands for any letters.
pub(in crate::sim) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    pub(super) fn a_star_stands_for_any_letters() {
        for (pattern, name, fits) in [
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a*b*c", "axxbyc", true),
            ("a*b*c", "axxcyb", false),
            ("*", "", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
