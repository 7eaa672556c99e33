//! What an account's budget says of the asks and leases below it, and budgets that change.

use std::time::Duration;

use crate::accounts::{Accounts, Key, NodeId, least};
use crate::line::gate::Gate;
use crate::{Budgets, OnOverdue, Pinning, Policy};

impl Accounts {
    /// Other budgets count from now on; nobody loses what he has.
    pub(crate) fn set_budgets(&mut self, budgets: Budgets, policy: &Policy) {
        self.budgets = budgets;
        let ids: Vec<(NodeId, Key)> = self.nodes.iter().map(|(id, node)| (*id, node.key.clone())).collect();
        for (id, key) in ids.into_iter().filter(|(_, key)| !key.is_store()) {
            let mut fresh = self.fresh(key, None);
            if id == NodeId::HOST {
                fresh.slots = Gate::new(least(self.budgets.host.leases_max, policy.leases_max));
            }
            let node = self.node_mut(id);
            node.bytes.set_limit(fresh.bytes.limit());
            node.slots.set_limit(fresh.slots.limit());
            (node.weight, node.guarantee, node.pinning) = (fresh.weight, fresh.guarantee, fresh.pinning);
            (node.max_wait, node.on_overdue, node.kept) = (fresh.max_wait, fresh.on_overdue, fresh.kept);
            node.counted.clear();
        }
    }

    /// After how long an ask of the job is a barrier.
    pub(crate) fn max_wait(&self, job: NodeId, policy: &Policy) -> Duration {
        self.path(job).find_map(|(_, node)| node.max_wait).unwrap_or(policy.max_wait)
    }

    /// Whether leases of the job may be suspended.
    pub(crate) fn pinning(&self, job: NodeId) -> Pinning {
        let pinned = self.path(job).any(|(_, node)| node.pinning == Pinning::Pinned);
        if pinned { Pinning::Pinned } else { Pinning::Movable }
    }

    /// What becomes of a lease of the job that lets a deadline pass.
    pub(crate) fn on_overdue(&self, job: NodeId) -> OnOverdue {
        self.path(job).find_map(|(_, node)| node.on_overdue).unwrap_or_default()
    }
}
