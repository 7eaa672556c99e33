//! What goes into the event log: sentences for people, made while the effects are carried out.

use gpulease_arbiter::{Denial, Effect, Event, LeaseView, Occurrence, RequestId};
use gpulease_words::{Bytes, DeviceId, DurationText, LeaseId, Pid, ProcessId, Reason, SegmentId, SessionId};

use super::Driver;
use super::clock::unix_ms;
use super::requests::{Asked, Pending};
use crate::event_log::{Facts, Kind};
use crate::witness::Stranger;

impl Driver {
    /// What outsiders have of a device, and who they are.
    fn outside(&self, device: DeviceId, bytes: Option<Bytes>) -> String {
        let amount = match bytes {
            Some(Bytes::ZERO) => {
                return format!("nothing of device {device} is taken by processes without a lease any more");
            }
            Some(bytes) => bytes.to_string(),
            None => "an unknown amount".to_owned(),
        };
        let facts = self.facts.iter().find(|facts| facts.id == device);
        let who = facts.map(|facts| facts.outsiders(Stranger::to_string)).unwrap_or_default();
        let who = if who.is_empty() { String::new() } else { format!(": {who}") };
        format!("{amount} of device {device} is taken by processes without a lease{who}")
    }

    /// Before the event is handed in, so that what it ends can still be named.
    pub(super) fn note_event(&self, event: &Event) {
        match event {
            Event::Adrift { session } => {
                let facts = self.facts_of_session(*session);
                self.note(Kind::Adrift, format!("session {session} lost its stream and may rejoin"), facts);
            }
            Event::Rejoined { session } => {
                let facts = self.facts_of_session(*session);
                self.note(Kind::Rejoined, format!("session {session} is back"), facts);
            }
            Event::Close { session, .. } => {
                let facts = self.facts_of_session(*session);
                self.note(Kind::Closed, format!("session {session} was closed"), facts);
            }
            Event::Died { process } => self.note_end_of(*process),
            Event::Freed { segment } => self.note_freed(*segment),
            Event::Unproven { segment, suspects } => self.note_quarantined(*segment, suspects),
            Event::CreateFailed { segment, why } => {
                let device = self.segments.get(*segment).map(|known| known.device);
                let facts = Facts { device, reason: Some(Reason::DeviceRefused), ..self.facts_of_segment(*segment) };
                self.note(Kind::DeviceTrouble, format!("a device refused memory: {why}"), facts);
            }
            Event::OffBook { device, bytes } => {
                let facts = Facts { device: Some(*device), bytes: *bytes, ..Facts::default() };
                self.note(Kind::OffBook, self.outside(*device, *bytes), facts);
            }
            Event::DeviceLost { device } => {
                let facts = Facts { device: Some(*device), reason: Some(Reason::DeviceLost), ..Facts::default() };
                self.note(Kind::DeviceTrouble, format!("device {device} is lost; nothing more is granted on it"), facts);
            }
            // Their effects tell it.
            Event::Open { .. }
            | Event::Acquire { .. }
            | Event::Unattended { .. }
            | Event::Withdraw { .. }
            | Event::Join { .. }
            | Event::Admit { .. }
            | Event::Resize { .. }
            | Event::Release { .. }
            | Event::Allocate { .. }
            | Event::Abandoned { .. }
            | Event::Free { .. }
            | Event::Recall { .. }
            | Event::Drained { .. }
            | Event::SwappedOut { .. }
            | Event::SwapFailed { .. }
            | Event::Resume { .. }
            | Event::Restored { .. }
            | Event::Idle { .. }
            | Event::Pin { .. }
            | Event::SetBudgets { .. }
            // Nothing that a person waits for.
            | Event::Created { .. }
            | Event::Claimed { .. }
            | Event::Overhead { .. } => {}
        }
    }

    /// Before the effect is carried out, so that the request it answers is still there.
    pub(super) fn note_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Opened { request, session } => {
                let Some(Pending::Open { caller, .. }) = self.requests.find(*request) else { return };
                let (pid, user) = (caller.process.pid(), self.names.known_or_number(caller.uid));
                let facts = Facts {
                    session: Some(*session),
                    uid: Some(caller.uid),
                    pid: Some(pid),
                    ..Facts::default()
                };
                self.note(Kind::Opened, format!("process {pid} of {user} opened session {session}"), facts);
            }
            Effect::Denied { request, denial } => self.note_denied(*request, denial),
            Effect::Queued { request, ask } => {
                let (what, facts) = self.asked(*request);
                self.note(
                    Kind::Waiting,
                    format!("ask {ask}{what} waits in the line"),
                    Facts { ask: Some(*ask), ..facts },
                );
            }
            Effect::Granted { lease, .. } => {
                let waited = self.record(*lease);
                let grows = self.growth(*lease);
                let after =
                    if waited.is_zero() { String::new() } else { format!(" after {}", DurationText(waited)) };
                self.note_lease(Kind::Granted, *lease, |what, facts| {
                    format!(
                        "{what} of {} a device{grows} was granted{after}",
                        facts.bytes.unwrap_or(Bytes::ZERO)
                    )
                });
            }
            Effect::Joined { lease, .. } => {
                self.note_lease(Kind::Joined, *lease, |what, _| format!("a process joined {what}"));
            }
            Effect::Released { lease, draining, .. } => self.note_lease(Kind::Released, *lease, |what, _| {
                format!("{what} is given back; {draining} of it is still mapped")
            }),
            Effect::Recalled { lease, bytes, .. } => {
                self.note_lease(Kind::Recalled, *lease, |what, _| {
                    format!("{bytes} were asked back of {what}")
                });
            }
            Effect::Allocated { segment, .. } => {
                let facts = self.facts_of_segment(*segment);
                let bytes = facts.bytes.unwrap_or(Bytes::ZERO);
                self.note(Kind::Allocated, format!("segment {segment} of {bytes} was made"), facts);
            }
            Effect::Overdue { lease } => {
                self.note_lease(Kind::Overdue, *lease, |what, _| format!("{what} is overdue"));
            }
            Effect::Occurred { lease, what } => self.note_occurrence(*lease, what),
            Effect::Done { .. }
            | Effect::Resized { .. }
            | Effect::Create { .. }
            | Effect::Restore { .. }
            | Effect::Forget { .. }
            | Effect::Resumed { .. }
            | Effect::Signal { .. }
            | Effect::Reclaim { .. }
            | Effect::Notify { .. }
            | Effect::LeaseGone { .. }
            | Effect::SessionGone { .. }
            | Effect::ProcessGone { .. } => {}
        }
    }

    /// How far a lease may grow, where it may.
    fn growth(&self, lease: LeaseId) -> String {
        let LeaseView { reserve, limit, .. } = self.view(lease);
        if limit > reserve { format!(", growing up to {limit},") } else { String::new() }
    }

    fn note_occurrence(&self, lease: LeaseId, what: &Occurrence) {
        let (kind, words) = match what {
            Occurrence::Suspending => (Kind::Suspending, "is asked to leave its devices".to_owned()),
            Occurrence::Suspended => (Kind::Suspended, "is in host memory".to_owned()),
            Occurrence::Resuming => (Kind::Resuming, "comes back to its devices".to_owned()),
            Occurrence::Resumed => (Kind::Resumed, "is back on its devices".to_owned()),
            Occurrence::SuspendCancelled(why) => (Kind::SuspendCancelled, format!("stays: {why}")),
            Occurrence::SwapFailed(why) => (Kind::SwapFailed, format!("could not be copied: {why}")),
            Occurrence::Pinned(why) => (Kind::Pinned, format!("stays where it is from now on: {why}")),
            Occurrence::Terminated => {
                (Kind::Terminated, "kept what was recalled; its processes are told to end".to_owned())
            }
        };
        self.note_lease(kind, lease, |lease, _| format!("{lease} {words}"));
    }

    /// A process that closed its session ended in good order, as far as the broker can tell.
    fn note_end_of(&self, process: ProcessId) {
        let pid = self.processes.get(&process).map(|process| process.pid());
        let who = pid.map_or_else(|| process.to_string(), |pid| format!("process {pid}"));
        let (kind, message) = match self.sessions.one_of(process) {
            Some(session) => (Kind::Died, format!("{who} ended and had not closed session {session}")),
            None => (Kind::Ended, format!("{who} ended")),
        };
        self.note(kind, message, Facts { pid, ..Facts::default() });
    }

    fn note_denied(&self, request: RequestId, denial: &Denial) {
        let kind = match self.requests.find(request) {
            Some(Pending::Ask { .. }) if matches!(denial, Denial::Withdrawn) => Kind::Withdrawn,
            Some(Pending::Ask { .. }) => Kind::Denied,
            Some(
                Pending::Open { .. }
                | Pending::Plain(_)
                | Pending::Admit { .. }
                | Pending::Budgets { .. }
                | Pending::Lease(_)
                | Pending::Amount(_)
                | Pending::Segment { .. }
                | Pending::Resume { .. }
                | Pending::Unheard,
            )
            | None => Kind::Refused,
        };
        let (_, facts) = self.asked(request);
        self.note(kind, denial.to_string(), Facts { reason: Some(denial.reason()), ..facts });
    }

    /// What a request asks for, as part of a sentence, and whose it is.
    fn asked(&self, request: RequestId) -> (String, Facts) {
        match self.requests.find(request) {
            Some(Pending::Ask { key, what: Asked { name, reserve }, .. }) => {
                let whose = self.facts_of_session(key.session);
                let facts = Facts { name: Some(name.clone()), bytes: Some(*reserve), ..whose };
                (format!(" ({name}) for {reserve} a device"), facts)
            }
            Some(Pending::Segment { session, .. }) => {
                (" for more of its lease".to_owned(), self.facts_of_session(*session))
            }
            Some(Pending::Resume { session, lease, .. }) => {
                let facts = Facts { lease: Some(*lease), ..self.facts_of_session(*session) };
                (format!(" for the memory of lease {lease}"), facts)
            }
            Some(
                Pending::Open { .. }
                | Pending::Plain(_)
                | Pending::Admit { .. }
                | Pending::Budgets { .. }
                | Pending::Lease(_)
                | Pending::Amount(_)
                | Pending::Unheard,
            )
            | None => (String::new(), Facts::default()),
        }
    }

    fn note_lease(&self, kind: Kind, lease: LeaseId, sentence: impl FnOnce(&str, &Facts) -> String) {
        if let Some(record) = self.leases.get(&lease) {
            let name = record.facts.name.as_deref().unwrap_or_default();
            let what = format!("lease {lease} ({name})");
            self.note(kind, sentence(&what, &record.facts), record.facts.clone());
        }
    }

    fn note_freed(&self, segment: SegmentId) {
        let facts = self.facts_of_segment(segment);
        let bytes = facts.bytes.unwrap_or(Bytes::ZERO);
        self.note(Kind::Freed, format!("{bytes} of segment {segment} are free again"), facts);
    }

    fn note_quarantined(&self, segment: SegmentId, suspects: &[Pid]) {
        let facts = self.facts_of_segment(segment);
        let bytes = facts.bytes.unwrap_or(Bytes::ZERO);
        let pids: Vec<_> = suspects.iter().map(Pid::to_string).collect();
        let who = if pids.is_empty() {
            "by a process that cannot be named".to_owned()
        } else {
            format!("perhaps by process {}", pids.join(", "))
        };
        self.note(Kind::Quarantined, format!("{bytes} of segment {segment} are still held, {who}"), facts);
    }

    fn facts_of_session(&self, session: SessionId) -> Facts {
        let known = self.sessions.get(session);
        let pid = known.and_then(|known| self.processes.get(&known.process)).map(|process| process.pid());
        Facts { session: Some(session), uid: known.map(|known| known.uid), pid, ..Facts::default() }
    }

    fn facts_of_segment(&self, segment: SegmentId) -> Facts {
        let Some(known) = self.segments.get(segment) else {
            return Facts::default();
        };
        let lease = self.leases.get(&known.lease).map(|record| record.facts.clone()).unwrap_or_default();
        Facts { lease: Some(known.lease), device: Some(known.device), bytes: Some(known.bytes), ..lease }
    }

    fn note(&self, kind: Kind, message: String, facts: Facts) {
        match kind {
            Kind::Quarantined
            | Kind::Overdue
            | Kind::DeviceTrouble
            | Kind::SuspendCancelled
            | Kind::SwapFailed
            | Kind::Terminated => tracing::warn!("{message}"),
            Kind::Opened
            | Kind::Waiting
            | Kind::Granted
            | Kind::Denied
            | Kind::Withdrawn
            | Kind::Joined
            | Kind::Allocated
            | Kind::Refused
            | Kind::Freed
            | Kind::Released
            | Kind::Closed
            | Kind::Ended
            | Kind::Died
            | Kind::Adrift
            | Kind::Rejoined
            | Kind::Recalled
            | Kind::OffBook
            | Kind::Suspending
            | Kind::Suspended
            | Kind::Resuming
            | Kind::Resumed
            | Kind::Pinned
            | Kind::Budget => tracing::debug!("{message}"),
        }
        self.events.write(unix_ms(), kind, message, facts);
    }
}

pub(super) fn facts_of_lease(view: &LeaseView) -> Facts {
    Facts {
        lease: Some(view.id),
        session: view.session,
        uid: Some(view.uid),
        pid: Some(view.pid),
        device: view.devices.first().copied(),
        bytes: Some(view.reserve),
        name: Some(view.name.clone()),
        ..Facts::default()
    }
}
