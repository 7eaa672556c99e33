//! Runs the commands of a scenario on an arbiter.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gpulease_arbiter::{Arbiter, Effect, Event, Peer, RequestId, Time};
use gpulease_words::{AskId, DurationText, LeaseId, Pid, ProcessId, Uid};

use super::budget::{Setting, Taken};
use super::command::{self, Cast};
use super::line::Line;
use super::{table, telling};

/// The pid of process `p1` is one more.
const FIRST_PID: u32 = 100;
/// No scenario waits for so many timers at one time.
const WAKES_MAX: usize = 10_000;

/// An arbiter, its clock and who talks to it.
#[derive(Default)]
pub(super) struct Stage {
    setting: Setting,
    arbiter: Option<Arbiter>,
    now: Time,
    requests: u64,
    asked: BTreeMap<RequestId, String>,
    processes: BTreeMap<ProcessId, Peer>,
    devices: Devices,
}

/// Who answers for the devices.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Devices {
    /// The scenario, by `created`, `freed` and the like.
    #[default]
    ByHand,
    /// Themselves, at once.
    Prompt,
}

impl Stage {
    /// Runs one command and returns what there is to tell.
    pub(super) fn run(&mut self, text: &str) -> Result<Vec<String>, String> {
        let mut line = Line::new(text);
        let verb = line.word("a command")?;
        if verb == "repeat" {
            return self.repeat(line);
        }
        if self.arbiter.is_none() && self.setting.take(&verb, &mut line)? == Taken::Mine {
            return line.done().map(|()| Vec::new());
        }
        let said = match verb.as_str() {
            "devices" => self.choose_devices(&mut line)?,
            "at" => self.advance(Time::after_start(line.span("a time")?))?,
            "later" => self.advance(self.now.plus(line.span("a span")?))?,
            "status" => table::status(&self.snapshot(), &self.setting),
            "line" => table::line(&self.snapshot(), &self.setting),
            "accounts" => table::accounts(&self.snapshot(), &self.setting),
            "set" => self.set(&mut line, text)?,
            "why" => self.why(&line.word("an ask or a lease")?)?,
            _ => self.event(&verb, &mut line, text)?,
        };
        line.done().map(|()| said)
    }

    /// `repeat 1..64 open user{n}`: the command for each number, in place of `{n}`.
    fn repeat(&mut self, mut line: Line) -> Result<Vec<String>, String> {
        let range = line.word("a range like 1..64")?;
        let (first, last) =
            range.split_once("..").ok_or_else(|| format!("{range:?} is no range like 1..64"))?;
        let number = |text: &str| text.parse::<u32>().map_err(|e| format!("{text:?}: {e}"));
        let (first, last) = (number(first)?, number(last)?);
        let command = line.rest();
        let mut said = Vec::new();
        for n in first..=last {
            said.extend(self.run(&command.replace("{n}", &n.to_string()))?);
        }
        Ok(said)
    }

    fn choose_devices(&mut self, line: &mut Line) -> Result<Vec<String>, String> {
        self.devices = match line.word("by-hand or prompt")?.as_str() {
            "by-hand" => Devices::ByHand,
            "prompt" => Devices::Prompt,
            other => return Err(format!("devices are by-hand or prompt, not {other}")),
        };
        Ok(Vec::new())
    }

    /// `set user alice limit 4GiB`: one budget is another from now on.
    fn set(&mut self, line: &mut Line, text: &str) -> Result<Vec<String>, String> {
        let verb = line.word("host, group, user or job")?;
        let before = self.setting.budgets();
        if self.setting.take(&verb, line)? == Taken::NotMine || self.setting.budgets() == before {
            return Err(format!("{verb} sets no budget"));
        }
        let budgets = self.setting.budgets();
        let request = self.ask(text);
        let said = self.handle(Event::SetBudgets { request, budgets: Box::new(budgets) });
        Ok(self.tell(said, Some(request)))
    }

    fn ask(&mut self, text: &str) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.asked.insert(request, text.to_owned());
        request
    }

    fn arbiter(&mut self) -> &mut Arbiter {
        self.arbiter.get_or_insert_with(|| self.setting.arbiter())
    }

    fn snapshot(&mut self) -> gpulease_arbiter::Snapshot {
        let now = self.now;
        self.arbiter().snapshot(now)
    }

    fn event(&mut self, verb: &str, line: &mut Line, text: &str) -> Result<Vec<String>, String> {
        self.requests += 1;
        let request = RequestId(self.requests);
        let event = command::event(verb, line, request, self)?;
        let event = event.ok_or_else(|| format!("no such command: {verb}"))?;
        self.asked.insert(request, text.to_owned());
        let said = self.handle(event);
        Ok(self.tell(said, Some(request)))
    }

    /// One event, and those that prompt devices add to it.
    fn handle(&mut self, event: Event) -> Vec<Effect> {
        let now = self.now;
        let (mut events, mut effects) = (VecDeque::from([event]), Vec::new());
        while let Some(event) = events.pop_front() {
            self.arbiter().handle(now, event);
            let fresh = self.drain();
            events.extend(fresh.iter().filter_map(|effect| self.prompt_answer(effect)));
            effects.extend(fresh);
        }
        effects
    }

    fn drain(&mut self) -> Vec<Effect> {
        let arbiter = self.arbiter();
        let effects: Vec<Effect> = std::iter::from_fn(|| arbiter.poll_effect()).collect();
        arbiter.check();
        effects
    }

    fn prompt_answer(&self, effect: &Effect) -> Option<Event> {
        if self.devices == Devices::ByHand {
            return None;
        }
        match effect {
            Effect::Create { segment, .. } | Effect::Restore { segment, .. } => {
                Some(Event::Created { segment: *segment })
            }
            Effect::Reclaim { segment, .. } => Some(Event::Freed { segment: *segment }),
            Effect::Opened { .. }
            | Effect::Denied { .. }
            | Effect::Done { .. }
            | Effect::Queued { .. }
            | Effect::Granted { .. }
            | Effect::Joined { .. }
            | Effect::Resized { .. }
            | Effect::Released { .. }
            | Effect::Recalled { .. }
            | Effect::Allocated { .. }
            | Effect::Notify { .. }
            | Effect::Overdue { .. }
            | Effect::Forget { .. }
            | Effect::Signal { .. }
            | Effect::Occurred { .. }
            | Effect::Resumed { .. }
            | Effect::LeaseGone { .. }
            | Effect::SessionGone { .. }
            | Effect::ProcessGone { .. } => None,
        }
    }

    /// Moves the clock, stopping at each wake-up on the way.
    fn advance(&mut self, until: Time) -> Result<Vec<String>, String> {
        if until < self.now {
            return Err(format!("time does not run backwards: it is {}", clock(self.now)));
        }
        let mut said = Vec::new();
        for _ in 0..WAKES_MAX {
            let Some((due, _)) = self.arbiter().poll_timeout().filter(|(due, _)| *due <= until) else {
                self.now = until;
                return Ok(said);
            };
            self.now = self.now.max(due);
            let now = self.now;
            self.arbiter().handle_timeout(now);
            let effects = self.drain();
            let answers: Vec<Event> = effects.iter().filter_map(|e| self.prompt_answer(e)).collect();
            let mut all = effects;
            all.extend(answers.into_iter().flat_map(|event| self.handle(event)));
            said.extend(self.tell(all, None).into_iter().map(|s| format!("at {}: {s}", clock(now))));
        }
        Err("the arbiter wants to be woken without end".to_owned())
    }

    fn tell(&mut self, effects: Vec<Effect>, current: Option<RequestId>) -> Vec<String> {
        let snapshot = self.snapshot();
        let by_hand = self.devices == Devices::ByHand;
        let told = effects.iter().filter(|effect| by_hand || !telling::is_device_work(effect));
        let said = told.map(|effect| {
            let request = telling::request(effect).filter(|request| Some(*request) != current);
            let whose = request.and_then(|request| self.asked.get(&request));
            let sentence = telling::sentence(effect, &snapshot, &self.setting);
            whose.map_or(sentence.clone(), |whose| format!("[{whose}] {sentence}"))
        });
        said.collect()
    }

    fn why(&mut self, id: &str) -> Result<Vec<String>, String> {
        let snapshot = self.snapshot();
        if let Some(ask) = id.strip_prefix('a').and_then(|n| n.parse::<u64>().ok()).map(AskId::new) {
            return Ok(table::why_ask(&snapshot, &self.setting, ask));
        }
        let lease: LeaseId = id.parse().map_err(|e| format!("{id:?}: {e}"))?;
        Ok(table::why_lease(&snapshot, &self.setting, lease))
    }
}

/// A time for people.
pub(super) fn clock(at: Time) -> String {
    match at.since_start() {
        Duration::ZERO => "0s".to_owned(),
        since => DurationText(since).to_string(),
    }
}

impl Cast for Stage {
    fn uid(&mut self, user: &str) -> Uid {
        self.setting.person(user).uid
    }

    fn peer(&mut self, user: &str, process: Option<ProcessId>, program: Option<String>) -> Peer {
        let last = self.processes.keys().next_back().map_or(0, |last| last.get());
        let process = process.unwrap_or_else(|| ProcessId::new(last + 1));
        let person = self.setting.person(user).clone();
        let number = u32::try_from(process.get()).expect("a scenario has few processes");
        let new = Peer {
            process,
            pid: Pid::new(FIRST_PID + number),
            uid: person.uid,
            group: person.group,
            program: program.unwrap_or_else(|| "train".to_owned()),
        };
        self.processes.entry(process).or_insert(new).clone()
    }
}
