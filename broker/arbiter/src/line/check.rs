//! What the line keeps twice, recomputed.

use std::collections::BTreeMap;

use gpulease_words::AskId;

use crate::accounts::Accounts;
#[cfg(test)]
use crate::accounts::NodeId;
use crate::ledger::Ledger;
use crate::line::Line;
use crate::line::ask::{Ask, Post};
use crate::line::gate::Stand;
use crate::line::roster::Who;

impl Line {
    /// Panics when a derived figure is wrong, or when an ask waits that could be granted.
    pub(crate) fn check(&self, accounts: &Accounts, ledger: &Ledger) {
        self.piles.check(self.asks.values().filter(|ask| ask.post().is_some()));
        self.check_shapes();
        let roam = self.asks.values().filter(|ask| self.roams(ask)).map(|ask| ask.id).collect();
        assert_eq!(self.roamers.all(), roam, "who roams");
        self.check_rosters(accounts, ledger);
        for ask in self.asks.values() {
            self.check_gates(ask, accounts, ledger);
        }
        for (_, node) in accounts.all() {
            node.bytes.check();
            node.slots.check();
            let known =
                node.bytes.asks().chain(node.slots.asks()).all(|turn| self.asks.contains_key(&turn.ask));
            assert!(known, "{} knows asks that are gone", node.key);
        }
        if let Some(ask) = self.overlooked(accounts, ledger) {
            panic!("{ask} waits and could be granted");
        }
    }

    fn check_shapes(&self) {
        let mut asks: BTreeMap<_, u64> = BTreeMap::new();
        for ask in self.asks.values() {
            *asks.entry(ask.shape).or_default() += 1;
        }
        assert_eq!(self.shapes.all().collect::<BTreeMap<_, _>>(), asks, "shapes in use");
    }

    fn check_rosters(&self, accounts: &Accounts, ledger: &Ledger) {
        let mut enrolled: Vec<AskId> = Vec::new();
        for (id, queue) in &self.queues {
            queue.roster.check();
            for (place, own) in queue.roster.entries() {
                match place.who {
                    Who::Ask(ask) => enrolled.push(ask),
                    Who::Account(below) => {
                        let node = accounts.node(below);
                        let summary = self.queues[&below].roster.summary().expect("it is not empty");
                        assert_eq!(
                            own,
                            summary.behind(node, &self.shapes, ledger, accounts.stores.pledges()),
                            "how {} stands",
                            node.key
                        );
                        assert_eq!((place.share, place.oldest), (node.share(), summary.oldest));
                        assert_eq!(node.parent, Some(*id));
                    }
                }
            }
        }
        enrolled.sort_unstable();
        let waiting = self.asks.values().filter(|ask| ask.is_in_roster());
        assert_eq!(enrolled, waiting.map(|ask| ask.id).collect::<Vec<_>>(), "who is in the rosters");
    }

    /// A barrier has pledged at every gate below where it stands, and nowhere above.
    fn check_gates(&self, ask: &Ask, accounts: &Accounts, ledger: &Ledger) {
        let mut passed = ask.post().is_some_and(|post| post != Post::Hopeless);
        for ((id, resource), amount) in self.steps(ask, accounts, ledger) {
            let node = accounts.node(id);
            let parked = ask.post() == Some(Post::Parked(id, resource));
            let expected = match (parked, passed) {
                (true, _) => Stand::Parked(amount),
                (false, true) if amount > 0 => Stand::Pledged(amount),
                (false, _) => Stand::Absent,
            };
            assert_eq!(node.gate(resource).stand_of(ask.turn()), expected, "{} at {}", ask.id, node.key);
            passed &= !parked;
        }
    }

    /// An ask that could be granted: there is none after settling.
    fn overlooked(&self, accounts: &Accounts, ledger: &Ledger) -> Option<AskId> {
        let fits = |ask: &&Ask| match ask.post() {
            Some(Post::Collecting) => ask.needs().iter().all(|(device, need)| {
                self.piles.left(*device, ledger.book(*device).free, Some(ask.turn())) >= *need
            }),
            Some(Post::Hopeless | Post::Parked(..)) | None => false,
        };
        let in_turn = |ask: &&Ask| ask.is_in_roster() && self.placement(ask, accounts, ledger).is_some();
        let roams = |ask: &&Ask| {
            ask.post() == Some(Post::Collecting) && self.elsewhere(ask, accounts, ledger).is_some()
        };
        self.asks.values().find(|ask| fits(ask) || roams(ask) || in_turn(ask)).map(|ask| ask.id)
    }

    /// The next ask found the slow way: every account, in order.
    #[cfg(test)]
    pub(crate) fn first_the_slow_way(&self, accounts: &Accounts, ledger: &Ledger) -> Option<AskId> {
        let mut barriers: Vec<&Ask> =
            self.asks.values().filter(|ask| ask.post() == Some(Post::Collecting)).collect();
        barriers.sort_by_key(|ask| ask.turn());
        let ripe = |ask: &&&Ask| {
            let left = |device| self.piles.left(device, ledger.book(device).free, Some(ask.turn()));
            ask.needs().iter().all(|(device, need)| left(*device) >= *need)
        };
        let barrier = barriers.iter().find(ripe);
        let roams = |ask: &&&Ask| self.elsewhere(ask, accounts, ledger).is_some();
        let barrier = barrier.or_else(|| barriers.iter().find(roams)).map(|ask| ask.id);
        barrier.or_else(|| self.first_below_slowly(NodeId::HOST, accounts, ledger))
    }

    #[cfg(test)]
    fn first_below_slowly(&self, at: NodeId, accounts: &Accounts, ledger: &Ledger) -> Option<AskId> {
        let mut next: Vec<(u128, AskId, Who)> = Vec::new();
        for ask in self.asks.values().filter(|ask| ask.is_in_roster()) {
            let path: Vec<NodeId> = accounts.path(ask.account).map(|(id, _)| id).collect();
            if at == ask.account {
                next.push((0, ask.id, Who::Ask(ask.id)));
            } else if let Some(i) = path.iter().position(|id| *id == at) {
                next.push((accounts.node(path[i - 1]).share(), ask.id, Who::Account(path[i - 1])));
            }
        }
        next.sort_unstable_by_key(|(share, oldest, who)| (*share, *oldest, *who));
        next.into_iter().find_map(|(_, _, who)| match who {
            Who::Ask(id) => self.placement(self.get(id), accounts, ledger).map(|_| id),
            Who::Account(below) => self.first_below_slowly(below, accounts, ledger),
        })
    }
}
