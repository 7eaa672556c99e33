//! Once the effects are drained: what must have been done, and whether the state is as the facts say.

use gpulease_arbiter::{AskView, Purpose, Snapshot, Time};

use super::{Aim, Before, Broken, Figures, Model, SegmentState, Standing, Verdict, ensure};

impl Model {
    /// Takes from the snapshot what the rules leave open: to which devices a barrier is bound, and
    /// the ids of asks for growth.
    pub(in crate::sim) fn learn(&mut self, after: &Snapshot) {
        let mut growth: Vec<_> = after.waiting.iter().filter(|view| view.lease.is_some()).collect();
        growth.sort_by_key(|view| view.id);
        let nameless = |ask: &&mut super::AskFact| {
            matches!(ask.aim, Aim::Growth { .. })
                && ask.id.is_none()
                && matches!(ask.standing, Standing::Waiting | Standing::OwnDrain | Standing::AtLimit)
        };
        let known: Vec<_> = self.asks.iter().filter_map(|ask| ask.id).collect();
        let fresh = growth.into_iter().filter(|view| !known.contains(&view.id));
        for (ask, view) in self.asks.iter_mut().filter(nameless).zip(fresh) {
            ask.id = Some(view.id);
        }
        self.learn_of_moves(after);
        self.shown = after.leases.iter().map(|view| (view.id, view.devices.clone())).collect();
        for view in after.waiting.iter().filter(|view| view.barrier && view.lease.is_none()) {
            if let Some(index) = self.asks.iter().position(|ask| ask.id == Some(view.id)) {
                let mut devices = view.devices.clone();
                if !self.binds() {
                    devices.sort();
                }
                self.rebound.insert(index, devices);
            }
        }
    }

    /// Who is a barrier, by which right, and who waits for what moves: nobody else says it.
    fn learn_of_moves(&mut self, after: &Snapshot) {
        if !self.binds() {
            return;
        }
        self.still_waits = after.waiting.iter().map(|view| view.id).collect();
        for ask in &mut self.asks {
            ask.before = Before { barrier: ask.risen, guaranteed: ask.guaranteed };
        }
        for view in &after.waiting {
            if !self.asks.iter().any(|ask| ask.id == Some(view.id)) {
                self.learn_return(view);
            }
        }
        self.learn_flags(after);
        for view in &after.leases {
            self.marks.insert(view.id, (view.movable, view.guaranteed));
            let since = view.granted_at.since_start().checked_sub(view.waited).unwrap_or_default();
            self.shown_since.insert(view.id, (view.pid, Time::after_start(since)));
            if let Some(fact) = self.leases.get_mut(&view.id) {
                (fact.guaranteed_before, fact.guaranteed) = (fact.guaranteed, view.guaranteed);
            }
        }
    }

    /// By which right each ask goes now, and whether it is a barrier.
    fn learn_flags(&mut self, after: &Snapshot) {
        if !self.binds() {
            return;
        }
        for view in &after.waiting {
            if let Some(index) = self.asks.iter().position(|ask| ask.id == Some(view.id)) {
                let now = self.now;
                let ask = &mut self.asks[index];
                if view.guaranteed && !ask.guaranteed {
                    self.newly_covered += 1;
                    ask.covered_at = now;
                }
                let unseen = ask.senior && self.figures == Figures::Ignored;
                (ask.risen, ask.guaranteed) = (view.barrier || unseen, view.guaranteed);
                if view.barrier && view.lease.is_none() {
                    self.rebound.insert(index, view.devices.clone());
                }
            }
        }
    }

    /// A lease that has to come back, or whose waiter went, is asked for by another now.
    fn learn_return(&mut self, view: &AskView) -> Option<()> {
        let lease = view.lease.filter(|_| view.purpose == Purpose::Resume)?;
        if self.asks.iter().any(|ask| {
            ask.id.is_none()
                && ask.since == view.since
                && matches!(ask.aim, Aim::Resume { lease: l } if l == lease)
        }) {
            return None;
        }
        let fact = self.leases.get(&lease)?;
        let of = |session: &gpulease_words::SessionId| self.sessions[session].peer.pid == view.pid;
        let open = self.sessions.iter().filter(|(_, s)| s.open && s.peer.pid == view.pid).map(|(id, _)| *id);
        let waiter = fact.resumers.values().copied().find(of).or_else(|| open.into_iter().next());
        let peer = self.processes.values().find(|fact| fact.peer.pid == view.pid)?.peer.clone();
        let returning = matches!(fact.journey, super::Journey::Resuming { .. });
        let standing = match fact.journey {
            super::Journey::Draining { .. } | super::Journey::Leaving { .. } => Standing::Leaving,
            super::Journey::Active | super::Journey::Suspended | super::Journey::Resuming { .. } => {
                Standing::Waiting
            }
        };
        let ask = super::AskFact {
            id: Some(view.id),
            since: view.since,
            returning,
            ..self.resume_ask(waiter.unwrap_or(gpulease_words::SessionId::new(0)), peer, lease, standing)
        };
        self.asks.push(ask);
        Some(())
    }

    /// Barriers are bound as they were shown last.
    pub(super) fn bind(&mut self) {
        for (index, devices) in std::mem::take(&mut self.rebound) {
            self.asks[index].bound = Some(devices);
        }
    }

    /// Compares everything with the state.
    ///
    /// # Errors
    /// What is left undone, or is not as the facts say.
    pub(in crate::sim) fn settle(&mut self, after: &Snapshot) -> Result<(), Broken> {
        self.learn_flags(after);
        self.bind();
        self.take_what_came();
        self.drop_met_recalls();
        self.settle_overdue(after)?;
        self.compare(after)?;
        self.nothing_is_left_undone()?;
        self.nothing_stands_still()?;
        self.barriers_are_due()?;
        self.budgets_changed = false;
        self.nobody_is_forgotten()?;
        self.untrimmed = None;
        Ok(())
    }

    /// Leases that come back have all that their asks took; who waits no more has all of it.
    fn take_what_came(&mut self) {
        if !self.binds() {
            return;
        }
        let mut resumes: Vec<_> = self
            .standing_leases()
            .filter(|(_, lease)| matches!(lease.journey, super::Journey::Resuming { recedes: false }))
            .map(|(id, _)| id)
            .collect();
        // In the order in which they take it.
        resumes.sort_by_key(|id| self.resume_of(*id).map(|index| self.turn(index)));
        for id in resumes {
            self.regain(id);
            self.leases.get_mut(&id).expect("it stands").asks_itself = false;
        }
    }

    /// Nobody is a barrier but by his age, by a guarantee, or because a lease has drained for him.
    fn barriers_are_due(&self) -> Result<(), Broken> {
        for (_, ask) in self.waiting().filter(|_| self.binds()) {
            let due = ask.senior || ask.guaranteed || ask.returning;
            let resumes = matches!(ask.aim, Aim::Resume { .. });
            ensure!(!ask.risen || due || resumes, "{ask:?} is a barrier before its time");
            let needs = match ask.aim {
                Aim::Growth { device, .. } => !self.need(ask, device).is_zero(),
                Aim::Resume { lease } => {
                    self.leases[&lease].devices.iter().any(|device| !self.need(ask, *device).is_zero())
                }
                Aim::Lease { .. } => true,
            };
            ensure!(ask.risen || !due || !needs, "{ask:?} has waited long enough and is no barrier");
        }
        Ok(())
    }

    fn nothing_is_left_undone(&self) -> Result<(), Broken> {
        if let Some((index, devices)) = self.next() {
            let ask = &self.asks[index];
            let all = self.describe_all();
            return Err(Broken(format!("{:?} can be granted on {devices:?} and was not: {all}", ask.id)));
        }
        for (request, fact) in &self.requests {
            let due = match fact.verdict {
                Verdict::Yes | Verdict::No(_) | Verdict::GrantedAlready(_) | Verdict::Resumed => 1,
                Verdict::Nobody => 0,
                Verdict::InLine | Verdict::Making | Verdict::Superseded | Verdict::Returning(_) => continue,
            };
            ensure!(fact.answers == due, "{request:?} has {} answers, not {due}: {fact:?}", fact.answers);
        }
        for (id, segment) in &self.segments {
            ensure!(!segment.forgotten, "nobody wants the copy of {id}, and it is kept");
            let back = matches!(segment.state, SegmentState::Draining | SegmentState::Departing);
            ensure!(!back || segment.reclaimed, "{id} was given back and the device was not told");
            let live = segment.state == SegmentState::Live;
            ensure!(!live || segment.handed, "{id} was made and not handed over");
        }
        Ok(())
    }

    fn nobody_is_forgotten(&self) -> Result<(), Broken> {
        for (id, session) in &self.sessions {
            ensure!(session.open || session.gone, "{id} ended and nobody was told");
        }
        for (id, lease) in &self.leases {
            ensure!(!lease.end_untold, "{id} was ended by another and its owner was not told");
            let untold = lease.recall.as_ref().and_then(|recall| recall.untold.first());
            ensure!(
                untold.is_none(),
                "bytes of {id} are wanted back on device {untold:?}, and its owner was not told"
            );
        }
        for (id, lease) in self.standing_leases() {
            let left = self.segments_of(id).next().is_some();
            ensure!(!lease.ended || left, "{id} was given back, all of it is credited, and it is not gone");
        }
        for (id, process) in &self.processes {
            let kept = process.alive && !process.forgotten && !self.is_needed(*id);
            ensure!(!kept, "{id} is needed by nobody and still watched");
        }
        for (index, ask) in self.asks.iter().enumerate().filter(|(_, ask)| ask.standing == Standing::OwnDrain)
        {
            let Aim::Growth { lease, device, .. } = ask.aim else { continue };
            ensure!(self.own_next(lease, device) != Some(index), "{ask:?} is set aside and was not made");
        }
        Ok(())
    }

    /// Leases that became overdue were called so; those that made good may grow again.
    fn settle_overdue(&mut self, after: &Snapshot) -> Result<(), Broken> {
        let ids: Vec<_> = self.standing_leases().map(|(id, _)| id).collect();
        for id in ids {
            let unheard = after.leases.iter().find(|view| view.id == id).is_some_and(|view| view.overdue);
            self.leases.get_mut(&id).expect("it stands").unheard &= unheard;
            let overdue = self.is_overdue(id);
            let lease = self.leases.get_mut(&id).expect("it stands");
            ensure!(!overdue || lease.overdue, "{id} is overdue and nobody was told");
            // One that is given back stays as it was.
            lease.overdue = if lease.ended { lease.overdue } else { overdue };
        }
        Ok(())
    }

    /// Every request has its one answer.
    ///
    /// # Errors
    /// Naming the first that has none.
    pub(in crate::sim) fn all_is_answered(&self) -> Result<(), Broken> {
        for (request, fact) in &self.requests {
            let may_be_silent = matches!(fact.verdict, Verdict::Nobody | Verdict::Superseded);
            ensure!(fact.answers == 1 || may_be_silent, "{request:?} was never answered: {fact:?}");
        }
        Ok(())
    }
}
