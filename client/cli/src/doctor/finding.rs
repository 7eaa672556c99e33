//! One thing that was looked at.

use serde::Serialize;

use crate::escape::printable;
use crate::look::{Look, Tone};

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It works, and something is worth knowing.
    Warn,
    /// It does not work.
    Fail,
}

/// What was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at, as a stable word.
    pub(super) check: String,
    /// How it is.
    pub(super) level: Level,
    /// What was found.
    pub(super) message: String,
    /// What to do; `None` where nothing needs doing.
    pub(super) cure: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { check: check.to_owned(), level: Level::Ok, message: message.into(), cure: None }
    }

    pub(super) fn warn(check: &'static str, message: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { check: check.to_owned(), level: Level::Warn, message: message.into(), cure: Some(cure.into()) }
    }

    pub(super) fn fail(check: &'static str, message: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { check: check.to_owned(), level: Level::Fail, message: message.into(), cure: Some(cure.into()) }
    }

    /// `ok    broker      gpuleased 0.1.0 answers`, with the cure on a line of its own.
    pub(super) fn lines(&self, look: Look) -> String {
        let (word, tone) = match self.level {
            Level::Ok => ("ok  ", Tone::Good),
            Level::Warn => ("warn", Tone::Warning),
            Level::Fail => ("FAIL", Tone::Bad),
        };
        let mut text =
            format!("{}  {:<10} {}\n", look.paint(tone, word), self.check, printable(&self.message));
        if let Some(cure) = &self.cure {
            text.push_str(&format!("{:17}-> {}\n", "", printable(cure)));
        }
        text
    }
}
