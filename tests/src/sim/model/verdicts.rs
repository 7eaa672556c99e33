//! What the rules say must be answered to a request.

use gpulease_arbiter::{Authority, DeviceWish, Event, Peer, Place, RequestId, Terms};
use gpulease_words::{Bytes, DeviceId, LeaseId, Reason, SegmentId, SessionId, Uid};

use super::{Aim, AskFact, LeaseFact, Model, RecallFact, SegmentState, Standing, Verdict};

impl Model {
    /// The answer that is due, after its facts are taken in.
    pub(super) fn verdict(&mut self, request: RequestId, event: &Event) -> Verdict {
        match event {
            Event::Open { peer, .. } => self.judge_open(peer),
            Event::Close { session, .. } => self.judge_close(*session),
            Event::Acquire { session, ask_name, terms, .. } => {
                self.judge_acquire(request, *session, *ask_name, terms)
            }
            Event::Withdraw { session, ask_name, .. } => self.judge_withdraw(*session, *ask_name),
            Event::Join { session, lease, .. } => self.judge_join(*session, *lease),
            Event::Admit { session, lease, peer, place, .. } => {
                self.judge_admit(*session, *lease, peer, *place)
            }
            Event::Resize { session, lease, reserve, limit, .. } => {
                self.judge_resize(*session, *lease, *reserve, *limit)
            }
            Event::Release { authority, lease, .. } => self.judge_release(*authority, *lease),
            Event::Allocate { .. } => self.judge_allocate(request, event),
            Event::Free { session, lease, segment, .. } => self.judge_free(*session, *lease, *segment),
            Event::Recall { lease, within, .. } => self.judge_recall(*lease, *within),
            Event::Adrift { .. }
            | Event::Rejoined { .. }
            | Event::Died { .. }
            | Event::Unattended { .. }
            | Event::Abandoned { .. }
            | Event::Created { .. }
            | Event::CreateFailed { .. }
            | Event::Claimed { .. }
            | Event::Freed { .. }
            | Event::Unproven { .. }
            | Event::OffBook { .. }
            | Event::Overhead { .. }
            | Event::DeviceLost { .. } => unreachable!("it has no request"),
        }
    }

    fn judge_open(&self, peer: &Peer) -> Verdict {
        let open = self.sessions.values().filter(|session| session.open);
        let (mine, all) = open.fold((0_u32, 0_u32), |(mine, all), session| {
            (mine + u32::from(session.peer.uid == peer.uid), all + 1)
        });
        match mine >= self.policy.sessions_per_uid || all >= self.policy.sessions_max {
            true => Verdict::No(vec![Reason::TooMany]),
            false => Verdict::Yes,
        }
    }

    fn judge_close(&mut self, session: SessionId) -> Verdict {
        if self.open_session(session).is_none() {
            return Verdict::No(vec![Reason::NoSuchSession]);
        }
        let owned = self.owned(session);
        self.end_session(session);
        owned.into_iter().for_each(|lease| self.end_lease(lease));
        Verdict::Yes
    }

    fn judge_acquire(&mut self, request: RequestId, session: SessionId, name: u64, terms: &Terms) -> Verdict {
        let Some(peer) = self.open_session(session).map(|fact| fact.peer.clone()) else {
            return Verdict::No(vec![Reason::NoSuchSession]);
        };
        if let Some(verdict) = self.take_up(request, session, name) {
            return verdict;
        }
        let ask = AskFact {
            id: None,
            session,
            peer,
            aim: Aim::Lease { name, terms: terms.clone() },
            patience: terms.patience,
            since: self.now,
            request: Some(request),
            unattended_since: None,
            standing: Standing::Waiting,
            risen: false,
            bound: None,
        };
        let refusals = self.refusals(&ask, terms);
        if !refusals.is_empty() {
            return Verdict::No(refusals);
        }
        self.asks.push(ask);
        Verdict::InLine
    }

    /// The same name is the same ask, under a new request.
    fn take_up(&mut self, request: RequestId, session: SessionId, name: u64) -> Option<Verdict> {
        let index = self.named(session, name)?;
        let old = self.asks[index].request;
        match self.asks[index].standing {
            Standing::Waiting => {
                if let Some(fact) = old.and_then(|old| self.requests.get_mut(&old)) {
                    fact.verdict = Verdict::Superseded;
                }
                self.asks[index].request = Some(request);
                self.asks[index].unattended_since = None;
                Some(Verdict::InLine)
            }
            Standing::Granted(lease) if !self.leases[&lease].ended => {
                self.asks[index].request = Some(request);
                self.asks[index].unattended_since = None;
                Some(Verdict::GrantedAlready(lease))
            }
            Standing::Granted(_) | Standing::Made(_) | Standing::OwnDrain | Standing::Left => None,
        }
    }

    /// Why an ask for a lease can't even join the line; none: it can.
    fn refusals(&self, ask: &AskFact, terms: &Terms) -> Vec<Reason> {
        let mut refusals = Vec::new();
        let (reserve, limit) = (terms.reserve, terms.limit);
        let granular = reserve.is_granular() && !reserve.is_zero();
        if !granular || limit < reserve {
            refusals.push(Reason::Malformed);
        }
        match &terms.devices {
            DeviceWish::These(these) if these.is_empty() => refusals.push(Reason::Malformed),
            DeviceWish::These(these) => {
                let facts: Vec<_> = these.iter().map(|device| self.device(*device)).collect();
                if facts.iter().any(Option::is_none) {
                    refusals.push(Reason::NoSuchDevice);
                }
                if facts.iter().flatten().any(|fact| fact.lost) {
                    refusals.push(Reason::DeviceLost);
                }
            }
            DeviceWish::Any(_) => {}
        }
        if granular && limit >= reserve && self.is_too_large(ask) {
            refusals.extend([Reason::TooLarge, Reason::DeviceLost]);
        }
        if granular && limit >= reserve && self.is_over_budget(ask) {
            refusals.push(Reason::OverBudget);
        }
        let full = |node: &super::Node| {
            let have =
                self.standing_leases().filter(|(_, lease)| self.path_of_lease(lease).contains(node)).count();
            self.leases_max(node).is_some_and(|max| have >= max as usize)
        };
        if self.line_is_full(ask.peer.uid) || self.path_of(ask).iter().any(full) {
            refusals.push(Reason::TooMany);
        }
        refusals
    }

    /// The devices an ask could ever be granted on, each with what it would cost there.
    fn candidates(&self, ask: &AskFact) -> Vec<(DeviceId, Bytes)> {
        let Aim::Lease { terms, .. } = &ask.aim else { return Vec::new() };
        let usable = self.wished(terms).filter(|fact| !fact.lost);
        let costs = usable.map(|fact| (fact.id, self.cost(ask, terms, fact.id), fact.capacity));
        costs.filter(|(_, cost, capacity)| cost <= capacity).map(|(id, cost, _)| (id, cost)).collect()
    }

    /// The devices that an ask would take.
    fn wished<'a>(&'a self, terms: &'a Terms) -> impl Iterator<Item = &'a super::DeviceFact> + 'a {
        self.devices.iter().filter(|fact| match &terms.devices {
            DeviceWish::Any(_) => true,
            DeviceWish::These(these) => these.contains(&fact.id),
        })
    }

    fn cost(&self, ask: &AskFact, terms: &Terms, device: DeviceId) -> Bytes {
        terms.reserve.saturating_add(self.context_alone(ask.peer.process, device))
    }

    fn devices_wanted(terms: &Terms) -> usize {
        match &terms.devices {
            DeviceWish::Any(count) => count.get() as usize,
            DeviceWish::These(these) => these.len(),
        }
    }

    /// Whether too few devices could give it even if they were empty.
    fn is_too_large(&self, ask: &AskFact) -> bool {
        let Aim::Lease { terms, .. } = &ask.aim else { return false };
        self.candidates(ask).len() < Self::devices_wanted(terms)
    }

    /// Whether some account could not be charged for it even if it had nothing else.
    fn is_over_budget(&self, ask: &AskFact) -> bool {
        let Aim::Lease { terms, .. } = &ask.aim else { return false };
        let mut costs: Vec<Bytes> = self.wished(terms).map(|fact| self.cost(ask, terms, fact.id)).collect();
        costs.sort();
        let least = costs
            .iter()
            .take(Self::devices_wanted(terms))
            .fold(Bytes::ZERO, |sum, cost| sum.saturating_add(*cost));
        let path = self.path_of(ask);
        path.iter().any(|node| self.budget(node).limit.is_some_and(|limit| least > limit))
    }

    /// Whether the user, or all users together, have as many asks as may wait, this one included.
    pub(super) fn line_is_full(&self, uid: Uid) -> bool {
        let (mut mine, mut all) = (0_u32, 0_u32);
        for ask in
            self.asks.iter().filter(|ask| matches!(ask.standing, Standing::Waiting | Standing::OwnDrain))
        {
            mine += u32::from(ask.peer.uid == uid);
            all += 1;
        }
        mine >= self.policy.asks_per_uid || all >= self.policy.asks_max
    }

    /// Whether an ask that waits can't be granted any more, whatever comes back.
    pub(super) fn can_never_be(&self, ask: &AskFact) -> bool {
        match &ask.aim {
            Aim::Lease { .. } => self.is_too_large(ask),
            Aim::Growth { device, .. } => self.device(*device).is_none_or(|fact| fact.lost),
        }
    }

    fn judge_withdraw(&mut self, session: SessionId, name: u64) -> Verdict {
        if self.open_session(session).is_none() {
            return Verdict::No(vec![Reason::NoSuchSession]);
        }
        if let Some(index) = self.named(session, name) {
            match self.asks[index].standing {
                Standing::Waiting => self.leave(index, &[Reason::Withdrawn]),
                Standing::Granted(lease) if !self.leases[&lease].ended => self.end_lease(lease),
                Standing::Granted(_) | Standing::Made(_) | Standing::OwnDrain | Standing::Left => {}
            }
        }
        Verdict::Yes
    }

    /// The lease, if the session's process may know of it.
    pub(super) fn visible(&self, session: SessionId, lease: LeaseId) -> Result<&LeaseFact, Verdict> {
        let Some(session) = self.open_session(session) else {
            return Err(Verdict::No(vec![Reason::NoSuchSession]));
        };
        let found = self.leases.get(&lease).filter(|lease| !lease.gone);
        let mine = found.filter(|lease| lease.members.contains(&session.peer.process));
        mine.ok_or(Verdict::No(vec![Reason::NoSuchLease]))
    }

    fn judge_join(&self, session: SessionId, lease: LeaseId) -> Verdict {
        let Some(joiner) = self.open_session(session) else {
            return Verdict::No(vec![Reason::NoSuchSession]);
        };
        self.judge_member(&joiner.peer, lease, &[])
    }

    fn judge_member(&self, peer: &Peer, id: LeaseId, given: &[DeviceId]) -> Verdict {
        let found = self.leases.get(&id).filter(|lease| !lease.gone);
        let Some(lease) =
            found.filter(|lease| lease.peer.uid == peer.uid || lease.terms.guest == Some(peer.uid))
        else {
            return Verdict::No(vec![Reason::NoSuchLease]);
        };
        if lease.ended {
            return Verdict::No(vec![Reason::Ending]);
        }
        if lease.members.contains(&peer.process) {
            return Verdict::Yes;
        }
        if lease.members.len() >= self.policy.members_per_lease as usize {
            return Verdict::No(vec![Reason::TooMany]);
        }
        self.judge_context(peer, lease, given)
    }

    fn judge_admit(&self, session: SessionId, id: LeaseId, peer: &Peer, place: Place) -> Verdict {
        let Some(owner) = self.open_session(session) else { return Verdict::No(vec![Reason::NoSuchSession]) };
        let found = self.leases.get(&id).filter(|lease| !lease.gone);
        match found.filter(|lease| lease.owner == session || lease.members.contains(&owner.peer.process)) {
            Some(lease) if lease.peer.uid != peer.uid && lease.terms.guest != Some(peer.uid) => {
                Verdict::No(vec![Reason::NotAllowed])
            }
            Some(_) => self.judge_member(peer, id, &self.given(session, id, peer, place)),
            None => Verdict::No(vec![Reason::NoSuchLease]),
        }
    }

    fn judge_release(&mut self, authority: Authority, id: LeaseId) -> Verdict {
        if let Authority::Session(session) = authority
            && self.open_session(session).is_none()
        {
            return Verdict::No(vec![Reason::NoSuchSession]);
        }
        let Some(lease) = self.leases.get(&id).filter(|lease| !lease.gone) else {
            return Verdict::No(vec![Reason::NoSuchLease]);
        };
        let allowed = match authority {
            Authority::Session(session) => lease.owner == session,
            Authority::User(uid) => lease.peer.uid == uid,
            Authority::Operator => true,
        };
        if !allowed {
            return Verdict::No(vec![Reason::NoSuchLease]);
        }
        if !lease.ended {
            self.end_lease(id);
        }
        Verdict::Yes
    }

    fn judge_free(&mut self, session: SessionId, lease: LeaseId, segment: SegmentId) -> Verdict {
        if let Err(no) = self.visible(session, lease) {
            return no;
        }
        let process = self.sessions[&session].peer.process;
        let fact = self.segments.get(&segment).filter(|fact| fact.lease == lease && fact.process == process);
        if fact.is_none_or(|fact| fact.state != SegmentState::Live) {
            return Verdict::No(vec![Reason::NoSuchSegment]);
        }
        self.give_back(segment);
        Verdict::Yes
    }

    fn judge_recall(&mut self, id: LeaseId, within: std::time::Duration) -> Verdict {
        let deadline = self.now.plus(within);
        match self.leases.get_mut(&id).filter(|lease| !lease.gone) {
            None => Verdict::No(vec![Reason::NoSuchLease]),
            Some(lease) if lease.ended => Verdict::No(vec![Reason::Ending]),
            Some(lease) => {
                let reserve = lease.reserve;
                let devices = lease.devices.clone();
                if devices.iter().any(|device| self.charge_on(id, *device).held > reserve) {
                    self.recall(id, deadline);
                }
                Verdict::Yes
            }
        }
    }

    /// A later word does not take an earlier one back: what may be held stays, and what was missed.
    fn recall(&mut self, id: LeaseId, deadline: gpulease_arbiter::Time) {
        let lease = self.leases.get_mut(&id).expect("it stands");
        match &mut lease.recall {
            Some(recall) => recall.deadline = deadline,
            none => {
                *none =
                    Some(RecallFact { deadline, missed: false, may_hold: std::collections::BTreeMap::new() })
            }
        }
    }
}
