//! Why an ask waits, in numbers.

use std::collections::BTreeSet;

use gpulease_words::{Bytes, DeviceId, Reason};

use crate::accounts::{Node, NodeId, Resource};
use crate::ledger::{Health, plus};
use crate::line::ask::{Ask, Post, Right, Stage, Want, resources};
use crate::line::gate::{Gate, Standing};
use crate::line::placement::pins;
use crate::line::shape::Use;
use crate::line::units;
use crate::{Arbiter, Denial, Pinning};

/// What is in an ask's way.
#[derive(Clone, Debug)]
pub(crate) struct Obstacle {
    pub(crate) reason: Reason,
    /// What is missing where least is missing.
    pub(crate) short_by: Bytes,
    /// On which device.
    pub(crate) device: Option<DeviceId>,
    /// What that device has to give to this ask.
    room: Bytes,
    /// What it needs there, or of the account.
    asked: Bytes,
    pub(crate) account: Option<Account>,
    /// What a store says, where it is in the way.
    store: Option<Denial>,
}

/// The account in the way, and its figures.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) path: String,
    resource: Resource,
    limit: u64,
    used: u64,
}

impl Arbiter {
    /// What is in the ask's way: its accounts first, because bytes on a device would not help it
    /// there, then its devices.
    pub(crate) fn obstacle(&self, ask: &Ask) -> Obstacle {
        if let (Stage::OwnDrain, Want::Segment(wanted)) = (&ask.stage, &ask.want) {
            let aside = self.leases[&wanted.lease].share(wanted.device).charge.set_aside;
            return on_device(Reason::Draining, wanted.device, wanted.bytes, aside);
        }
        if let (Stage::AtLimit, Want::Segment(wanted)) = (&ask.stage, &ask.want) {
            let of = &self.leases[&wanted.lease];
            let left = of.limit.saturating_sub(of.share(wanted.device).charge.in_segments());
            return on_device(Reason::Draining, wanted.device, wanted.bytes, left);
        }
        let needs = self.needs(ask);
        if ask.stage == Stage::Leaving {
            return on_device(Reason::Suspended, needs[0].0, needs[0].1, Bytes::ZERO);
        }
        let cost: Bytes = needs.iter().map(|(_, need)| *need).sum();
        let lost = needs.iter().find(|(device, _)| self.ledger.book(*device).health == Health::Lost);
        if let Some((device, need)) = lost {
            return on_device(Reason::DeviceLost, *device, *need, Bytes::ZERO);
        }
        let at_store = |room| self.at_store(ask, &needs, room);
        self.at_limit(ask, cost)
            .or_else(|| at_store(if ask.post().is_some() { Gate::left } else { newcomers }))
            .or_else(|| self.short_device(ask, &needs))
            .or_else(|| if self.is_parked_at_store(ask) { at_store(newcomers) } else { None })
            .or_else(|| self.behind_barriers(ask, cost))
            .unwrap_or_else(|| on_device(Reason::NoRoom, needs[0].0, needs[0].1, needs[0].1))
    }

    fn is_parked_at_store(&self, ask: &Ask) -> bool {
        matches!(ask.post(), Some(Post::Parked(node, _)) if self.accounts.node(node).is_store())
    }

    /// Whether its accounts and the stores have room for it, so that only its devices are short.
    pub(crate) fn waits_for_devices_alone(&self, ask: &Ask) -> bool {
        if let Some(post) = ask.post() {
            return post.collects();
        }
        let needs = self.needs(ask);
        let cost: Bytes = needs.iter().map(|(_, need)| *need).sum();
        self.behind_barriers(ask, cost).is_none() && self.at_store(ask, &needs, newcomers).is_none()
    }

    fn needs(&self, ask: &Ask) -> Vec<(DeviceId, Bytes)> {
        match &ask.stage {
            Stage::Barrier { needs, .. } => needs.clone(),
            Stage::InLine | Stage::OwnDrain | Stage::AtLimit | Stage::Leaving => {
                self.line.least_missing(ask, None, &self.accounts, &self.ledger)
            }
        }
    }

    /// The first account from the job up whose limit does not allow it now.
    fn at_limit(&self, ask: &Ask, cost: Bytes) -> Option<Obstacle> {
        self.blocking(ask, cost, |node, resource| node.gate(resource).left(), Reason::AccountLimit)
    }

    /// The first account from the job up whose room is kept for barriers.
    fn behind_barriers(&self, ask: &Ask, cost: Bytes) -> Option<Obstacle> {
        if ask.post().is_some_and(Post::collects) {
            return None;
        }
        self.blocking(
            ask,
            cost,
            |node, resource| node.gate(resource).room(Standing::Newcomer),
            Reason::BehindOthers,
        )
    }

    fn blocking(
        &self,
        ask: &Ask,
        cost: Bytes,
        room: impl Fn(&Node, Resource) -> u64,
        reason: Reason,
    ) -> Option<Obstacle> {
        let gates = resources(self.line.shape_of(ask).purpose);
        let mut path = self.accounts.path(ask.account);
        path.find_map(|(_, node): (NodeId, &Node)| {
            let resource = *gates.iter().find(|r| room(node, **r) < units(**r, cost))?;
            let short_by = match resource {
                Resource::Slots => Bytes::ZERO,
                Resource::Bytes => Bytes::new(cost.get() - room(node, resource)),
            };
            let gate = node.gate(resource);
            let (limit, used) = (gate.limit().unwrap_or(u64::MAX), gate.used());
            let account = Some(Account { path: node.key.to_string(), resource, limit, used });
            Some(Obstacle {
                reason,
                short_by,
                device: None,
                room: Bytes::ZERO,
                asked: cost,
                account,
                store: None,
            })
        })
    }

    fn is_recalled_for(&self, device: DeviceId) -> bool {
        self.accounts.stores.bind() && !self.recalled_on(&BTreeSet::from([device])).is_empty()
    }

    /// The store that has too little for it now: what may be pinned, or host memory for copies.
    fn at_store(
        &self,
        ask: &Ask,
        needs: &[(DeviceId, Bytes)],
        room_of: fn(&Gate) -> u64,
    ) -> Option<Obstacle> {
        let shape = self.line.shape_of(ask);
        let copied = shape.purpose == Use::Growth && shape.hold == Pinning::Movable;
        let exempt = ask.right != Right::Lent && !copied;
        if !self.accounts.stores.bind() || exempt || shape.purpose == Use::Resume {
            return None;
        }
        if ask.post().is_some_and(Post::collects) {
            return None;
        }
        let room = |store: NodeId| Bytes::new(room_of(&self.accounts.node(store).bytes));
        let full = |route| {
            needs.iter().find_map(|(device, need)| {
                let pinned = pins(route, shape, *device, ask.amount, &self.ledger).min(*need);
                let room = room(self.accounts.stores.pinned(*device));
                (ask.right == Right::Lent && pinned > room).then_some((*device, pinned, room))
            })
        };
        let pinned = |(device, asked, room)| Obstacle {
            store: Some(self.pinned_full(device, asked)),
            ..on_device(Reason::PinnedFull, device, asked, room)
        };
        let as_pinned = full(Pinning::Pinned);
        // A barrier waits for one way to be held, anyone else takes whichever there is.
        let either = shape.purpose == Use::Lease && ask.post().is_none();
        if shape.hold == Pinning::Pinned || as_pinned.is_none() && either {
            return as_pinned.map(pinned);
        }
        let context = |device| pins(Pinning::Movable, shape, device, Bytes::ZERO, &self.ledger);
        let copies: Bytes = needs.iter().map(|(device, need)| need.saturating_sub(context(*device))).sum();
        let free = room(self.accounts.stores.arena());
        if copies <= free {
            return full(Pinning::Movable).map(pinned);
        }
        let (_, capacity) = self.accounts.arena_figures();
        let store = Some(Denial::ArenaFull { capacity, free, asked: copies });
        let short_by = copies.saturating_sub(free);
        Some(Obstacle { short_by, store, ..on_device(Reason::ArenaFull, needs[0].0, copies, free) })
    }

    /// Of the devices it needs, the one where most is missing.
    fn short_device(&self, ask: &Ask, needs: &[(DeviceId, Bytes)]) -> Option<Obstacle> {
        let age = ask.post().is_some_and(Post::collects).then_some(ask.turn());
        let mut worst: Option<(Bytes, Obstacle)> = None;
        for (device, need) in needs {
            let book = self.ledger.book(*device);
            let room = self.line.piles.left(*device, book.free, age);
            let missing = need.saturating_sub(room);
            if missing.is_zero() || worst.as_ref().is_some_and(|(most, _)| *most >= missing) {
                continue;
            }
            let reason = if book.free >= *need {
                Reason::Barrier
            } else if plus(book.free, book.charge.draining) >= *need {
                Reason::Draining
            } else if self.is_recalled_for(*device) {
                Reason::Recalled
            } else {
                Reason::NoRoom
            };
            worst = Some((missing, on_device(reason, *device, *need, room)));
        }
        worst.map(|(_, obstacle)| obstacle)
    }
}

/// What a gate leaves to anyone behind all barriers.
fn newcomers(gate: &Gate) -> u64 {
    gate.room(Standing::Newcomer)
}

fn on_device(reason: Reason, device: DeviceId, asked: Bytes, room: Bytes) -> Obstacle {
    let short_by = asked.saturating_sub(room);
    Obstacle { reason, short_by, device: Some(device), room, asked, account: None, store: None }
}

impl Obstacle {
    /// As a refusal for one who does not wait.
    pub(crate) fn denial(&self) -> Denial {
        if let Some(denial) = &self.store {
            return denial.clone();
        }
        match (&self.account, self.device) {
            (Some(Account { path, resource: Resource::Slots, limit, .. }), _) => Denial::TooMany {
                what: "leases",
                account: path.clone(),
                max: u32::try_from(*limit).unwrap_or(u32::MAX),
            },
            (Some(Account { path, resource: Resource::Bytes, limit, used }), _) => {
                let (account, limit, charged) = (path.clone(), Bytes::new(*limit), Bytes::new(*used));
                if self.reason == Reason::BehindOthers {
                    Denial::AccountDue { account, limit, charged, asked: self.asked }
                } else {
                    Denial::AccountFull { account, limit, charged, asked: self.asked }
                }
            }
            (None, Some(device)) if self.reason == Reason::DeviceLost => Denial::DeviceLost { device },
            (None, Some(device)) => Denial::NoRoom { asked: self.asked, room: self.room, device },
            (None, None) => unreachable!("an obstacle is an account or a device"),
        }
    }
}
