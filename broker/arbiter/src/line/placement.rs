//! Where an ask can be granted: the devices that have enough, as far as its accounts and the stores allow.

use gpulease_words::{Bytes, DeviceId};

use crate::Pinning;
use crate::accounts::{Accounts, Node};
use crate::ledger::Ledger;
use crate::line::ask::{Ask, Right, resources};
use crate::line::gate::Standing;
use crate::line::shape::{Shape, Use, cost};
use crate::line::{Line, units};

impl Line {
    /// Where a barrier that roams can be granted behind all others. It pledged for the devices it is
    /// bound to; where others cost more, for contexts, its accounts must have that too.
    pub(crate) fn elsewhere(&self, ask: &Ask, accounts: &Accounts, ledger: &Ledger) -> Option<Vec<DeviceId>> {
        let pledged: Bytes = ask.needs().iter().map(|(_, need)| *need).sum();
        let passes = |cost: Bytes| {
            let more = cost.saturating_sub(pledged).get();
            let mut path = accounts.path(ask.account);
            more == 0 || path.all(|(_, node)| node.bytes.room(Standing::Newcomer) >= more)
        };
        if !self.roams(ask) {
            return None;
        }
        let give = |device| self.available(device, ledger);
        if ask.right != Right::Lent {
            return self.devices_for(ask, ledger, give, passes);
        }
        // What it pledged at the arena is its own wherever it goes; of another device it pins anew.
        let shape = self.shape_of(ask);
        let pins = |device| pins(shape.hold, shape, device, ask.amount, ledger);
        let allowed = |device| !accounts.stores.bind() || pins(device) <= accounts.pinned_room(device);
        let give = |device| give(device).filter(|_| allowed(device));
        self.devices_for(ask, ledger, give, passes)
    }

    /// The devices on which the ask fits behind all barriers: those with the most to give, or, where
    /// its accounts can't pay for its contexts there, those that cost it least.
    fn devices_for(
        &self,
        ask: &Ask,
        ledger: &Ledger,
        give: impl Fn(DeviceId) -> Option<Bytes>,
        affordable: impl Fn(Bytes) -> bool,
    ) -> Option<Vec<DeviceId>> {
        let shape = self.shape_of(ask);
        let fits = |device| {
            let given = give(device)?;
            (given.checked_sub(shape.overhead(device, ledger))? >= ask.amount).then_some(given)
        };
        let paid = |devices: &Vec<DeviceId>| affordable(cost(shape, ask.amount, devices, ledger));
        let roomiest = choose(shape, ledger, fits, |_| Bytes::ZERO).filter(paid);
        let context = |device| shape.overhead(device, ledger);
        roomiest.or_else(|| choose(shape, ledger, fits, context).filter(paid))
    }

    /// Where the ask can be granted now as one that is no barrier.
    pub(crate) fn placement(&self, ask: &Ask, accounts: &Accounts, ledger: &Ledger) -> Option<Vec<DeviceId>> {
        self.placement_in(ask, accounts, ledger, &|device| self.available(device, ledger))
    }

    /// Where it could be granted as one that is no barrier if the devices had so much to give.
    pub(crate) fn placement_in(
        &self,
        ask: &Ask,
        accounts: &Accounts,
        ledger: &Ledger,
        give: &dyn Fn(DeviceId) -> Option<Bytes>,
    ) -> Option<Vec<DeviceId>> {
        let shape = self.shape_of(ask);
        let gates = resources(shape.purpose);
        let affordable = |cost: Bytes| {
            let room = |node: &Node, resource| node.gate(resource).room(Standing::Newcomer);
            let mut path = accounts.path(ask.account);
            path.all(|(_, node)| gates.iter().all(|r| room(node, *r) >= units(*r, cost)))
        };
        shape.routes().iter().find_map(|route| {
            let give = |device| give_by(*route, shape, device, accounts, ledger, give);
            self.devices_for(ask, ledger, give, affordable)
        })
    }
}

/// What a device that has so much to give gives to an ask of the shape that would hold it so: no more
/// than the stores leave room for.
pub(crate) fn give_by(
    route: Pinning,
    shape: &Shape,
    device: DeviceId,
    accounts: &Accounts,
    ledger: &Ledger,
    give: &dyn Fn(DeviceId) -> Option<Bytes>,
) -> Option<Bytes> {
    let given = give(device)?;
    if !accounts.stores.bind() || shape.purpose == Use::Resume {
        return Some(given);
    }
    match route {
        Pinning::Pinned => Some(given.min(accounts.pinned_room(device))),
        Pinning::Movable => {
            let context = pins(route, shape, device, Bytes::ZERO, ledger);
            let copies = Bytes::new(accounts.arena_room().get() / u64::from(shape.count()));
            let fits = context <= accounts.pinned_room(device);
            fits.then(|| given.min(copies.saturating_add(context)))
        }
    }
}

/// What an ask of the shape that is held so can't move of what it takes on a device.
pub(crate) fn pins(route: Pinning, shape: &Shape, device: DeviceId, amount: Bytes, ledger: &Ledger) -> Bytes {
    let context = match shape.purpose {
        Use::Lease => shape.overhead(device, ledger),
        Use::Growth | Use::Resume => Bytes::ZERO,
    };
    match route {
        Pinning::Pinned => amount.saturating_add(context),
        Pinning::Movable => context,
    }
}

/// Of the devices that fit: the named ones, or as many as are wanted that cost the least, then those
/// with the most to give, ties by the lower index.
fn choose(
    shape: &Shape,
    ledger: &Ledger,
    fits: impl Fn(DeviceId) -> Option<Bytes>,
    cost: impl Fn(DeviceId) -> Bytes,
) -> Option<Vec<DeviceId>> {
    match &shape.wish {
        crate::DeviceWish::These(devices) => devices.iter().map(|d| fits(*d).map(|_| *d)).collect(),
        crate::DeviceWish::Any(n) => {
            let wanted = n.get() as usize;
            let mut fitting: Vec<_> =
                ledger.usable().filter_map(|(d, _)| fits(d).map(|room| (d, room))).collect();
            fitting.sort_by_key(|(device, room)| (cost(*device), std::cmp::Reverse(*room), *device));
            (fitting.len() >= wanted)
                .then(|| fitting.into_iter().take(wanted).map(|(device, _)| device).collect())
        }
    }
}
