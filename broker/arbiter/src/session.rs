//! Sessions open, drift, come back and end; processes die.

use std::collections::BTreeSet;

use gpulease_words::{LeaseId, ProcessId, SessionId, Uid};

use crate::lease::Attendance;
use crate::process::{Named, Presence, Process, Session};
use crate::{Arbiter, Denial, Effect, Notice, Peer, RequestId, Why};

impl Arbiter {
    pub(crate) fn session(&self, session: SessionId) -> Result<&Session, Denial> {
        self.sessions.get(&session).ok_or(Denial::NoSuchSession)
    }

    pub(crate) fn process(&self, process: ProcessId) -> &Process {
        self.processes.get(&process).expect("a process is known while a session, lease or ask names it")
    }

    pub(crate) fn process_mut(&mut self, process: ProcessId) -> &mut Process {
        self.processes.get_mut(&process).expect("a process is known while a session, lease or ask names it")
    }

    pub(crate) fn open(&mut self, request: RequestId, peer: Peer) -> Result<(), Denial> {
        self.may_open(&peer)?;
        let session = self.ids.session.next().map_err(|_| Denial::OutOfIds)?;
        self.ids.session = session;
        let (process, uid) = (peer.process, peer.uid);
        self.users.entry(uid).or_default().sessions += 1;
        self.processes.entry(process).or_insert_with(|| Process::new(peer)).sessions.insert(session);
        self.sessions.insert(session, Session::new(process));
        self.emit(Effect::Opened { request, session });
        Ok(())
    }

    fn may_open(&self, peer: &Peer) -> Result<(), Denial> {
        self.same_user(peer)?;
        let open = self.users.get(&peer.uid).map_or(0, |tally| tally.sessions);
        if open >= self.policy.sessions_per_uid {
            return Err(too_many("sessions", user(peer.uid), self.policy.sessions_per_uid));
        }
        if self.sessions.len() >= self.policy.sessions_max as usize {
            return Err(too_many("sessions", "host".to_owned(), self.policy.sessions_max));
        }
        Ok(())
    }

    /// A process is charged to one user for its life: one that changes its user has to be started anew.
    pub(crate) fn same_user(&self, peer: &Peer) -> Result<(), Denial> {
        match self.processes.get(&peer.process) {
            Some(known) if known.peer.uid != peer.uid => Err(Denial::NotAllowed(
                "this process was another user's when the broker first saw it; start a new one",
            )),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn adrift(&mut self, session: SessionId) {
        let Some(open) = self.sessions.get_mut(&session).filter(|s| s.presence == Presence::Present) else {
            return;
        };
        open.presence = Presence::Adrift;
        self.timers.set(Why::AdriftTooLong(session), self.now.plus(self.policy.adrift_grace));
    }

    pub(crate) fn rejoined(&mut self, session: SessionId) {
        let Some(open) = self.sessions.get_mut(&session) else {
            return;
        };
        open.presence = Presence::Present;
        let (process, leases) = (open.process, open.leases.clone());
        self.timers.cancel(Why::AdriftTooLong(session));
        for lease in &leases {
            self.lease_mut(*lease).attendance = Attendance::Attended;
        }
        // Those of others that it is a member of, too: it has memory to give.
        let joined = self.process(process).leases.iter().copied();
        for lease in joined.chain(leases).collect::<BTreeSet<LeaseId>>() {
            self.remind(session, lease);
        }
        self.remind_of_moves(session);
    }

    pub(crate) fn stayed_away(&mut self, session: SessionId) {
        let open = self.sessions.get_mut(&session).expect("the timer goes with the session");
        open.presence = Presence::Away;
        let leases: Vec<LeaseId> = open.leases.iter().copied().collect();
        for lease in leases {
            self.becomes_overdue(lease, |lease| lease.attendance = Attendance::Away);
        }
    }

    pub(crate) fn close(&mut self, request: RequestId, session: SessionId) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        self.end_session(session);
        self.retire_process(process);
        self.emit(Effect::Done { request });
        Ok(())
    }

    /// Withdraws the session's asks, gives its leases back and forgets it.
    fn end_session(&mut self, session: SessionId) {
        let open = self.sessions.get(&session).expect("its caller looked");
        let process = open.process;
        for lease in self.process(process).leases.clone() {
            self.lose_waiter(lease, |_, waiter| waiter == session);
        }
        // The youngest first: an older one that leaves would let a younger one of the same lease pass.
        for ask in self.process(process).asks.clone().into_iter().rev() {
            if self.line.asks.get(&ask).is_some_and(|ask| ask.session == session) {
                self.refuse_ask(ask, Denial::Withdrawn);
            }
        }
        let leases: Vec<LeaseId> = self.sessions[&session].leases.iter().copied().collect();
        for lease in leases {
            self.end_lease(lease);
        }
        self.forget_session(session);
    }

    fn forget_session(&mut self, session: SessionId) {
        let gone = self.sessions.remove(&session).expect("its caller looked");
        self.timers.cancel(Why::AdriftTooLong(session));
        let process = self.process_mut(gone.process);
        process.sessions.remove(&session);
        let uid = process.peer.uid;
        for lease in self.process(gone.process).leases.clone() {
            let owner = &mut self.lease_mut(lease).owner;
            owner.session = owner.session.filter(|s| *s != session);
        }
        let tally = self.users.get_mut(&uid).expect("an open session is counted");
        tally.sessions -= 1;
        self.forget_idle_user(uid);
        self.emit(Effect::SessionGone { session });
    }

    pub(crate) fn forget_idle_user(&mut self, uid: Uid) {
        if self.users.get(&uid).is_some_and(|tally| tally.sessions == 0 && tally.asks == 0) {
            self.users.remove(&uid);
        }
    }

    pub(crate) fn died(&mut self, process: ProcessId) {
        let Some(dead) = self.processes.get(&process) else {
            return;
        };
        let (sessions, leases) = (dead.sessions.clone(), dead.leases.clone());
        // The dead hear nothing: a lease that is whole by his death tells the others only.
        for session in &sessions {
            self.sessions.get_mut(session).expect("a process's sessions are open").presence = Presence::Away;
        }
        for lease in leases {
            self.lose_waiter(lease, |waiter, _| waiter == process);
        }
        let dead = self.process(process);
        // The youngest first: an older one that leaves would let a younger one of the same lease pass.
        for ask in dead.asks.clone().into_iter().rev() {
            self.refuse_ask(ask, Denial::Withdrawn);
        }
        self.drain_all_of(process);
        for lease in self.process(process).leases.clone() {
            self.part(process, lease);
        }
        for session in sessions {
            self.forget_session(session);
        }
        self.processes.remove(&process);
        self.emit(Effect::ProcessGone { process });
    }

    /// The process is a member of the lease no more: it is dead.
    fn part(&mut self, process: ProcessId, lease: LeaseId) {
        self.drop_contexts(process, lease);
        let left = self.lease_mut(lease);
        left.members.remove(&process);
        left.residence.undrained.remove(&process);
        let owned = left.owner.session.filter(|session| self.sessions[session].process == process);
        if let Some(session) = owned {
            self.disown(session, lease);
        }
        self.process_mut(process).leases.remove(&lease);
        if self.leases[&lease].members.is_empty() {
            self.end_lease(lease);
        }
        self.bury(lease);
        self.move_on(lease);
    }

    /// The lease's owner is gone; its other members keep it.
    fn disown(&mut self, session: SessionId, lease: LeaseId) {
        self.sessions.get_mut(&session).expect("an owner's session is open").leases.remove(&lease);
        let left = self.lease_mut(lease);
        left.owner.session = None;
        left.attendance = Attendance::Attended;
        self.timers.cancel(Why::GrantUnclaimed(lease));
    }

    /// Stops watching a process that nothing needs.
    pub(crate) fn retire_process(&mut self, process: ProcessId) {
        if self.processes.get(&process).is_some_and(|known| !known.is_needed()) {
            self.processes.remove(&process);
            self.emit(Effect::ProcessGone { process });
        }
    }

    /// Tells the lease's owner and members.
    pub(crate) fn notify(&mut self, lease: LeaseId, notice: &Notice) {
        for session in self.listeners(lease) {
            self.emit(Effect::Notify { session, notice: notice.clone() });
        }
    }

    /// The present sessions of the lease's members; the owner is one of them while he lives.
    fn listeners(&self, lease: LeaseId) -> Vec<SessionId> {
        let members = &self.leases[&lease].members;
        let sessions = members.iter().flat_map(|member| self.process(*member).sessions.iter().copied());
        sessions.filter(|session| self.sessions[session].presence == Presence::Present).collect()
    }

    /// What became of an ask of the session.
    pub(crate) fn named(&self, session: SessionId, ask_name: u64) -> Option<Named> {
        self.sessions.get(&session)?.asks.get(&ask_name).copied()
    }
}

/// A count is at its bound.
pub(crate) const fn too_many(what: &'static str, account: String, max: u32) -> Denial {
    Denial::TooMany { what, account, max }
}

/// The path of a user's account.
pub(crate) fn user(uid: Uid) -> String {
    format!("user.{uid}")
}
