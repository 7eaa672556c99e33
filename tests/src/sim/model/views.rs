//! The snapshot, as the facts say it must be.

use gpulease_arbiter::{AskView, LeaseState, LeaseView, Patience, Pinning, Snapshot};
use gpulease_words::Bytes;

use super::ledger::{Tally, add};
use super::{Aim, AskFact, Broken, Figures, Journey, Model, Node, Standing, ensure};

impl Model {
    pub(super) fn compare(&mut self, after: &Snapshot) -> Result<(), Broken> {
        let tally = self.tally();
        let open = self.sessions.values().filter(|session| session.open).count();
        ensure!(after.sessions as usize == open, "{open} sessions are open, not {}", after.sessions);
        self.compare_devices(after, &tally)?;
        self.compare_leases(after)?;
        self.compare_stores(after)?;
        self.compare_promises(after)?;
        self.compare_accounts(after, &tally)?;
        self.compare_line(after, &tally)
    }

    /// I1, in exact integers.
    fn compare_devices(&self, after: &Snapshot, tally: &Tally) -> Result<(), Broken> {
        ensure!(after.devices.len() == self.devices.len(), "devices are missing: {:?}", after.devices);
        for (fact, view) in self.devices.iter().zip(&after.devices) {
            let booked = tally.devices[&fact.id];
            let off_book = fact.off_book.unwrap_or(Bytes::ZERO);
            let unbacked = add(booked.total(), off_book).saturating_sub(fact.capacity);
            let due = (fact.capacity, tally.free[&fact.id], booked.set_aside, booked.overhead, booked.held);
            let is = (view.capacity, view.free, view.set_aside, view.overhead, view.held);
            ensure!(
                due == is,
                "device {}: capacity, free, set aside, overhead, held are {is:?}, not {due:?}; {}",
                fact.id,
                self.describe_all()
            );
            let due = (booked.draining, booked.quarantined, fact.off_book, unbacked, !fact.lost);
            let is = (view.draining, view.quarantined, view.off_book, view.unbacked, view.usable);
            ensure!(
                due == is,
                "device {}: draining, quarantined, off-book, unbacked, usable are {is:?}, not {due:?}",
                fact.id
            );
            ensure!(
                view.peak_charged >= booked.total(),
                "device {}: the peak is below {:?}",
                fact.id,
                booked
            );
        }
        Ok(())
    }

    fn compare_leases(&self, after: &Snapshot) -> Result<(), Broken> {
        let due: Vec<_> = self.standing_leases().map(|(id, _)| id).collect();
        let are: Vec<_> = after.leases.iter().map(|view| view.id).collect();
        ensure!(due == are, "the leases are {are:?}, not {due:?}");
        after.leases.iter().try_for_each(|view| self.compare_lease(view))
    }

    fn compare_lease(&self, view: &LeaseView) -> Result<(), Broken> {
        let fact = &self.leases[&view.id];
        let charge = self.charge(view.id);
        let due = (charge.set_aside, charge.held, charge.overhead, charge.draining, charge.quarantined);
        let is = (view.set_aside, view.held, view.overhead, view.draining, view.quarantined);
        ensure!(
            due == is,
            "{}: set aside, held, overhead, draining, quarantined are {is:?}, not {due:?}",
            view.id
        );
        let owner = self.open_session(fact.owner);
        let state = match fact.journey {
            _ if fact.ended => LeaseState::Draining,
            Journey::Active => LeaseState::Active,
            Journey::Draining { .. } | Journey::Leaving { .. } => LeaseState::Suspending,
            Journey::Suspended => LeaseState::Suspended,
            Journey::Resuming { .. } => LeaseState::Resuming,
        };
        // What is given back grows no more, overdue or not.
        let overdue = if fact.ended { view.overdue } else { fact.overdue };
        let due = (state, overdue, owner.is_some_and(|s| s.adrift_since.is_some()), fact.used);
        let is = (view.state, view.overdue, view.adrift, view.used);
        ensure!(due == is, "{}: state, overdue, adrift, used are {is:?}, not {due:?}", view.id);
        let pinned = fact.terms.pinning == Pinning::Pinned;
        let due =
            (&fact.devices, fact.reserve, fact.limit, pinned, owner.map(|_| fact.owner), fact.granted_at);
        let is = (&view.devices, view.reserve, view.limit, view.pinned, view.session, view.granted_at);
        ensure!(
            due == is,
            "{}: devices, reserve, limit, pinned, session, since are {is:?}, not {due:?}",
            view.id
        );
        let due = (&fact.terms.name, fact.peer.uid, fact.peer.pid, &fact.peer.program, fact.waited);
        let is = (&view.name, view.uid, view.pid, &view.program, view.waited);
        ensure!(due == is, "{}: name, uid, pid, program, waited are {is:?}, not {due:?}", view.id);
        let mut due: Vec<_> = fact.members.iter().map(|id| self.processes[id].peer.pid).collect();
        let mut are: Vec<_> = view.members.iter().map(|member| member.pid).collect();
        due.sort();
        are.sort();
        ensure!(due == are, "{}: members are {are:?}, not {due:?}", view.id);
        if self.binds() {
            self.compare_residence(view)?;
        }
        let overhead: Bytes = view.members.iter().map(|member| member.overhead).sum();
        ensure!(
            overhead == charge.overhead,
            "{}: members' overhead is {overhead}, not {}",
            view.id,
            charge.overhead
        );
        Ok(())
    }

    fn compare_residence(&self, view: &LeaseView) -> Result<(), Broken> {
        let fact = &self.leases[&view.id];
        let copied = self.segments_of(view.id).filter(|(_, segment)| segment.is_copied());
        let copied: Bytes = copied.map(|(_, segment)| segment.bytes).sum();
        let since = (!fact.ended && fact.is_resident()).then_some(fact.since);
        let due = (fact.movable, fact.idle, copied, since, fact.suspensions);
        let is = (view.movable, view.idle, view.swapped, view.resident_since, view.suspensions);
        ensure!(
            due == is,
            "{}: movable, idle, swapped, resident since, suspensions are {is:?}, not {due:?}",
            view.id
        );
        Ok(())
    }

    /// What is pinned of each device, and set aside of host memory.
    fn compare_stores(&self, after: &Snapshot) -> Result<(), Broken> {
        for view in after.devices.iter().filter(|_| self.binds()) {
            let (due, is) =
                ((self.pinned_used(view.id), self.pinned_max(view.id)), (view.pinned, view.pinned_max));
            ensure!(due == is, "device {}: pinned, and at most, are {is:?}, not {due:?}", view.id);
        }
        let (arena, used) = (after.arena, self.arena_used());
        let copied = self.segments.values().filter(|segment| segment.is_copied());
        let filled = copied.map(|segment| segment.bytes).sum::<Bytes>().min(used);
        let due = (self.policy.arena.saturating_sub(used), used.saturating_sub(filled), filled);
        let is = (arena.free, arena.set_aside, arena.filled);
        ensure!(!self.binds() || due == is, "the arena's free, set aside, filled are {is:?}, not {due:?}");
        Ok(())
    }

    /// By when each ask is granted at the latest (I6, I7), as the rules have it, and whether it was.
    fn compare_promises(&mut self, after: &Snapshot) -> Result<(), Broken> {
        let promises = self.promises();
        // What one needs whose lease is still on its way out nobody knows.
        for view in after.waiting.iter().filter(|view| view.reason != gpulease_words::Reason::Suspended) {
            let index = self.asks.iter().position(|ask| ask.id == Some(view.id));
            let due = index.and_then(|i| promises.get(&i)).map(|(at, _)| *at);
            let shown = due.filter(|at| *at >= self.now);
            ensure!(
                view.at_latest == shown || self.figures == Figures::Ignored,
                "{} is promised for {:?}, not {shown:?}: {view:?}; {:?}",
                view.id,
                view.at_latest,
                index.map(|i| self.describe_rooms(i))
            );
        }
        self.keep_promises(&promises)
    }

    fn compare_accounts(&self, after: &Snapshot, tally: &Tally) -> Result<(), Broken> {
        for (node, charged) in &tally.charged {
            let path = node.path();
            let view = after.accounts.iter().find(|view| view.path == path);
            let view = view.ok_or_else(|| Broken(format!("{path} is charged {charged} and not shown")))?;
            let weight = match self.figures {
                Figures::Judged => self.budget(node).weight.get(),
                Figures::Ignored => view.weight,
            };
            let due = (*charged, tally.leases[node], weight, self.budget(node).limit);
            let is = (view.charged, view.leases, view.weight, view.limit);
            ensure!(due == is, "{path}: charged, leases, weight, limit are {is:?}, not {due:?}");
        }
        let shown: Bytes =
            after.accounts.iter().filter(|view| view.path == "host").map(|view| view.charged).sum();
        let charged = tally.charged.get(&Node::Host).copied().unwrap_or(Bytes::ZERO);
        ensure!(shown == charged, "the host is charged {shown}, not {charged}");
        Ok(())
    }

    fn compare_line(&self, after: &Snapshot, tally: &Tally) -> Result<(), Broken> {
        if self.figures == Figures::Ignored {
            return Ok(());
        }
        let aside = |ask: &&AskFact| {
            matches!(ask.standing, Standing::OwnDrain | Standing::AtLimit | Standing::Leaving)
        };
        let own = self.asks.iter().filter(aside).count();
        let order = self.order(tally);
        ensure!(
            order.len() + own == after.waiting.len(),
            "{} asks wait in the line and {own} for their own bytes, not {:?}",
            order.len(),
            after.waiting
        );
        let waiting: Vec<&AskView> = after.waiting.iter().filter(|view| self.is_in_line(view)).collect();
        let due: Vec<_> = order.iter().map(|i| self.asks[*i].id).collect();
        let is: Vec<_> = waiting.iter().map(|view| Some(view.id)).collect();
        ensure!(due == is, "the line is {is:?}, not {due:?}: {}", self.describe_line(&order, tally));
        order.iter().zip(waiting).try_for_each(|(i, view)| self.compare_ask(&self.asks[*i], view))
    }

    /// The line with what its order goes by, for whoever has to find a mistake.
    fn describe_line(&self, order: &[usize], tally: &Tally) -> String {
        let describe = |i: &usize| {
            let ask = &self.asks[*i];
            let nodes = self.path_of(ask).into_iter().map(|node| {
                let charged = tally.charged.get(&node).copied().unwrap_or(Bytes::ZERO);
                format!("{}={charged}/{}", node.path(), self.budget(&node).weight)
            });
            format!("{:?}: {}", ask.id, nodes.collect::<Vec<_>>().join(" "))
        };
        order.iter().map(describe).collect::<Vec<_>>().join("; ")
    }

    fn is_in_line(&self, view: &AskView) -> bool {
        self.waiting().any(|(_, ask)| ask.id == Some(view.id))
    }

    fn compare_ask(&self, ask: &AskFact, view: &AskView) -> Result<(), Broken> {
        let hasty = ask.patience == Patience::None || ask.is_inside();
        ensure!(!hasty || self.gets_back(ask), "{} must not wait and waits: {ask:?}", view.id);
        let patience = match ask.patience {
            Patience::None => None,
            Patience::AtMost(_) | Patience::Endless => self.deadline(ask),
        };
        let due =
            (ask.peer.uid, ask.peer.pid, ask.since, patience, self.is_barrier(ask), self.barrier_at(ask));
        let is = (view.uid, view.pid, view.since, view.deadline, view.barrier, view.barrier_at);
        ensure!(due == is, "{}: uid, pid, since, deadline, barrier, at are {is:?}, not {due:?}", view.id);
        let (lease, reserve) = match &ask.aim {
            Aim::Lease { terms, .. } => (None, terms.reserve),
            Aim::Growth { lease, bytes, .. } => (Some(*lease), *bytes),
            Aim::Resume { lease } => {
                let devices = self.leases[lease].devices.iter();
                let most = devices.map(|device| self.resume_needs(*lease, *device)).max();
                (Some(*lease), most.unwrap_or(Bytes::ZERO))
            }
        };
        ensure!((lease, reserve) == (view.lease, view.reserve), "{} is {view:?}, not {ask:?}", view.id);
        Ok(())
    }
}
