//! The simulated host: virtual time, what happens in it, and the checks after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_arbiter::{Effect, Event, RequestId, Snapshot, Time};
use gpulease_words::{DeviceId, LeaseId, ProcessId, SegmentId};

use super::actor::{Actor, Deed};
use super::card::{Card, Proof, pids};
use super::coverage::Coverage;
use super::diary::Diary;
use super::dice::Dice;
use super::model::{Broken, Figures, Model, SegmentState, ensure};
use super::mutant::Mutant;
use super::setting::Setting;
use super::subject::Subject;

/// How often a device looks again whether a piece is free by now.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// No state of the arbiter has so many timers due at once.
const WAKES_MAX: u32 = 10_000;

pub(super) type Check = Result<(), Broken>;

/// Something that will happen.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A device makes a piece.
    Make(DeviceId, SegmentId),
    /// A device looks whether a piece is free.
    Prove(DeviceId, SegmentId),
    /// A process claims its ticket and maps the segment.
    Claim(ProcessId, SegmentId),
    /// The kernel tells of a death.
    Funeral(ProcessId),
    /// The guards of a process are gone.
    Drain(ProcessId, LeaseId),
    /// A process finds that it can't swap.
    SwapFails(ProcessId, LeaseId),
    /// A segment is in its host copy and unmapped, or is said to be.
    GoesOut(ProcessId, LeaseId, SegmentId),
    PretendsOut(ProcessId, LeaseId, SegmentId),
    /// A segment that came back is mapped and filled.
    Fill(ProcessId, LeaseId, SegmentId),
    /// A process wants its lease's memory.
    Enter(ProcessId, LeaseId),
    /// A process ends.
    End(ProcessId),
}

/// Everything there is.
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) now: Time,
    pub(super) model: Model,
    pub(super) actors: Vec<Actor>,
    pub(super) cards: Vec<Card>,
    pub(super) diary: Diary,
    pub(super) coverage: Coverage,
    pub(super) steps: u32,
    /// Everybody does what he should.
    pub(super) upright: bool,
    /// Who died, whether or not the broker heard of it.
    dead: BTreeSet<ProcessId>,
    subject: Subject,
    agenda: BTreeMap<(Time, u64), Happening>,
    pub(super) requests: u64,
    happenings: u64,
}

impl World {
    pub(super) fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        let mut dice = Dice::new(seed);
        let setting = Setting::draw(&mut dice);
        Self::made(setting, dice, mutant)
    }

    pub(super) fn made(setting: Setting, dice: Dice, mutant: Option<Mutant>) -> Self {
        let subject = Subject::new(&setting, mutant);
        let mut model = Model::new(setting.policy, setting.budgets, &setting.devices);
        model.upright = setting.upright;
        if mutant.is_some_and(Mutant::shows_its_settings) {
            model.figures = Figures::Ignored;
        }
        Self {
            dice,
            now: Time::START,
            model,
            actors: setting.actors,
            cards: setting.cards,
            diary: Diary::default(),
            coverage: Coverage::default(),
            steps: setting.steps,
            upright: setting.upright,
            dead: BTreeSet::new(),
            subject,
            agenda: BTreeMap::new(),
            requests: 0,
            happenings: 0,
        }
    }

    /// A number for a new request.
    pub(super) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Puts something on the agenda.
    pub(super) fn plan(&mut self, after: Duration, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((self.now.plus(after), self.happenings), happening);
    }

    /// Whether nothing is planned and no timer runs.
    pub(super) fn is_quiet(&self) -> bool {
        self.agenda.is_empty() && self.subject.poll_timeout().is_none()
    }

    /// When the arbiter wants to be woken next.
    pub(super) fn next_wake(&self) -> Option<Time> {
        self.subject.poll_timeout().map(|(due, _)| due)
    }

    /// Lets time run until `until`, with all that is planned and due on the way.
    pub(super) fn run_until(&mut self, until: Time) -> Check {
        loop {
            let planned = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let woken = self.subject.poll_timeout().map(|(due, _)| due);
            let Some(next) = planned.into_iter().chain(woken).min().filter(|next| *next <= until) else {
                self.now = until;
                return Ok(());
            };
            self.now = self.now.max(next);
            // Now and then the driver is late: what was planned comes at the same time as the timer.
            self.wake()?;
            let due = self.agenda.first_key_value().map(|(key, _)| *key).filter(|(at, _)| *at <= self.now);
            if let Some(happening) = due.and_then(|key| self.agenda.remove(&key)) {
                self.happen(happening)?;
            }
        }
    }

    /// Tells the arbiter the time, as often as it wants.
    fn wake(&mut self) -> Check {
        let mut wakes = 0;
        let due = |subject: &Subject, now: Time| subject.poll_timeout().is_some_and(|(at, _)| at <= now);
        if !due(&self.subject, self.now) {
            return Ok(());
        }
        self.model.hear_time(self.now);
        self.diary.timeout(self.now);
        while due(&self.subject, self.now) {
            wakes += 1;
            ensure!(wakes < WAKES_MAX, "the arbiter wants to be woken at {:?} without end", self.now);
            self.subject.handle_timeout(self.now);
        }
        self.judge(None)
    }

    /// A wake-up that nobody asked for; it must change nothing.
    pub(super) fn wake_for_nothing(&mut self) -> Check {
        self.wake()?;
        let before = self.subject.snapshot(self.now);
        self.subject.handle_timeout(self.now);
        let effects = self.subject.effects();
        ensure!(effects.is_empty(), "a wake-up for nothing led to {effects:?}");
        let after = self.subject.snapshot(self.now);
        super::promise::unchanged(&before, &after, "a wake-up for nothing")
    }

    /// Hands one event to the arbiter and judges what it does.
    pub(super) fn deliver(&mut self, event: Event) -> Check {
        self.wake()?;
        self.coverage.event(&event);
        self.diary.event(self.now, &event);
        let before = self.subject.snapshot(self.now);
        let asked = self.model.hear(self.now, &event);
        self.subject.handle(self.now, event);
        self.judge(Some((asked, before)))
    }

    /// Drains the effects, compares with the model, and lets the world react.
    fn judge(&mut self, before: Option<(Option<RequestId>, Snapshot)>) -> Check {
        let effects = self.subject.effects();
        effects.iter().for_each(|effect| {
            self.diary.effect(effect);
            self.coverage.effect(effect);
        });
        self.subject.check();
        let after = self.subject.snapshot(self.now);
        self.model.learn(&after);
        for effect in &effects {
            self.model.see(effect)?;
        }
        self.model
            .settle(&after)
            .map_err(|broken| Broken(format!("{}; the line: {:?}", broken.0, after.waiting)))?;
        if let ([Effect::Denied { request, denial }], Some((asked, before))) = (&effects[..], before)
            && asked == Some(*request)
        {
            super::promise::unchanged(&before, &after, &format!("the refusal {denial:?}"))?;
        }
        super::promise::every_wait_says_why(&after)
            .map_err(|b| Broken(format!("{}; {}", b.0, self.model.describe_all())))?;
        effects.iter().try_for_each(|effect| self.react(effect))
    }

    /// What devices and clients do about an effect.
    fn react(&mut self, effect: &Effect) -> Check {
        match effect {
            Effect::Create { segment, device, bytes, .. } => {
                card(&mut self.cards, *device).order(*segment, *bytes)?;
                self.plan_work(*device, Happening::Make(*device, *segment));
            }
            Effect::Reclaim { segment, device } => {
                card(&mut self.cards, *device).want_back(*segment)?;
                self.plan_work(*device, Happening::Prove(*device, *segment));
            }
            Effect::Allocated { segment, process, .. } => {
                let after = Duration::from_millis(self.dice.below(300));
                self.plan(after, Happening::Claim(*process, *segment));
            }
            Effect::Denied { denial, .. } => super::promise::refusal_helps(denial)?,
            Effect::Restore { segment, device, bytes, .. } => {
                card(&mut self.cards, *device).order(*segment, *bytes)?;
                self.plan_work(*device, Happening::Make(*device, *segment));
            }
            Effect::Notify { session, notice } => self.take_notice(*session, notice),
            Effect::Occurred { lease, what } => self.take_note(*lease, what),
            Effect::Signal { process, signal } => self.take_signal(*process, *signal),
            Effect::Opened { .. }
            | Effect::Done { .. }
            | Effect::Queued { .. }
            | Effect::Granted { .. }
            | Effect::Joined { .. }
            | Effect::Resized { .. }
            | Effect::Released { .. }
            | Effect::Recalled { .. }
            | Effect::Overdue { .. }
            | Effect::Forget { .. }
            | Effect::Resumed { .. }
            | Effect::LeaseGone { .. }
            | Effect::SessionGone { .. }
            | Effect::ProcessGone { .. } => {}
        }
        Ok(())
    }

    fn plan_work(&mut self, device: DeviceId, happening: Happening) {
        let after = card(&mut self.cards, device).delay(&mut self.dice);
        self.plan(after, happening);
    }

    fn happen(&mut self, happening: Happening) -> Check {
        match happening {
            Happening::Make(device, segment) => self.make(device, segment),
            Happening::Prove(device, segment) => self.prove(device, segment),
            Happening::Claim(process, segment) => self.claim(process, segment),
            Happening::Funeral(process) => self.deliver(Event::Died { process }),
            Happening::Drain(process, _)
            | Happening::SwapFails(process, _)
            | Happening::GoesOut(process, ..)
            | Happening::PretendsOut(process, ..)
            | Happening::Fill(process, ..)
            | Happening::Enter(process, _)
            | Happening::End(process)
                if self.dead.contains(&process) =>
            {
                Ok(())
            }
            Happening::Drain(process, lease) => self.drains(process, lease),
            Happening::SwapFails(process, lease) => self.swap_fails(process, lease),
            Happening::GoesOut(process, lease, segment) => self.goes_out(process, lease, segment),
            Happening::PretendsOut(process, lease, segment) => self.pretends_out(process, lease, segment),
            Happening::Fill(process, lease, segment) => self.fills(process, lease, segment),
            Happening::Enter(process, lease) => self.enters(process, lease),
            Happening::End(process) => {
                self.kill(process);
                Ok(())
            }
        }
    }

    fn make(&mut self, device: DeviceId, segment: SegmentId) -> Check {
        let made = card(&mut self.cards, device).make(segment, &mut self.dice)?;
        self.deliver(match made {
            Ok(()) => Event::Created { segment },
            Err(why) => Event::CreateFailed { segment, why: why.to_owned() },
        })
    }

    fn prove(&mut self, device: DeviceId, segment: SegmentId) -> Check {
        let proof = card(&mut self.cards, device).prove(segment, &mut self.dice);
        match proof {
            Proof::Free => return self.deliver(Event::Freed { segment }),
            Proof::Unproven(processes) => {
                let suspects = pids(&processes, |process| Some(self.model.processes.get(&process)?.peer.pid));
                self.deliver(Event::Unproven { segment, suspects })?;
            }
            Proof::Later => {}
        }
        self.plan(LOOK_AGAIN, Happening::Prove(device, segment));
        Ok(())
    }

    fn claim(&mut self, process: ProcessId, segment: SegmentId) -> Check {
        let fact = &self.model.segments[&segment];
        // A ticket for what is wanted back is void.
        if self.dead.contains(&process) || fact.state != SegmentState::Live {
            return Ok(());
        }
        let device = fact.device;
        card(&mut self.cards, device).map(segment, process);
        self.deliver(Event::Claimed { segment })
    }

    /// Does what a client decided on.
    pub(super) fn perform(&mut self, process: ProcessId, deed: Deed) -> Check {
        match deed {
            Deed::Say(event) => self.deliver(event),
            Deed::Map(segment) => {
                self.map(segment, process);
                Ok(())
            }
            Deed::Unmap(segment) => {
                self.unmap(segment, process);
                Ok(())
            }
            Deed::Die => {
                self.kill(process);
                Ok(())
            }
        }
    }

    pub(super) fn map(&mut self, segment: SegmentId, process: ProcessId) {
        let device = self.model.segments[&segment].device;
        card(&mut self.cards, device).map(segment, process);
    }

    pub(super) fn unmap(&mut self, segment: SegmentId, process: ProcessId) {
        let device = self.model.segments[&segment].device;
        card(&mut self.cards, device).unmap(segment, process);
    }

    /// Ends a process; the broker hears of it a little later.
    pub(super) fn kill(&mut self, process: ProcessId) {
        self.actors
            .iter_mut()
            .filter(|actor| actor.peer.process == process)
            .for_each(|actor| actor.alive = false);
        self.cards.iter_mut().for_each(|card| card.forget(process));
        if !self.dead.insert(process) {
            return;
        }
        let after = Duration::from_millis(self.dice.below(400));
        self.plan(after, Happening::Funeral(process));
    }

    /// The arbiter's state now.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.subject.snapshot(self.now)
    }
}

fn card(cards: &mut [Card], device: DeviceId) -> &mut Card {
    cards.iter_mut().find(|card| card.id == device).expect("the model knows the device")
}
