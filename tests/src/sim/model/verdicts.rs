//! What the rules say must be answered to a request.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_arbiter::{Authority, Event, Peer, Place, RequestId};
use gpulease_words::{DeviceId, LeaseId, ProcessId, Reason, SegmentId, SessionId};

use super::{LeaseFact, Model, RecallFact, SegmentState, Verdict};

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
            Event::Join { session, lease, ancestors, .. } => self.judge_join(*session, *lease, ancestors),
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
            | Event::Drained { .. }
            | Event::SwappedOut { .. }
            | Event::SwapFailed { .. }
            | Event::Restored { .. }
            | Event::Idle { .. }
            | Event::DeviceLost { .. } => unreachable!("it has no request"),
            Event::Resume { session, lease, .. } => self.judge_resume(request, *session, *lease),
            Event::Pin { session, lease, .. } => self.judge_pin(*session, *lease),
            Event::SetBudgets { budgets, .. } => self.judge_budgets(budgets),
        }
    }

    /// All budgets anew, or none: nobody loses what he has.
    fn judge_budgets(&mut self, budgets: &gpulease_arbiter::Budgets) -> Verdict {
        if budgets.fit(&self.policy, &self.specs).is_err() {
            return Verdict::No(vec![Reason::ImpossibleBudget]);
        }
        self.budgets = budgets.clone();
        self.budgets_changed = true;
        Verdict::Yes
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

    /// The lease, if the session's process may know of it.
    pub(super) fn visible(&self, session: SessionId, lease: LeaseId) -> Result<&LeaseFact, Verdict> {
        let Some(session) = self.open_session(session) else {
            return Err(Verdict::No(vec![Reason::NoSuchSession]));
        };
        let found = self.leases.get(&lease).filter(|lease| !lease.gone);
        let mine = found.filter(|lease| lease.members.contains(&session.peer.process));
        mine.ok_or(Verdict::No(vec![Reason::NoSuchLease]))
    }

    fn judge_join(&self, session: SessionId, lease: LeaseId, ancestors: &[ProcessId]) -> Verdict {
        let Some(joiner) = self.open_session(session) else {
            return Verdict::No(vec![Reason::NoSuchSession]);
        };
        let (_, given) = self.left_by_a_starter(joiner.peer.process, lease, ancestors);
        let verdict = self.judge_member(&joiner.peer, lease, &given);
        match self.leases.get(&lease).filter(|fact| fact.members.contains(&joiner.peer.process)) {
            // It may have given its context away; then it wants one now.
            Some(fact) if verdict == Verdict::Yes => self.judge_context(&joiner.peer, fact, &given),
            Some(_) | None => verdict,
        }
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
            let owner = self.open_session(lease.owner);
            let present = owner.is_some_and(|session| session.adrift_since.is_none());
            let by_other = !matches!(authority, Authority::Session(_));
            self.end_lease(id);
            self.leases.get_mut(&id).expect("it stands").end_untold = by_other && present;
        }
        Verdict::Yes
    }

    fn judge_free(&mut self, session: SessionId, lease: LeaseId, segment: SegmentId) -> Verdict {
        if let Err(no) = self.visible(session, lease) {
            return no;
        }
        let process = self.sessions[&session].peer.process;
        let fact = self.segments.get(&segment).filter(|fact| fact.lease == lease && fact.process == process);
        let has = |fact: &super::SegmentFact| fact.is_of_process() && fact.state != SegmentState::Creating;
        if !fact.is_some_and(has) {
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
            Some(lease) if lease.journey != super::Journey::Active => Verdict::No(vec![Reason::Suspended]),
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
                let (may_hold, untold) = (BTreeMap::new(), BTreeSet::new());
                *none = Some(RecallFact { deadline, missed: false, may_hold, untold });
            }
        }
    }
}
