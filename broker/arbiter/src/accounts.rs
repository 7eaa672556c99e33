//! The account tree: host > group > user > job.
//!
//! A node lives as long as something is charged or waits below it. A user stays under the group he
//! was first seen in until his node goes. A node's `bytes` count what is set aside, overhead, held,
//! draining and quarantined over all devices of all leases below; its `slots` count those leases.
//!
//! Beyond the host stand the [`stores`]: what may be pinned of each device, and the arena. What counts
//! towards a guarantee is in [`guarantee`].

pub(crate) mod guarantee;
mod rules;
pub(crate) mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, Uid};

use crate::accounts::stores::Stores;
use crate::line::ask::Turn;
use crate::line::gate::Gate;
use crate::{AccountView, Budget, Budgets, OnOverdue, Pinning, Policy};

/// A node of the tree; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u64);

impl NodeId {
    /// The root.
    pub(crate) const HOST: Self = Self(0);
}

/// Whose account it is. Printed as its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Host,
    Group(String),
    User(Uid),
    Job(Uid, String),
    /// What may be pinned of a device beyond guarantees.
    Pinned(DeviceId),
    /// Host memory for copies.
    Arena,
}

impl Key {
    const fn depth(&self) -> u8 {
        match self {
            Self::Host | Self::Pinned(_) | Self::Arena => 0,
            Self::Group(_) => 1,
            Self::User(_) => 2,
            Self::Job(..) => 3,
        }
    }

    const fn uid(&self) -> Option<Uid> {
        match self {
            Self::Host | Self::Group(_) | Self::Pinned(_) | Self::Arena => None,
            Self::User(uid) | Self::Job(uid, _) => Some(*uid),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Group(name) => write!(f, "group.{name}"),
            Self::User(uid) => write!(f, "user.{uid}"),
            Self::Job(uid, name) => write!(f, "user.{uid}/job.{name}"),
            Self::Pinned(device) => write!(f, "what may be pinned of device {device}"),
            Self::Arena => f.write_str("the arena"),
        }
    }
}

/// One account.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) key: Key,
    pub(crate) parent: Option<NodeId>,
    weight: u32,
    pub(crate) bytes: Gate,
    pub(crate) slots: Gate,
    /// Asks and leases of a job, children of any other.
    dependents: u32,
    guarantee: Bytes,
    /// Of it, what a group's users have for themselves.
    kept: Bytes,
    max_wait: Option<Duration>,
    pinning: Pinning,
    on_overdue: Option<OnOverdue>,
    /// What counts towards the guarantee on each device, while there are guarantees.
    counted: BTreeMap<DeviceId, u64>,
}

/// Which resource of an account a gate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Slots,
    Bytes,
}

impl Node {
    pub(crate) const fn gate(&self, resource: Resource) -> &Gate {
        match resource {
            Resource::Slots => &self.slots,
            Resource::Bytes => &self.bytes,
        }
    }

    pub(crate) const fn gate_mut(&mut self, resource: Resource) -> &mut Gate {
        match resource {
            Resource::Slots => &mut self.slots,
            Resource::Bytes => &mut self.bytes,
        }
    }

    /// What its place among its siblings goes by: charged / weight, in 2^20ths of a byte.
    pub(crate) fn share(&self) -> u128 {
        self.share_of(Bytes::new(self.bytes.used()))
    }

    /// What that would be if so much were charged to it.
    pub(crate) fn share_of(&self, charged: Bytes) -> u128 {
        (u128::from(charged.get()) << 20) / u128::from(self.weight)
    }

    pub(crate) const fn guarantee(&self) -> Bytes {
        self.guarantee
    }

    /// What of a group's guarantee its users have for themselves.
    pub(crate) const fn kept(&self) -> Bytes {
        self.kept
    }

    pub(crate) const fn is_store(&self) -> bool {
        self.key.is_store()
    }
}

/// The tree, and which of its nodes the current mutation touched.
#[derive(Debug)]
pub(crate) struct Accounts {
    budgets: Budgets,
    leases_per_uid: u32,
    nodes: BTreeMap<NodeId, Node>,
    by_key: BTreeMap<Key, NodeId>,
    last: NodeId,
    /// Deepest first.
    touched: BTreeSet<(std::cmp::Reverse<u8>, NodeId)>,
    pub(crate) stores: Stores,
    /// Accounts with a guarantee of which less is counted than before.
    eased: BTreeSet<NodeId>,
}

impl Accounts {
    /// A tree with nothing charged.
    pub(crate) fn new(budgets: Budgets, policy: &Policy) -> Self {
        let mut host = node(Key::Host, None, &budgets.host);
        host.slots = Gate::new(least(budgets.host.leases_max, policy.leases_max));
        Self {
            budgets,
            leases_per_uid: policy.leases_per_uid,
            nodes: BTreeMap::from([(NodeId::HOST, host)]),
            by_key: BTreeMap::from([(Key::Host, NodeId::HOST)]),
            last: NodeId::HOST,
            touched: BTreeSet::new(),
            stores: Stores::default(),
            eased: BTreeSet::new(),
        }
    }

    /// The job account of that name of the user, made where it is not there yet. It stays until as
    /// many calls of [`Self::leave`] were made.
    pub(crate) fn enter(&mut self, uid: Uid, group: Option<&str>, job: &str) -> NodeId {
        let user = match self.by_key.get(&Key::User(uid)) {
            Some(user) => *user,
            None => {
                let parent = group.map_or(NodeId::HOST, |name| {
                    self.find_or_make(Key::Group(name.to_owned()), NodeId::HOST)
                });
                self.find_or_make(Key::User(uid), parent)
            }
        };
        let job = self.find_or_make(Key::Job(uid, job.to_owned()), user);
        self.node_mut(job).dependents += 1;
        job
    }

    /// One ask or lease fewer in the account; empty accounts go.
    pub(crate) fn leave(&mut self, job: NodeId) {
        let mut at = Some(job);
        while let Some(id) = at {
            let node = self.node_mut(id);
            node.dependents = node.dependents.checked_sub(1).expect("as many leave an account as entered");
            if node.dependents > 0 || id == NodeId::HOST {
                return;
            }
            let node = self.nodes.remove(&id).expect("it was just there");
            assert!(
                node.bytes.used() == 0 && node.slots.used() == 0,
                "{} goes while it is charged",
                node.key
            );
            self.by_key.remove(&node.key);
            at = node.parent;
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.nodes.get(&id).expect("an account stays while an ask or lease is in it")
    }

    /// The node, marked as touched.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let node = self.nodes.get_mut(&id).expect("an account stays while an ask or lease is in it");
        self.touched.insert((std::cmp::Reverse(node.key.depth()), id));
        node
    }

    /// A gate of a node that is being tended, if the node is still there; it is not marked as touched.
    pub(crate) fn tended(&mut self, id: NodeId, resource: Resource) -> Option<&mut Gate> {
        self.nodes.get_mut(&id).map(|node| node.gate_mut(resource))
    }

    /// The node and those above it, up to the host.
    pub(crate) fn path(&self, from: NodeId) -> impl Iterator<Item = (NodeId, &Node)> {
        std::iter::successors(Some((from, self.node(from))), |(_, node)| {
            node.parent.map(|up| (up, self.node(up)))
        })
    }

    /// Marks every node as touched.
    pub(crate) fn touch_all(&mut self) {
        let all = self.nodes.iter().map(|(id, node)| (std::cmp::Reverse(node.key.depth()), *id));
        self.touched.extend(all);
    }

    /// Charges bytes of a device along the path.
    pub(crate) fn charge(&mut self, job: NodeId, device: DeviceId, bytes: Bytes) {
        self.each_up(job, |node| node.bytes.take(bytes.get()));
        self.count(job, device, bytes);
    }

    /// Credits bytes of a device along the path.
    pub(crate) fn credit(&mut self, job: NodeId, device: DeviceId, bytes: Bytes) {
        self.each_up(job, |node| node.bytes.give(bytes.get()));
        self.uncount(job, device, bytes);
    }

    /// One lease more along the path.
    pub(crate) fn add_lease(&mut self, job: NodeId) {
        self.each_up(job, |node| node.slots.take(1));
    }

    /// One lease fewer along the path.
    pub(crate) fn remove_lease(&mut self, job: NodeId) {
        self.each_up(job, |node| node.slots.give(1));
    }

    /// The ask is neither pledged nor parked along the path, nor at a store, any more.
    pub(crate) fn forget_barrier(&mut self, job: NodeId, turn: Turn) {
        self.each_up(job, |node| {
            node.bytes.forget(turn);
            node.slots.forget(turn);
        });
        for store in self.stores.all() {
            self.node_mut(store).bytes.forget(turn);
        }
    }

    /// Takes a node that was touched, the deepest first; it may be gone by now.
    pub(crate) fn pop_touched(&mut self) -> Option<NodeId> {
        self.touched.pop_first().map(|(_, id)| id)
    }

    /// Marks the node as touched, if it is still there: one that goes is marked then.
    pub(crate) fn touch(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get(&id) {
            self.touched.insert((std::cmp::Reverse(node.key.depth()), id));
        }
    }

    /// Every node.
    pub(crate) fn all(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// What is shown of the accounts, parents first; users of the budgets who have nothing included.
    pub(crate) fn views(&self) -> Vec<AccountView> {
        let mut views = Vec::with_capacity(self.nodes.len());
        let mut keys: BTreeSet<(u8, Key)> =
            self.by_key.keys().map(|key| (key.depth(), key.clone())).collect();
        keys.extend(self.budgets.groups.keys().map(|name| (1, Key::Group(name.clone()))));
        keys.extend(self.budgets.users.keys().map(|uid| (2, Key::User(*uid))));
        for (_, key) in keys {
            views.push(match self.by_key.get(&key) {
                Some(id) => view(self.node(*id)),
                None => view(&self.fresh(key, None)),
            });
        }
        views
    }

    fn find_or_make(&mut self, key: Key, parent: NodeId) -> NodeId {
        if let Some(id) = self.by_key.get(&key) {
            return *id;
        }
        let id = NodeId(self.last.0.checked_add(1).expect("fewer accounts than 2^64 are ever made"));
        self.last = id;
        let node = self.fresh(key.clone(), Some(parent));
        self.nodes.insert(id, node);
        self.by_key.insert(key, id);
        self.node_mut(parent).dependents += 1;
        id
    }

    fn fresh(&self, key: Key, parent: Option<NodeId>) -> Node {
        let none = Budget::default();
        let budget = match &key {
            Key::Host => &self.budgets.host,
            Key::Group(name) => self.budgets.groups.get(name).unwrap_or(&none),
            Key::User(uid) => self.budgets.users.get(uid).unwrap_or(&self.budgets.default_user),
            Key::Job(_, name) => self.budgets.of_job(name),
            Key::Pinned(_) | Key::Arena => &none,
        };
        let mut made = node(key, parent, budget);
        if let Key::User(_) = made.key {
            made.slots = Gate::new(least(budget.leases_max, self.leases_per_uid));
        }
        if let Key::Group(name) = &made.key
            && !made.guarantee.is_zero()
        {
            made.kept = self.budgets.of_members(name);
        }
        made
    }

    fn each_up(&mut self, from: NodeId, mut change: impl FnMut(&mut Node)) {
        let mut at = Some(from);
        while let Some(id) = at {
            let node = self.node_mut(id);
            change(node);
            at = node.parent;
        }
    }
}

fn node(key: Key, parent: Option<NodeId>, budget: &Budget) -> Node {
    Node {
        key,
        parent,
        weight: budget.weight.get(),
        bytes: Gate::new(budget.limit.map(Bytes::get)),
        slots: Gate::new(budget.leases_max.map(u64::from)),
        dependents: 0,
        guarantee: budget.guarantee,
        kept: Bytes::ZERO,
        max_wait: budget.max_wait,
        pinning: budget.pinning,
        on_overdue: budget.on_overdue,
        counted: BTreeMap::new(),
    }
}

fn least(of_budget: Option<u32>, of_policy: u32) -> Option<u64> {
    Some(u64::from(of_budget.unwrap_or(u32::MAX).min(of_policy)))
}

fn view(node: &Node) -> AccountView {
    AccountView {
        path: node.key.to_string(),
        uid: node.key.uid(),
        limit: node.bytes.limit().map(Bytes::new),
        charged: Bytes::new(node.bytes.used()),
        weight: node.weight,
        leases: u32::try_from(node.slots.used()).expect("leases are bounded by a 32-bit number"),
        leases_max: node.slots.limit().map(|n| u32::try_from(n).expect("it came from a 32-bit number")),
        guarantee: node.guarantee,
    }
}
