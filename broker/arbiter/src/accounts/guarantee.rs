//! What guarantees cover.
//!
//! A group and a user by name may have a guarantee on each device. A user's comes out of his group's.
//! On a device, of an account `n` with the guarantee `g(n)`, counted are
//!
//! ```text
//! user:   counted = what is charged to it, and what asks that its guarantee covers are due
//! group:  counted = sum of its users' guarantees + sum over its users of max(0, counted - guarantee)
//! ```
//!
//! `x` bytes more are covered where the user's `counted + x` is within his guarantee, or else
//! where what they add to the group's count leaves that within the group's. So all that is ever covered on
//! a device, at one time, is within the sum of the guarantees of groups and of users without one.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{Bytes, DeviceId, Uid};

use crate::accounts::{Accounts, Key, Node, NodeId};
use crate::{Budgets, Denial, DeviceSpec, Policy};

impl Budgets {
    /// Whether anyone has a guarantee.
    #[must_use]
    pub(crate) fn guarantee(&self) -> bool {
        let some = |budget: &crate::Budget| !budget.guarantee.is_zero();
        self.groups.values().any(some) || self.users.values().any(some)
    }

    /// All that is guaranteed on each device.
    #[must_use]
    pub(crate) fn guaranteed(&self) -> Bytes {
        let groups = self.groups.values().map(|budget| budget.guarantee);
        let single = self.users.iter().filter(|(uid, _)| self.group_of(**uid).is_none());
        groups.chain(single.map(|(_, budget)| budget.guarantee)).fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// What the users of a group have of its guarantee for themselves.
    pub(super) fn of_members(&self, group: &str) -> Bytes {
        let members = self.users.iter().filter(|(uid, _)| self.group_of(**uid) == Some(group));
        members.map(|(_, budget)| budget.guarantee).fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The group out of whose guarantee the user's comes; a group without a budget has none to give.
    fn group_of(&self, uid: Uid) -> Option<&str> {
        let group = self.memberships.get(&uid)?;
        self.groups.contains_key(group).then_some(group)
    }

    /// Whether what is promised can be kept on these devices.
    ///
    /// # Errors
    /// The sum that breaks, or the promise that nobody can count.
    pub fn fit(&self, policy: &Policy, devices: &[DeviceSpec]) -> Result<(), Denial> {
        self.countable()?;
        for (name, group) in &self.groups {
            let (children, guarantee) = (self.of_members(name), group.guarantee);
            if children > guarantee {
                return Err(Denial::GuaranteeOverParent {
                    account: Key::Group(name.clone()).to_string(),
                    guarantee,
                    children,
                });
            }
        }
        devices.iter().try_for_each(|device| self.fit_on(policy, device))
    }

    /// Whether each guarantee is of an account that there is once, and within its limits.
    fn countable(&self) -> Result<(), Denial> {
        let jobs = self.jobs.iter().map(|(pattern, budget)| (format!("job.{pattern}"), budget));
        let others = [("host", &self.host), ("user.*", &self.default_user), ("job.*", &self.default_job)];
        let mut uncounted = others.into_iter().map(|(name, budget)| (name.to_owned(), budget)).chain(jobs);
        if let Some((account, _)) = uncounted.find(|(_, budget)| !budget.guarantee.is_zero()) {
            return Err(Denial::GuaranteeUncounted { account });
        }
        let groups = self.groups.iter().map(|(name, budget)| (Key::Group(name.clone()), budget));
        let users = self.users.iter().map(|(uid, budget)| (Key::User(*uid), budget));
        for (key, budget) in groups.chain(users) {
            let limit = [budget.limit, self.host.limit].into_iter().flatten().min();
            if let Some(limit) = limit.filter(|limit| budget.guarantee > *limit) {
                let (account, guarantee) = (key.to_string(), budget.guarantee);
                return Err(Denial::GuaranteeOverLimit { account, guarantee, limit });
            }
        }
        Ok(())
    }

    fn fit_on(&self, policy: &Policy, device: &DeviceSpec) -> Result<(), Denial> {
        let (guarantees, headroom) = (self.guaranteed(), policy.headroom);
        let pinned_max = policy.pinned_max_of(device.capacity, guarantees);
        let sum = guarantees.saturating_add(headroom).saturating_add(pinned_max);
        let promised = self.guarantee() || policy.pinned_max.is_some();
        if !promised || sum <= device.capacity {
            return Ok(());
        }
        let (device, capacity) = (device.id, device.capacity);
        Err(Denial::GuaranteesTooLarge { device, capacity, guarantees, pinned_max, headroom })
    }
}

/// What leases are about to give back, by user and device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departures(BTreeMap<(NodeId, DeviceId), Bytes>);

impl Departures {
    /// So many bytes more of the user's leave the device.
    pub(crate) fn add(&mut self, user: NodeId, device: DeviceId, bytes: Bytes) {
        let sum = self.0.entry((user, device)).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

impl Node {
    fn counted(&self, device: DeviceId) -> u64 {
        self.counted.get(&device).copied().unwrap_or_default()
    }

    /// What of so much is beyond its guarantee.
    const fn beyond(&self, counted: u64) -> u64 {
        counted.saturating_sub(self.guarantee.get())
    }
}

impl Accounts {
    /// So many bytes of the device more count towards the guarantees of the path.
    pub(crate) fn count(&mut self, job: NodeId, device: DeviceId, bytes: Bytes) {
        self.recount(job, device, |counted| counted.saturating_add(bytes.get()));
    }

    /// So many fewer.
    pub(crate) fn uncount(&mut self, job: NodeId, device: DeviceId, bytes: Bytes) {
        self.recount(job, device, |counted| {
            counted.checked_sub(bytes.get()).expect("what is not counted any more was counted")
        });
    }

    fn recount(&mut self, job: NodeId, device: DeviceId, change: impl Fn(u64) -> u64) {
        if !self.stores.bind() {
            return;
        }
        let (user, group) = self.guarantors(job);
        let node = self.nodes.get_mut(&user).expect("a job stands under its user");
        let before = node.counted(device);
        let after = change(before);
        node.counted.insert(device, after);
        let (less, more) = (node.beyond(before), node.beyond(after));
        let eased = after < before;
        self.ease(user, eased);
        if let Some(group) = group {
            let node = self.nodes.get_mut(&group).expect("a user stands under his group");
            let counted = node.counted(device) - less + more;
            node.counted.insert(device, counted);
            self.ease(group, eased);
        }
    }

    fn ease(&mut self, id: NodeId, eased: bool) {
        if eased && !self.nodes[&id].guarantee.is_zero() {
            self.eased.insert(id);
        }
    }

    pub(crate) fn guarantors(&self, job: NodeId) -> (NodeId, Option<NodeId>) {
        let user = self.node(job).parent.expect("a job stands under its user");
        let group = self.node(user).parent.filter(|up| *up != NodeId::HOST);
        (user, group)
    }

    /// What the account's guarantee still covers on the device.
    pub(crate) fn uncovered(&self, id: NodeId, device: DeviceId) -> Bytes {
        let node = self.node(id);
        let counted = node.kept.get().saturating_add(node.counted(device));
        Bytes::new(node.guarantee.get().saturating_sub(counted))
    }

    /// The most that one ask below the account may be to be covered on the device: what a user lacks of his
    /// own guarantee adds to what is left of his group's.
    pub(crate) fn coverable_below(&self, id: NodeId, device: DeviceId) -> Bytes {
        let node = self.node(id);
        let beside = match node.key {
            Key::Group(_) => node.kept,
            Key::User(_) => node.parent.map(|group| self.uncovered(group, device)).unwrap_or_default(),
            Key::Host | Key::Job(..) | Key::Pinned(_) | Key::Arena => Bytes::ZERO,
        };
        self.uncovered(id, device).saturating_add(beside)
    }

    /// The most that guarantees of the path could cover if nothing else were charged: the user's own, and what
    /// his group does not keep for users by name.
    pub(crate) fn coverable(&self, job: NodeId) -> Bytes {
        let (user, group) = self.guarantors(job);
        let rest =
            group.map(|group| self.node(group)).map(|group| group.guarantee.saturating_sub(group.kept));
        self.node(user).guarantee.saturating_add(rest.unwrap_or_default())
    }

    /// What is guaranteed on each device to others than the accounts of the path.
    pub(crate) fn guaranteed_to_others(&self, job: NodeId) -> Bytes {
        let (user, group) = self.guarantors(job);
        let own = group.map(|group| self.node(group).guarantee).filter(|own| !own.is_zero());
        let own = own.unwrap_or_else(|| self.node(user).guarantee);
        self.budgets.guaranteed().saturating_sub(own)
    }

    /// Whether a guarantee of the path covers all that is counted there and `more`.
    pub(crate) fn covers(&self, job: NodeId, device: DeviceId, more: Bytes) -> bool {
        self.covers_without(job, device, more, &Departures::default())
    }

    /// Whether a guarantee of the path covers all that is counted there and `more`, once these have left.
    pub(crate) fn covers_without(
        &self,
        job: NodeId,
        device: DeviceId,
        more: Bytes,
        gone: &Departures,
    ) -> bool {
        if !self.stores.bind() {
            return false;
        }
        let (user, group) = self.guarantors(job);
        let then = |of: NodeId| {
            let gone = gone.0.get(&(of, device)).copied().unwrap_or_default();
            let more = if of == user { more } else { Bytes::ZERO };
            self.node(of).counted(device).saturating_add(more.get()).saturating_sub(gone.get())
        };
        let own = self.node(user).guarantee;
        if !own.is_zero() && then(user) <= own.get() {
            return true;
        }
        let Some(group) = group.filter(|group| !self.node(*group).guarantee.is_zero()) else {
            return false;
        };
        let gone = gone.0.keys().filter(|(_, on)| *on == device).map(|(of, _)| *of);
        let here = gone.filter(|of| self.node(*of).parent == Some(group));
        let users: BTreeSet<NodeId> = here.chain([user]).collect();
        let sum = |counted: &dyn Fn(NodeId) -> u64| -> u64 {
            users.iter().fold(0, |sum, of| sum.saturating_add(self.node(*of).beyond(counted(*of))))
        };
        let (now, then) = (sum(&|of| self.node(of).counted(device)), sum(&then));
        let node = self.node(group);
        let rest = node.counted(device).checked_sub(now).expect("a group counts what its users do");
        node.kept.get().saturating_add(rest).saturating_add(then) <= node.guarantee.get()
    }

    /// The account was looked at.
    pub(crate) fn pop_eased(&mut self) {
        self.eased.pop_first();
    }

    /// An account whose guarantee covers more than before.
    pub(crate) fn first_eased(&self) -> Option<NodeId> {
        self.eased.first().copied()
    }

    /// Every account with a guarantee is looked at again.
    pub(crate) fn ease_all(&mut self) {
        let some = self.nodes.iter().filter(|(_, node)| !node.guarantee.is_zero());
        self.eased = some.map(|(id, _)| *id).collect();
    }

    pub(crate) fn is_there(&self, id: NodeId) -> bool {
        self.nodes.contains_key(&id)
    }

    /// Panics when what counts towards guarantees is not what the jobs' sums make it.
    pub(crate) fn check_counted(&self, jobs: &BTreeMap<NodeId, BTreeMap<DeviceId, Bytes>>) {
        let mut users: BTreeMap<(NodeId, DeviceId), u64> = BTreeMap::new();
        for (job, on) in jobs {
            for (device, bytes) in on {
                *users.entry((self.guarantors(*job).0, *device)).or_default() += bytes.get();
            }
        }
        let mut groups: BTreeMap<(NodeId, DeviceId), u64> = BTreeMap::new();
        for ((user, device), counted) in &users {
            let node = self.node(*user);
            assert_eq!(node.counted(*device), *counted, "what counts for {} on {device}", node.key);
            if let Some(group) = node.parent.filter(|up| *up != NodeId::HOST) {
                *groups.entry((group, *device)).or_default() += node.beyond(*counted);
            }
        }
        for ((group, device), counted) in &groups {
            let node = self.node(*group);
            assert_eq!(node.counted(*device), *counted, "what counts for {} on {device}", node.key);
        }
    }
}
