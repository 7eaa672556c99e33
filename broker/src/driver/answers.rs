//! Effects, as work for the devices and answers to those who asked.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use gpulease_arbiter::{
    Denial, Effect, Event, LeaseView, Notice, Occurrence, Pinning, RequestId, SegmentKind, Time,
};
use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId};

use super::chronicle::facts_of_lease;
use super::command::{Access, AskUpdate, Grant, LeaseTerms, Segment, SessionNotice};
use super::requests::Pending;
use super::segments::Recipient;
use super::sessions::Told;
use super::{Driver, LeaseRecord};
use crate::credentials::Secret;
use crate::device::{HandleKind, Order};
use crate::liveness::Process;
use crate::witness::Witness;

impl Driver {
    pub(super) fn carry_out(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Opened { request, session } => self.opened(request, session),
            Effect::Denied { request, denial } => self.denied(request, denial),
            Effect::Done { request } => self.done(request),
            Effect::Queued { request, ask } => {
                if let Some(Pending::Ask { updates, .. } | Pending::Resume { updates, .. }) =
                    self.requests.find(request)
                {
                    drop(updates.send(AskUpdate::Queued(ask)));
                }
            }
            Effect::Granted { request, lease } => {
                self.granted(request, lease);
            }
            Effect::Joined { request, lease } => self.tell_terms(request, lease),
            Effect::Resized { request, lease } => {
                self.tell_terms(request, lease);
                self.tell_sizes(lease);
            }
            Effect::Released { request, draining: bytes, .. } | Effect::Recalled { request, bytes, .. } => {
                self.answer(request, |pending| match pending {
                    Pending::Amount(reply) => drop(reply.send(Ok(bytes))),
                    other => mismatch(&other, "an amount"),
                });
            }
            Effect::Create { segment, lease, device, bytes, kind, pinning } => {
                let create = Order::Create { segment, bytes, kind: handle_kind(kind) };
                self.create(segment, (lease, device, bytes), pinning, create);
            }
            Effect::Restore { segment, device, bytes, .. } => {
                self.segments.order_again(segment);
                // Nobody waits for an answer, and who can't have it back is to hear that from the arbiter.
                self.order(device, Order::Create { segment, bytes, kind: HandleKind::Descriptor });
            }
            Effect::Forget { segment } => self.forget(segment),
            Effect::Resumed { request, lease } => self.answer(request, |pending| match pending {
                Pending::Resume { updates, since, .. } => {
                    drop(updates.send(AskUpdate::Resumed(lease, now.since(since))));
                }
                other => mismatch(&other, "a lease that is back"),
            }),
            Effect::Signal { process, signal } => self.signal(process, signal),
            Effect::Occurred { lease, what: Occurrence::Pinned(_) } => self.drop_copies(lease),
            Effect::Occurred { .. } => {}
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
            Effect::SessionGone { session } => self.session_gone(session),
            Effect::ProcessGone { process } => self.drop_process(process),
        }
    }

    /// Has a new segment made, with its host copy where it is to have one.
    fn create(
        &mut self,
        segment: SegmentId,
        (lease, device, bytes): (LeaseId, DeviceId, Bytes),
        pinning: Pinning,
        create: Order,
    ) {
        match self.host_copy(segment, bytes, pinning) {
            Ok(host_copy) => {
                self.segments.order(segment, (lease, device, bytes), host_copy);
                self.order(device, create);
            }
            Err(why) => self.backlog.push_back(Event::CreateFailed { segment, why }),
        }
    }

    fn tell_terms(&mut self, request: RequestId, lease: LeaseId) {
        let terms = terms(self.view(lease));
        self.answer(request, |pending| match pending {
            Pending::Lease(reply) => drop(reply.send(Ok(terms))),
            other => mismatch(&other, "a lease"),
        });
    }

    fn answer(&mut self, request: RequestId, answer: impl FnOnce(Pending)) {
        match self.requests.take(request) {
            Some(pending) => answer(pending),
            None => tracing::error!(?request, "an answer to a request that is not open"),
        }
    }

    fn denied(&mut self, request: RequestId, denial: Denial) {
        if self.requests.is_superseded(request) {
            // The edge has its own word for it.
            return drop(self.requests.take(request));
        }
        self.requests.refused(request);
        self.answer(request, |pending| pending.deny(denial));
    }

    fn session_gone(&mut self, session: SessionId) {
        self.sessions.remove(session);
        let unwanted = self.requests.end_session(session).into_iter();
        self.backlog.extend(unwanted.map(|request| Event::Abandoned { request }));
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
            Some(Pending::Budgets { groups, reply }) => {
                self.groups = groups;
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
        let movable = self.segments.get(segment).is_some_and(super::segments::Segment::has_copy);
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
        // Where the caller left, his leaving is told, and the segment goes back then.
        drop(reply.send(Ok(Segment { segment, bytes, access, movable })));
    }

    fn notify(&mut self, now: Time, session: SessionId, notice: Notice) {
        if let Some(notice) = self.put_into_words(now, session, notice) {
            self.tell(session, notice);
        }
    }

    pub(super) fn tell(&mut self, session: SessionId, notice: SessionNotice) {
        if self.sessions.tell(session, notice) == Told::CutOff {
            self.backlog.push_back(Event::Adrift { session });
        }
    }

    pub(super) fn view(&self, lease: LeaseId) -> LeaseView {
        self.arbiter.lease(lease).expect("a lease that an effect names exists while it is carried out")
    }

    pub(super) fn order(&self, device: DeviceId, order: Order) {
        let place =
            self.facts.iter().position(|facts| facts.id == device).expect("the arbiter knows our devices");
        self.threads[place].order(order);
    }

    fn keep_process(&mut self, process: &Arc<Process>) {
        let known = self.processes.insert(process.id(), process.clone());
        self.roster().insert(process.pid(), process.id());
        // What was told of it while it had another session was forgotten with that.
        self.witness.iter().filter(|_| known.is_none()).for_each(Witness::tell_again);
    }

    pub(super) fn drop_process(&mut self, id: ProcessId) {
        if let Some(process) = self.processes.remove(&id) {
            let mut roster = self.roster();
            // A new process may have the number already.
            if roster.get(&process.pid()) == Some(&id) {
                roster.remove(&process.pid());
            }
        }
        self.forget_overheads(id);
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
        SegmentKind::Descriptor => HandleKind::DescriptorToFollow,
        SegmentKind::CudaIpc => HandleKind::CudaIpc,
    }
}

fn mismatch(pending: &Pending, answer: &str) {
    tracing::error!(?pending, answer, "an answer of another kind than was asked for");
}
