//! Judges what the line gives: grants and segments.

use gpulease_arbiter::{DeviceWish, Event, RequestId, SegmentKind};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId};

use super::{Aim, Broken, LeaseFact, Model, SegmentFact, SegmentState, Standing, Verdict, ensure};

impl Model {
    /// A lease was granted: it must be the next in the line that can be.
    pub(super) fn see_granted(&mut self, request: Option<RequestId>, lease: LeaseId) -> Result<(), Broken> {
        if let Some(request) = request
            && let Some(fact) = self.requests.get(&request)
            && let Verdict::GrantedAlready(its) = fact.verdict
        {
            ensure!(its == lease, "the ask that became {its} is told that it became {lease}");
            return self.answered(request);
        }
        ensure!(!self.leases.contains_key(&lease), "{lease} is granted twice");
        let (index, devices) = match self.binds() {
            true => self.granted_by_right(request, lease)?,
            false => self.granted_in_turn(request, lease)?,
        };
        let ask = self.asks[index].clone();
        let Aim::Lease { terms, .. } = ask.aim.clone() else {
            return Err(Broken(format!("{lease} is granted, and next is growth: {:?}", ask.aim)));
        };
        if let Some(request) = request {
            self.answered(request)?;
        }
        self.asks[index].standing = Standing::Granted(lease);
        let most = self.most(ask.peer.process, &self.path_of(&ask), &devices, terms.reserve);
        let limit = terms.limit.min(most);
        let fact = LeaseFact { limit, ..LeaseFact::new(&ask, terms, devices, self.now) };
        self.leases.insert(lease, fact);
        self.join(lease, ask.peer.process);
        self.mark(lease, &ask)
    }

    /// The new lease is held as the rules allow: movable where its ask could be, guaranteed where it is covered.
    fn mark(&mut self, id: LeaseId, ask: &super::AskFact) -> Result<(), Broken> {
        let Some((movable, guaranteed)) = self.marks.get(&id).copied().filter(|_| self.binds()) else {
            return Ok(());
        };
        ensure!(!movable || self.would_move(ask), "{id} may be suspended, and {:?} may not", ask.aim);
        let must = self.is_within_guarantee(id);
        let fact = self.leases.get_mut(&id).expect("it was just granted");
        (fact.movable, fact.guaranteed, fact.must_be_guaranteed) = (movable, guaranteed, must);
        fact.guaranteed_before = guaranteed;
        let most = self.most_pinned(ask.peer.process, &self.leases[&id]);
        let fact = self.leases.get_mut(&id).expect("it was just granted");
        fact.limit = fact.limit.min(most);
        ensure!(
            !must || guaranteed,
            "I7: all that {id}'s account is charged is within its guarantee, and it is lent"
        );
        Ok(())
    }

    fn granted_in_turn(
        &mut self,
        request: Option<RequestId>,
        lease: LeaseId,
    ) -> Result<(usize, Vec<DeviceId>), Broken> {
        let Some((index, devices)) = self.predict(request, lease) else {
            return Err(Broken(format!(
                "{lease} is granted, and no ask can be granted now: {}",
                self.describe_all()
            )));
        };
        if self.asks[index].request != request
            && let Some(found) = self.bound_anew(request, lease)
        {
            self.takes_what_is_free(found.0, &found.1)?;
            return Ok(found);
        }
        let ask = &self.asks[index];
        ensure!(
            ask.request == request,
            "{lease} is granted to {request:?} out of turn: next is {:?}, {:?} on {devices:?}: {}",
            ask.request,
            ask.id,
            self.describe_all()
        );
        let shown = self.shown.get(&lease).unwrap_or(&devices);
        ensure!(
            *shown == devices,
            "{lease} is granted on {shown:?}, not {devices:?}: {}",
            self.describe_rooms(index)
        );
        Ok((index, devices))
    }

    /// A barrier for any device that was hopeless where it was bound, when this step began, and found another at once.
    fn bound_anew(&self, request: Option<RequestId>, lease: LeaseId) -> Option<(usize, Vec<DeviceId>)> {
        let (tally, shown) = (self.tally(), self.shown.get(&lease)?);
        let hopeless = |(_, ask): &(usize, &super::AskFact)| {
            let roams =
                matches!(&ask.aim, Aim::Lease { terms, .. } if matches!(terms.devices, DeviceWish::Any(_)));
            let bound = ask.bound.as_ref().filter(|bound| *bound != shown);
            roams
                && ask.request == request
                && self.is_barrier(ask)
                && self.is_shown_as(ask, lease)
                && bound.is_some_and(|bound| self.is_hopeless(&tally, ask, bound))
        };
        self.waiting().find(hopeless).map(|(index, _)| (index, shown.clone()))
    }

    /// Where guarantees and what moves change the order within a step: it fits, and overtakes no barrier.
    fn granted_by_right(
        &self,
        request: Option<RequestId>,
        lease: LeaseId,
    ) -> Result<(usize, Vec<DeviceId>), Broken> {
        let waits = |(_, ask): &(usize, &super::AskFact)| {
            ask.request == request && matches!(ask.aim, Aim::Lease { .. }) && self.is_shown_as(ask, lease)
        };
        let found = self.waiting().find(waits).map(|(i, _)| i);
        let index =
            found.ok_or_else(|| Broken(format!("{lease} is granted to {request:?}, who does not wait")))?;
        let Aim::Lease { terms, .. } = &self.asks[index].aim else { unreachable!("it was looked at") };
        let devices = match (self.shown.get(&lease), &terms.devices) {
            (Some(shown), _) => shown.clone(),
            (None, DeviceWish::These(these)) => these.iter().copied().collect(),
            (None, DeviceWish::Any(_)) => return Err(Broken(format!("{lease} is granted and gone at once"))),
        };
        let wished = match &terms.devices {
            DeviceWish::These(these) => these.iter().copied().eq(devices.iter().copied()),
            DeviceWish::Any(count) => devices.len() == count.get() as usize,
        };
        ensure!(wished, "{lease} is granted on {devices:?}, not on {:?}", terms.devices);
        self.takes_what_is_free(index, &devices)?;
        Ok((index, devices))
    }

    fn is_shown_as(&self, ask: &super::AskFact, lease: LeaseId) -> bool {
        let shown = self.shown_since.get(&lease);
        shown.is_none_or(|(pid, since)| *pid == ask.peer.pid && *since == ask.since)
    }

    /// What is given is free, within each limit, and kept by no barrier that goes first.
    pub(super) fn takes_what_is_free(&self, index: usize, devices: &[DeviceId]) -> Result<(), Broken> {
        let (ask, tally) = (&self.asks[index], self.tally());
        let mut whole = Bytes::ZERO;
        for device in devices {
            let (need, free) = (self.need(ask, *device), tally.free[device]);
            let usable = self.device(*device).is_some_and(|fact| !fact.lost);
            ensure!(
                usable && need <= free,
                "I2: {need} of device {device} are given, and {free} are free: {ask:?}"
            );
            whole = super::ledger::add(whole, need);
        }
        for node in self.path_of(ask) {
            let charged = tally.charged.get(&node).copied().unwrap_or(Bytes::ZERO);
            let limit = self.budget(&node).limit.unwrap_or(Bytes::MAX);
            ensure!(
                whole.is_zero() || super::ledger::add(charged, whole) <= limit,
                "{} is charged {charged} of {limit}, and is given {whole}",
                node.path()
            );
        }
        let overtaken = self.overtakes_however_bound(index, devices);
        ensure!(
            overtaken.is_none(),
            "{ask:?} overtakes the barrier {:?} on {devices:?}: {}",
            overtaken.map(|other| &self.asks[other]),
            self.describe_all()
        );
        Ok(())
    }

    /// The next in the line. Barriers for any device are bound anew now and then, and the state
    /// shows only how they are bound in the end: before, then and where it was granted are tried.
    fn predict(&mut self, request: Option<RequestId>, lease: LeaseId) -> Option<(usize, Vec<DeviceId>)> {
        let as_seen = |model: &Self, next: &Option<(usize, Vec<DeviceId>)>| {
            let shown = model.shown.get(&lease);
            next.as_ref().is_some_and(|(index, devices)| {
                model.asks[*index].request == request && shown.is_none_or(|shown| shown == devices)
            })
        };
        let mut next = self.next();
        if !as_seen(self, &next) {
            self.bind();
            next = self.next();
        }
        if !as_seen(self, &next) {
            self.learn_binding(request, lease);
            next = self.next();
        }
        next
    }

    /// A barrier for any device may have been bound anew just now: where it was granted.
    fn learn_binding(&mut self, request: Option<RequestId>, lease: LeaseId) {
        let index = self.asks.iter().position(|ask| request.is_some() && ask.request == request);
        if let (Some(index), Some(shown)) = (index, self.shown.get(&lease).cloned())
            && self.is_barrier(&self.asks[index])
        {
            self.asks[index].bound = Some(shown);
        }
    }

    /// A process becomes a member; where it has no context yet, this lease is charged for it.
    pub(super) fn join(&mut self, id: LeaseId, process: ProcessId) {
        let lease = self.leases.get_mut(&id).expect("it stands");
        if lease.members.contains(&process) {
            return;
        }
        lease.members.push(process);
        self.charge_contexts(id, process);
    }

    /// The lease is charged for the contexts that the process does not have yet.
    pub(super) fn charge_contexts(&mut self, id: LeaseId, process: ProcessId) {
        for device in self.leases[&id].devices.clone() {
            if !self.contexts.contains_key(&(process, device)) {
                self.charge_context(id, process, device);
            }
        }
    }

    /// A figure of zero was a context's that is gone, and says nothing of the one that is charged for now.
    pub(super) fn charge_context(&mut self, id: LeaseId, process: ProcessId, device: DeviceId) {
        self.contexts.insert((process, device), id);
        let key = (process, device);
        if self.measured.get(&key).is_some_and(|bytes| bytes.is_zero()) {
            self.measured.remove(&key);
        }
    }

    /// A lease is gone: other leases of its members there are charged for their contexts now.
    pub(super) fn pass_contexts_on(&mut self, gone: LeaseId) {
        let left: Vec<(ProcessId, DeviceId)> =
            self.contexts.iter().filter(|(_, lease)| **lease == gone).map(|(key, _)| *key).collect();
        for (process, device) in left {
            self.contexts.remove(&(process, device));
            let next = self
                .standing_leases()
                .find(|(_, lease)| lease.members.contains(&process) && lease.devices.contains(&device))
                .map(|(id, _)| id);
            if let Some(next) = next {
                self.contexts.insert((process, device), next);
            }
        }
    }

    /// A segment is to be made: for an allocation within its reserve, or for the next in the line.
    pub(super) fn see_create(
        &mut self,
        segment: SegmentId,
        lease: LeaseId,
        device: DeviceId,
        bytes: Bytes,
        kind: SegmentKind,
    ) -> Result<(), Broken> {
        ensure!(!self.segments.contains_key(&segment), "{segment} is made twice");
        let same = |aim: &Aim| match aim {
            Aim::Growth { lease: l, device: d, bytes: b, kind: k, .. } => {
                (*l, *d, *b, *k) == (lease, device, bytes, kind)
            }
            Aim::Lease { .. } | Aim::Resume { .. } => false,
        };
        let own = self.own_next(lease, device).filter(|i| same(&self.asks[*i].aim));
        let own = own.or_else(|| self.served_at_once(lease, device).filter(|i| same(&self.asks[*i].aim)));
        let index = match own {
            Some(index) => {
                self.untrimmed = self.untrimmed.map(|(of, on, aside)| (of, on, aside.saturating_sub(bytes)));
                index
            }
            None if self.binds() => self.grows_by_right(segment, &same, device)?,
            None => {
                if self.next().is_none_or(|(index, _)| !same(&self.asks[index].aim)) {
                    self.bind();
                }
                let Some((index, _)) = self.next() else {
                    return Err(Broken(format!(
                        "{segment} of {bytes} is made for {lease}, which can't grow now: {}",
                        self.describe_all()
                    )));
                };
                let next = &self.asks[index];
                ensure!(
                    same(&next.aim),
                    "{segment} of {bytes} is made for {lease} out of turn: next is {next:?}"
                );
                index
            }
        };
        let ask = &mut self.asks[index];
        ask.standing = Standing::Made(segment);
        let request = ask.request.ok_or_else(|| Broken(format!("{segment} is made for nobody")))?;
        let fact = SegmentFact {
            lease,
            device,
            bytes,
            process: ask.peer.process,
            request,
            state: SegmentState::Creating,
            doomed: false,
            reclaimed: false,
            handed: false,
            claimed: false,
            forgotten: false,
        };
        self.segments.insert(segment, fact);
        self.requests.get_mut(&request).expect("it asked").verdict = Verdict::Making;
        self.place_growth();
        Ok(())
    }

    /// The oldest allocation of the kind that waits: what it takes is free, and kept by no barrier that goes first.
    fn grows_by_right(
        &self,
        segment: SegmentId,
        same: &dyn Fn(&Aim) -> bool,
        device: DeviceId,
    ) -> Result<usize, Broken> {
        let waits = self.waiting().filter(|(_, ask)| same(&ask.aim)).map(|(i, _)| i);
        let index = waits.min_by_key(|i| (!self.is_barrier(&self.asks[*i]), self.turn(*i)));
        let index = index.ok_or_else(|| Broken(format!("{segment} is made, and nobody waits for it")))?;
        self.takes_what_is_free(index, &[device])?;
        Ok(index)
    }

    /// The allocation within the reserve that was asked for just now, where enough is set aside: it need not wait
    /// for what drains, though others of its lease do. All of them have their bytes once that is back.
    fn served_at_once(&self, id: LeaseId, device: DeviceId) -> Option<usize> {
        let ask =
            self.asks.last().filter(|ask| ask.standing == Standing::OwnDrain && ask.since == self.now)?;
        let Aim::Growth { lease, device: on, bytes, .. } = ask.aim else { return None };
        let enough = (lease, on) == (id, device) && bytes <= self.charge_on(id, device).set_aside;
        enough.then(|| self.asks.len() - 1)
    }

    /// The first allocation within the reserve for which enough is set aside now.
    pub(super) fn own_next(&self, id: LeaseId, device: DeviceId) -> Option<usize> {
        let waits = |(_, ask): &(usize, &super::AskFact)| {
            ask.standing == Standing::OwnDrain
                && matches!(ask.aim, Aim::Growth { lease, device: on, .. } if lease == id && on == device)
        };
        let (index, ask) = self.asks.iter().enumerate().find(waits)?;
        let Aim::Growth { bytes, .. } = ask.aim else { return None };
        let aside = match self.untrimmed {
            Some((of, on, bytes)) if (of, on) == (id, device) => bytes,
            Some(_) | None => self.charge_on(id, device).set_aside,
        };
        (bytes <= aside).then_some(index)
    }

    /// The request of a segment that was made is answered.
    pub(super) fn see_allocated(
        &mut self,
        request: RequestId,
        segment: SegmentId,
        process: ProcessId,
    ) -> Result<(), Broken> {
        let fact = self.segments.get_mut(&segment).ok_or_else(|| Broken(format!("{segment} is unknown")))?;
        ensure!(fact.state == SegmentState::Live, "{segment} is handed over as it is {:?}", fact.state);
        ensure!(!fact.handed, "{segment} is handed over twice");
        ensure!(fact.process == process, "{segment} of {} is handed to {process}", fact.process);
        ensure!(fact.request == request, "{segment} was asked for by {:?}, not {request:?}", fact.request);
        fact.handed = true;
        let asked = &self.requests[&request].event;
        ensure!(matches!(asked, Event::Allocate { .. }), "{segment} answers {asked:?}");
        self.answered(request)
    }
}
