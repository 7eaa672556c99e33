//! The demo as it goes, in words.

use std::time::Instant;

use serde::Serialize;

use super::record::{End, News, Record};
use crate::escape::printable;
use crate::exit::Failure;
use crate::look::{Look, Tone};
use crate::output;
use crate::signals;

/// One line of the demo.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    at_seconds: f64,
    who: String,
    text: String,
}

/// Tells lines, and keeps them.
pub(super) struct Narrator {
    start: Instant,
    manner: Manner,
    lines: Vec<Line>,
}

/// Where lines go as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// To standard output.
    Aloud(Look),
    /// Into the document alone.
    Silent,
}

impl Narrator {
    /// The demo starts now.
    pub(super) fn new(manner: Manner) -> Self {
        Self { start: Instant::now(), manner, lines: Vec::new() }
    }

    /// Seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// All lines.
    pub(super) fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    /// Tells a line about somebody.
    ///
    /// # Errors
    /// Where nobody reads any more.
    pub(super) fn tell(&mut self, who: &str, text: &str) -> Result<(), Failure> {
        let at_seconds = self.seconds();
        let printed = match self.manner {
            Manner::Aloud(look) => {
                let name = look.paint(Tone::Heading, &format!("{:<7}", printable(who)));
                output::print(&format!("{at_seconds:6.1} s  {name} {}\n", printable(text)))
            }
            Manner::Silent => Ok(()),
        };
        self.lines.push(Line { at_seconds, who: who.to_owned(), text: text.to_owned() });
        printed
    }

    /// Tells news of a job.
    ///
    /// # Errors
    /// As [`Self::tell`].
    pub(super) fn news(&mut self, record: &Record, news: &News) -> Result<(), Failure> {
        self.tell(&record.name, &words(record, news))
    }
}

fn words(record: &Record, news: &News) -> String {
    match news {
        News::Waits(why) => format!("waits: {why}"),
        News::Granted(seconds) if record.wait.is_none() => {
            format!("is granted {} at once ({seconds:.3} s)", lease(record))
        }
        News::Granted(seconds) => format!("is granted {} after {seconds:.1} s in the line", lease(record)),
        News::Filled(held) => format!("has filled {held} with training data"),
        News::Loss(loss) => format!("loss {loss:.3} after {} steps", record.steps),
        News::Grown(held) => format!("has grown to {held}, its limit"),
        News::NotGrown(why) => format!("asks for more than its limit and is refused: {why}"),
        News::Ended(End::Finished) => "is done and gives everything back".to_owned(),
        News::Ended(End::Killed { signal }) => format!("was ended by {}", signals::name(*signal)),
        News::Ended(End::Refused { reason, message }) => format!("is refused ({reason}): {message}"),
        News::Ended(End::Failed { code, message }) => format!("failed with code {code}: {message}"),
    }
}

fn lease(record: &Record) -> &str {
    record.lease.as_deref().unwrap_or("its lease")
}
