//! The thread that looks.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, ProcessId};
use tokio::sync::{mpsc, watch};

use super::book::{Account, account};
use super::{Card, Cards, Members, ProcessUse, Reading, Report, Stranger, Watched, people};
use crate::device::Made;

const EVERY: Duration = Duration::from_secs(1);
/// How soon to look again where the card changed while it was read.
const SOON: Duration = Duration::from_millis(5);
/// How often in a row that is done before the second is waited out.
const SOON_MAX: u32 = 20;

/// The running witness. Dropping it ends its thread.
#[derive(Debug)]
pub struct Witness {
    asks: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Watches these cards. A report that finds the channel full is made again at the next look.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn start(
        cards: Cards,
        watched: Vec<Watched>,
        members: watch::Receiver<Members>,
        reports: mpsc::Sender<Report>,
    ) -> io::Result<Self> {
        let (asks, inbox) = channel();
        let sights = watched.into_iter().map(|watched| Sight::new(cards, watched)).collect();
        let mut look = Look { sights, members, reports };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || look.run(&inbox))?;
        Ok(Self { asks: Some(asks), thread: Some(thread) })
    }

    /// Looks at once, as after a death.
    pub fn refresh_now(&self) {
        let asks = self.asks.as_ref().expect("taken only by drop");
        // The thread ends only with this handle, or by a panic that the log shows.
        let _ = asks.send(());
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Look {
    sights: Vec<Sight>,
    members: watch::Receiver<Members>,
    reports: mpsc::Sender<Report>,
}

/// Whether a card could be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Clearly,
    /// It or the broker's memory on it changed meanwhile.
    InMotion,
}

impl Look {
    fn run(&mut self, asks: &Receiver<()>) {
        let mut soon = 0;
        loop {
            let in_motion = self.look() == Seen::InMotion;
            soon = if in_motion && soon < SOON_MAX { soon + 1 } else { 0 };
            match asks.recv_timeout(if soon > 0 { SOON } else { EVERY }) {
                // Asks that came together are one.
                Ok(()) => while asks.try_recv().is_ok() {},
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) -> Seen {
        let members = self.members.borrow().clone();
        let mut all = Seen::Clearly;
        for sight in &mut self.sights {
            if sight.look(&members, &self.reports) == Seen::InMotion {
                all = Seen::InMotion;
            }
        }
        all
    }
}

/// One card and what was last seen of it.
struct Sight {
    watched: Watched,
    card: Result<Card, String>,
    reading: Option<Reading>,
    reported: Option<Report>,
    /// Members that were missing at the last look.
    missed: BTreeSet<ProcessId>,
    /// The last trouble, so that it is logged once.
    trouble: Option<String>,
}

impl Sight {
    fn new(cards: Cards, watched: Watched) -> Self {
        let card = cards.card(&watched.uuid);
        Self { watched, card, reading: None, reported: None, missed: BTreeSet::new(), trouble: None }
    }

    fn look(&mut self, members: &Members, reports: &mpsc::Sender<Report>) -> Seen {
        let Some(before) = self.watched.gauge.read() else { return Seen::InMotion };
        let report = match self.read() {
            Ok(None) => return Seen::InMotion,
            Ok(Some(reading)) => {
                if self.watched.gauge.read().map(|made| made.changes) != Some(before.changes) {
                    return Seen::InMotion;
                }
                self.trouble = None;
                self.report(&reading, &before, members)
            }
            Err(trouble) => self.unknown(trouble),
        };
        if self.reported.as_ref() != Some(&report) && reports.try_send(report.clone()).is_ok() {
            self.reported = Some(report);
        }
        Seen::Clearly
    }

    /// A reading that holds together: one that is as the last one was, or that comes out the same twice.
    fn read(&mut self) -> Result<Option<Reading>, String> {
        let card = self.card.as_ref().map_err(Clone::clone)?;
        let first = card.read()?;
        let steady = if self.reading.as_ref() == Some(&first) { Some(first) } else { card.read_steady()? };
        self.reading.clone_from(&steady);
        Ok(steady)
    }

    fn report(&mut self, reading: &Reading, made: &Made, members: &Members) -> Report {
        let device = self.watched.device;
        let Some(account) = account(reading, made, members, self.watched.capacity) else {
            return Report { used: Some(reading.used), ..nothing(device) };
        };
        let Account { off_book, overheads, strangers } = account;
        Report {
            device,
            used: Some(reading.used),
            off_book: Some(off_book),
            overheads: self.with_absent(overheads, members),
            strangers: strangers.iter().map(|stranger| self.named(stranger)).collect(),
        }
    }

    /// Adds the members that were measured and are no longer listed: at the first look with the old figure, since a
    /// dying process leaves the list before its bytes are back, then with zero.
    fn with_absent(
        &mut self,
        mut overheads: BTreeMap<ProcessId, Bytes>,
        members: &Members,
    ) -> BTreeMap<ProcessId, Bytes> {
        let known = self.reported.as_ref().map(|report| report.overheads.clone()).unwrap_or_default();
        let living: BTreeSet<_> = members.values().collect();
        let absent = known.into_iter().filter(|(process, _)| !overheads.contains_key(process));
        let absent: BTreeMap<_, _> = absent.filter(|(process, _)| living.contains(process)).collect();
        let missed_before = std::mem::replace(&mut self.missed, absent.keys().copied().collect());
        overheads.extend(absent.into_iter().map(|(process, last)| {
            let figure = if missed_before.contains(&process) { Bytes::ZERO } else { last };
            (process, figure)
        }));
        overheads
    }

    /// With the names that the last report had, if it was the same process then: they cost a look into `/proc`.
    fn named(&self, stranger: &ProcessUse) -> Stranger {
        let known = self.reported.iter().flat_map(|report| &report.strangers);
        let same = |known: &&Stranger| (known.pid, known.bytes) == (stranger.pid, stranger.bytes);
        known.clone().find(same).cloned().unwrap_or_else(|| Stranger {
            pid: stranger.pid,
            uid: people::user(stranger.pid),
            command: people::command(stranger.pid),
            bytes: stranger.bytes,
        })
    }

    fn unknown(&mut self, trouble: String) -> Report {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!(device = %self.watched.device, "the card's use is unknown: {trouble}");
        }
        self.trouble = Some(trouble);
        nothing(self.watched.device)
    }
}

fn nothing(device: DeviceId) -> Report {
    Report { device, used: None, off_book: None, overheads: BTreeMap::new(), strangers: Vec::new() }
}
