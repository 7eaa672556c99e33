//! What sessions ask, as events; and effects, as work for the devices and answers to those who asked.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use gpulease_arbiter::{
    Authority, Denial, Effect, Event, LeaseView, Notice, Peer, RequestId, SegmentKind, Time,
};
use gpulease_words::{DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId};

use super::chronicle::facts_of_lease;
use super::command::{
    Access, Act, AskUpdate, Departure, Grant, Guest, LeaseTerms, Left, Opened, Reply, Segment, SegmentWish,
    SessionNotice, Shown,
};
use super::requests::{AskKey, Asked, Pending};
use super::segments::Recipient;
use super::sessions::{Attached, Told};
use super::{Driver, LeaseRecord, TICKETS_PER_UID};
use crate::credentials::Secret;
use crate::device::{HandleKind, Order};
use crate::liveness::{Caller, Process};

const NOT_WATCHED: Denial = Denial::NotAllowed(
    "the broker cannot watch over this process: it is gone, or the broker has too many files open; try again",
);
const NAME_IN_USE: Denial =
    Denial::Malformed("another ask of this session has that name already; give each a number of its own");

impl Driver {
    pub(super) fn open(&mut self, request: RequestId, caller: Caller, program: String, reply: Reply<Opened>) {
        if self.liveness.watch(&caller.process).is_err() {
            return drop(reply.send(Err(NOT_WATCHED.into())));
        }
        let peer = self.peer(&caller, program);
        self.requests.insert(request, Pending::Open { caller, reply });
        self.step(Event::Open { request, peer });
    }

    fn peer(&self, caller: &Caller, program: String) -> Peer {
        let (process, pid) = (caller.process.id(), caller.process.pid());
        Peer { process, pid, uid: caller.uid, group: self.groups.get(&caller.uid).cloned(), program }
    }

    pub(super) fn rejoin(&mut self, caller: &Caller, shown: &Shown, reply: Reply<Opened>) {
        if self.sessions.own(shown, caller).is_none() {
            return drop(reply.send(Err(Denial::NoSuchSession.into())));
        }
        self.step(Event::Rejoined { session: shown.session });
        self.welcome(shown.session, reply);
    }

    /// Starts a session's stream. Where the caller left meanwhile, the stream ends by being dropped.
    fn welcome(&mut self, session: SessionId, reply: Reply<Opened>) {
        let Attached { number, notices, end } = self.sessions.attach(session);
        let secret = self.sessions.get(session).expect("just attached to").secret;
        let departure = Departure::new(self.departures.clone(), Left::Stream(session, number));
        drop(reply.send(Ok(Opened { session, secret, notices, end, departure })));
    }

    /// What the session's own process asks.
    pub(super) fn act(&mut self, request: RequestId, session: SessionId, act: Act) {
        match act {
            Act::Close { reply } => {
                self.requests.insert(request, Pending::Plain(reply));
                self.step(Event::Close { request, session });
            }
            Act::Acquire { ask_name, terms, updates } => {
                let key = AskKey { session, name: ask_name };
                if self.names_a_segment(key) {
                    return drop(updates.send(AskUpdate::Refused(NAME_IN_USE.into())));
                }
                let what = Asked { name: terms.name.clone(), reserve: terms.reserve };
                self.requests.insert(request, Pending::Ask { key, what, updates });
                self.requests.name(request, key);
                self.step(Event::Acquire { request, session, ask_name, terms });
            }
            Act::Withdraw { ask_name, reply } => self.withdraw(request, session, ask_name, reply),
            Act::Join { lease, token, reply } => {
                if !self.leases.get(&lease).is_some_and(|known| known.token.matches(&token)) {
                    return drop(reply.send(Err(Denial::NoSuchLease.into())));
                }
                self.requests.insert(request, Pending::Lease(reply));
                self.step(Event::Join { request, session, lease });
            }
            Act::Admit { lease, guest, reply } => self.admit(request, session, lease, guest, reply),
            Act::Resize { lease, reserve, limit, reply } => {
                self.requests.insert(request, Pending::Lease(reply));
                self.step(Event::Resize { request, session, lease, reserve, limit });
            }
            Act::Release { lease, reply } => {
                self.requests.insert(request, Pending::Amount(reply));
                self.step(Event::Release { request, authority: Authority::Session(session), lease });
            }
            Act::Allocate { wish, reply } => self.allocate(request, session, wish, reply),
            Act::Free { lease, segment, reply } => {
                self.requests.insert(request, Pending::Plain(reply));
                self.step(Event::Free { request, session, lease, segment });
            }
        }
    }

    fn admit(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        guest: Guest,
        reply: Reply<()>,
    ) {
        let Guest { caller: guest, program, place } = guest;
        if self.liveness.watch(&guest.process).is_err() {
            return drop(reply.send(Err(NOT_WATCHED.into())));
        }
        let peer = self.peer(&guest, program);
        self.requests.insert(request, Pending::Admit { guest, reply });
        self.step(Event::Admit { request, session, lease, peer, place });
    }

    fn allocate(&mut self, request: RequestId, session: SessionId, wish: SegmentWish, reply: Reply<Segment>) {
        let SegmentWish { lease, device, bytes, kind, patience, guard, ask_name } = wish;
        let uid = self.sessions.get(session).expect("checked by the caller").uid;
        let key = AskKey { session, name: ask_name };
        if ask_name != 0 && self.requests.latest(key).is_some() {
            return drop(reply.send(Err(NAME_IN_USE.into())));
        }
        if self.segments.offered(uid) >= TICKETS_PER_UID {
            let account = format!("user.{uid}");
            let denial =
                Denial::TooMany { what: "segments that nobody fetched", account, max: TICKETS_PER_UID };
            return drop(reply.send(Err(denial.into())));
        }
        self.requests.insert(request, Pending::Segment { session, uid, reply });
        if ask_name != 0 {
            self.requests.name(request, key);
        }
        self.step(Event::Allocate { request, session, lease, device, bytes, kind, patience, guard });
    }

    /// Whether the name stands for an `Allocate`, waiting or answered.
    fn names_a_segment(&self, key: AskKey) -> bool {
        self.requests.latest(key).is_some_and(|request| {
            self.segments.answer_to(request).is_some()
                || matches!(self.requests.find(request), Some(Pending::Segment { .. }))
        })
    }

    fn withdraw(&mut self, request: RequestId, session: SessionId, ask_name: u64, reply: Reply<()>) {
        let key = AskKey { session, name: ask_name };
        if let Some(earlier) = self.requests.latest(key).filter(|_| self.names_a_segment(key)) {
            match self.segments.answer_to(earlier) {
                Some(segment) => self.free_undelivered(segment),
                None => self.abandon(earlier),
            }
            return drop(reply.send(Ok(())));
        }
        self.requests.insert(request, Pending::Plain(reply));
        self.step(Event::Withdraw { request, session, ask_name });
    }

    /// A waiting `Allocate` is given up.
    pub(super) fn abandon(&mut self, request: RequestId) {
        if let Some(pending) = self.requests.take(request) {
            pending.deny(Denial::Withdrawn);
        }
        self.requests.forget_request(request);
        self.step(Event::Abandoned { request });
    }

    /// A segment whose answer reached nobody goes back.
    pub(super) fn free_undelivered(&mut self, segment: SegmentId) {
        let event = self.undelivered(segment);
        event.into_iter().for_each(|event| self.step(event));
    }

    fn undelivered(&mut self, segment: SegmentId) -> Option<Event> {
        let lease = self.segments.get(segment)?.lease;
        let session = self.segments.session_of(segment)?;
        let request = self.desk.next_request();
        self.requests.insert(request, Pending::Unheard);
        Some(Event::Free { request, session, lease, segment })
    }

    pub(super) fn carry_out(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Opened { request, session } => self.opened(request, session),
            Effect::Denied { request, denial } => {
                self.requests.forget_request(request);
                self.answer(request, |pending| pending.deny(denial));
            }
            Effect::Done { request } => self.done(request),
            Effect::Queued { request, ask } => {
                if let Some(Pending::Ask { updates, .. }) = self.requests.find(request) {
                    drop(updates.send(AskUpdate::Queued(ask)));
                }
            }
            Effect::Granted { request, lease } => {
                self.granted(request, lease);
            }
            Effect::Joined { request, lease } | Effect::Resized { request, lease } => {
                let terms = terms(self.view(lease));
                self.answer(request, |pending| match pending {
                    Pending::Lease(reply) => drop(reply.send(Ok(terms))),
                    other => mismatch(&other, "a lease"),
                });
            }
            Effect::Released { request, draining: bytes, .. } | Effect::Recalled { request, bytes, .. } => {
                self.answer(request, |pending| match pending {
                    Pending::Amount(reply) => drop(reply.send(Ok(bytes))),
                    other => mismatch(&other, "an amount"),
                });
            }
            Effect::Create { segment, lease, device, bytes, kind } => {
                self.segments.order(segment, lease, device, bytes);
                self.order(device, Order::Create { segment, bytes, kind: handle_kind(kind) });
            }
            Effect::Allocated { request, segment, process } => self.allocated(request, segment, process),
            Effect::Reclaim { segment, device } => {
                let request = self.segments.reclaim(segment);
                request.into_iter().for_each(|request| self.requests.forget_request(request));
                self.order(device, Order::Reclaim(segment));
            }
            Effect::Notify { session, notice } => self.notify(now, session, notice),
            Effect::Overdue { .. } => {}
            Effect::LeaseGone { lease } => {
                let ask = self.leases.remove(&lease).and_then(|record| record.ask);
                ask.into_iter().for_each(|ask| self.requests.forget(ask));
            }
            Effect::SessionGone { session } => {
                self.sessions.remove(session);
                self.requests.end_session(session);
            }
            Effect::ProcessGone { process } => self.drop_process(process),
        }
    }

    fn answer(&mut self, request: RequestId, answer: impl FnOnce(Pending)) {
        match self.requests.take(request) {
            Some(pending) => answer(pending),
            None => tracing::error!(?request, "an answer to a request that is not open"),
        }
    }

    fn opened(&mut self, request: RequestId, session: SessionId) {
        match self.requests.take(request) {
            Some(Pending::Open { caller, reply }) => {
                self.keep_process(&caller.process);
                self.sessions.insert(session, &caller);
                self.welcome(session, reply);
            }
            other => tracing::error!(?request, ?other, "a session for somebody who did not ask for one"),
        }
    }

    fn done(&mut self, request: RequestId) {
        match self.requests.take(request) {
            Some(Pending::Plain(reply)) => drop(reply.send(Ok(()))),
            Some(Pending::Admit { guest, reply }) => {
                self.keep_process(&guest.process);
                drop(reply.send(Ok(())));
            }
            Some(Pending::Unheard) => {}
            Some(other) => mismatch(&other, "done"),
            None => tracing::error!(?request, "an answer to a request that is not open"),
        }
    }

    /// A lease has one token from its grant on; an asker whose stream was broken hears of both when he comes back.
    fn granted(&mut self, request: Option<RequestId>, lease: LeaseId) {
        let record = self.leases.get_mut(&lease).expect("it is recorded when it is noted");
        let Some(request) = request else {
            return;
        };
        record.ask = self.requests.key_of(request).or(record.ask);
        let token = record.token;
        let view = self.view(lease);
        let waited = view.waited;
        let terms = terms(view);
        self.answer(request, |pending| match pending {
            Pending::Ask { updates, .. } => {
                drop(updates.send(AskUpdate::Granted(Grant { terms, token, waited })));
            }
            other => mismatch(&other, "a grant"),
        });
    }

    /// Records a lease when it is first granted; how long it had waited.
    pub(super) fn record(&mut self, lease: LeaseId) -> Duration {
        let view = self.view(lease);
        let waited = view.waited;
        let first = || LeaseRecord { token: Secret::random(), facts: facts_of_lease(&view), ask: None };
        self.leases.entry(lease).or_insert_with(first);
        waited
    }

    fn allocated(&mut self, request: RequestId, segment: SegmentId, process: ProcessId) {
        let Some(Pending::Segment { session, uid, reply }) = self.requests.take(request) else {
            return tracing::error!(?request, "a segment for somebody who did not ask for one");
        };
        let access = self.segments.offer(segment, Recipient { request, session, uid, process });
        let known = self.segments.get(segment).expect("it was just offered");
        let (bytes, device) = (known.bytes, known.device);
        if let Some(process) = self.processes.get(&process) {
            self.order(device, Order::Handed(segment, process.pid()));
        }
        // A CUDA IPC handle is claimed by being told.
        if matches!(access, Access::CudaIpc(_)) {
            self.backlog.push_back(Event::Claimed { segment });
        }
        if reply.send(Ok(Segment { segment, bytes, access })).is_err() {
            let event = self.undelivered(segment);
            self.backlog.extend(event);
        }
    }

    fn notify(&mut self, now: Time, session: SessionId, notice: Notice) {
        if self.sessions.tell(session, SessionNotice::new(notice, now)) == Told::CutOff {
            self.backlog.push_back(Event::Adrift { session });
        }
    }

    fn view(&self, lease: LeaseId) -> LeaseView {
        self.arbiter.lease(lease).expect("a lease that an effect names exists while it is carried out")
    }

    fn order(&self, device: DeviceId, order: Order) {
        let place =
            self.facts.iter().position(|facts| facts.id == device).expect("the arbiter knows our devices");
        self.threads[place].order(order);
    }

    fn keep_process(&mut self, process: &Arc<Process>) {
        self.processes.insert(process.id(), process.clone());
        self.roster().insert(process.pid(), process.id());
    }

    pub(super) fn drop_process(&mut self, id: ProcessId) {
        if let Some(process) = self.processes.remove(&id) {
            let mut roster = self.roster();
            // A new process may have the number already.
            if roster.get(&process.pid()) == Some(&id) {
                roster.remove(&process.pid());
            }
        }
        self.overheads.retain(|(process, _), _| *process != id);
    }

    fn roster(&self) -> MutexGuard<'_, BTreeMap<Pid, ProcessId>> {
        self.members.lock().expect("nothing panics while it holds the lock")
    }
}

fn terms(view: LeaseView) -> LeaseTerms {
    let LeaseView { id: lease, name, devices, reserve, limit, .. } = view;
    LeaseTerms { lease, name, devices, reserve, limit }
}

const fn handle_kind(kind: SegmentKind) -> HandleKind {
    match kind {
        SegmentKind::Descriptor => HandleKind::Descriptor,
        SegmentKind::CudaIpc => HandleKind::CudaIpc,
    }
}

fn mismatch(pending: &Pending, answer: &str) {
    tracing::error!(?pending, answer, "an answer of another kind than was asked for");
}
