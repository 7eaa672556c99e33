//! Leases that leave their device and come back: their host copies, and what their members say and hear.

use std::os::fd::OwnedFd;

use gpulease_arbiter::{Denial, Event, LeaseState, LeaseView, Notice, Pinning, RequestId, Signal, Time};
use gpulease_words::{Bytes, LeaseId, ProcessId, SegmentId, SessionId};
use tokio::sync::mpsc;

use super::Driver;
use super::command::{AskUpdate, LeaseStanding, News, Refusal, SessionNotice};
use super::requests::Pending;
use super::segments::Whereabouts;
use crate::device::Order;

impl Driver {
    /// The descriptor of a new segment's host copy, where it is to have one.
    pub(super) fn host_copy(
        &self,
        segment: SegmentId,
        bytes: Bytes,
        pinning: Pinning,
    ) -> Result<Option<OwnedFd>, String> {
        match (&self.arena, pinning) {
            (Some(arena), Pinning::Movable) => arena.make(segment, bytes).map(Some),
            (None, Pinning::Movable) | (_, Pinning::Pinned) => Ok(None),
        }
    }

    /// A segment is free on the device, or was not made: its bytes are in its host copy, or it is no more.
    pub(super) fn depart(&mut self, segment: SegmentId) {
        if self.arbiter.has_segment(segment) {
            self.segments.sent_away(segment);
        } else {
            self.forget(segment);
        }
    }

    /// A segment is no more.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.segments.forget(segment);
        self.arena.iter().for_each(|arena| arena.forget(segment));
    }

    /// A member says how a suspension or its guards stand. What it does not fit changes nothing.
    pub(super) fn report(&mut self, session: SessionId, lease: LeaseId, news: News) -> Result<(), Refusal> {
        let view = self.arbiter.lease(lease).filter(|view| self.is_member(session, view));
        if view.is_none() {
            return Err(Denial::NoSuchLease.into());
        }
        let event = match news {
            News::Drained => Event::Drained { session, lease },
            News::SwappedOut(segment) => Event::SwappedOut { session, lease, segment },
            News::SwapFailed(why) => Event::SwapFailed { session, lease, why },
            News::Restored(segment) => {
                // Of this lease: a member of another one has no say in it.
                if self.segments.get(segment).is_some_and(|known| known.lease == lease) {
                    self.segments.restored(segment);
                }
                Event::Restored { session, lease, segment }
            }
            News::Guards(idleness) => Event::Idle { session, lease, idleness },
        };
        self.step(event);
        Ok(())
    }

    /// A member wants its lease's memory. The wish of a stream that broke goes over to the next one.
    pub(super) fn resume(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
        updates: mpsc::UnboundedSender<AskUpdate>,
    ) {
        let earlier = self.requests.resume(request, (session, lease));
        let since = self.clock.now();
        self.requests.insert(request, Pending::Resume { session, lease, since, updates });
        self.step(Event::Resume { request, session, lease });
        if let Some(request) = earlier
            && self.requests.take(request).is_some()
        {
            self.step(Event::Abandoned { request });
        }
    }

    pub(super) fn is_member(&self, session: SessionId, lease: &LeaseView) -> bool {
        let process = self.sessions.get(session).and_then(|known| self.processes.get(&known.process));
        process.is_some_and(|process| lease.members.iter().any(|member| member.pid == process.pid()))
    }

    /// How the leases stand that are on their way out or back, or away, and of which the session's process is a member.
    pub(super) fn standings(&self, session: SessionId) -> Vec<LeaseStanding> {
        let views = self.leases.keys().filter_map(|lease| self.arbiter.lease(*lease));
        let moving = views.filter(|view| match view.state {
            LeaseState::Suspending | LeaseState::Suspended | LeaseState::Resuming => true,
            LeaseState::Active | LeaseState::Draining => false,
        });
        let of_session = moving.filter(|view| self.is_member(session, view));
        of_session
            .map(|view| {
                let segments = self.segments.of_lease(view.id);
                let away = segments.filter(|(_, whereabouts)| *whereabouts == Whereabouts::Away);
                let away = away.map(|(segment, _)| segment).collect();
                LeaseStanding { lease: view.id, state: view.state, away }
            })
            .collect()
    }

    /// A notice as its session is told it; `None` where there is nothing to tell.
    pub(super) fn put_into_words(
        &mut self,
        now: Time,
        session: SessionId,
        notice: Notice,
    ) -> Option<SessionNotice> {
        match notice {
            Notice::Recall { lease, device, bytes, deadline } => {
                Some(SessionNotice::Recall { lease, device, bytes, within: deadline.since(now) })
            }
            Notice::Ended { lease, denial } => Some(SessionNotice::Ended { lease, denial }),
            Notice::Suspend { lease, deadline } => match self.lacking(lease) {
                None => Some(SessionNotice::Suspend { lease, within: deadline.since(now) }),
                Some(why) => {
                    // Asked to copy into memory that the host does not have, the process would die of it.
                    self.backlog.push_back(Event::SwapFailed { session, lease, why });
                    None
                }
            },
            Notice::SwapOut { lease } => Some(SessionNotice::SwapOut { lease }),
            Notice::SuspendCancelled { lease, why } => Some(SessionNotice::SuspendCancelled { lease, why }),
            Notice::SegmentBack { lease, segment } => self.segment_back(session, lease, segment),
            Notice::Pinned { lease } => Some(SessionNotice::Pinned { lease }),
        }
    }

    /// The lease moves no more, whether its processes hear of it now or not: its host copies are given up.
    pub(super) fn drop_copies(&mut self, lease: LeaseId) {
        let copies: Vec<_> = self.segments.of_lease(lease).map(|(segment, _)| segment).collect();
        for segment in copies {
            self.segments.drop_copy(segment);
            self.arena.iter().for_each(|arena| arena.forget(segment));
        }
    }

    /// Why a lease could not be copied out, where the host has too little memory for it.
    fn lacking(&self, lease: LeaseId) -> Option<String> {
        let level = self.arena.as_ref()?.gauge().read();
        let mut segments = self.segments.of_lease(lease);
        segments.find_map(|(segment, _)| level.lacking.get(&segment).cloned())
    }

    fn segment_back(
        &mut self,
        session: SessionId,
        lease: LeaseId,
        segment: SegmentId,
    ) -> Option<SessionNotice> {
        let process = self.sessions.get(session)?.process;
        let ticket = self.segments.hand_back(segment, process)?;
        if let (Some(known), Some(process)) = (self.segments.get(segment), self.processes.get(&process)) {
            self.order(known.device, Order::Handed(segment, process.pid()));
        }
        Some(SessionNotice::SegmentBack { lease, segment, ticket })
    }

    pub(super) fn signal(&self, process: ProcessId, signal: Signal) {
        let Some(process) = self.processes.get(&process) else { return };
        let sent = match signal {
            Signal::Term => process.signal(rustix::process::Signal::TERM),
            Signal::Kill => process.signal(rustix::process::Signal::KILL),
        };
        if let Err(errno) = sent {
            tracing::warn!(?process, ?signal, %errno, "a process that is to end could not be told");
        }
    }
}
