//! Judges what the line gives: grants and segments.

use gpulease_arbiter::{Event, RequestId, SegmentKind};
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
        let Some((index, devices)) = self.predict(request, lease) else {
            return Err(Broken(format!(
                "{lease} is granted, and no ask can be granted now: {}",
                self.describe_all()
            )));
        };
        let ask = self.asks[index].clone();
        ensure!(
            ask.request == request,
            "{lease} is granted to {request:?} out of turn: next is {:?}, {:?} on {devices:?}: {}",
            ask.request,
            ask.id,
            self.describe_all()
        );
        let Aim::Lease { terms, .. } = ask.aim else {
            return Err(Broken(format!("{lease} is granted, and next is growth: {:?}", ask.aim)));
        };
        let shown = self.shown.get(&lease).unwrap_or(&devices);
        ensure!(
            *shown == devices,
            "{lease} is granted on {shown:?}, not {devices:?}: {}",
            self.describe_rooms(index)
        );
        if let Some(request) = request {
            self.answered(request)?;
        }
        self.asks[index].standing = Standing::Granted(lease);
        let now = self.now;
        let fact = LeaseFact {
            owner: ask.session,
            peer: ask.peer.clone(),
            reserve: terms.reserve,
            limit: terms.limit,
            terms,
            devices,
            members: Vec::new(),
            ended: false,
            gone: false,
            used: false,
            granted_at: now,
            waited: now.since(ask.since),
            end_untold: false,
            recall: None,
            overdue: false,
            suspects: std::collections::BTreeSet::new(),
        };
        self.leases.insert(lease, fact);
        self.join(lease, ask.peer.process);
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
        for device in lease.devices.clone() {
            self.contexts.entry((process, device)).or_insert(id);
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
            Aim::Lease { .. } => false,
        };
        let own = self.own_next(lease, device).filter(|i| same(&self.asks[*i].aim));
        let own = own.or_else(|| self.served_at_once(lease, device).filter(|i| same(&self.asks[*i].aim)));
        let index = match own {
            Some(index) => {
                self.untrimmed = self.untrimmed.map(|(of, on, aside)| (of, on, aside.saturating_sub(bytes)));
                index
            }
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
        };
        self.segments.insert(segment, fact);
        self.requests.get_mut(&request).expect("it asked").verdict = Verdict::Making;
        Ok(())
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
