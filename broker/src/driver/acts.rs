//! What sessions ask, as events.

use gpulease_arbiter::{Authority, Denial, Event, Peer, RequestId};
use gpulease_words::{LeaseId, Pid, ProcessId, SegmentId, SessionId};

use super::command::{Act, AskUpdate, Departure, Guest, Left, Opened, Reply, Segment, SegmentWish, Shown};
use super::requests::{AskKey, Asked, Pending};
use super::sessions::Attached;
use super::{Driver, TICKETS_PER_UID};
use crate::liveness::Caller;

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
        let opened = self.attach(shown.session);
        // What this has to say goes over the new stream.
        self.step(Event::Rejoined { session: shown.session });
        let (standings, sizes) = (self.standings(shown.session), self.sizes(shown.session));
        drop(reply.send(Ok(Opened { standings, sizes, ..opened })));
    }

    /// Starts a session's stream. Where the caller left meanwhile, the stream ends by being dropped.
    pub(super) fn welcome(&mut self, session: SessionId, reply: Reply<Opened>) {
        drop(reply.send(Ok(self.attach(session))));
    }

    fn attach(&mut self, session: SessionId) -> Opened {
        let Attached { number, notices, end } = self.sessions.attach(session);
        let secret = self.sessions.get(session).expect("just attached to").secret;
        let departure = Departure::new(self.departures.clone(), Left::Stream(session, number));
        Opened { session, secret, standings: Vec::new(), sizes: Vec::new(), notices, end, departure }
    }

    /// What the session's own process asks.
    pub(super) fn act(&mut self, request: RequestId, session: SessionId, act: Act) {
        match act {
            Act::Close { reply } => {
                self.requests.insert(request, Pending::Plain(reply));
                self.step(Event::Close { request, session });
            }
            Act::Acquire { ask_name, mut terms, updates } => {
                if terms.name.is_empty() {
                    terms.name = self.arbiter.program(session).unwrap_or_default().to_owned();
                }
                let key = AskKey { session, name: ask_name };
                if self.names_a_segment(key) {
                    return drop(updates.send(AskUpdate::Refused(NAME_IN_USE.into())));
                }
                let what = Asked { name: terms.name.clone(), reserve: terms.reserve };
                self.requests.insert(request, Pending::Ask { key, what, updates });
                self.requests.name(request, key);
                self.step(Event::Acquire { request, session, ask_name, terms });
                self.requests.keep_names();
            }
            Act::Withdraw { ask_name, reply } => self.withdraw(request, session, ask_name, reply),
            Act::Join { lease, token, ancestors, reply } => {
                if !self.leases.get(&lease).is_some_and(|known| known.token.matches(&token)) {
                    return drop(reply.send(Err(Denial::NoSuchLease.into())));
                }
                self.requests.insert(request, Pending::Lease(reply));
                let ancestors = self.known(&ancestors);
                self.step(Event::Join { request, session, lease, ancestors });
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
            Act::Report { lease, news, reply } => {
                drop(reply.send(self.report(session, lease, news)));
            }
            Act::Resume { lease, updates } => self.resume(request, session, lease, updates),
            Act::Pin { lease, reply } => {
                self.requests.insert(request, Pending::Plain(reply));
                self.step(Event::Pin { request, session, lease });
            }
        }
    }

    /// Those of these processes that are members of a lease or have a session.
    fn known(&self, pids: &[Pid]) -> Vec<ProcessId> {
        let known = |pid: &Pid| self.processes.iter().find(|(_, process)| process.pid() == *pid);
        pids.iter().filter_map(known).map(|(id, _)| *id).collect()
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
        // Each that is asked for becomes a ticket.
        if self.segments.offered(uid) + self.requests.segments_of(uid) >= TICKETS_PER_UID {
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
        let lease = self.segments.get(segment).map(|known| known.lease);
        let session = self.segments.session_of(segment);
        if let (Some(lease), Some(session)) = (lease, session) {
            let request = self.desk.next_request();
            self.requests.insert(request, Pending::Unheard);
            self.step(Event::Free { request, session, lease, segment });
        }
    }
}
