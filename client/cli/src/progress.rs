//! What is said while an ask waits: a live line on a terminal, a line for each change elsewhere.

use std::io::Write as _;
use std::time::{Duration, Instant};

use gpulease_client::{Holder, Waiting};
use gpulease_words::DurationText;
use serde::Serialize;

use crate::escape::printable;
use crate::grid::clipped;
use crate::look::{Look, Tone};
use crate::output;
use crate::state::{SCHEMA_VERSION, user};

/// How many holders a line names.
const HOLDERS_NAMED: usize = 3;

/// Where the wait is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Nothing is said.
    Quiet,
    /// A line that is written over.
    Live(Look),
    /// A line for each change.
    Lines,
    /// A document for each change.
    Documents,
}

/// Tells of one wait.
pub(crate) struct Progress {
    manner: Manner,
    last: Option<(Waiting, Instant)>,
}

impl Progress {
    /// Nothing told yet.
    pub(crate) const fn new(manner: Manner) -> Self {
        Self { manner, last: None }
    }

    /// The ask of the last update.
    pub(crate) fn last(&self) -> Option<&Waiting> {
        self.last.as_ref().map(|(waiting, _)| waiting)
    }

    /// Takes an update.
    pub(crate) fn update(&mut self, waiting: Waiting) {
        let changed = self.last().is_none_or(|last| !same(last, &waiting));
        let news = changed.then(|| waiting.clone());
        self.last = Some((waiting, Instant::now()));
        match (self.manner, news) {
            (Manner::Quiet, _) | (Manner::Lines | Manner::Documents, None) => {}
            (Manner::Live(_), _) => self.refresh(),
            (Manner::Lines, Some(news)) => output::say(&words(&news, news.waited)),
            (Manner::Documents, Some(news)) => output::say_document(&Document::from(&news)),
        }
    }

    /// Draws the live line again: time has passed.
    pub(crate) fn refresh(&self) {
        let (Manner::Live(look), Some((waiting, at))) = (self.manner, &self.last) else { return };
        let waited = waiting.waited + at.elapsed();
        let line = clipped(&words(waiting, waited), look.width.unwrap_or(80).saturating_sub(1));
        draw(&format!("\r{}\x1b[K", look.paint(Tone::Warning, &line)));
    }

    /// Takes the live line away.
    pub(crate) fn clear(&self) {
        if matches!((self.manner, &self.last), (Manner::Live(_), Some(_))) {
            draw("\r\x1b[K");
        }
    }
}

fn draw(text: &str) {
    let mut out = std::io::stderr().lock();
    // There is nobody left to tell where standard error is gone.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Whether a person learns nothing new: how long it has waited does not count.
fn same(a: &Waiting, b: &Waiting) -> bool {
    let key = |w: &Waiting| {
        let holders: Vec<_> = w.holders.iter().map(|h| (h.lease, h.bytes)).collect();
        (w.position, w.short_by, w.reason, holders)
    };
    key(a) == key(b)
}

/// `a3 waits as number 2: 3 GiB short (no_room); L7 resnet of alice has 8 GiB; waited 12s`.
fn words(waiting: &Waiting, waited: Duration) -> String {
    let (ask, position, waited) = (waiting.ask, waiting.position, DurationText(waited));
    if waiting.short_by.is_zero() {
        // It waits for something else than bytes.
        return format!("{ask} waits as number {position}: {}; waited {waited}", printable(&waiting.message));
    }
    let reason = waiting.reason.map_or_else(|| printable(&waiting.message), |reason| reason.word().into());
    let (short_by, holders) = (waiting.short_by, holders(&waiting.holders));
    format!("{ask} waits as number {position}: {short_by} short ({reason}){holders}; waited {waited}")
}

fn holders(holders: &[Holder]) -> String {
    let named = holders.iter().take(HOLDERS_NAMED).map(|holder| {
        let (name, user) = (printable(&holder.name), user(&holder.user, holder.uid.get()));
        format!("; {} {name} of {user} has {}", holder.lease, holder.bytes)
    });
    let more = match holders.len().saturating_sub(HOLDERS_NAMED) {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    named.collect::<String>() + &more
}

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    event: &'static str,
    id: String,
    position: u32,
    short_by_bytes: u64,
    reason: Option<&'static str>,
    message: &'a str,
    holders: Vec<HolderDocument<'a>>,
    waited_seconds: f64,
    at_latest_seconds: Option<f64>,
}

#[derive(Serialize)]
struct HolderDocument<'a> {
    id: String,
    name: &'a str,
    user: &'a str,
    uid: u32,
    pid: u32,
    bytes: u64,
}

impl<'a> From<&'a Waiting> for Document<'a> {
    fn from(waiting: &'a Waiting) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            event: "waiting",
            id: waiting.ask.to_string(),
            position: waiting.position,
            short_by_bytes: waiting.short_by.get(),
            reason: waiting.reason.map(gpulease_words::Reason::word),
            message: &waiting.message,
            holders: waiting.holders.iter().map(HolderDocument::from).collect(),
            waited_seconds: waiting.waited.as_secs_f64(),
            at_latest_seconds: waiting.at_latest.map(|latest| latest.as_secs_f64()),
        }
    }
}

impl<'a> From<&'a Holder> for HolderDocument<'a> {
    fn from(holder: &'a Holder) -> Self {
        Self {
            id: holder.lease.to_string(),
            name: &holder.name,
            user: &holder.user,
            uid: holder.uid.get(),
            pid: holder.pid.get(),
            bytes: holder.bytes.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpulease_words::{AskId, LeaseId, Pid, Reason, Uid, gib};

    use super::*;

    fn holder(lease: u64) -> Holder {
        Holder {
            lease: LeaseId::new(lease),
            name: "res\u{1b}net".into(),
            user: "alice".into(),
            uid: Uid::new(1001),
            pid: Pid::new(42),
            bytes: gib(8),
        }
    }

    fn waiting() -> Waiting {
        Waiting {
            ask: AskId::new(3),
            position: 2,
            short_by: gib(3),
            reason: Some(Reason::NoRoom),
            message: "3 GiB are short".into(),
            holders: vec![holder(7)],
            at_latest: None,
            waited: Duration::from_secs(12),
        }
    }

    #[test]
    fn a_wait_in_words() {
        assert_eq!(
            words(&waiting(), Duration::from_secs(12)),
            "a3 waits as number 2: 3 GiB short (no_room); L7 res\\x1bnet of alice has 8 GiB; waited 12s"
        );
        let many = Waiting { holders: (1..=5).map(holder).collect(), reason: None, ..waiting() };
        let text = words(&many, Duration::from_secs(1));
        assert!(
            text.contains("short (3 GiB are short); L1") && text.contains("L3 ") && !text.contains("L4 "),
            "{text}"
        );
        assert!(text.contains(", and 2 more; waited"), "{text}");
        let full = Waiting { short_by: gib(0), message: "bob has the one lease".into(), ..waiting() };
        assert_eq!(
            words(&full, Duration::from_secs(1)),
            "a3 waits as number 2: bob has the one lease; waited 1.0s"
        );
    }

    #[test]
    fn passing_time_alone_is_no_news() {
        let later = Waiting { waited: Duration::from_secs(99), ..waiting() };
        assert!(same(&waiting(), &later));
        assert!(!same(&waiting(), &Waiting { position: 1, ..waiting() }));
        assert!(!same(&waiting(), &Waiting { holders: vec![], ..waiting() }));
    }
}
