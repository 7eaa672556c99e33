//! How clients answer what they are told of their leases: in time, late, never, or with a lie.

use std::collections::BTreeMap;
use std::time::Duration;

use gpulease_arbiter::{Event, Notice, Occurrence, Signal};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId};

use super::actor::Temper;
use super::model::{Journey, SegmentState};
use super::world::{Check, Happening, World};

/// What a client makes of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Obeys,
    /// It goes on as if it had not heard.
    Ignores,
    /// It says that it can't.
    Refuses,
    /// It says that it did, and did not.
    Lies,
    Dies,
}

impl World {
    /// A session is told something of its lease.
    pub(super) fn take_notice(&mut self, session: SessionId, notice: &Notice) {
        let process = self.model.sessions[&session].peer.process;
        match notice {
            Notice::Suspend { lease, .. } => self.is_to_drain(process, *lease),
            Notice::SwapOut { lease } => self.is_to_swap_out(process, *lease),
            Notice::SegmentBack { lease, segment } => {
                let bytes = self.model.segments[segment].bytes;
                let after = self.over_the_link(bytes);
                let answer = self.answer_of(process);
                if answer == Answer::Dies {
                    return self.plan(after / 2, Happening::End(process));
                }
                if answer != Answer::Ignores {
                    self.plan(after, Happening::Fill(process, *lease, *segment));
                }
            }
            Notice::Recall { .. }
            | Notice::Ended { .. }
            | Notice::SuspendCancelled { .. }
            | Notice::Pinned { .. } => {}
        }
    }

    /// Somebody who uses the lease wants it back soon; what ends, ends.
    pub(super) fn take_note(&mut self, lease: LeaseId, what: &Occurrence) {
        self.coverage.occurrence(what);
        let members = &self.model.leases[&lease].members;
        if *what == Occurrence::Suspended
            && let Some(member) = self.dice.pick(members).copied()
            && !self.dice.one_in(4)
        {
            let after = Duration::from_millis(self.dice.between(0, 20_000));
            self.plan(after, Happening::Enter(member, lease));
        }
    }

    pub(super) fn take_signal(&mut self, process: ProcessId, signal: Signal) {
        let listens = self.dice.one_in(2);
        if signal == Signal::Kill || listens {
            self.plan(Duration::from_millis(50), Happening::End(process));
        }
    }

    fn answer_of(&mut self, process: ProcessId) -> Answer {
        let temper = self.actors.iter().find(|a| a.peer.process == process).map(|actor| actor.temper);
        let weights = match temper {
            _ if self.upright => [1, 0, 0, 0, 0],
            None | Some(Temper::Good | Temper::Impatient) => [30, 0, 1, 0, 0],
            Some(Temper::Greedy | Temper::Flooding) => [12, 3, 4, 0, 0],
            Some(Temper::Hanging) => [2, 6, 0, 0, 0],
            Some(Temper::Lying) => [3, 1, 1, 4, 0],
            Some(Temper::Frail) => [4, 1, 1, 0, 4],
        };
        let answers = [Answer::Obeys, Answer::Ignores, Answer::Refuses, Answer::Lies, Answer::Dies];
        let weighted: Vec<(u64, Answer)> = weights.into_iter().zip(answers).collect();
        *self.dice.weighted(&weighted)
    }

    fn is_to_drain(&mut self, process: ProcessId, lease: LeaseId) {
        let longest = u64::try_from(self.model.policy.drain_deadline.as_millis()).expect("seconds");
        let at_last = if self.dice.one_in(3) { longest - 1 } else { self.dice.below(longest) };
        let after = Duration::from_millis(at_last);
        match self.answer_of(process) {
            Answer::Obeys => self.plan(after, Happening::Drain(process, lease)),
            Answer::Ignores => {}
            Answer::Refuses => self.plan(after / 2, Happening::SwapFails(process, lease)),
            Answer::Lies => self.plan(Duration::ZERO, Happening::Drain(process, lease)),
            Answer::Dies => self.plan(after, Happening::End(process)),
        }
    }

    /// Its segments go one after the other, at the speed of the link; each device has its own.
    fn is_to_swap_out(&mut self, process: ProcessId, lease: LeaseId) {
        let live = self.model.segments_of(lease).filter(|(_, s)| s.process == process);
        let live = live.filter(|(_, s)| s.state == SegmentState::Live);
        let mapped: Vec<(SegmentId, DeviceId, Bytes)> = live.map(|(id, s)| (id, s.device, s.bytes)).collect();
        let (mut busy, answer) = (BTreeMap::<DeviceId, Duration>::new(), self.answer_of(process));
        let fails_at = self.dice.below(mapped.len() as u64 + 1);
        for (at, (segment, device, bytes)) in mapped.into_iter().enumerate() {
            let takes = self.over_the_link(bytes);
            let link = busy.entry(device).or_default();
            *link += takes;
            let (after, fails) = (*link, at as u64 == fails_at);
            match answer {
                Answer::Refuses if fails => return self.plan(after, Happening::SwapFails(process, lease)),
                Answer::Dies if fails => return self.plan(after, Happening::End(process)),
                Answer::Ignores if fails => return,
                Answer::Lies => self.plan(after, Happening::PretendsOut(process, lease, segment)),
                Answer::Obeys | Answer::Refuses | Answer::Dies | Answer::Ignores => {
                    self.plan(after, Happening::GoesOut(process, lease, segment));
                }
            }
        }
    }

    /// How long so many bytes take.
    fn over_the_link(&mut self, bytes: Bytes) -> Duration {
        let whole = self.model.swap_time(bytes);
        if self.upright || !self.dice.one_in(6) { whole } else { whole * 6 }
    }

    fn session_of(&self, process: ProcessId) -> Option<SessionId> {
        self.model.sessions_of(process).first().copied()
    }

    pub(super) fn drains(&mut self, process: ProcessId, lease: LeaseId) -> Check {
        match self.session_of(process) {
            Some(session) => self.deliver(Event::Drained { session, lease }),
            None => Ok(()),
        }
    }

    pub(super) fn swap_fails(&mut self, process: ProcessId, lease: LeaseId) -> Check {
        match self.session_of(process) {
            Some(session) => {
                self.deliver(Event::SwapFailed { session, lease, why: "a copy failed".to_owned() })
            }
            None => Ok(()),
        }
    }

    pub(super) fn goes_out(&mut self, process: ProcessId, lease: LeaseId, segment: SegmentId) -> Check {
        let fact = &self.model.segments[&segment];
        let leaves = matches!(self.model.leases[&lease].journey, Journey::Leaving { .. });
        if fact.state == SegmentState::Live && leaves {
            self.unmap(segment, process);
        }
        self.pretends_out(process, lease, segment)
    }

    pub(super) fn pretends_out(&mut self, process: ProcessId, lease: LeaseId, segment: SegmentId) -> Check {
        match self.session_of(process) {
            Some(session) => self.deliver(Event::SwappedOut { session, lease, segment }),
            None => Ok(()),
        }
    }

    pub(super) fn fills(&mut self, process: ProcessId, lease: LeaseId, segment: SegmentId) -> Check {
        let Some(session) = self.session_of(process) else { return Ok(()) };
        if self.model.segments[&segment].state == SegmentState::Back {
            self.map(segment, process);
            self.deliver(Event::Claimed { segment })?;
        }
        self.deliver(Event::Restored { session, lease, segment })
    }

    pub(super) fn enters(&mut self, process: ProcessId, lease: LeaseId) -> Check {
        let Some(session) = self.session_of(process) else { return Ok(()) };
        let request = self.request();
        self.deliver(Event::Resume { request, session, lease })
    }
}
