//! Other budgets count from now on.
//!
//! Nobody loses what he has. An account that is charged more than its new limit gets nothing more, and
//! surplus of its leases above their reserves is asked back, as far as it is beyond the limit.

use std::collections::BTreeMap;

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId};

use crate::accounts::NodeId;
use crate::ledger::minus;
use crate::line::ask::{Right, Want};
use crate::{Arbiter, Budgets, Denial, DeviceSpec, Effect, LeaseState, RequestId};

impl Arbiter {
    pub(crate) fn set_budgets(&mut self, request: RequestId, budgets: Budgets) -> Result<(), Denial> {
        budgets.fit(&self.policy, &self.specs())?;
        for id in self.asks_by_age() {
            self.demote(id);
        }
        self.accounts.set_budgets(budgets, &self.policy);
        self.accounts.set_stores(&self.policy, &self.ledger);
        self.count_anew();
        self.accounts.touch_all();
        for id in self.asks_by_age() {
            self.fit_ask(id);
        }
        self.line.rise_all(&mut self.accounts, &self.ledger);
        self.mark_anew();
        self.accounts.ease_all();
        self.emit(Effect::Done { request });
        self.recall_beyond_limits();
        Ok(())
    }

    fn specs(&self) -> Vec<DeviceSpec> {
        let spec = |(id, book): (DeviceId, &crate::ledger::DeviceBook)| DeviceSpec {
            id,
            capacity: book.capacity,
            overhead_estimate: book.overhead_estimate,
        };
        self.ledger.all().map(spec).collect()
    }

    fn asks_by_age(&self) -> Vec<AskId> {
        self.line.asks.keys().copied().collect()
    }

    /// What counts towards guarantees, and in the stores, is counted from the leases.
    fn count_anew(&mut self) {
        for lease in self.leases.keys().copied().collect::<Vec<_>>() {
            let of = &self.leases[&lease];
            let account = of.account;
            let totals: Vec<(DeviceId, Bytes)> =
                of.shares.iter().map(|(device, share)| (*device, share.charge.total())).collect();
            for (device, bytes) in totals {
                self.accounts.count(account, device, bytes);
            }
            if self.accounts.stores.bind() {
                self.take_stock_everywhere(lease);
            } else {
                self.lease_mut(lease).shares.values_mut().for_each(|share| share.stock = Default::default());
            }
        }
        if !self.accounts.stores.bind() {
            self.holders = Default::default();
        }
    }

    /// The ask is as old as before; how long it waits for a barrier and how its lease is held may differ.
    fn fit_ask(&mut self, id: AskId) {
        let ask = self.line.get(id);
        let (since, account, process) = (ask.since, ask.account, ask.process);
        let barrier_at = since.plus(self.accounts.max_wait(account, &self.policy));
        if let Want::Lease { terms, .. } = &ask.want {
            let (shape, amount) = (self.shape_for(process, account, terms), ask.amount);
            self.reshape(id, shape, amount);
        }
        let due = crate::Why::BarrierRises(id);
        if self.timers.due(due).is_some() {
            self.timers.set(due, barrier_at);
        }
        self.line.get_mut(id).barrier_at = barrier_at;
    }

    /// Leases keep a guarantee that covers them still, the oldest first; new guarantees are for those to come.
    fn mark_anew(&mut self) {
        let mut kept: BTreeMap<(NodeId, DeviceId), Bytes> = BTreeMap::new();
        for lease in self.leases.keys().copied().collect::<Vec<_>>() {
            let of = &self.leases[&lease];
            if of.right != Right::Guaranteed {
                continue;
            }
            let account = of.account;
            let mut sums: Vec<((NodeId, DeviceId), Bytes)> = Vec::new();
            let holds = of.shares.iter().all(|(device, share)| {
                let total = share.charge.total();
                self.accounts.path(account).any(|(node, found)| {
                    let sum = kept.get(&(node, *device)).copied().unwrap_or_default().saturating_add(total);
                    let fits = !found.guarantee().is_zero() && sum <= found.guarantee();
                    if fits {
                        sums.push(((node, *device), sum));
                    }
                    fits
                })
            });
            if holds {
                kept.extend(sums);
            } else {
                self.lease_mut(lease).right = Right::Lent;
                self.take_stock_everywhere(lease);
            }
        }
    }

    /// Surplus of leases is asked back where an account is charged more than its limit.
    fn recall_beyond_limits(&mut self) {
        let mut excess: BTreeMap<NodeId, Bytes> = BTreeMap::new();
        for (id, node) in self.accounts.all() {
            let limit = node.bytes.limit().map_or(Bytes::MAX, Bytes::new);
            let over = Bytes::new(node.bytes.used()).saturating_sub(limit);
            if !over.is_zero() && !node.is_store() {
                excess.insert(id, over);
            }
        }
        let youngest: Vec<LeaseId> = self.leases.keys().rev().copied().collect();
        for lease in youngest {
            self.recall_excess(lease, &mut excess);
        }
    }

    fn recall_excess(&mut self, lease: LeaseId, excess: &mut BTreeMap<NodeId, Bytes>) {
        let of = &self.leases[&lease];
        if of.state != LeaseState::Active {
            return;
        }
        let path: Vec<NodeId> = self.accounts.path(of.account).map(|(id, _)| id).collect();
        let mut most = path.iter().filter_map(|id| excess.get(id)).copied().max().unwrap_or_default();
        let mut targets = BTreeMap::new();
        for (device, share) in &of.shares {
            let held = share.charge.held;
            let asked = held.saturating_sub(of.reserve).min(most);
            if !asked.is_zero() {
                targets.insert(*device, (minus(held, asked), asked));
                most = minus(most, asked);
            }
        }
        let asked: Bytes = targets.values().map(|(_, asked)| *asked).sum();
        if asked.is_zero() {
            return;
        }
        for id in path {
            if let Some(over) = excess.get_mut(&id) {
                *over = over.saturating_sub(asked);
            }
        }
        self.start_recall(lease, targets, self.now.plus(self.policy.recall_deadline));
    }
}
