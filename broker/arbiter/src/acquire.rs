//! Asks for leases: checked, granted at once or put into the line, taken up again, given up.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, ProcessId, SessionId};

use crate::accounts::NodeId;
use crate::lease::{Attendance, Lease, Owner, Residence, Share};
use crate::ledger::{Bucket, plus};
use crate::line::ask::{Ask, Right, Seniority, Stage, Want};
use crate::line::shape::{Shape, Use};
use crate::process::{Named, Presence};
use crate::session::{too_many, user};
use crate::{
    Arbiter, Denial, DeviceWish, Effect, LeaseState, Patience, Pinning, RequestId, Terms, Time, Why,
};

impl Arbiter {
    pub(crate) fn acquire(
        &mut self,
        request: RequestId,
        session: SessionId,
        ask_name: u64,
        terms: Terms,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        if let Some(named) = self.named(session, ask_name) {
            return self.take_up(request, named, &terms);
        }
        self.sound(&terms)?;
        let id = self.ids.ask.next().map_err(|_| Denial::OutOfIds)?;
        let account = self.admit_ask(process, &terms)?;
        self.ids.ask = id;
        let (patience, shape) = (terms.patience, self.shape_for(process, account, &terms));
        let ask = Ask {
            id,
            request: Some(request),
            process,
            session,
            account,
            since: self.now,
            barrier_at: self.now.plus(self.accounts.max_wait(account, &self.policy)),
            deadline: deadline(patience, self.now),
            shape: self.line.shapes.enter(shape),
            amount: terms.reserve,
            stage: Stage::InLine,
            seniority: Seniority::Junior,
            right: Right::Lent,
            covered_at: self.now,
            uncovered_in: 0,
            trimmed_as: None,
            covered: Vec::new(),
            want: Want::Lease { ask_name, terms },
        };
        self.sessions.get_mut(&session).expect("it is open").asks.insert(ask_name, Named::Waiting(id));
        self.wait(ask);
        self.promote(id);
        self.settle();
        self.conclude(id, patience);
        Ok(())
    }

    /// The ask waits from now on; the caller settles and sees whether it still does.
    pub(crate) fn wait(&mut self, ask: Ask) {
        let (id, uid) = (ask.id, self.process(ask.process).peer.uid);
        self.users.entry(uid).or_default().asks += 1;
        self.process_mut(ask.process).asks.insert(id);
        if matches!(ask.stage, Stage::InLine | Stage::AtLimit) {
            self.set_ask_timers(&ask);
        }
        self.line.join(ask, &mut self.accounts);
    }

    pub(crate) fn set_ask_timers(&mut self, ask: &Ask) {
        self.timers.set(Why::BarrierRises(ask.id), ask.barrier_at);
        if let Some(deadline) = ask.deadline {
            self.timers.set(Why::PatienceEnds(ask.id), deadline);
        }
    }

    /// Tells an asker who has not been answered that he waits, or that he won't.
    fn conclude(&mut self, id: AskId, patience: Patience) {
        let Some(ask) = self.line.asks.get(&id) else {
            return;
        };
        let request = ask.request.expect("it was just asked for");
        match patience {
            Patience::None => {
                let denial = self.obstacle(ask).denial();
                self.refuse_ask(id, denial);
            }
            Patience::AtMost(_) | Patience::Endless => self.emit(Effect::Queued { request, ask: id }),
        }
    }

    /// The client comes back for an ask that it made before.
    fn take_up(&mut self, request: RequestId, named: Named, terms: &Terms) -> Result<(), Denial> {
        match named {
            Named::Waiting(id) => {
                let Want::Lease { terms: before, .. } = &self.line.get(id).want else {
                    unreachable!("a session names only its asks for leases");
                };
                same(before, terms)?;
                if let Some(superseded) = self.line.get_mut(id).request.replace(request) {
                    self.deny(superseded, Denial::Withdrawn);
                }
                self.timers.cancel(Why::UnattendedTooLong(id));
                self.emit(Effect::Queued { request, ask: id });
            }
            Named::Granted(lease) => {
                same(&self.leases[&lease].terms, terms)?;
                self.timers.cancel(Why::GrantUnclaimed(lease));
                self.emit(Effect::Granted { request: Some(request), lease });
            }
        }
        Ok(())
    }

    pub(crate) fn unattended(&mut self, session: SessionId, ask_name: u64) {
        let until = self.now.plus(self.policy.unattended_grace);
        match self.named(session, ask_name) {
            Some(Named::Waiting(id)) => {
                self.line.get_mut(id).request = None;
                self.timers.set(Why::UnattendedTooLong(id), until);
            }
            Some(Named::Granted(lease)) if self.leases[&lease].is_untouched() => {
                self.timers.set(Why::GrantUnclaimed(lease), until);
            }
            Some(Named::Granted(_)) | None => {}
        }
    }

    /// Nobody came for a lease that was granted to a broken stream.
    pub(crate) fn grant_unclaimed(&mut self, lease: LeaseId) {
        if self.leases[&lease].is_untouched() {
            self.end_lease(lease);
        }
    }

    pub(crate) fn withdraw(
        &mut self,
        request: RequestId,
        session: SessionId,
        ask_name: u64,
    ) -> Result<(), Denial> {
        self.session(session)?;
        match self.named(session, ask_name) {
            Some(Named::Waiting(id)) => self.refuse_ask(id, Denial::Withdrawn),
            Some(Named::Granted(lease)) => self.end_lease(lease),
            None => {}
        }
        self.emit(Effect::Done { request });
        Ok(())
    }

    pub(crate) fn patience_ends(&mut self, id: AskId) {
        let ask = self.line.get(id);
        let (waited, obstacle) = (self.now.since(ask.since), self.obstacle(ask));
        let denial = if let Denial::TooMany { account, max, .. } = obstacle.denial() {
            Denial::StillTooMany { waited, account, max }
        } else {
            Denial::WaitOver { waited, short_by: obstacle.short_by }
        };
        self.refuse_ask(id, denial);
    }

    /// The ask leaves the line, and whoever waits for it is told why.
    pub(crate) fn refuse_ask(&mut self, id: AskId, denial: Denial) {
        let ask = self.drop_ask(id);
        if let Want::Resume(lease) = ask.want {
            self.refuse_resumers(lease, &denial);
        }
        if let Some(request) = ask.request {
            self.deny(request, denial);
        }
    }

    /// The ask leaves the line for good.
    pub(crate) fn drop_ask(&mut self, id: AskId) -> Ask {
        let ask = self.take_ask(id);
        if let Want::Lease { ask_name, .. } = &ask.want {
            self.sessions.get_mut(&ask.session).expect("its session is open").asks.remove(ask_name);
            self.accounts.leave(ask.account);
        }
        if let (Want::Segment(wanted), Stage::OwnDrain) = (&ask.want, &ask.stage) {
            self.review(wanted.lease, wanted.device);
        }
        ask
    }

    /// The ask leaves the line; the caller makes something of it.
    pub(crate) fn take_ask(&mut self, id: AskId) -> Ask {
        let ask = self.line.leave(id, &mut self.accounts);
        self.uncover(ask.account, &ask.covered);
        for why in [Why::PatienceEnds(id), Why::BarrierRises(id), Why::UnattendedTooLong(id)] {
            self.timers.cancel(why);
        }
        let process = self.process_mut(ask.process);
        process.asks.remove(&id);
        let uid = process.peer.uid;
        self.users.get_mut(&uid).expect("a waiting ask is counted").asks -= 1;
        self.forget_idle_user(uid);
        self.unlist_growth(&ask);
        if let Want::Resume(lease) = ask.want {
            self.lease_mut(lease).residence.ask = None;
        }
        ask
    }

    pub(crate) fn grant(&mut self, id: AskId, devices: &[DeviceId]) {
        let unattended = self.timers.due(Why::UnattendedTooLong(id));
        let shape = self.line.shape_of(self.line.get(id)).clone();
        let ask = self.take_ask(id);
        match ask.want.clone() {
            Want::Lease { ask_name, terms } => {
                let how = self.held_how(&ask, &shape, devices);
                self.grant_lease(&ask, ask_name, terms, devices, unattended);
                self.mark(self.ids.lease, &ask, how);
            }
            Want::Segment(wanted) => self.grant_segment(&ask, wanted),
            Want::Resume(lease) => {
                let needs = devices.iter().map(|d| (*d, plus(ask.amount, shape.overhead(*d, &self.ledger))));
                self.grant_resume(lease, &needs.collect::<Vec<_>>());
            }
        }
    }

    fn grant_lease(
        &mut self,
        ask: &Ask,
        ask_name: u64,
        terms: Terms,
        devices: &[DeviceId],
        unattended: Option<Time>,
    ) {
        let lease = self.ids.lease.next().expect("as many leases as asks, and those were counted");
        self.ids.lease = lease;
        let reserve = terms.reserve;
        self.leases.insert(lease, self.made(ask, ask_name, terms, devices));
        self.accounts.add_lease(ask.account);
        for device in devices {
            self.charge(lease, *device, Bucket::SetAside, reserve);
        }
        self.enlist(ask.process, lease);
        let session = self.sessions.get_mut(&ask.session).expect("its session is open");
        session.leases.insert(lease);
        session.asks.insert(ask_name, Named::Granted(lease));
        if let Some(until) = unattended {
            self.timers.set(Why::GrantUnclaimed(lease), until);
        }
        self.emit(Effect::Granted { request: ask.request, lease });
        if self.sessions[&ask.session].presence == Presence::Away {
            self.becomes_overdue(lease, |lease| lease.attendance = Attendance::Away);
        }
    }

    /// The new lease is marked, and counted as what it is; what may be pinned bounds it, where it stays.
    fn mark(&mut self, lease: LeaseId, ask: &Ask, how: Pinning) {
        let of = &self.leases[&lease];
        // It is charged by now: what is covered is all that is charged, this lease included.
        let devices: Vec<(DeviceId, Bytes)> = of.shares.keys().map(|device| (*device, Bytes::ZERO)).collect();
        let kept = ask.right == Right::Guaranteed && devices.iter().all(|(d, _)| ask.covers(*d));
        let right = if kept { Right::Guaranteed } else { self.right_of(of.account, &devices) };
        let most = self.most_pinned(ask.process, of, how, right);
        let of = self.lease_mut(lease);
        (of.pinning, of.right, of.limit) = (how, right, of.limit.min(most.max(of.reserve)));
        self.take_stock_everywhere(lease);
    }

    fn made(&self, ask: &Ask, ask_name: u64, terms: Terms, devices: &[DeviceId]) -> Lease {
        let peer = &self.process(ask.process).peer;
        let most = self.most(ask.process, ask.account, devices, terms.reserve);
        Lease {
            owner: Owner {
                uid: peer.uid,
                pid: peer.pid,
                program: peer.program.clone(),
                session: Some(ask.session),
                ask_name,
            },
            account: ask.account,
            state: LeaseState::Active,
            reserve: terms.reserve,
            limit: terms.limit.min(most),
            terms,
            shares: devices.iter().map(|device| (*device, Share::default())).collect(),
            members: BTreeSet::new(),
            segments: BTreeSet::new(),
            growing: BTreeSet::new(),
            recall: None,
            attendance: Attendance::Attended,
            granted_at: self.now,
            waited: self.now.since(ask.since),
            held_peak: Bytes::ZERO,
            used: false,
            pinning: Pinning::Pinned,
            right: Right::Lent,
            residence: Residence::new(self.now),
        }
    }

    /// The shape of an ask of the process, by the contexts that it has now.
    pub(crate) fn shape_for(&self, process: ProcessId, account: NodeId, terms: &Terms) -> Shape {
        let wish = terms.devices.clone();
        let mut contexts: BTreeSet<DeviceId> = self.process(process).contexts.keys().copied().collect();
        if let DeviceWish::These(devices) = &wish {
            contexts.retain(|device| devices.contains(device));
        }
        let (pinning, extra) = (terms.pinning, BTreeMap::new());
        let shape = Shape { wish, contexts, purpose: Use::Lease, hold: Pinning::Pinned, extra };
        let copies = Bytes::new(terms.reserve.get().saturating_mul(u64::from(shape.count())));
        Shape { hold: self.hold_of(account, pinning, copies), ..shape }
    }

    /// The account the ask is in from now on.
    fn admit_ask(&mut self, process: ProcessId, terms: &Terms) -> Result<NodeId, Denial> {
        let peer = &self.process(process).peer;
        let (uid, group) = (peer.uid, peer.group.clone());
        self.bounded(uid)?;
        let account = self.accounts.enter(uid, group.as_deref(), &terms.name);
        let shape = self.shape_for(process, account, terms);
        let verdict =
            self.countable(account).and_then(|()| self.can_ever_fit(process, account, &shape, terms.reserve));
        if verdict.is_err() {
            self.accounts.leave(account);
        }
        verdict.map(|()| account)
    }

    /// Whether the user, and all users, may have one ask more.
    pub(crate) fn bounded(&self, uid: gpulease_words::Uid) -> Result<(), Denial> {
        let waiting = self.users.get(&uid).map_or(0, |tally| tally.asks);
        if waiting >= self.policy.asks_per_uid {
            return Err(too_many("waiting asks", user(uid), self.policy.asks_per_uid));
        }
        if self.line.asks.len() >= self.policy.asks_max as usize {
            return Err(too_many("waiting asks", "host".to_owned(), self.policy.asks_max));
        }
        Ok(())
    }

    /// Whether every account of the path may ever have a lease: one that has all it may have now is waited for.
    fn countable(&self, account: NodeId) -> Result<(), Denial> {
        let none = self.accounts.path(account).find(|(_, node)| node.slots.limit() == Some(0));
        none.map_or(Ok(()), |(_, node)| Err(too_many("leases", node.key.to_string(), 0)))
    }
}

impl Lease {
    /// Whether nobody did anything with it since the grant.
    pub(crate) fn is_untouched(&self) -> bool {
        let idle = self.segments.is_empty() && self.growing.is_empty();
        self.state == LeaseState::Active && !self.used && idle && self.members.len() <= 1
    }
}

/// When a wait of this patience ends.
pub(crate) fn deadline(patience: Patience, now: Time) -> Option<Time> {
    match patience {
        Patience::None | Patience::Endless => None,
        Patience::AtMost(span) => Some(now.plus(span)),
    }
}

const DIFFERENT: Denial =
    Denial::Malformed("this ask was made before with other terms; use a new name for it");

/// An ask is taken up as it was made; only how long to wait may be said differently, and the first word counts.
fn same(before: &Terms, now: &Terms) -> Result<(), Denial> {
    let same = *before == Terms { patience: before.patience, ..now.clone() };
    if same { Ok(()) } else { Err(DIFFERENT) }
}
