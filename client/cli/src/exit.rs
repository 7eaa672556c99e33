//! How the program ends: the one table of exit codes, and the failures that lead to them.

use std::fmt;
use std::process::ExitCode;

use gpulease_words::Reason;

/// Why the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is done.
    Done,
    /// Something else went wrong, `doctor` found a fault, or a promise of `demo` was broken.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// No broker answers.
    NoBroker,
    /// There is no room now: with `--no-wait`, or the wait ran out, or a count is at its bound until something ends.
    NoRoom,
    /// It is not allowed: over the budget, not yours, or more than there will ever be.
    NotAllowed,
    /// The broker's configuration is bad.
    BadConfiguration,
    /// The time limit of `-t` ran out.
    TimeLimit,
    /// The program cannot be run.
    CannotRun,
    /// The program was not found.
    NotFound,
    /// The child's own code.
    Child(u8),
    /// A signal, sent to the child or to this program.
    Signal(i32),
}

/// The codes that are the same each time, with what they mean; `gpulease --help` prints it.
pub(crate) const TABLE: &[(Exit, &str)] = &[
    (Exit::Done, "all is done (after `run`: the program's own code)"),
    (Exit::Failed, "something failed: doctor found a fault, demo a broken promise"),
    (Exit::Usage, "the command line makes no sense"),
    (Exit::NoBroker, "no broker answers"),
    (Exit::NoRoom, "no room now: with --no-wait, after the wait ran out, or too many leases"),
    (Exit::NotAllowed, "not allowed: over the budget, not yours, more than there is"),
    (Exit::BadConfiguration, "bad configuration"),
    (Exit::TimeLimit, "the time limit of -t ran out"),
    (Exit::CannotRun, "the program cannot be run"),
    (Exit::NotFound, "the program was not found"),
];

impl Exit {
    /// The number for the shell.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NoBroker => 69,
            Self::NoRoom => 75,
            Self::NotAllowed => 77,
            Self::BadConfiguration => 78,
            Self::TimeLimit => 124,
            Self::CannotRun => 126,
            Self::NotFound => 127,
            Self::Child(code) => code,
            // Signals go up to 64, so the sum stays below 256.
            Self::Signal(number) => 128_u8.wrapping_add(number as u8),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl From<Reason> for Exit {
    /// What a refusal for this reason means to the shell. A refusal that time may heal is
    /// [`Exit::NoRoom`], so that a script can try again on 75 and give up on 77.
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::NoRoom
            | Reason::AccountLimit
            | Reason::BehindOthers
            | Reason::Barrier
            | Reason::Draining
            | Reason::Recalled
            | Reason::ArenaFull
            | Reason::PinnedFull
            | Reason::Suspended
            | Reason::TooMany
            | Reason::WaitOver => Self::NoRoom,
            Reason::OverBudget
            | Reason::TooLarge
            | Reason::BeyondLease
            | Reason::NoSuchLease
            | Reason::NoSuchSegment
            | Reason::NotAllowed => Self::NotAllowed,
            Reason::Malformed | Reason::NoSuchDevice | Reason::ImpossibleBudget => Self::Usage,
            Reason::Stopping | Reason::NoSuchSession => Self::NoBroker,
            Reason::WouldDeadlock
            | Reason::Ending
            | Reason::Overdue
            | Reason::DeviceRefused
            | Reason::DeviceLost
            | Reason::Withdrawn => Self::Failed,
        }
    }
}

/// An end that needs words: what happened, in numbers, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// How the program ends.
    pub(crate) exit: Exit,
    /// The broker's word, where it refused; empty otherwise.
    pub(crate) reason: String,
    /// A sentence or two.
    pub(crate) message: String,
}

impl Failure {
    /// A failure of our own finding.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, reason: String::new(), message: message.into() }
    }

    /// A refusal by the broker. A word that is not known, as from a newer broker, ends as a plain failure.
    pub(crate) fn refused(word: &str, message: &str) -> Self {
        let exit = word.parse::<Reason>().map_or(Exit::Failed, Exit::from);
        Self { exit, reason: word.to_owned(), message: message.to_owned() }
    }

    /// The same failure with words before its own.
    pub(crate) fn before(mut self, words: &str) -> Self {
        self.message = format!("{words}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Failed, format!("cannot write the answer: {error}"))
    }
}

/// What a command comes to.
pub(crate) type Outcome = Result<Exit, Failure>;

/// The table as lines of text.
pub(crate) fn table_text() -> String {
    let rows = TABLE.iter().map(|(exit, meaning)| format!("  {:>3}  {meaning}\n", exit.code()));
    format!("Exit codes:\n{}128+n  signal n ended the program, or this command", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_of_the_design() {
        let codes: Vec<u8> = TABLE.iter().map(|(exit, _)| exit.code()).collect();
        assert_eq!(codes, [0, 1, 2, 69, 75, 77, 78, 124, 126, 127]);
        assert_eq!(Exit::Child(7).code(), 7);
        assert_eq!(Exit::Signal(libc::SIGKILL).code(), 137);
    }

    #[test]
    fn refusals_that_time_heals_are_75_and_others_are_not() {
        for reason in Reason::ALL {
            let heals = matches!(
                reason,
                Reason::NoRoom
                    | Reason::WaitOver
                    | Reason::AccountLimit
                    | Reason::BehindOthers
                    | Reason::Barrier
                    | Reason::Draining
                    | Reason::Recalled
                    | Reason::ArenaFull
                    | Reason::PinnedFull
                    | Reason::Suspended
                    | Reason::TooMany
            );
            assert_eq!(Exit::from(*reason) == Exit::NoRoom, heals, "{reason}");
        }
        assert_eq!(Failure::refused("over_budget", "x").exit, Exit::NotAllowed);
        assert_eq!(Failure::refused("no_such_lease", "x").exit, Exit::NotAllowed);
        assert_eq!(Failure::refused("from_the_future", "x").exit, Exit::Failed);
    }

    #[test]
    fn the_table_names_each_code() {
        let text = table_text();
        assert!(text.contains("\n   69  no broker answers\n"), "{text}");
        assert!(text.ends_with("128+n  signal n ended the program, or this command"), "{text}");
    }
}
