//! The demo, act by act. Each act makes one thing happen, waits until it is seen to have
//! happened, and notes whether the promise was kept.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpulease_proto::v1;
use gpulease_words::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::Command;
use super::actor::{Actor, Casting, Told, What};
use super::cast::{Cast, Part, Role};
use super::gauge::Gauges;
use super::narrator::Narrator;
use super::promise::{Promise, Verdicts};
use super::record::{End, Record};
use super::stage::Stage;
use crate::exit::{Exit, Failure};
use crate::signals::{Signals, name};

/// How long one thing may take to happen. Two free cores fill all of the jobs' memory in five seconds; a busy host
/// must not make the demo fail.
const ACT_WAIT: Duration = Duration::from_secs(60);

/// To what share of its first a loss falls before the next act, and before the end.
const HALF: f64 = 0.5;
const QUARTER: f64 = 0.25;

/// Between two looks at the state, where nothing is told.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why an act does not go on.
pub(super) enum Stop {
    /// What should have happened did not; a sentence.
    Missed(String),
    /// The person or the host gave it up.
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<gpulease_client::Error> for Stop {
    fn from(error: gpulease_client::Error) -> Self {
        Self::Failure(error.into())
    }
}

type Act = Result<(), Stop>;

/// The one who knows what happens next.
pub(super) struct Director<'a> {
    stage: &'a Stage,
    signals: &'a mut Signals,
    gauges: &'a Gauges,
    cast: Cast,
    devices: Vec<u32>,
    tell: UnboundedSender<Told>,
    told: UnboundedReceiver<Told>,
    actors: BTreeMap<String, Actor>,
    pub(super) records: Vec<Record>,
    pub(super) narrator: Narrator,
    pub(super) verdicts: Verdicts,
}

impl<'a> Director<'a> {
    /// Ready for the first act.
    pub(super) fn new(
        stage: &'a Stage,
        signals: &'a mut Signals,
        gauges: &'a Gauges,
        cast: Cast,
        devices: Vec<u32>,
        narrator: Narrator,
    ) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let (actors, records, verdicts) = (BTreeMap::new(), Vec::new(), Verdicts::default());
        Self { stage, signals, gauges, cast, devices, tell, told, actors, records, narrator, verdicts }
    }

    /// Plays all acts. What one act misses, is noted with its promise, and the next ones are played
    /// as far as they can be.
    ///
    /// # Errors
    /// Where it was given up.
    pub(super) async fn play(&mut self) -> Result<(), Failure> {
        let refused = self.refuse_greta().await;
        self.note(Promise::OverBudgetRefused, refused)?;
        let played = self.play_the_rest().await;
        match played {
            Ok(()) => {}
            Err(Stop::Missed(why)) => self.narrator.tell("demo", &format!("stops here: {why}"))?,
            Err(Stop::Failure(failure)) => return Err(failure),
        }
        Ok(())
    }

    async fn play_the_rest(&mut self) -> Act {
        self.open().await?;
        let grown = self.grow_bert().await;
        self.note(Promise::GrowthBounded, grown)?;
        let waits = self.let_two_wait().await;
        self.note(Promise::Waits, waits)?;
        let passed = self.kill_carl().await;
        self.note(Promise::PassedOn, passed)?;
        let granted = self.end_anna().await;
        self.note(Promise::GrantedAfter, granted)?;
        let finished = self.finish().await;
        self.note(Promise::LossesFall, finished)?;
        let back = self.see_everything_back().await;
        self.note(Promise::GivenBack, back)?;
        Ok(())
    }

    /// Notes what was shown of a promise.
    fn note(&mut self, promise: Promise, shown: Result<String, Stop>) -> Result<(), Failure> {
        match shown {
            Ok(detail) => self.verdicts.kept(promise, detail),
            Err(Stop::Missed(detail)) => {
                self.narrator.tell("demo", &format!("broken: {}: {detail}", promise.words()))?;
                self.verdicts.broken(promise, detail);
            }
            Err(Stop::Failure(failure)) => return Err(failure),
        }
        Ok(())
    }

    async fn refuse_greta(&mut self) -> Result<String, Stop> {
        let part = self.cast.part(Role::Greta);
        let budget = self.cast.budget_of_greta();
        self.narrator
            .tell("greta", &format!("asks for {}, and her account may have {budget}", part.reserve))?;
        self.start(Role::Greta.name(), part, 0)?;
        self.until("Greta is answered", |records| record(records, Role::Greta).end.is_some()).await?;
        match &record(&self.records, Role::Greta).end {
            Some(End::Refused { reason, message }) if reason == "over_budget" && in_numbers(message) => {
                Ok(message.clone())
            }
            end => Err(Stop::Missed(format!("Greta was not refused over her budget: {end:?}"))),
        }
    }

    /// Anna, Bert and Carl, and one job on each other device: they fit, and train.
    async fn open(&mut self) -> Act {
        for role in [Role::Anna, Role::Bert, Role::Carl] {
            let part = self.cast.part(role);
            self.narrator.tell(role.name(), &format!("asks for {}", part_words(part)))?;
            self.start(role.name(), part, 0)?;
        }
        for device in self.devices.clone().into_iter().skip(1) {
            let part =
                Part { reserve: self.cast.part(Role::Carl).reserve, limit: self.cast.part(Role::Carl).limit };
            self.start(&format!("side{device}"), part, device)?;
        }
        let all_granted = |records: &[Record]| records.iter().all(|r| r.lease.is_some() || r.end.is_some());
        self.until("Anna, Bert and Carl are granted", all_granted).await?;
        let learned = |records: &[Record]| {
            [Role::Anna, Role::Bert, Role::Carl]
                .into_iter()
                .all(|role| record(records, role).has_fallen_to(HALF))
        };
        self.until("Anna's, Bert's and Carl's losses have halved", learned).await
    }

    async fn grow_bert(&mut self) -> Result<String, Stop> {
        let limit = self.cast.part(Role::Bert).limit;
        self.order(Role::Bert, Command::Grow).await;
        self.until("Bert has grown and was refused more", |records| {
            record(records, Role::Bert).growth_refused.is_some()
        })
        .await?;
        let bert = record(&self.records, Role::Bert);
        let held = Bytes::new(bert.held_at_most_bytes);
        match &bert.growth_refused {
            Some((reason, message)) if reason == "beyond_lease" && held == limit => Ok(format!(
                "Bert grew from {} to {held}; then: {message}",
                self.cast.part(Role::Bert).reserve
            )),
            answer => {
                Err(Stop::Missed(format!("Bert may hold {limit}, holds {held}, and was answered {answer:?}")))
            }
        }
    }

    async fn let_two_wait(&mut self) -> Result<String, Stop> {
        for role in [Role::Dora, Role::Emil] {
            let part = self.cast.part(role);
            self.narrator.tell(role.name(), &format!("asks for {}", part_words(part)))?;
            self.start(role.name(), part, 0)?;
            let answered = |records: &[Record]| {
                let record = record(records, role);
                record.wait.is_some() || record.lease.is_some() || record.end.is_some()
            };
            self.until("the ask is answered", answered).await?;
        }
        let (dora, emil) = (record(&self.records, Role::Dora), record(&self.records, Role::Emil));
        match (&dora.wait, &emil.wait) {
            (Some(first), Some(second)) if !first.short_by.is_zero() && !second.short_by.is_zero() => {
                Ok(format!(
                    "Dora waited as number {}, {} short ({}), and Emil as number {}, {} short",
                    first.position, first.short_by, first.reason, second.position, second.short_by
                ))
            }
            waits => Err(Stop::Missed(format!("Dora and Emil should both wait for bytes: {waits:?}"))),
        }
    }

    async fn kill_carl(&mut self) -> Result<String, Stop> {
        let state = self.stage.observer().status().await?;
        let next = state.waiting.first().map(|ask| (ask.name.clone(), Bytes::new(ask.short_by_bytes)));
        let Some((_, short_by)) = next.filter(|(name, short)| name == Role::Dora.name() && !short.is_zero())
        else {
            return Err(Stop::Missed("Dora should be next in line, and short of bytes".to_owned()));
        };
        let carl = record(&self.records, Role::Carl);
        let held = Bytes::new(carl.held_at_most_bytes);
        let pid = carl.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| Stop::Missed("Carl's process is not known".to_owned()))?;
        self.narrator.tell("carl", &format!("holds {held} and gets SIGKILL; Dora is {short_by} short"))?;
        // The wrapper has not been told of its end, so the pid is still that of the training process.
        kill_process(pid, Signal::KILL)
            .map_err(|error| Stop::Missed(format!("Carl cannot be killed: {error}")))?;
        let start = Instant::now();
        self.until("Dora is granted", |records| record(records, Role::Dora).lease.is_some()).await?;
        let after = start.elapsed();
        self.until("Carl's end is told", |records| record(records, Role::Carl).end.is_some()).await?;
        let killed = record(&self.records, Role::Carl).end == Some(End::Killed { signal: libc::SIGKILL });
        let nobody_else =
            [Role::Anna, Role::Bert].into_iter().all(|role| record(&self.records, role).end.is_none());
        if killed && nobody_else {
            Ok(format!(
                "Carl had {held}; Dora, {short_by} short, was granted {:.3} s after the SIGKILL",
                after.as_secs_f64()
            ))
        } else {
            Err(Stop::Missed("others ended as well, so it is not told whose bytes Dora got".to_owned()))
        }
    }

    async fn end_anna(&mut self) -> Result<String, Stop> {
        if record(&self.records, Role::Emil).lease.is_some() {
            return Err(Stop::Missed("Emil was granted before there was room for him".to_owned()));
        }
        self.order(Role::Anna, Command::Finish).await;
        self.until("Anna has ended", |records| record(records, Role::Anna).end.is_some()).await?;
        self.until("Emil is granted", |records| record(records, Role::Emil).lease.is_some()).await?;
        let waited = |role| record(&self.records, role).waited_seconds.unwrap_or_default();
        Ok(format!("Dora after {:.1} s, Emil after {:.1} s", waited(Role::Dora), waited(Role::Emil)))
    }

    /// Lets everybody learn, and end.
    async fn finish(&mut self) -> Result<String, Stop> {
        let trains = |record: &Record| record.end.is_none();
        let learned = |records: &[Record]| records.iter().all(|r| !trains(r) || r.has_fallen_to(QUARTER));
        let missed = self.until("all losses have fallen to a quarter", learned).await;
        let names: Vec<String> = self.records.iter().filter(|r| trains(r)).map(|r| r.name.clone()).collect();
        for name in names {
            if let Some(actor) = self.actors.get_mut(&name) {
                actor.order(Command::Finish).await;
            }
        }
        self.until("all jobs have ended", |records| records.iter().all(|r| r.end.is_some())).await?;
        missed?;
        let trained: Vec<&Record> =
            self.records.iter().filter(|record| record.loss_first.is_some()).collect();
        let failed: Vec<&str> = trained
            .iter()
            .filter(|record| {
                !record.has_fallen_to(HALF)
                    || matches!(record.end, Some(End::Failed { .. } | End::Refused { .. }))
            })
            .map(|record| record.name.as_str())
            .collect();
        if trained.len() < Role::TRAINING.len() || !failed.is_empty() {
            return Err(Stop::Missed(format!(
                "{} jobs trained; of no use was the training of {failed:?}",
                trained.len()
            )));
        }
        Ok(format!("{} jobs trained, and the loss of each fell below half of its first", trained.len()))
    }

    /// Waits until the book and the devices have everything back.
    async fn see_everything_back(&mut self) -> Result<String, Stop> {
        let until = Instant::now() + ACT_WAIT;
        loop {
            let state = self.stage.observer().status().await?;
            let left: Vec<String> = state.devices.iter().filter_map(still_out).collect();
            let on_devices = self
                .gauges
                .uses()
                .iter()
                .any(|gauge| gauge.now_above_first().is_some_and(|now| !now.is_zero()));
            if left.is_empty() && state.leases.is_empty() && state.waiting.is_empty() && !on_devices {
                return Ok(
                    "no lease, no ask, and nothing held, set aside or draining on any device".to_owned()
                );
            }
            if Instant::now() > until {
                let uses = self.gauges.uses();
                return Err(Stop::Missed(format!(
                    "{} leases are left; {left:?}; the devices say {uses:?}",
                    state.leases.len()
                )));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn start(&mut self, who: &str, part: Part, device: u32) -> Act {
        let socket = self.stage.socket();
        let seed = self.records.len() as u64 + 1;
        let casting =
            Casting { who: who.to_owned(), part, device, seed, socket: &socket, mask: self.signals.before() };
        let cannot = |e| Failure::new(Exit::Failed, format!("{who} cannot be started: {e}"));
        let actor = Actor::start(&casting, &self.tell).map_err(cannot)?;
        self.actors.insert(who.to_owned(), actor);
        self.records.push(Record::new(who.to_owned(), device, part));
        Ok(())
    }

    async fn order(&mut self, role: Role, command: Command) {
        if let Some(actor) = self.actors.get_mut(role.name()) {
            actor.order(command).await;
        }
    }

    /// Takes what the jobs tell until something is so.
    async fn until(&mut self, what: &str, so: impl Fn(&[Record]) -> bool) -> Act {
        let deadline = tokio::time::sleep(ACT_WAIT);
        tokio::pin!(deadline);
        while !so(&self.records) {
            tokio::select! {
                Some(told) = self.told.recv() => self.take(told)?,
                caught = self.signals.next() => if caught.ends_a_wait() {
                    let message = format!("given up at {}; the private broker and its jobs are ended", name(caught.number));
                    return Err(Stop::Failure(Failure::new(Exit::Signal(caught.number), message)));
                },
                () = &mut deadline => {
                    return Err(Stop::Missed(format!("after {} s it is not so that {what}", ACT_WAIT.as_secs())));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, told: Told) -> Result<(), Failure> {
        let Told { who, what } = told;
        let ended = matches!(what, What::Ended(_));
        let Some(record) = self.records.iter_mut().find(|record| record.name == who) else { return Ok(()) };
        let news = record.take(what);
        if ended {
            self.actors.remove(&who);
        }
        news.map_or(Ok(()), |news| self.narrator.news(record, &news))
    }
}

/// The record of a role that was started.
fn record(records: &[Record], role: Role) -> &Record {
    records
        .iter()
        .find(|record| record.name == role.name())
        .expect("an act asks only for who was started before it")
}

fn part_words(part: Part) -> String {
    if part.limit > part.reserve {
        format!("{}, growing up to {}", part.reserve, part.limit)
    } else {
        part.reserve.to_string()
    }
}

fn in_numbers(message: &str) -> bool {
    message.chars().any(|c| c.is_ascii_digit())
}

/// What of a device's memory is not back yet, in words.
fn still_out(device: &v1::DeviceStatus) -> Option<String> {
    let memory = device.memory.as_ref()?;
    let parts = [
        ("held", memory.held_bytes),
        ("set aside", memory.set_aside_bytes),
        ("overhead", memory.overhead_bytes),
        ("draining", memory.draining_bytes),
        ("quarantined", memory.quarantined_bytes),
    ];
    let out: Vec<String> = parts
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(word, bytes)| format!("{} {word}", Bytes::new(*bytes)))
        .collect();
    (!out.is_empty()).then(|| out.join(", "))
}
