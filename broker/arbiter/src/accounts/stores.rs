//! What is bounded beyond the account tree: the bytes of each device that can't be moved and that no
//! guarantee covers, and the host memory for copies.
//!
//! Each is a node beside the tree whose gate counts bytes, so that barriers pledge there after the
//! host and before they collect on their devices: who waits for a pinned place holds back no
//! device bytes that movable leases could use.
//!
//! Where there is neither an arena, nor a guarantee, nor a bound set by the operator, the stores can't
//! be in anyone's way, and nothing is counted.

use std::collections::BTreeMap;

use gpulease_words::{Bytes, DeviceId};

use crate::accounts::{Accounts, Key, NodeId, node};
use crate::ledger::Ledger;
use crate::line::gate::Standing;
use crate::line::shape::Pledges;
use crate::{Budget, Policy};

/// Whether the stores bound anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Binding {
    #[default]
    Idle,
    Binding,
}

/// The nodes of the stores.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    pub(crate) binding: Binding,
    pinned: BTreeMap<DeviceId, NodeId>,
    arena: Option<NodeId>,
}

impl Stores {
    pub(crate) const fn bind(&self) -> bool {
        matches!(self.binding, Binding::Binding)
    }

    /// Whether what barriers pledged hides the asks behind it: guarantees count while the stores bind.
    pub(crate) const fn pledges(&self) -> Pledges {
        if self.bind() { Pledges::Yield } else { Pledges::Bar }
    }

    /// Every store.
    pub(crate) fn all(&self) -> Vec<NodeId> {
        self.pinned.values().copied().chain(self.arena).collect()
    }

    /// The store of what may be pinned of a device.
    pub(crate) fn pinned(&self, device: DeviceId) -> NodeId {
        *self.pinned.get(&device).expect("every device has its store while the stores bind")
    }

    /// The store of host memory.
    pub(crate) fn arena(&self) -> NodeId {
        self.arena.expect("the arena has its store while the stores bind")
    }
}

impl Key {
    pub(super) const fn is_store(&self) -> bool {
        match self {
            Self::Pinned(_) | Self::Arena => true,
            Self::Host | Self::Group(_) | Self::User(_) | Self::Job(..) => false,
        }
    }
}

impl Accounts {
    /// Makes or bounds the stores by what policy and budgets say now.
    pub(crate) fn set_stores(&mut self, policy: &Policy, ledger: &Ledger) {
        let idle = policy.arena.is_zero() && policy.pinned_max.is_none() && !self.budgets.guarantee();
        if idle {
            for store in std::mem::take(&mut self.stores).all() {
                self.nodes.remove(&store);
            }
            return;
        }
        let guarantees = self.budgets.guaranteed();
        for (device, book) in ledger.all() {
            let most = policy.pinned_max_of(book.capacity, guarantees);
            let store = self.store(Key::Pinned(device), self.stores.pinned.get(&device).copied(), most);
            self.stores.pinned.insert(device, store);
        }
        self.stores.arena = Some(self.store(Key::Arena, self.stores.arena, policy.arena));
        self.stores.binding = Binding::Binding;
    }

    fn store(&mut self, key: Key, known: Option<NodeId>, most: Bytes) -> NodeId {
        let id = known.unwrap_or_else(|| {
            self.last = NodeId(self.last.0.checked_add(1).expect("fewer accounts than 2^64 are ever made"));
            self.nodes.insert(self.last, node(key, None, &Budget::default()));
            self.last
        });
        self.node_mut(id).bytes.set_limit(Some(most.get()));
        id
    }

    /// What a newcomer may still pin of the device.
    pub(crate) fn pinned_room(&self, device: DeviceId) -> Bytes {
        Bytes::new(self.node(self.stores.pinned(device)).bytes.room(Standing::Newcomer))
    }

    /// What is neither pinned of the device nor pledged to barriers.
    pub(crate) fn pinned_left(&self, device: DeviceId) -> Bytes {
        Bytes::new(self.node(self.stores.pinned(device)).bytes.room(Standing::Head))
    }

    /// The host memory that a newcomer may still have copies in.
    pub(crate) fn arena_room(&self) -> Bytes {
        Bytes::new(self.node(self.stores.arena()).bytes.room(Standing::Newcomer))
    }

    /// What is pinned of the device and what may be; nothing and the capacity where nothing is counted.
    pub(crate) fn pinned_figures(&self, device: DeviceId, capacity: Bytes) -> (Bytes, Bytes) {
        if !self.stores.bind() {
            return (Bytes::ZERO, capacity);
        }
        let gate = &self.node(self.stores.pinned(device)).bytes;
        (Bytes::new(gate.used()), Bytes::new(gate.limit().unwrap_or(u64::MAX)))
    }

    /// What of the arena is used, and all of it.
    pub(crate) fn arena_figures(&self) -> (Bytes, Bytes) {
        if !self.stores.bind() {
            return (Bytes::ZERO, Bytes::ZERO);
        }
        let gate = &self.node(self.stores.arena()).bytes;
        (Bytes::new(gate.used()), Bytes::new(gate.limit().unwrap_or(u64::MAX)))
    }

    /// A store counts other bytes of one lease than before.
    pub(crate) fn restock(&mut self, store: NodeId, before: Bytes, after: Bytes) {
        if before == after {
            return;
        }
        let gate = &mut self.node_mut(store).bytes;
        gate.give(before.get());
        gate.take(after.get());
    }
}

impl Policy {
    /// What may be pinned of a device of that capacity beyond guarantees.
    #[must_use]
    pub(crate) fn pinned_max_of(&self, capacity: Bytes, guarantees: Bytes) -> Bytes {
        let left = capacity.saturating_sub(guarantees).saturating_sub(self.headroom);
        match self.pinned_max {
            Some(most) => most,
            None if self.arena.is_zero() => left,
            None => left.min(Bytes::new(capacity.get() / 2)),
        }
    }
}
