//! Who could give bytes of a device: leases that a suspension would move, and those that hold more
//! than their reserve.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{Bytes, DeviceId, LeaseId};

use crate::Time;
use crate::lease::Stock;
use crate::ledger::{minus, plus};

/// Of one device.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    /// Leases that can be suspended and have something, those first that have had it for the longest time.
    pub(crate) movable: BTreeSet<(Time, LeaseId)>,
    /// Leases that hold more than their reserve.
    pub(crate) elastic: BTreeSet<LeaseId>,
    /// What all of them could give.
    pub(crate) givable: Bytes,
}

/// Of all devices, while the stores bind.
#[derive(Debug, Default)]
pub(crate) struct Holders(BTreeMap<DeviceId, Holding>);

impl Holders {
    /// The lease, which has its memory since then, has other figures than before.
    pub(crate) fn recount(
        &mut self,
        (lease, since): (LeaseId, Time),
        device: DeviceId,
        before: Stock,
        after: Stock,
    ) {
        let on = self.0.entry(device).or_default();
        on.givable = minus(plus(on.givable, givable(after)), givable(before));
        list(&mut on.movable, (since, lease), after.gives);
        list(&mut on.elastic, lease, after.surplus);
    }

    /// Of the device.
    pub(crate) fn on(&self, device: DeviceId) -> Option<&Holding> {
        self.0.get(&device)
    }

    /// Panics when it is not what these figures make it.
    pub(crate) fn check(&self, stocks: impl Iterator<Item = ((LeaseId, Time), DeviceId, Stock)>) {
        let mut anew = Self::default();
        for (lease, device, stock) in stocks {
            anew.recount(lease, device, Stock::default(), stock);
        }
        let some = |holders: &Self| {
            let on = holders.0.iter().filter(|(_, on)| !on.givable.is_zero());
            on.map(|(d, on)| (*d, on.movable.clone(), on.elastic.clone(), on.givable)).collect::<Vec<_>>()
        };
        assert_eq!(some(self), some(&anew), "who could give");
    }
}

/// A movable lease gives all of it, any other its surplus.
fn givable(stock: Stock) -> Bytes {
    stock.gives.max(stock.surplus)
}

fn list<T: Ord>(set: &mut BTreeSet<T>, lease: T, bytes: Bytes) {
    if bytes.is_zero() {
        set.remove(&lease);
    } else {
        set.insert(lease);
    }
}
