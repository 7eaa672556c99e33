//! Barriers on their way up: from the line through the gates of their accounts to their devices.

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::DeviceWish;
use crate::accounts::{Accounts, NodeId, Resource};
use crate::ledger::{Ledger, plus};
use crate::line::ask::{Ask, Post, Stage, resources};
use crate::line::gate::Climb;
use crate::line::pile::Outlook;
use crate::line::{Line, units};

impl Line {
    /// The ask has waited long enough: nothing overtakes it from now on.
    pub(crate) fn rise(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        let ask = self.get(id);
        if ask.stage != Stage::InLine {
            return;
        }
        let needs = self.least_missing(ask, ledger);
        let (before, after) = (ask.clone(), Stage::Barrier { needs, post: Post::Collecting });
        let ask = self.get_mut(id);
        ask.stage = after;
        let ask = ask.clone();
        if !ask.is_in_roster(self.shape_of(&ask)) {
            self.strike(&before, accounts);
        }
        self.start_climb(id, accounts, ledger);
    }

    /// The barrier is bound anew: a device that it was bound to is lost.
    pub(crate) fn rise_again(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        self.retreat(id, accounts);
        let needs = self.least_missing(self.get(id), ledger);
        self.get_mut(id).stage = Stage::Barrier { needs, post: Post::Collecting };
        self.start_climb(id, accounts, ledger);
    }

    /// The device's ceiling may have moved: barriers lose hope or find it again.
    pub(crate) fn look_up(&mut self, device: DeviceId, accounts: &mut Accounts, ledger: &Ledger) {
        while let Some((id, outlook)) = self.piles.turned(device, ledger) {
            match outlook {
                Outlook::Lost => self.despair(id, device, accounts),
                Outlook::Found => {
                    self.retreat(id, accounts);
                    self.start_climb(id, accounts, ledger);
                }
            }
        }
    }

    /// The ask gives up all that it holds back.
    pub(crate) fn retreat(&mut self, id: AskId, accounts: &mut Accounts) {
        let ask = self.asks.get(&id).expect("whoever names an ask was told when it left the line");
        if ask.post().is_some() {
            self.piles.forget(id, ask.needs());
            accounts.forget_barrier(ask.account, id);
        }
    }

    /// Lets barriers through the gates of an account that has room, and the youngest step back where it was overrun.
    pub(crate) fn tend(&mut self, node: NodeId, accounts: &mut Accounts, ledger: &Ledger) {
        for resource in [Resource::Slots, Resource::Bytes] {
            while let Some(id) = accounts.tended(node, resource).and_then(|gate| gate.step_back()) {
                self.step_back(id, (node, resource), accounts);
            }
            while let Some(id) = accounts.tended(node, resource).and_then(|gate| gate.admit_head()) {
                self.climb(id, Some((node, resource)), accounts, ledger);
            }
        }
    }

    fn start_climb(&mut self, id: AskId, accounts: &mut Accounts, ledger: &Ledger) {
        let needs = self.get(id).needs();
        if let Some((device, _)) = needs.iter().find(|(device, need)| *need > ledger.book(*device).ceiling())
        {
            return self.despair(id, *device, accounts);
        }
        let ask = self.asks.get(&id).expect("it was just there");
        self.piles.hope(id, ask.needs());
        self.climb(id, None, accounts, ledger);
    }

    fn climb(&mut self, id: AskId, after: Option<(NodeId, Resource)>, accounts: &mut Accounts, _: &Ledger) {
        let steps = self.steps(self.get(id), accounts);
        let done = after.map_or(0, |gate| {
            1 + steps.iter().position(|(step, _)| *step == gate).expect("it is on its path")
        });
        for ((node, resource), amount) in &steps[done..] {
            if accounts.node_mut(*node).gate_mut(*resource).climb(id, *amount) == Climb::Parked {
                return self.get_mut(id).stand(Post::Parked(*node, *resource));
            }
        }
        self.get_mut(id).stand(Post::Collecting);
        let ask = self.asks.get(&id).expect("it was just there");
        self.piles.collect(id, ask.needs());
    }

    fn step_back(&mut self, id: AskId, to: (NodeId, Resource), accounts: &mut Accounts) {
        let steps = self.steps(self.get(id), accounts);
        for ((node, resource), _) in steps.iter().rev().take_while(|(step, _)| *step != to) {
            accounts.node_mut(*node).gate_mut(*resource).forget(id);
        }
        let ask = self.asks.get_mut(&id).expect("a pledge is of an ask that waits");
        ask.stand(Post::Parked(to.0, to.1));
        self.piles.let_go(id, ask.needs());
    }

    fn despair(&mut self, id: AskId, device: DeviceId, accounts: &mut Accounts) {
        let ask = self.asks.get_mut(&id).expect("a barrier is an ask that waits");
        ask.stand(Post::Hopeless(device));
        self.piles.despair(id, device, ask.needs());
        accounts.forget_barrier(ask.account, id);
    }

    /// The gates on the ask's way, with what it takes at each.
    fn steps(&self, ask: &Ask, accounts: &Accounts) -> Vec<((NodeId, Resource), u64)> {
        let cost: Bytes = ask.needs().iter().map(|(_, need)| *need).sum();
        let gates = resources(self.shape_of(ask).purpose);
        let steps = accounts.path(ask.account);
        steps.flat_map(|(id, _)| gates.iter().map(move |r| ((id, *r), units(*r, cost)))).collect()
    }

    /// What the ask needs on the devices where least is missing for it.
    pub(crate) fn least_missing(&self, ask: &Ask, ledger: &Ledger) -> Vec<(DeviceId, Bytes)> {
        let shape = self.shape_of(ask);
        let need = |device| (device, plus(ask.amount, shape.overhead(device, ledger)));
        match &shape.wish {
            DeviceWish::These(devices) => devices.iter().map(|device| need(*device)).collect(),
            DeviceWish::Any(n) => {
                let mut needs: Vec<_> = ledger.usable().map(|(device, _)| need(device)).collect();
                needs.sort_by_key(|(device, need)| {
                    let hopeless = *need > ledger.book(*device).ceiling();
                    (
                        hopeless,
                        need.saturating_sub(self.available(*device, ledger).unwrap_or_default()),
                        *device,
                    )
                });
                needs.truncate(n.get() as usize);
                needs
            }
        }
    }
}
