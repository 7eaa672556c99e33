//! The thread that looks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, DeviceId, Pid, ProcessId};

use super::book::{Account, account};
use super::unsettled::{SETTLES, Unsettled};
use super::{Card, Cards, ProcessUse, Reading, Roster, Stranger, Testimony, Watched, people};
use crate::device::Made;
use crate::worker::Worker;

const EVERY: Duration = Duration::from_secs(1);
/// How often in between it is asked how much is used, which costs a tenth of asking who uses it: where that changed,
/// it is looked at once.
const GLANCE: Duration = Duration::from_millis(400);
/// How soon to look again where the card changed while it was read.
const SOON: Duration = Duration::from_millis(5);
/// How often in a row that is done before the second is waited out.
const SOON_MAX: u32 = 20;

/// The running witness. Dropping it ends its thread.
#[derive(Debug)]
pub struct Witness {
    asks: Option<Sender<Ask>>,
    thread: Option<Worker>,
}

impl Witness {
    /// Watches these cards and tells what has changed.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(
        cards: Cards,
        watched: Vec<Watched>,
        members: Roster,
        tell: impl Fn(DeviceId, Testimony) + Send + 'static,
    ) -> io::Result<Self> {
        let (asks, inbox) = channel();
        let sights = watched.into_iter().map(|watched| Sight::new(cards, watched)).collect();
        let mut look = Look { sights, members, tell };
        let thread = Worker::start("witness".to_owned(), move || look.run(&inbox))?;
        Ok(Self { asks: Some(asks), thread: Some(thread) })
    }

    /// Looks at once, as after a death.
    pub fn refresh_now(&self) {
        self.ask(Ask::Look);
    }

    /// Looks at once and tells all that it sees: somebody came of whom it may have told before.
    pub fn tell_again(&self) {
        self.ask(Ask::TellAll);
    }

    fn ask(&self, ask: Ask) {
        let asks = self.asks.as_ref().expect("taken only by drop");
        // The thread ends only with this handle, or by a panic that the log shows.
        let _ = asks.send(ask);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
    }
}

/// What the thread is asked for between its looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Look,
    TellAll,
}

struct Look<T> {
    sights: Vec<Sight>,
    members: Roster,
    tell: T,
}

/// What came of a look at a card.
enum Seen {
    /// This is new.
    New(Testimony),
    /// Nothing is.
    Same,
    /// It or the broker's memory on it changed meanwhile.
    InMotion,
}

impl<T: Fn(DeviceId, Testimony)> Look<T> {
    fn run(&mut self, asks: &Receiver<Ask>) {
        let mut soon = 0;
        loop {
            let in_motion = self.look_at_all() > 0;
            soon = if in_motion && soon < SOON_MAX { soon + 1 } else { 0 };
            if self.wait(asks, if soon > 0 { SOON } else { self.rest() }).is_none() {
                return;
            }
        }
    }

    /// How long to wait where nothing moves.
    fn rest(&self) -> Duration {
        if self.sights.iter().any(|sight| sight.unsettled.is_waiting()) { SETTLES } else { EVERY }
    }

    /// Waits until it is time to look again; `None`: nobody will ask any more.
    fn wait(&mut self, asks: &Receiver<Ask>, span: Duration) -> Option<()> {
        let until = Instant::now() + span;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match asks.recv_timeout(left.min(GLANCE)) {
                Ok(ask) => {
                    // Asks that came together are one.
                    if asks.try_iter().chain([ask]).collect::<Vec<_>>().contains(&Ask::TellAll) {
                        self.sights.iter_mut().for_each(|sight| sight.repeat = Repeat::Once);
                    }
                    return Some(());
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if left <= GLANCE => return Some(()),
                Err(RecvTimeoutError::Timeout) if self.sights.iter().any(Sight::has_changed) => {
                    return Some(());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Tells what is new, and says how many cards could not be read for motion.
    fn look_at_all(&mut self) -> usize {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut in_motion = 0;
        for sight in &mut self.sights {
            match sight.look(&members) {
                Seen::New(testimony) => (self.tell)(sight.watched.device, testimony),
                Seen::Same => {}
                Seen::InMotion => in_motion += 1,
            }
        }
        in_motion
    }
}

/// Whether what was told before is told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    No,
    Once,
}

/// One card and what was last seen of it.
struct Sight {
    watched: Watched,
    card: Result<Card, String>,
    reading: Option<Reading>,
    told: Option<Testimony>,
    repeat: Repeat,
    /// Members that were missing at the last look.
    missed: BTreeSet<ProcessId>,
    unsettled: Unsettled,
    /// The last trouble, so that it is logged once.
    trouble: Option<String>,
}

impl Sight {
    fn new(cards: Cards, watched: Watched) -> Self {
        let card = cards.card(&watched.uuid);
        let (missed, unsettled) = Default::default();
        Self {
            watched,
            card,
            reading: None,
            told: None,
            repeat: Repeat::No,
            missed,
            unsettled,
            trouble: None,
        }
    }

    fn look(&mut self, members: &BTreeMap<Pid, ProcessId>) -> Seen {
        let Some(before) = self.watched.gauge.read() else { return Seen::InMotion };
        let read = self.read();
        let after = self.watched.gauge.read();
        let testimony = match read {
            Ok(Some(reading)) if after.is_some_and(|after| after.changes == before.changes) => {
                self.trouble = None;
                self.testify(&reading, &before, members)
            }
            Ok(_) => return Seen::InMotion,
            Err(trouble) => self.unknown(trouble),
        };
        let repeat = std::mem::replace(&mut self.repeat, Repeat::No);
        if repeat == Repeat::No && self.told.as_ref() == Some(&testimony) {
            return Seen::Same;
        }
        self.told = Some(testimony.clone());
        Seen::New(testimony)
    }

    /// Whether the card's use is another than it was when it was last told of.
    fn has_changed(&self) -> bool {
        let used = self.card.as_ref().ok().and_then(|card| card.used().ok());
        used.is_some_and(|used| self.told.as_ref().is_none_or(|told| told.used != Some(used)))
    }

    /// A reading that holds together: one that is as the last one was, or that comes out the same twice.
    fn read(&mut self) -> Result<Option<Reading>, String> {
        let card = self.card.as_ref().map_err(Clone::clone)?;
        let first = card.read()?;
        let steady = if self.reading.as_ref() == Some(&first) { Some(first) } else { card.read_steady()? };
        self.reading.clone_from(&steady);
        Ok(steady)
    }

    fn testify(&mut self, reading: &Reading, made: &Made, members: &BTreeMap<Pid, ProcessId>) -> Testimony {
        let used = Some(reading.used);
        let Some(account) = account(reading, made, members, self.watched.capacity) else {
            return Testimony { used, ..Testimony::default() };
        };
        let Account { off_book, unmanaged, overheads, strangers } = account;
        let told: BTreeMap<_, _> = self.told.iter().flat_map(|told| told.overheads.iter().copied()).collect();
        let before = |process| told.get(&process).copied();
        let estimate = self.watched.overhead_estimate;
        let overheads = self.unsettled.settled(overheads, before, estimate, Instant::now());
        Testimony {
            used,
            off_book: Some(off_book),
            unmanaged,
            overheads: self.with_absent(overheads, members).into_iter().collect(),
            strangers: Some(strangers.iter().map(|stranger| self.named(stranger)).collect()),
        }
    }

    /// Adds the members that were measured and are no longer listed: at the first look with the old figure, since a
    /// dying process leaves the list before its bytes are back, then with zero.
    fn with_absent(
        &mut self,
        mut overheads: BTreeMap<ProcessId, Bytes>,
        members: &BTreeMap<Pid, ProcessId>,
    ) -> BTreeMap<ProcessId, Bytes> {
        let known = self.told.iter().flat_map(|told| told.overheads.clone());
        let living: BTreeSet<_> = members.values().collect();
        let absent =
            known.filter(|(process, _)| !overheads.contains_key(process) && living.contains(process));
        let absent: BTreeMap<_, _> = absent.collect();
        let missed_before = std::mem::replace(&mut self.missed, absent.keys().copied().collect());
        overheads.extend(absent.into_iter().map(|(process, last)| {
            let figure = if missed_before.contains(&process) { Bytes::ZERO } else { last };
            (process, figure)
        }));
        overheads
    }

    /// With the names that were told last, if it was the same process then: they cost a look into `/proc`.
    fn named(&self, stranger: &ProcessUse) -> Stranger {
        let mut known = self.told.iter().filter_map(|told| told.strangers.as_ref()).flatten();
        let same = |known: &&Stranger| (known.pid, known.bytes) == (stranger.pid, stranger.bytes);
        known.find(same).cloned().unwrap_or_else(|| Stranger {
            pid: stranger.pid,
            uid: people::user(stranger.pid),
            command: people::command(stranger.pid),
            bytes: stranger.bytes,
        })
    }

    fn unknown(&mut self, trouble: String) -> Testimony {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(device = %self.watched.device, "the card's use is unknown: {trouble}");
        }
        self.trouble = Some(trouble);
        Testimony::default()
    }
}
