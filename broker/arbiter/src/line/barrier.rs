//! Barriers on their way up: from the line through the gates of their accounts to their devices.

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::accounts::{Accounts, NodeId, Resource};
use crate::ledger::{Ledger, plus};
use crate::line::ask::{Ask, Post, Right, Seniority, Stage, Turn, resources};
use crate::line::gate::Climb;
use crate::line::placement::pins;
use crate::line::shape::Use;
use crate::line::{Line, units};
use crate::{DeviceWish, Pinning};

/// A gate on the way up: an account's, or a store's.
pub(crate) type Step = (NodeId, Resource);

impl Line {
    /// The ask has waited long enough: nothing overtakes it from now on.
    pub(crate) fn grow_old(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        self.get_mut(id).seniority = Seniority::Senior;
        self.rise(id, accounts, ledger);
    }

    /// The ask becomes a barrier, by its age or its right.
    pub(crate) fn rise(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        let ask = self.get(id);
        if ask.stage != Stage::InLine {
            return;
        }
        let needs = self.least_missing(ask, Some(ask.turn()), accounts, ledger);
        self.strike(&ask.clone(), accounts);
        let ask = self.get_mut(id);
        ask.stage = Stage::Barrier { needs, post: Post::Collecting };
        self.start_climb(id, accounts, ledger);
    }

    /// The barrier is bound anew: a device is lost, or can't give what it could, or can again.
    pub(crate) fn rise_again(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        self.retreat(id, accounts);
        let ask = self.get(id);
        let needs = self.least_missing(ask, Some(ask.turn()), accounts, ledger);
        self.get_mut(id).stage = Stage::Barrier { needs, post: Post::Collecting };
        self.start_climb(id, accounts, ledger);
    }

    /// The device's ceiling may have moved: barriers lose hope or find it again.
    pub(crate) fn look_up(&mut self, device: DeviceId, accounts: &mut Accounts, ledger: &Ledger) {
        while let Some(id) = self.piles.turned(device, ledger) {
            self.rise_again(id, accounts, ledger);
        }
    }

    /// The ask gives up all that it holds back.
    pub(crate) fn retreat(&mut self, id: AskId, accounts: &mut Accounts) {
        let ask = self.asks.get(&id).expect("whoever names an ask was told when it left the line");
        if ask.post().is_some() {
            self.roamers.leave(ask.shape, ask.amount, ask.turn());
            self.piles.forget(ask.turn(), ask.needs());
            accounts.forget_barrier(ask.account, ask.turn());
        }
    }

    /// Lets barriers through the gates of an account that has room, and the youngest step back where it was overrun.
    pub(crate) fn tend(&mut self, node: NodeId, accounts: &mut Accounts, ledger: &Ledger) {
        for resource in [Resource::Slots, Resource::Bytes] {
            self.step_back_at((node, resource), accounts, ledger);
            while let Some(turn) = accounts.tended(node, resource).and_then(|gate| gate.admit_head()) {
                self.climb(turn.ask, Some((node, resource)), accounts, ledger);
            }
        }
    }

    fn start_climb(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        let hopeless = |(device, need): &(DeviceId, Bytes)| *need > ledger.book(*device).ceiling();
        if self.get(id).needs().iter().any(hopeless) || self.is_beyond_limits(id, accounts, ledger) {
            let of = self.needs_anywhere(self.get(id), ledger).into_iter().filter(hopeless).collect();
            self.get_mut(id).stand(Post::Hopeless);
            return self.piles.despair(id, of);
        }
        let ask = self.asks.get(&id).expect("it was just there");
        self.piles.hope(id, ask.needs());
        self.climb(id, None, accounts, ledger);
    }

    /// Whether one of its accounts could not take it even if it had nothing else: its context turned
    /// out larger than it was when the ask was made. Parked there it would keep that account shut.
    fn is_beyond_limits(&self, id: AskId, accounts: &Accounts, ledger: &Ledger) -> bool {
        let steps = self.steps(self.get(id), accounts, ledger);
        let limit = |(node, resource): (NodeId, Resource)| accounts.node(node).gate(resource).limit();
        steps.into_iter().any(|(gate, amount)| limit(gate).is_some_and(|limit| amount > limit))
    }

    fn climb(
        &mut self,
        id: AskId,
        after: Option<(NodeId, Resource)>,
        accounts: &mut Accounts,
        ledger: &Ledger,
    ) {
        let steps = self.steps(self.get(id), accounts, ledger);
        let done = after.map_or(0, |gate| {
            1 + steps.iter().position(|(step, _)| *step == gate).expect("it is on its path")
        });
        let turn = self.get(id).turn();
        for ((node, resource), amount) in &steps[done..] {
            let climb = accounts.node_mut(*node).gate_mut(*resource).climb(turn, *amount);
            self.step_back_at((*node, *resource), accounts, ledger);
            if climb == Climb::Parked {
                return self.get_mut(id).stand(Post::Parked(*node, *resource));
            }
        }
        self.get_mut(id).stand(Post::Collecting);
        let ask = self.asks.get(&id).expect("it was just there");
        self.piles.collect(turn, ask.needs());
        if self.roams(ask) {
            self.roamers.enter(ask.shape, ask.amount, turn);
        }
    }

    fn step_back_at(&mut self, (node, resource): Step, accounts: &mut Accounts, ledger: &Ledger) {
        while let Some(turn) = accounts.tended(node, resource).and_then(|gate| gate.step_back()) {
            self.step_back(turn.ask, (node, resource), accounts, ledger);
        }
    }

    fn step_back(&mut self, id: AskId, to: Step, accounts: &mut Accounts, ledger: &Ledger) {
        let (steps, turn) = (self.steps(self.get(id), accounts, ledger), self.get(id).turn());
        for ((node, resource), _) in steps.iter().rev().take_while(|(step, _)| *step != to) {
            accounts.node_mut(*node).gate_mut(*resource).forget(turn);
        }
        let ask = self.asks.get_mut(&id).expect("a pledge is of an ask that waits");
        ask.stand(Post::Parked(to.0, to.1));
        self.roamers.leave(ask.shape, ask.amount, turn);
        self.piles.let_go(turn, ask.needs());
    }

    /// Whether it takes the room of devices that it is not bound to.
    pub(crate) fn roams(&self, ask: &Ask) -> bool {
        ask.post() == Some(Post::Collecting) && matches!(self.shape_of(ask).wish, DeviceWish::Any(_))
    }

    /// The gates on the ask's way, with what it takes at each: its accounts', then, where nothing
    /// covers it, the stores'.
    pub(crate) fn steps(&self, ask: &Ask, accounts: &Accounts, ledger: &Ledger) -> Vec<(Step, u64)> {
        let cost: Bytes = ask.needs().iter().map(|(_, need)| *need).sum();
        let shape = self.shape_of(ask);
        let gates = resources(shape.purpose);
        let path = accounts.path(ask.account);
        let mut steps: Vec<(Step, u64)> =
            path.flat_map(|(id, _)| gates.iter().map(move |r| ((id, *r), units(*r, cost)))).collect();
        if !accounts.stores.bind() || shape.purpose == Use::Resume {
            return steps;
        }
        let (mut copies, lent) = (cost, ask.right == Right::Lent);
        for (device, need) in ask.needs().iter().filter(|_| lent) {
            let pinned = pins(shape.hold, shape, *device, ask.amount, ledger).min(*need);
            copies = copies.saturating_sub(pinned);
            steps.push(((accounts.stores.pinned(*device), Resource::Bytes), pinned.get()));
        }
        // A lease may turn out pinned when it is granted; one that is there and movable has its copies.
        if shape.hold == Pinning::Movable && (lent || shape.purpose == Use::Growth) {
            steps.push(((accounts.stores.arena(), Resource::Bytes), copies.get()));
        }
        steps
    }

    /// What the ask needs on the devices where least is missing for it: behind the barriers before that
    /// `turn`, or, for one that is none, behind all.
    pub(crate) fn least_missing(
        &self,
        ask: &Ask,
        turn: Option<Turn>,
        accounts: &Accounts,
        ledger: &Ledger,
    ) -> Vec<(DeviceId, Bytes)> {
        let mut needs = self.needs_anywhere(ask, ledger);
        match &self.shape_of(ask).wish {
            DeviceWish::These(_) => needs,
            DeviceWish::Any(n) => {
                needs.sort_by_key(|(device, need)| {
                    let book = ledger.book(*device);
                    let missing = need.saturating_sub(self.piles.left(*device, book.free, turn));
                    let never = *need > book.ceiling() || self.is_beyond_pins(ask, *device, accounts, ledger);
                    (never, missing, *device)
                });
                needs.truncate(n.get() as usize);
                needs
            }
        }
    }

    /// Whether more would be pinned of the device than may be, even if nothing else were.
    fn is_beyond_pins(&self, ask: &Ask, device: DeviceId, accounts: &Accounts, ledger: &Ledger) -> bool {
        let shape = self.shape_of(ask);
        let (_, most) = accounts.pinned_figures(device, ledger.book(device).capacity);
        let bound = ask.right == Right::Lent && shape.purpose == Use::Lease && accounts.stores.bind();
        bound && pins(shape.hold, shape, device, ask.amount, ledger) > most
    }

    /// What the ask would need on each device that it could take.
    pub(crate) fn needs_anywhere(&self, ask: &Ask, ledger: &Ledger) -> Vec<(DeviceId, Bytes)> {
        if ask.right == Right::Guaranteed {
            return ask.covered.clone();
        }
        let shape = self.shape_of(ask);
        let need = |device| (device, plus(ask.amount, shape.overhead(device, ledger)));
        match &shape.wish {
            DeviceWish::These(devices) => devices.iter().map(|device| need(*device)).collect(),
            DeviceWish::Any(_) => ledger.usable().map(|(device, _)| need(device)).collect(),
        }
    }
}
