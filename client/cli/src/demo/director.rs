//! The director: starts the jobs, hears what they tell, and notes with each act whether its promise
//! was kept.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::Command;
use super::actor::{Actor, Casting, Told, What};
use super::cast::{Cast, Part, Role};
use super::gauge::Gauges;
use super::narrator::Narrator;
use super::promise::{Promise, Verdicts};
use super::record::Record;
use super::stage::Stage;
use crate::exit::{Exit, Failure};
use crate::signals::{Signals, name};

/// How long nothing at all may happen while something is waited for. A busy host makes the demo slow, and must not
/// make it fail.
pub(super) const ACT_WAIT: Duration = Duration::from_secs(120);

/// How long one thing may take to happen while others go on.
const ACT_MOST: Duration = Duration::from_secs(300);

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

pub(super) type Act = Result<(), Stop>;

/// The one who knows what happens next.
pub(super) struct Director<'a> {
    pub(super) stage: &'a Stage,
    signals: &'a mut Signals,
    pub(super) gauges: &'a Gauges,
    pub(super) cast: Cast,
    pub(super) devices: Vec<u32>,
    tell: UnboundedSender<Told>,
    told: UnboundedReceiver<Told>,
    pub(super) actors: BTreeMap<String, Actor>,
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
    pub(super) fn note(&mut self, promise: Promise, shown: Result<String, Stop>) -> Result<(), Failure> {
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

    pub(super) fn start(&mut self, who: &str, part: Part, device: u32) -> Act {
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

    pub(super) async fn order(&mut self, role: Role, command: Command) {
        if let Some(actor) = self.actors.get_mut(role.name()) {
            actor.order(command).await;
        }
    }

    /// Takes what the jobs tell for so long.
    pub(super) async fn attend(&mut self, time: Duration) -> Act {
        let over = tokio::time::sleep(time);
        tokio::pin!(over);
        loop {
            tokio::select! {
                Some(told) = self.told.recv() => self.take(told)?,
                caught = self.signals.next() => if caught.ends_a_wait() { return Err(given_up(caught.number)) },
                () = &mut over => return Ok(()),
            }
        }
    }

    /// Takes what the jobs tell until something is so; as long as they tell something it may still come to that.
    pub(super) async fn until(&mut self, what: &str, so: impl Fn(&[Record]) -> bool) -> Act {
        let begin = tokio::time::Instant::now();
        while !so(&self.records) {
            let patience = ACT_WAIT.min(ACT_MOST.saturating_sub(begin.elapsed()));
            tokio::select! {
                Some(told) = self.told.recv() => self.take(told)?,
                caught = self.signals.next() => if caught.ends_a_wait() { return Err(given_up(caught.number)) },
                () = tokio::time::sleep(patience) => {
                    return Err(Stop::Missed(format!("after {} s it is not so that {what}", begin.elapsed().as_secs())));
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

fn given_up(signal: i32) -> Stop {
    let message = format!("given up at {}; the private broker and its jobs are ended", name(signal));
    Stop::Failure(Failure::new(Exit::Signal(signal), message))
}
