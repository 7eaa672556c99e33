//! The driver: the one task that owns the arbiter.
//!
//! Everything that happens reaches it as a [`Command`] or as news of the [`World`]. It stamps the
//! time, hands the event to the arbiter, and carries out the effects before it looks at anything
//! else; nothing here awaits between a check and the act that rests on it.

mod acts;
mod answers;
mod chronicle;
mod clock;
mod command;
mod covers;
mod desk;
mod news;
mod outside;
mod publication;
mod requests;
mod segments;
mod sessions;
mod sizes;
mod suspension;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpulease_arbiter::{Arbiter, Authority, Budgets, Denial, DeviceSpec, Effect, Event, Policy, Time};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, Uid};
use tokio::sync::mpsc;

pub(crate) use clock::unix_ms;
pub(crate) use command::{
    Access, AskUpdate, Departure, Grant, Guest, LeaseSizes, LeaseStanding, LeaseTerms, News, Opened, Refusal,
    Segment, SegmentWish, SessionNotice, Shown, Standing, StreamEnd, World,
};
pub(crate) use desk::{Ask, Desk};
pub(crate) use view::{DeviceFacts, View};

use crate::arena::Arena;
use crate::credentials::Secret;
use crate::device::thread::OwnerThread;
use crate::event_log::{EventLog, Facts};
use crate::liveness::{Liveness, Process};
use crate::tickets::Tickets;
use crate::users::Names;
use crate::witness::{Roster, Witness};
use clock::Clock;
use command::{Body, Command};
use covers::Covers;
use publication::Publication;
use requests::{AskKey, Pending, Requests};
use segments::Segments;
use sessions::Sessions;

/// Commands that may stand in the queue; more wait at their edges, in the order they came.
const COMMANDS_QUEUED: usize = 1_024;

/// Tickets of one user that nobody fetched yet: each keeps descriptors open in the broker. One for each session that a
/// user may have.
const TICKETS_PER_UID: u32 = 1_024;

/// What the driver is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) policy: Policy,
    pub(crate) budgets: Budgets,
    /// The first group of the configuration that lists a user.
    pub(crate) groups: BTreeMap<Uid, String>,
    pub(crate) devices: Vec<(DeviceFacts, OwnerThread)>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) names: Arc<Names>,
    pub(crate) events: EventLog,
    pub(crate) members: Roster,
    pub(crate) witness: Option<Witness>,
    /// Where there is host memory for suspended leases.
    pub(crate) arena: Option<Arena>,
}

/// Both ends of the way on which news of the world reach the driver.
pub(crate) type WorldChannel = (mpsc::UnboundedSender<World>, mpsc::UnboundedReceiver<World>);

/// The task's state.
pub(crate) struct Driver {
    clock: Clock,
    arbiter: Arbiter,
    commands: mpsc::Receiver<Command>,
    world: mpsc::UnboundedReceiver<World>,
    departures: mpsc::UnboundedSender<World>,
    desk: Desk,
    /// Events that effects gave rise to, each handed in once the effects before it are carried out.
    backlog: VecDeque<Event>,
    /// What is being handed to the arbiter, for the log where that fails.
    current: Option<Event>,
    requests: Requests,
    sessions: Sessions,
    segments: Segments,
    leases: BTreeMap<LeaseId, LeaseRecord>,
    processes: BTreeMap<ProcessId, Arc<Process>>,
    /// The last that the witness said.
    overheads: BTreeMap<(ProcessId, DeviceId), Bytes>,
    /// Of those, what is more than a context.
    large: BTreeMap<(DeviceId, ProcessId), Bytes>,
    facts: Vec<DeviceFacts>,
    threads: Vec<OwnerThread>,
    groups: BTreeMap<Uid, String>,
    liveness: Arc<Liveness>,
    names: Arc<Names>,
    events: EventLog,
    members: Roster,
    witness: Option<Witness>,
    arena: Option<Arena>,
    publication: Publication,
    covers: Covers,
    mode: Mode,
}

/// What the driver keeps of a lease, from its grant until it is gone.
#[derive(Debug)]
struct LeaseRecord {
    token: Secret,
    /// What the event log says of it.
    facts: Facts,
    /// The ask that it was granted for, once its asker heard of it.
    ask: Option<AskKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Serving,
    Stopping,
}

impl Driver {
    /// A driver of these parts, and the desk at which the edges ask it.
    pub(crate) fn new(parts: Parts, (departures, world): WorldChannel) -> (Self, Desk) {
        let specs: Vec<_> = parts.devices.iter().map(|(facts, _)| spec(facts)).collect();
        let arbiter = Arbiter::new(parts.policy, parts.budgets, &specs);
        let (facts, threads): (Vec<_>, Vec<_>) = parts.devices.into_iter().unzip();
        let (clock, covers) = (Clock::start(), Covers::of(&facts));
        let publication = Publication::new(View::new(arbiter.snapshot(Time::START), facts.clone()));
        let (sender, commands) = mpsc::channel(COMMANDS_QUEUED);
        let desk = Desk::new(sender, departures.clone(), publication.views());
        let driver = Self {
            clock,
            arbiter,
            commands,
            world,
            departures,
            desk: desk.clone(),
            backlog: VecDeque::new(),
            current: None,
            requests: Requests::default(),
            sessions: Sessions::default(),
            segments: Segments::new(parts.tickets),
            leases: BTreeMap::new(),
            processes: BTreeMap::new(),
            overheads: BTreeMap::new(),
            large: BTreeMap::new(),
            facts,
            threads,
            groups: parts.groups,
            liveness: parts.liveness,
            names: parts.names,
            events: parts.events,
            members: parts.members,
            witness: parts.witness,
            arena: parts.arena,
            publication,
            covers,
            mode: Mode::Serving,
        };
        (driver, desk)
    }

    /// Serves until it is dropped.
    pub(crate) async fn run(mut self) {
        let timer = tokio::time::sleep_until(self.clock.instant(Time::START));
        tokio::pin!(timer);
        loop {
            let wake = self.next_wake().map(|time| self.clock.instant(time));
            if let Some(wake) = wake
                && timer.deadline() != wake
            {
                timer.as_mut().reset(wake);
            }
            tokio::select! {
                biased;
                Some(news) = self.world.recv() => self.hear(news),
                Some(command) = self.commands.recv() => self.take(command),
                () = &mut timer, if wake.is_some() => {}
            }
            // Whatever came: a flood of commands must not keep a deadline from passing.
            self.wake();
            self.tell_covers();
            self.publish();
        }
    }

    fn next_wake(&self) -> Option<Time> {
        if self.mode == Mode::Stopping {
            return self.publication.due();
        }
        let arbiter = self.arbiter.poll_timeout().map(|(time, _)| time);
        arbiter.into_iter().chain(self.publication.due()).min()
    }

    fn wake(&mut self) {
        let now = self.clock.now();
        if self.mode == Mode::Serving && self.arbiter.poll_timeout().is_some_and(|(time, _)| time <= now) {
            self.current = None;
            self.arbiter.handle_timeout(now);
            self.carry_out_all(now);
            self.work_off();
        }
    }

    fn publish(&mut self) {
        let now = self.clock.now();
        let (arbiter, facts) = (&self.arbiter, &self.facts);
        self.publication
            .advance(now, arbiter.generation(), || View::new(arbiter.snapshot(now), facts.clone()));
    }

    /// Hands an event to the arbiter and carries out what it wants done.
    fn step(&mut self, event: Event) {
        self.backlog.push_back(event);
        self.work_off();
    }

    fn work_off(&mut self) {
        while let Some(event) = self.backlog.pop_front().or_else(|| self.changed_outside()) {
            let now = self.clock.now();
            self.note_event(&event);
            self.current = Some(event.clone());
            let departed = departed(&event);
            self.arbiter.handle(now, event);
            departed.into_iter().for_each(|segment| self.depart(segment));
            self.carry_out_all(now);
        }
    }

    fn carry_out_all(&mut self, now: Time) {
        let mut effects = Vec::new();
        while let Some(effect) = self.arbiter.poll_effect() {
            effects.push(effect);
        }
        self.trace(now, &effects);
        for effect in effects {
            self.note_effect(&effect);
            self.carry_out(now, effect);
        }
        self.current = None;
    }

    /// The line from which a run can be replayed: the time, what was handed in, what came of it.
    fn trace(&self, now: Time, effects: &[Effect]) {
        let at = now.since_start().as_nanos();
        match &self.current {
            Some(event) => tracing::debug!(target: "gpulease::arbiter", at, ?event, ?effects),
            None => tracing::debug!(target: "gpulease::arbiter", at, event = "Timeout", ?effects),
        }
    }

    fn stop(&mut self) {
        self.mode = Mode::Stopping;
        self.requests.drain().for_each(|pending| pending.refuse(Refusal::Stopping));
        self.sessions.end_streams();
    }

    fn take(&mut self, command: Command) {
        let (request, caller, body) = match command {
            Command::Look { reply } => return self.publication.look(reply),
            Command::Budgets { reply, .. } if self.mode == Mode::Stopping => {
                return drop(reply.send(Err(Refusal::Stopping)));
            }
            Command::Budgets { request, budgets, groups, reply } => {
                self.requests.insert(request, Pending::Budgets { groups, reply });
                return self.step(Event::SetBudgets { request, budgets });
            }
            Command::Ask { body, .. } if self.mode == Mode::Stopping => {
                return body.refuse(Refusal::Stopping);
            }
            Command::Ask { request, caller, body } => (request, caller, body),
        };
        match body {
            Body::Open { program, rejoin: None, reply } => self.open(request, caller, program, reply),
            Body::Open { rejoin: Some(shown), reply, .. } => self.rejoin(&caller, &shown, reply),
            Body::Session { shown, act } => match self.sessions.own(&shown, &caller) {
                Some(_) if act.is_deserted() => {}
                Some(_) => self.act(request, shown.session, act),
                None => act.refuse(Denial::NoSuchSession.into()),
            },
            Body::End { authority, lease, reply } => {
                let authority = match authority {
                    Standing::User => Authority::User(caller.uid),
                    Standing::Operator => Authority::Operator,
                };
                self.requests.insert(request, Pending::Amount(reply));
                self.step(Event::Release { request, authority, lease });
            }
            Body::Recall { lease, bytes, within, reply } => {
                self.requests.insert(request, Pending::Amount(reply));
                self.step(Event::Recall { request, lease, bytes, within });
            }
        }
    }
}

impl Drop for Driver {
    /// A broken invariant ends the daemon, with what did it in the log: half a broker would grant what it cannot prove.
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Not through the log, which is written by another thread that ends with this process.
            eprintln!("ERROR an invariant is broken by {:?}; the broker ends", self.current);
            std::process::abort();
        }
    }
}

/// The segment that is on no device any more after this.
fn departed(event: &Event) -> Option<SegmentId> {
    if let Event::CreateFailed { segment, .. } | Event::Freed { segment } = event {
        Some(*segment)
    } else {
        None
    }
}

/// A device as the arbiter is told of it.
pub(crate) fn spec(facts: &DeviceFacts) -> DeviceSpec {
    let overhead_estimate = facts.description.overhead_estimate;
    DeviceSpec { id: facts.id, capacity: facts.capacity, overhead_estimate }
}
