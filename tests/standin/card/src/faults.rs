//! Failures to inject.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::turn::Turn;

/// The failures that tests ask for: lines of `CALL WHEN WHAT`, in the file `faults` of the card's
/// directory or, separated by `;`, in `GPULEASE_STANDIN_FAULTS` of one process.
///
/// `WHEN` is `3` (the third call of each process), `3+` (from the third on) or `*`. `WHAT` is
/// `error CODE` (the call does nothing and returns it), `delay MILLISECONDS` (and then it works) or `hold SECONDS` (until
/// other failures are asked for, at most so long; and then it works).
/// A new file starts the counts afresh.
#[derive(Debug, Default)]
pub struct Faults {
    file: Option<PathBuf>,
    /// How often the file was written, in memory that all processes of the card share; looked at before each call,
    /// since a look at the file itself would cost more than most calls.
    turn: Option<Turn>,
    read: Option<u64>,
    rules: Vec<Rule>,
    calls: BTreeMap<&'static str, u64>,
}

/// What a call shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Return this code.
    Error(u32),
    /// Take this long.
    Delay(Duration),
    /// Wait for other failures to be asked for, at most so long.
    Hold(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    call: String,
    first: u64,
    last: u64,
    fault: Fault,
}

impl Faults {
    /// The faults for a process of this card.
    #[must_use]
    pub fn of_card(directory: &Path) -> Self {
        let rules = env::var("GPULEASE_STANDIN_FAULTS").map(|text| read(&text)).unwrap_or_default();
        // Without it there are no faults of the card, which a test that wants some will notice.
        let turn = Turn::open(directory).ok();
        Self { file: Some(directory.join("faults")), turn, rules, ..Self::default() }
    }

    /// Puts faults into the card's directory, for every process from its next call on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn write(directory: &Path, rules: &str) -> io::Result<()> {
        // Put in place at once, so that no process reads half of it.
        let (new, file) = (directory.join("faults.new"), directory.join("faults"));
        fs::write(&new, rules)?;
        fs::rename(new, file)?;
        Turn::open(directory)?.pass();
        Ok(())
    }

    /// Counts a call and says what it shall do, in order.
    pub fn next(&mut self, call: &'static str) -> Vec<Fault> {
        self.reread();
        if self.rules.is_empty() {
            return Vec::new();
        }
        let count = self.calls.entry(call).or_insert(0);
        *count += 1;
        let due = |rule: &&Rule| rule.call == call && (rule.first..=rule.last).contains(count);
        self.rules.iter().filter(due).map(|rule| rule.fault).collect()
    }

    /// How often failures of the card were asked for, as of the last call that was counted, and until now.
    #[must_use]
    pub fn written(&self) -> (Option<u64>, Option<u64>) {
        (self.read, self.turn.as_ref().map(Turn::number))
    }

    fn reread(&mut self) {
        let (Some(file), Some(turn)) = (&self.file, &self.turn) else { return };
        let written = turn.number();
        // The first look is at what was there before: nothing, most often.
        if self.read.unwrap_or(0) != written {
            self.rules = fs::read_to_string(file).map(|text| read(&text)).unwrap_or_default();
            self.calls.clear();
        }
        self.read = Some(written);
    }
}

fn read(text: &str) -> Vec<Rule> {
    let lines = text.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| rule(line).unwrap_or_else(|| panic!("{line:?} is not CALL WHEN WHAT"))).collect()
}

fn rule(line: &str) -> Option<Rule> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [call, when, kind, number] = words.as_slice() else { return None };
    let (first, last) = match when.strip_suffix('+') {
        _ if *when == "*" => (1, u64::MAX),
        Some(first) => (first.parse().ok()?, u64::MAX),
        None => (when.parse().ok()?, when.parse().ok()?),
    };
    let fault = match *kind {
        "error" => Fault::Error(number.parse().ok()?),
        "hold" => Fault::Hold(Duration::from_secs(number.parse().ok()?)),
        "delay" => Fault::Delay(Duration::from_millis(number.parse().ok()?)),
        _ => return None,
    };
    Some(Rule { call: (*call).to_owned(), first, last, fault })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_count_calls() {
        let mut faults = Faults {
            rules: read("cuMemCreate 2 error 2; cuMemMap 2+ delay 5\ncuInit * error 304"),
            ..Faults::default()
        };
        let slow = Fault::Delay(Duration::from_millis(5));
        assert_eq!(faults.next("cuMemCreate"), []);
        assert_eq!(faults.next("cuMemCreate"), [Fault::Error(2)]);
        assert_eq!(faults.next("cuMemCreate"), []);
        assert_eq!(faults.next("cuMemMap"), []);
        assert_eq!(faults.next("cuMemMap"), [slow]);
        assert_eq!(faults.next("cuMemMap"), [slow]);
        assert_eq!(faults.next("cuInit"), [Fault::Error(304)]);
    }
}
