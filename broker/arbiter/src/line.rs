//! The line: the asks that wait, and which of them is next.
//!
//! **Order.** Barriers go first, the oldest first. Then hierarchical weighted max-min: from the host
//! down, the account with the least `charged / weight` goes first, ties by the arrival of its oldest
//! ask; within a job the asks go as they came. Whoever can't use the room now is passed over
//! (backfill), so that a large ask does not idle the card; `max_wait` later it is a barrier.
//!
//! **Barriers.** After `max_wait` nothing overtakes an ask, neither on its devices nor in its
//! accounts. It climbs from its job to the host and pledges what it needs at each ([`crate::line::gate`]); with all
//! of them behind it, it collects on its devices ([`crate::line::pile`]). Where an account has too little
//! room it is parked, and holds back room of that account and of those below it, but nothing of the
//! accounts above and no device bytes. So one's own budget makes nobody else wait, barriers of one
//! account together never hold back more than its limit could let them use, and an ask that is large for its group's
//! limit is not starved by small ones of the same group. All waits go upward (job, user,
//! group, host, devices) and by age on the devices: there is no cycle.
//!
//! An ask for any device is bound to those where least is missing when it becomes a barrier, and
//! anew when one of them can't give it any more. It holds back there, and is still granted
//! elsewhere if other devices have room sooner ([`crate::line::roamers`]).
//!
//! **Cost.** An account with waiting asks stands in its parent's [`Roster`] with a summary of what
//! could be granted below it by its own limits. A charge changes four accounts' places; the search
//! goes down four rosters. Both are O(log n) for n waiting asks, times the number of different
//! [`Shape`]s (which devices, which contexts) among them.

pub(crate) mod ask;
mod barrier;
mod check;
pub(crate) mod gate;
pub(crate) mod pile;
pub(crate) mod placement;
mod roamers;
pub(crate) mod roster;
pub(crate) mod shape;

use std::collections::BTreeMap;

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::accounts::{Accounts, NodeId};
use crate::ledger::{Health, Ledger};
use crate::line::ask::{Ask, Right, Seniority, Stage, Turn};
use crate::line::pile::Piles;
use crate::line::placement::give_by;
use crate::line::roamers::Roamers;
use crate::line::roster::{Place, Roster, Who};
use crate::line::shape::{Bounds, Shape, Shapes, Summary};

/// Those who wait below an account.
#[derive(Debug, Default)]
struct Queue {
    roster: Roster,
    /// How the account stands in its parent's roster.
    standing: Option<(NodeId, Place, Summary)>,
}

/// The asks that wait.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) asks: BTreeMap<AskId, Ask>,
    pub(crate) shapes: Shapes,
    pub(crate) piles: Piles,
    roamers: Roamers,
    queues: BTreeMap<NodeId, Queue>,
}

impl Line {
    pub(crate) fn get(&self, ask: AskId) -> &Ask {
        self.asks.get(&ask).expect("whoever names an ask was told when it left the line")
    }

    pub(crate) fn get_mut(&mut self, ask: AskId) -> &mut Ask {
        self.asks.get_mut(&ask).expect("whoever names an ask was told when it left the line")
    }

    pub(crate) fn shape_of(&self, ask: &Ask) -> &Shape {
        self.shapes.get(ask.shape)
    }

    /// The ask waits from now on.
    pub(crate) fn join(&mut self, ask: Ask, accounts: &mut Accounts) {
        let id = ask.id;
        let enrolled = ask.is_in_roster();
        self.asks.insert(id, ask);
        if enrolled {
            self.enroll(id, accounts);
        }
    }

    /// The ask waits no longer.
    pub(crate) fn leave(&mut self, id: AskId, accounts: &mut Accounts) -> Ask {
        self.retreat(id, accounts);
        let ask = self.asks.remove(&id).expect("whoever names an ask was told when it left the line");
        if ask.is_in_roster() {
            self.strike(&ask, accounts);
        }
        self.shapes.leave(ask.shape);
        ask
    }

    /// The ask's needs changed: it keeps its age.
    pub(crate) fn reshape(
        &mut self,
        id: AskId,
        shape: Shape,
        amount: Bytes,
        accounts: &mut Accounts,
        ledger: &Ledger,
    ) {
        let ask = self.get(id);
        if ask.amount == amount && *self.shape_of(ask) == shape {
            return;
        }
        let was_barrier = ask.post().is_some();
        let shape = self.shapes.enter(shape);
        let ask = self.leave(id, accounts);
        let stage = if was_barrier { Stage::InLine } else { ask.stage };
        self.join(Ask { shape, amount, stage, ..ask }, accounts);
        self.rise_if_due(id, accounts, ledger);
    }

    /// The ask goes by another right from now on: one that is better than lent is a barrier at once.
    pub(crate) fn set_right(&mut self, id: AskId, right: Right, accounts: &mut Accounts, ledger: &Ledger) {
        self.retreat(id, accounts);
        let ask = self.asks.get_mut(&id).expect("whoever names an ask was told when it left the line");
        ask.right = right;
        if ask.post().is_some() {
            ask.stage = Stage::InLine;
            self.enroll(id, accounts);
        }
        self.rise_if_due(id, accounts, ledger);
    }

    /// A barrier that was taken apart is one again, if it needs anything.
    fn rise_if_due(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        let ask = self.get(id);
        let due = ask.seniority == Seniority::Senior || ask.right != Right::Lent;
        if due && ask.stage == Stage::InLine && self.lacks(ask) {
            self.rise(id, accounts, ledger);
        }
    }

    /// Whether the ask needs anything of any device.
    pub(crate) fn lacks(&self, ask: &Ask) -> bool {
        !ask.amount.is_zero() || !self.shape_of(ask).extra.is_empty()
    }

    /// The ask leaves the line and waits aside, for this.
    pub(crate) fn wait_aside(&mut self, id: AskId, stage: Stage, accounts: &mut Accounts) {
        self.retreat(id, accounts);
        let ask = self.get(id).clone();
        if ask.is_in_roster() {
            self.strike(&ask, accounts);
        }
        self.get_mut(id).stage = stage;
    }

    /// An ask that waited aside stands in the line.
    pub(crate) fn stand_in(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        self.get_mut(id).stage = Stage::InLine;
        self.enroll(id, accounts);
        self.rise_if_due(id, accounts, ledger);
    }

    /// Every barrier stands anew: limits or stores are others than before.
    pub(crate) fn rise_all(&mut self, accounts: &mut Accounts, ledger: &Ledger) {
        let barriers: Vec<AskId> =
            self.asks.values().filter(|ask| ask.post().is_some()).map(|ask| ask.id).collect();
        for id in barriers {
            self.rise_again(id, accounts, ledger);
        }
    }

    /// Puts the ask into its job's roster.
    pub(crate) fn enroll(&mut self, id: AskId, accounts: &mut Accounts) {
        let ask = self.get(id);
        let (account, own) = (ask.account, Summary::of(id, ask.shape, ask.amount));
        self.queues.entry(account).or_default().roster.insert(place_of(id), own);
        accounts.node_mut(account);
    }

    /// Takes the ask out of its job's roster.
    pub(crate) fn strike(&mut self, ask: &Ask, accounts: &mut Accounts) {
        let queue = self.queues.get_mut(&ask.account).expect("an ask in a roster has a queue");
        queue.roster.remove(place_of(ask.id));
        accounts.node_mut(ask.account);
    }

    /// Brings the places of the touched accounts, and the barriers at their gates, up to date.
    pub(crate) fn refresh(&mut self, accounts: &mut Accounts, ledger: &Ledger) {
        while let Some(node) = accounts.pop_touched() {
            self.tend(node, accounts, ledger);
            self.put_in_place(node, accounts, ledger);
        }
    }

    /// What a device has to give to anyone who is no barrier; `None` where it is lost.
    pub(crate) fn available(&self, device: DeviceId, ledger: &Ledger) -> Option<Bytes> {
        let book = ledger.get(device).filter(|book| book.health == Health::Usable)?;
        Some(self.piles.left(device, book.free, None))
    }

    /// The next ask that can be granted, and on which devices.
    pub(crate) fn first_fit(&self, accounts: &Accounts, ledger: &Ledger) -> Option<(AskId, Vec<DeviceId>)> {
        let barrier = self.piles.first_fit(ledger, |id| self.get(id).needs());
        if let Some(id) = barrier {
            return Some((id, self.get(id).needs().iter().map(|(device, _)| *device).collect()));
        }
        if let Some(found) = self.first_roamer(accounts, ledger) {
            return Some(found);
        }
        self.first_in_turn(accounts, ledger, &|device| self.available(device, ledger))
    }

    /// The first in the fair order that would fit if the devices had so much to give, and where.
    pub(crate) fn first_in_turn(
        &self,
        accounts: &Accounts,
        ledger: &Ledger,
        give: &dyn Fn(DeviceId) -> Option<Bytes>,
    ) -> Option<(AskId, Vec<DeviceId>)> {
        let summary = self.queues.get(&NodeId::HOST)?.roster.summary()?;
        let bounds = Bounds::on_devices(summary, &self.shapes, ledger, |shape, device| {
            shape
                .routes()
                .iter()
                .filter_map(|route| give_by(*route, shape, device, accounts, ledger, give))
                .max()
        });
        self.first_below(NodeId::HOST, &bounds, accounts, ledger, give)
    }

    /// The first in the fair order below an account that `covered` finds covered, where the account's
    /// guarantee still has so much on each device.
    pub(crate) fn first_covered<T>(
        &self,
        node: NodeId,
        ledger: &Ledger,
        room: &dyn Fn(DeviceId) -> Option<Bytes>,
        covered: &dyn Fn(&Ask) -> Option<T>,
    ) -> Option<(AskId, T)> {
        let queue = self.queues.get(&node)?;
        let bounds =
            Bounds::on_devices(queue.roster.summary()?, &self.shapes, ledger, |_, device| room(device));
        queue.roster.first(&bounds, &mut |who| match who {
            Who::Ask(id) => covered(self.get(id)).map(|found| (id, found)),
            Who::Account(below) => self.first_covered(below, ledger, room, covered),
        })
    }

    /// The oldest barrier for which devices that it is not bound to have room.
    fn first_roamer(&self, accounts: &Accounts, ledger: &Ledger) -> Option<(AskId, Vec<DeviceId>)> {
        let give = |device| self.available(device, ledger);
        let bound = |shape| self.shapes.get(shape).bound_on_devices(ledger, give);
        self.roamers.oldest(bound, |id| self.elsewhere(self.get(id), accounts, ledger))
    }

    /// The asks in the order in which the line would serve them.
    pub(crate) fn in_order(&self) -> Vec<AskId> {
        let aside = self.asks.values().filter(|ask| match ask.stage {
            Stage::OwnDrain | Stage::AtLimit | Stage::Leaving => true,
            Stage::InLine | Stage::Barrier { .. } => false,
        });
        let mut barriers: Vec<Turn> =
            self.asks.values().filter(|ask| ask.post().is_some()).map(Ask::turn).collect();
        barriers.sort_unstable();
        let mut order: Vec<AskId> = aside.map(|ask| ask.id).collect();
        order.extend(barriers.into_iter().map(|turn| turn.ask));
        self.walk_below(NodeId::HOST, &mut order);
        order
    }

    fn walk_below(&self, node: NodeId, order: &mut Vec<AskId>) {
        let Some(queue) = self.queues.get(&node) else {
            return;
        };
        queue.roster.walk(&mut |who| match who {
            Who::Ask(id) if self.get(id).post().is_none() => order.push(id),
            Who::Ask(_) => {}
            Who::Account(below) => self.walk_below(below, order),
        });
    }

    fn first_below(
        &self,
        node: NodeId,
        bounds: &Bounds,
        accounts: &Accounts,
        ledger: &Ledger,
        give: &dyn Fn(DeviceId) -> Option<Bytes>,
    ) -> Option<(AskId, Vec<DeviceId>)> {
        let bounds = bounds.within(accounts.node(node), &self.shapes, ledger);
        let queue = self.queues.get(&node).expect("an account in a roster has a queue");
        queue.roster.first(&bounds, &mut |who| match who {
            Who::Ask(id) => {
                self.placement_in(self.get(id), accounts, ledger, give).map(|devices| (id, devices))
            }
            Who::Account(below) => self.first_below(below, &bounds, accounts, ledger, give),
        })
    }

    /// Gives the account its new place in its parent's roster; one in which nobody waits loses it.
    fn put_in_place(&mut self, id: NodeId, accounts: &mut Accounts, ledger: &Ledger) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let pledges = accounts.stores.pledges();
        let standing = queue.roster.summary().and_then(|summary| {
            let node = accounts.node(id);
            let place = Place { share: node.share(), oldest: summary.oldest, who: Who::Account(id) };
            Some((node.parent?, place, summary.behind(node, &self.shapes, ledger, pledges)))
        });
        if standing == queue.standing && standing.is_some() {
            return;
        }
        let empty = queue.roster.summary().is_none();
        let before = std::mem::replace(&mut queue.standing, standing.clone());
        if empty {
            self.queues.remove(&id);
        }
        if let Some((parent, place, _)) = before {
            accounts.touch(parent);
            self.queues.get_mut(&parent).expect("a roster with an account in it stays").roster.remove(place);
        }
        if let Some((parent, place, own)) = standing {
            accounts.touch(parent);
            self.queues.entry(parent).or_default().roster.insert(place, own);
        }
    }
}

const fn place_of(ask: AskId) -> Place {
    Place { share: 0, oldest: ask, who: Who::Ask(ask) }
}

/// How much an ask of this cost takes of a resource.
pub(crate) const fn units(resource: crate::accounts::Resource, cost: Bytes) -> u64 {
    match resource {
        crate::accounts::Resource::Slots => 1,
        crate::accounts::Resource::Bytes => cost.get(),
    }
}
