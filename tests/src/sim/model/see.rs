//! Judges one effect, and takes it in.

use gpulease_arbiter::{Denial, Effect, Event, Notice, Patience, RequestId};
use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, ProcessId, Reason, SegmentId, SessionId};

use super::{Aim, Broken, Journey, Model, RequestFact, SegmentState, SessionFact, Standing, Verdict, ensure};

impl Model {
    /// The arbiter wants this done.
    ///
    /// # Errors
    /// When the rules do not allow it now.
    pub(in crate::sim) fn see(&mut self, effect: &Effect) -> Result<(), Broken> {
        match effect {
            Effect::Opened { request, session } => self.see_opened(*request, *session),
            Effect::Denied { request, denial } => self.see_denied(*request, denial),
            Effect::Done { request } => self.see_done(*request),
            Effect::Queued { request, ask } => self.see_queued(*request, *ask),
            Effect::Granted { request, lease } => self.see_granted(*request, *lease),
            Effect::Joined { request, lease } => self.see_joined(*request, *lease),
            Effect::Resized { request, lease } => self.see_resized(*request, *lease),
            Effect::Released { request, lease, draining } => self.see_released(*request, *lease, *draining),
            Effect::Recalled { request, lease, bytes } => self.see_recalled(*request, *lease, *bytes),
            Effect::Create { segment, lease, device, bytes, kind, .. } => {
                self.see_create(*segment, *lease, *device, *bytes, *kind)
            }
            Effect::Allocated { request, segment, process } => {
                self.see_allocated(*request, *segment, *process)
            }
            Effect::Reclaim { segment, .. } => self.see_reclaim(*segment),
            Effect::Notify { session, notice } => self.see_notify(*session, notice),
            Effect::Overdue { lease } => self.see_overdue(*lease),
            Effect::LeaseGone { lease } => self.see_lease_gone(*lease),
            Effect::SessionGone { session } => self.see_session_gone(*session),
            Effect::ProcessGone { process } => self.see_process_gone(*process),
            Effect::Restore { segment, bytes, .. } => self.see_restore(*segment, *bytes),
            Effect::Forget { segment } => self.see_forget(*segment),
            Effect::Resumed { request, lease } => self.see_resumed(*request, *lease),
            Effect::Signal { process, .. } => {
                let known = self.processes.get(process).is_some_and(|fact| fact.alive);
                ensure!(known, "{process} is to end, and is not there");
                Ok(())
            }
            Effect::Occurred { lease, what } => self.see_occurred(*lease, what),
        }
    }

    fn request(&mut self, request: RequestId) -> Result<&mut RequestFact, Broken> {
        self.requests.get_mut(&request).ok_or_else(|| Broken(format!("{request:?} was never made")))
    }

    /// Counts an answer: there is one.
    pub(super) fn answered(&mut self, request: RequestId) -> Result<(), Broken> {
        let fact = self.request(request)?;
        fact.answers += 1;
        ensure!(fact.answers == 1, "{request:?} is answered again: {:?}", fact.event);
        Ok(())
    }

    /// Counts an answer that says yes to a request of a kind.
    fn agreed(&mut self, request: RequestId, kind: fn(&Event) -> bool) -> Result<Event, Broken> {
        let fact = self.request(request)?;
        ensure!(kind(&fact.event), "the answer is of another kind than {:?}", fact.event);
        ensure!(
            fact.verdict == Verdict::Yes,
            "yes is said to {:?}, and due is {:?}",
            fact.event,
            fact.verdict
        );
        let event = fact.event.clone();
        self.answered(request)?;
        Ok(event)
    }

    fn see_opened(&mut self, request: RequestId, session: SessionId) -> Result<(), Broken> {
        let Event::Open { peer, .. } = self.agreed(request, |e| matches!(e, Event::Open { .. }))? else {
            return Ok(());
        };
        let process = self.processes.get_mut(&peer.process).expect("it was heard");
        process.forgotten = false;
        let fact = SessionFact { peer, open: true, adrift_since: None, was_away: None, gone: false };
        ensure!(self.sessions.insert(session, fact).is_none(), "{session} is opened twice");
        Ok(())
    }

    fn see_denied(&mut self, request: RequestId, denial: &Denial) -> Result<(), Broken> {
        let fact = self.request(request)?.clone();
        let reason = denial.reason();
        match &fact.verdict {
            Verdict::No(reasons) if reasons.is_empty() || reasons.contains(&reason) => {}
            Verdict::InLine => self.line_denies(request, denial)?,
            Verdict::Superseded => {}
            verdict => {
                return Err(Broken(format!(
                    "{:?} is refused for {denial:?}, and due is {verdict:?}",
                    fact.event
                )));
            }
        }
        self.answered(request)
    }

    /// Refused in the line: only who would not wait and can't be granted now.
    fn line_denies(&mut self, request: RequestId, denial: &Denial) -> Result<(), Broken> {
        let found = self.asks.iter().position(|ask| ask.request == Some(request));
        let index = found.ok_or_else(|| Broken(format!("{request:?} does not wait")))?;
        let ask = &self.asks[index];
        let would_not_wait = ask.patience == Patience::None;
        let allowed = match denial.reason() {
            Reason::NoRoom | Reason::AccountLimit | Reason::TooMany if would_not_wait => true,
            Reason::NoRoom | Reason::AccountLimit | Reason::Draining | Reason::BehindOthers => would_not_wait,
            Reason::PinnedFull | Reason::ArenaFull | Reason::Recalled | Reason::Barrier => would_not_wait,
            Reason::WouldDeadlock => ask.is_inside(),
            Reason::TooMany => self.line_is_full(ask.peer.uid),
            _ => false,
        };
        // Others of the lease may have grown meanwhile, so that its own limit is in the way by now, whatever drains.
        let beyond = matches!(ask.aim, Aim::Growth { lease, device, bytes, .. } if self.is_beyond(lease, device, bytes));
        let beyond = beyond && denial.reason() == Reason::BeyondLease;
        ensure!(allowed || beyond, "{ask:?} stands in the line and is refused for {denial:?}");
        ensure!(
            beyond || self.next().is_none_or(|(i, _)| i != index),
            "{ask:?} can be granted now and is refused: {denial:?}"
        );
        ensure!(
            beyond || !self.fits_once_drained(index),
            "{ask:?} could be granted once its lease's own bytes are back, and is refused: {denial:?}"
        );
        self.asks[index].standing = Standing::Left;
        Ok(())
    }

    fn see_done(&mut self, request: RequestId) -> Result<(), Broken> {
        let kind = |event: &Event| {
            matches!(
                event,
                Event::Close { .. }
                    | Event::Withdraw { .. }
                    | Event::Admit { .. }
                    | Event::Free { .. }
                    | Event::Pin { .. }
                    | Event::SetBudgets { .. }
            )
        };
        let event = self.agreed(request, kind)?;
        if let Event::Admit { session, lease, peer, place, .. } = event {
            for device in self.given(session, lease, &peer, place) {
                self.contexts.remove(&(self.sessions[&session].peer.process, device));
                self.charge_context(lease, peer.process, device);
            }
            self.processes.get_mut(&peer.process).expect("it was heard").forgotten = false;
            self.join(lease, peer.process);
        }
        Ok(())
    }

    fn see_queued(&mut self, request: RequestId, id: AskId) -> Result<(), Broken> {
        let fact = self.request(request)?;
        fact.queued += 1;
        ensure!(fact.queued == 1 && fact.answers == 0, "{:?} is queued too late or twice", fact.event);
        if let Verdict::Returning(lease) = fact.verdict {
            return self.see_waits_for(lease, id);
        }
        ensure!(fact.verdict == Verdict::InLine, "{:?} is queued, and due is {:?}", fact.event, fact.verdict);
        let known = self.asks.iter().any(|ask| ask.id == Some(id) && ask.request != Some(request));
        ensure!(!known, "{id} is the id of another ask");
        let ask = self
            .asks
            .iter_mut()
            .find(|ask| ask.request == Some(request) && ask.standing == Standing::Waiting);
        let ask = ask.ok_or_else(|| Broken(format!("{id} is queued and does not wait")))?;
        ensure!(ask.patience != Patience::None, "{id} would not wait and is queued");
        ask.id = Some(id);
        Ok(())
    }

    /// Who waits for a lease is told which ask is for it.
    fn see_waits_for(&mut self, lease: LeaseId, id: AskId) -> Result<(), Broken> {
        let Some(index) = self.resume_of(lease) else { return Ok(()) };
        let ask = &mut self.asks[index];
        ensure!(ask.id.is_none_or(|known| known == id), "{lease} is waited for as {:?}, not {id}", ask.id);
        ask.id = Some(id);
        Ok(())
    }

    fn see_joined(&mut self, request: RequestId, lease: LeaseId) -> Result<(), Broken> {
        let Event::Join { session, lease: asked, ancestors, .. } =
            self.agreed(request, |e| matches!(e, Event::Join { .. }))?
        else {
            return Ok(());
        };
        ensure!(asked == lease, "{asked} was to be joined, not {lease}");
        let process = self.sessions[&session].peer.process;
        let (above, given) = self.left_by_a_starter(process, lease, &ancestors);
        for device in given {
            self.contexts.remove(&(above, device));
            self.charge_context(lease, process, device);
        }
        self.join(lease, process);
        self.charge_contexts(lease, process);
        Ok(())
    }

    fn see_resized(&mut self, request: RequestId, lease: LeaseId) -> Result<(), Broken> {
        let event = self.agreed(request, |e| matches!(e, Event::Resize { .. }))?;
        let asked = matches!(event, Event::Resize { lease: asked, .. } if asked == lease);
        ensure!(asked, "{lease} is resized, and {event:?} was asked");
        Ok(())
    }

    fn see_released(&mut self, request: RequestId, lease: LeaseId, draining: Bytes) -> Result<(), Broken> {
        let Event::Release { lease: asked, .. } =
            self.agreed(request, |e| matches!(e, Event::Release { .. }))?
        else {
            return Ok(());
        };
        ensure!(asked == lease, "{asked} was to be released, not {lease}");
        let charge = self.charge(lease);
        let mapped = super::ledger::add(charge.held, charge.draining);
        ensure!(
            draining == mapped,
            "{lease} is given back with {mapped} mapped, and {draining} is said: {charge:?}"
        );
        Ok(())
    }

    fn see_recalled(&mut self, request: RequestId, lease: LeaseId, bytes: Bytes) -> Result<(), Broken> {
        let event = self.agreed(request, |e| matches!(e, Event::Recall { .. }))?;
        let Event::Recall { bytes: asked, .. } = event else { return Ok(()) };
        let fact = self.leases[&lease].clone();
        let mut left = if asked.is_zero() { Bytes::MAX } else { asked };
        let mut due = Bytes::ZERO;
        for device in &fact.devices {
            let held = self.charge_on(lease, *device).held;
            let here = held.saturating_sub(fact.reserve).min(left);
            left = left.saturating_sub(here);
            due = super::ledger::add(due, here);
            if !here.is_zero() {
                self.recall_on(lease, *device, held.saturating_sub(here));
            }
        }
        ensure!(bytes == due, "{due} of {lease} are to be asked back, not {bytes}");
        Ok(())
    }

    /// The lease may hold so much on a device; the lower word counts.
    fn recall_on(&mut self, lease: LeaseId, device: DeviceId, most: Bytes) {
        let owner = self.open_session(self.leases[&lease].owner);
        let present = owner.is_some_and(|session| session.adrift_since.is_none());
        let recall =
            self.leases.get_mut(&lease).and_then(|fact| fact.recall.as_mut()).expect("it was judged");
        let may_hold = recall.may_hold.entry(device).or_insert(Bytes::MAX);
        *may_hold = most.min(*may_hold);
        if present {
            recall.untold.insert(device);
        }
    }

    fn see_reclaim(&mut self, id: SegmentId) -> Result<(), Broken> {
        let fact = self.segments.get_mut(&id).ok_or_else(|| Broken(format!("{id} is unknown")))?;
        let back = matches!(fact.state, SegmentState::Draining | SegmentState::Departing);
        ensure!(back, "{id} is taken back as it is {:?}", fact.state);
        ensure!(!fact.reclaimed, "{id} is taken back twice");
        fact.reclaimed = true;
        Ok(())
    }

    fn see_notify(&mut self, session: SessionId, notice: &Notice) -> Result<(), Broken> {
        let told = self.open_session(session).map(|fact| fact.peer.process);
        let told = told.ok_or_else(|| Broken(format!("{session} is told {notice:?} and is not open")))?;
        let is_member = |lease: &super::LeaseFact| lease.members.contains(&told);
        match notice {
            Notice::Recall { lease, device, bytes, deadline } => {
                if self.binds() {
                    self.hear_recall(session, *lease, *device, *bytes, *deadline)?;
                }
                let held = self.charge_on(*lease, *device).held;
                let fact = self.leases.get_mut(lease).expect("it was judged");
                ensure!(is_member(fact), "{session} is asked for bytes of {lease} of {}", fact.owner);
                let owner = fact.owner == session;
                let recall =
                    fact.recall.as_mut().ok_or_else(|| Broken(format!("nobody recalled {lease}")))?;
                ensure!(
                    recall.deadline == *deadline,
                    "{lease} is due at {:?}, not {deadline:?}",
                    recall.deadline
                );
                let most = recall.may_hold.get(device).copied().unwrap_or(Bytes::MAX);
                let due = held.saturating_sub(most);
                ensure!(*bytes == due, "{due} of {lease} are wanted back on device {device}, not {bytes}");
                if owner {
                    recall.untold.remove(device);
                }
            }
            Notice::Suspend { lease, deadline } => {
                let due = match &self.leases[lease].journey {
                    Journey::Draining { deadline, .. } => Some(*deadline),
                    Journey::Active
                    | Journey::Leaving { .. }
                    | Journey::Suspended
                    | Journey::Resuming { .. } => None,
                };
                ensure!(due == Some(*deadline), "{lease} is to drain by {deadline:?}, and due is {due:?}");
            }
            Notice::SwapOut { lease } => {
                let leaves = matches!(self.leases[lease].journey, Journey::Leaving { .. });
                ensure!(leaves, "{lease} is to swap out, and is {:?}", self.leases[lease].journey);
            }
            Notice::SegmentBack { segment, .. } => {
                let state = self.segments.get(segment).map(|segment| segment.state);
                ensure!(state == Some(SegmentState::Back), "{segment} is said to be back, and is {state:?}");
            }
            Notice::SuspendCancelled { lease, .. } | Notice::Pinned { lease } => {
                ensure!(self.leases.contains_key(lease), "{session} is told {notice:?}");
            }
            Notice::Ended { lease, .. } => {
                let fact = self.leases.get_mut(lease).expect("it was judged");
                ensure!(fact.ended && is_member(fact), "{session} is told that {lease} ended");
                fact.end_untold &= fact.owner != session;
            }
        }
        Ok(())
    }

    fn see_overdue(&mut self, id: LeaseId) -> Result<(), Broken> {
        ensure!(self.leases.contains_key(&id), "{id} is called overdue and is not known");
        let unheard = !self.is_overdue(id) && self.may_be_overdue_unheard(id);
        ensure!(unheard || self.is_overdue(id), "{id} is called overdue and is not");
        let lease = self.leases.get_mut(&id).expect("it is there");
        ensure!(!lease.overdue, "{id} is called overdue twice");
        (lease.overdue, lease.unheard) = (true, unheard);
        if unheard {
            self.drop_overdue_growth();
        }
        Ok(())
    }

    fn see_lease_gone(&mut self, id: LeaseId) -> Result<(), Broken> {
        let lease = self.leases.get(&id).ok_or_else(|| Broken(format!("{id} is unknown")))?;
        ensure!(lease.ended && !lease.gone, "{id} is gone and was not given back, or is gone twice");
        let left = self.segments_of(id).next().map(|(segment, _)| segment);
        ensure!(left.is_none(), "{id} is gone, and {left:?} of it was not credited");
        self.leases.get_mut(&id).expect("it is there").gone = true;
        self.pass_contexts_on(id);
        Ok(())
    }

    fn see_session_gone(&mut self, id: SessionId) -> Result<(), Broken> {
        let session = self.sessions.get_mut(&id).ok_or_else(|| Broken(format!("{id} is unknown")))?;
        ensure!(!session.open && !session.gone, "{id} is gone and is open, or is gone twice");
        session.gone = true;
        Ok(())
    }

    fn see_process_gone(&mut self, id: ProcessId) -> Result<(), Broken> {
        ensure!(!self.is_needed(id), "{id} needs no watching, and a session or a lease needs it");
        let process = self.processes.get_mut(&id).ok_or_else(|| Broken(format!("{id} is unknown")))?;
        ensure!(!process.forgotten, "{id} is forgotten twice");
        process.forgotten = true;
        self.measured.retain(|(process, _), _| *process != id);
        Ok(())
    }

    /// Whether a session or a lease needs a process to be watched.
    pub(super) fn is_needed(&self, id: ProcessId) -> bool {
        let speaks = self.sessions.values().any(|session| session.open && session.peer.process == id);
        let member = self.standing_leases().any(|(_, lease)| lease.members.contains(&id));
        speaks || member
    }
}
