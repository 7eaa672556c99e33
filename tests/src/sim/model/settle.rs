//! Once the effects are drained: what must have been done, and whether the state is as the facts say.

use gpulease_arbiter::Snapshot;

use super::{Aim, Broken, Model, SegmentState, Standing, Verdict, ensure};

impl Model {
    /// Takes from the snapshot what the rules leave open: to which devices a barrier is bound, and
    /// the ids of asks for growth.
    pub(in crate::sim) fn learn(&mut self, after: &Snapshot) {
        let mut growth: Vec<_> = after.waiting.iter().filter(|view| view.lease.is_some()).collect();
        growth.sort_by_key(|view| view.id);
        let nameless = |ask: &&mut super::AskFact| {
            matches!(ask.aim, Aim::Growth { .. })
                && ask.id.is_none()
                && matches!(ask.standing, Standing::Waiting | Standing::OwnDrain)
        };
        let known: Vec<_> = self.asks.iter().filter_map(|ask| ask.id).collect();
        let fresh = growth.into_iter().filter(|view| !known.contains(&view.id));
        for (ask, view) in self.asks.iter_mut().filter(nameless).zip(fresh) {
            ask.id = Some(view.id);
        }
        self.shown = after.leases.iter().map(|view| (view.id, view.devices.clone())).collect();
        for view in after.waiting.iter().filter(|view| view.barrier && view.lease.is_none()) {
            if let Some(index) = self.asks.iter().position(|ask| ask.id == Some(view.id)) {
                let mut devices = view.devices.clone();
                devices.sort();
                self.rebound.insert(index, devices);
            }
        }
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
        self.bind();
        self.drop_met_recalls();
        self.settle_overdue()?;
        self.compare(after)?;
        self.nothing_is_left_undone()?;
        self.nobody_is_forgotten()?;
        self.untrimmed = None;
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
                Verdict::Yes | Verdict::No(_) | Verdict::GrantedAlready(_) => 1,
                Verdict::Nobody => 0,
                Verdict::InLine | Verdict::Making | Verdict::Superseded => continue,
            };
            ensure!(fact.answers == due, "{request:?} has {} answers, not {due}: {fact:?}", fact.answers);
        }
        for (id, segment) in &self.segments {
            let back = segment.state == SegmentState::Draining;
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
    fn settle_overdue(&mut self) -> Result<(), Broken> {
        let ids: Vec<_> = self.standing_leases().map(|(id, _)| id).collect();
        for id in ids {
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
