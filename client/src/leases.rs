//! The leases of a session, by id: notices about them arrive on the library's thread.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use gpulease_proto::v1;
use gpulease_words::{Bytes, LeaseId};

use crate::lease_state::LeaseState;
use crate::suspension::Order;

/// Which session a lease belongs to: a broker that was restarted without its records opens a new
/// one, and numbers leases anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Epoch(u64);

impl Epoch {
    pub(crate) const FIRST: Self = Self(0);

    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How a lease is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseKey {
    pub(crate) epoch: Epoch,
    pub(crate) id: LeaseId,
}

/// The table from a lease's id to its state. Entries are weak: a lease lives by its handles.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    known: DashMap<LeaseKey, Weak<LeaseState>>,
}

impl Leases {
    /// The state of this lease: the known one where this process has it already, so that all
    /// handles of a lease share their guards.
    pub(crate) fn admit(&self, state: LeaseState) -> Arc<LeaseState> {
        let state = Arc::new(state);
        let known = {
            let mut entry = self.known.entry(state.key()).or_default();
            let known = entry.upgrade();
            if known.is_none() {
                *entry = Arc::downgrade(&state);
            }
            known
        };
        known.unwrap_or(state)
    }

    /// Removes a lease whose last handle is gone.
    pub(crate) fn forget(&self, key: LeaseKey) {
        self.known.remove_if(&key, |_, state| state.strong_count() == 0);
    }

    /// A notice, for the lease that it is about.
    pub(crate) fn recalled(&self, epoch: Epoch, notice: &v1::RecallNotice) {
        if let Some(lease) = self.get(LeaseKey { epoch, id: LeaseId::new(notice.lease_id) }) {
            lease.recalled(notice);
        }
    }

    /// A notice, for the lease that it is about.
    pub(crate) fn ended(&self, epoch: Epoch, notice: v1::LeaseEnded) {
        if let Some(lease) = self.get(LeaseKey { epoch, id: LeaseId::new(notice.lease_id) }) {
            lease.ended(notice);
        }
    }

    /// What its owner has made of its sizes, for the lease that they are of.
    pub(crate) fn resized(&self, epoch: Epoch, sizes: &v1::LeaseSizes) {
        if let Some(lease) = self.get(LeaseKey { epoch, id: LeaseId::new(sizes.lease_id) }) {
            lease.resized(Bytes::new(sizes.reserve_bytes), Bytes::new(sizes.limit_bytes));
        }
    }

    /// A notice of a suspension, for the lease that it is about.
    pub(crate) fn order(&self, epoch: Epoch, lease: u64, order: Order) {
        if let Some(lease) = self.get(LeaseKey { epoch, id: LeaseId::new(lease) }) {
            lease.order(order);
        }
    }

    /// After a rejoin: all leases but these have all their memory, whatever they heard before.
    pub(crate) fn rejoined(&self, epoch: Epoch, standings: &[v1::LeaseStanding]) {
        let moving: BTreeSet<LeaseId> = standings.iter().map(|s| LeaseId::new(s.lease_id)).collect();
        for lease in self.of(epoch) {
            if !moving.contains(&lease.id()) {
                lease.order_if_movable(Order::Whole);
            }
        }
    }

    /// The broker does not know this session any more, nor its leases.
    pub(crate) fn lost(&self, epoch: Epoch) {
        for lease in self.of(epoch) {
            lease.lost();
        }
    }

    // The table's lock must be free again when a state is dropped, since that calls `forget`; so
    // these return owned values.
    fn get(&self, key: LeaseKey) -> Option<Arc<LeaseState>> {
        self.known.get(&key).and_then(|state| state.upgrade())
    }

    fn of(&self, epoch: Epoch) -> Vec<Arc<LeaseState>> {
        let of_it = self.known.iter().filter(|entry| entry.key().epoch == epoch);
        of_it.filter_map(|entry| entry.value().upgrade()).collect()
    }
}
