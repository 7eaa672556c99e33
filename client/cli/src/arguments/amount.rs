//! Values of options: memory with an optional limit, ids as people type them.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use gpulease_words::{AskId, Bytes, LeaseId, Size, parse_duration};

/// Memory on each device: what is set aside, and how far it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    reserve: Size,
    growth: Growth,
}

/// How far it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// Not beyond what is set aside.
    None,
    To(Size),
    /// As far as devices and budget allow.
    All,
}

/// The capacities of the devices in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    /// What a share is a share of.
    pub(crate) smallest: Bytes,
    /// The most that there is.
    pub(crate) largest: Bytes,
}

/// Memory in bytes, multiples of 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// Set aside from the grant on.
    pub(crate) reserve: Bytes,
    /// The most it may hold.
    pub(crate) limit: Bytes,
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (reserve, growth) = match text.split_once("..") {
            Some((reserve, "")) => (reserve, Growth::All),
            Some((reserve, limit)) => (reserve, Growth::To(size(limit)?)),
            None => (text, Growth::None),
        };
        let memory = Self { reserve: size(reserve)?, growth };
        memory.check()?;
        Ok(memory)
    }
}

/// `limit=20GiB` as its two sides.
pub(crate) fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(_) if text.chars().count() > ACCOUNT_LETTERS => Err(format!(
            "a setting with its value has at most {ACCOUNT_LETTERS} letters; write it like limit=20GiB"
        )),
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        Some(_) | None => Err("write a setting and its value, like limit=20GiB".to_owned()),
    }
}

fn size(text: &str) -> Result<Size, String> {
    text.parse().map_err(|e: gpulease_words::ParseSizeError| e.to_string())
}

impl Memory {
    /// What can be said before the devices are known.
    fn check(self) -> Result<(), String> {
        match (self.reserve, self.growth) {
            (Size::Amount(Bytes::ZERO) | Size::Share(0), _) => {
                Err("nothing is asked for; ask for at least 2MiB".to_owned())
            }
            (Size::Amount(reserve), Growth::To(Size::Amount(limit))) if limit < reserve => Err(format!(
                "the limit of {limit} is below the {reserve} to set aside; write the smaller first"
            )),
            (Size::Share(reserve), Growth::To(Size::Share(limit))) if limit < reserve => {
                Err("the limit is below the share to set aside; write the smaller first".to_owned())
            }
            (Size::Amount(_) | Size::Share(_), _) => Ok(()),
        }
    }

    /// The amounts on such devices, rounded up to 2 MiB. The broker lowers the limit to what could ever be given.
    ///
    /// # Errors
    /// A sentence, where the limit is below the reserve or an amount cannot be written in 64 bits.
    pub(crate) fn of(self, whole: Whole) -> Result<Amounts, String> {
        let rounded = |size: Size| {
            let bytes = size.of(whole.smallest);
            bytes.round_up().ok_or_else(|| format!("{bytes} is more than can be counted; ask for less"))
        };
        let reserve = rounded(self.reserve)?;
        let limit = match self.growth {
            Growth::None => reserve,
            Growth::To(limit) => rounded(limit)?,
            Growth::All => whole.largest.max(reserve),
        };
        if limit < reserve {
            return Err(format!(
                "the limit of {limit} is below the {reserve} to set aside; write the smaller first"
            ));
        }
        Ok(Amounts { reserve, limit })
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.limit == self.reserve {
            write!(f, "{}", self.reserve)
        } else {
            write!(f, "{}, growing up to {}", self.reserve, self.limit)
        }
    }
}

/// What `why` is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// An ask in the line.
    Ask(AskId),
    /// A lease.
    Lease(LeaseId),
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is neither an ask like a3 nor a lease like L7");
        match (text.strip_prefix('a'), text.strip_prefix(['L', 'l'])) {
            (Some(ask), _) => number(ask).map(|n| Self::Ask(AskId::new(n))).ok_or_else(form),
            (None, Some(lease)) => number(lease).map(|n| Self::Lease(LeaseId::new(n))).ok_or_else(form),
            (None, None) => Err(form()),
        }
    }
}

/// How many devices.
pub(crate) fn device_count(text: &str) -> Result<NonZeroU32, String> {
    let count = number(text).and_then(|count| u32::try_from(count).ok()).and_then(NonZeroU32::new);
    count.ok_or_else(|| format!("{text:?} is no number of devices; write 1, 2 or more"))
}

/// Letters of a lease's name at most, as the broker has it.
const NAME_LETTERS: usize = 64;

/// A name as a person writes it; the broker says which letters it takes.
pub(crate) fn lease_name(text: &str) -> Result<String, String> {
    match text.chars().count() {
        0 => Err("the name is empty; leave the option out for the program's own".to_owned()),
        1..=NAME_LETTERS => Ok(text.to_owned()),
        letters => Err(format!("the name has {letters} letters; a lease's name has at most {NAME_LETTERS}")),
    }
}

/// The longest name of an account or a setting; what is longer is a file that got into the command line.
const ACCOUNT_LETTERS: usize = 256;

/// An account as a person writes it; the broker says which there can be.
pub(crate) fn account(text: &str) -> Result<String, String> {
    match text.chars().count() {
        0..=ACCOUNT_LETTERS => Ok(text.to_owned()),
        letters => {
            Err(format!("the name has {letters} letters; an account's name has at most {ACCOUNT_LETTERS}"))
        }
    }
}

/// A lease's name made of a program's, whatever its file is called.
pub(crate) fn name_of_program(program: &str) -> String {
    let plain = |letter: char| {
        if letter == ' ' || letter.is_ascii_graphic() || letter.is_alphanumeric() { letter } else { '?' }
    };
    program.chars().take(NAME_LETTERS).map(plain).collect()
}

/// A lease's id, with or without its letter in either case.
pub(crate) fn lease_id(text: &str) -> Result<LeaseId, String> {
    let lease = number(text.strip_prefix(['L', 'l']).unwrap_or(text));
    lease.map(LeaseId::new).ok_or_else(|| format!("{text:?} is not a lease; `gpulease` lists them, like L7"))
}

/// Digits and nothing else: `u64::from_str` alone would take a leading plus sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// An amount of memory; shares make no sense here.
pub(crate) fn plain_amount(text: &str) -> Result<Bytes, String> {
    match size(text)? {
        Size::Amount(Bytes::ZERO) => {
            Err("nothing is asked for; leave the option out for all of it".to_owned())
        }
        Size::Amount(bytes) => Ok(bytes),
        Size::Share(_) => Err("a share makes no sense here; write an amount like 2GiB".to_owned()),
    }
}

/// A duration that is not nothing.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|e| e.to_string())?;
    if duration.is_zero() { Err("no time at all is left; write 1s or more".to_owned()) } else { Ok(duration) }
}

#[cfg(test)]
mod tests {
    use gpulease_words::{gib, mib};

    use super::*;

    fn amounts(text: &str) -> Result<Amounts, String> {
        text.parse::<Memory>().and_then(|memory| memory.of(Whole { smallest: gib(8), largest: gib(16) }))
    }

    #[test]
    fn memory_with_and_without_a_limit() {
        for (text, reserve, limit) in [
            ("8GiB", gib(8), gib(8)),
            ("8G..20G", gib(8), gib(20)),
            ("25%..50%", gib(2), gib(4)),
            ("1GiB..50%", gib(1), gib(4)),
            ("1GiB..", gib(1), gib(16)),
            ("25%..", gib(2), gib(16)),
            ("20GiB..", gib(20), gib(20)),
            ("3MiB", mib(4), mib(4)),
            ("1B", mib(2), mib(2)),
        ] {
            assert_eq!(amounts(text), Ok(Amounts { reserve, limit }), "{text}");
        }
        assert_eq!(amounts("8G..20G").map(|a| a.to_string()), Ok("8 GiB, growing up to 20 GiB".into()));
    }

    #[test]
    fn memory_that_makes_no_sense_says_why() {
        for (text, word) in [
            ("0", "no unit"),
            ("0GiB", "nothing"),
            ("0%", "nothing"),
            ("8", "no unit"),
            ("..8GiB", "number and a unit"),
            ("8GiB..4GiB", "below"),
            ("50%..25%", "below"),
            ("6GiB..50%", "below"),
            ("-1GiB", "number and a unit"),
            ("18446744073709551616B", "2^64"),
            ("18446744073709551615B", "more than can be counted"),
            ("200%", "at most 100%"),
        ] {
            let error = amounts(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn ids_as_people_type_them() {
        assert_eq!("a3".parse(), Ok(Subject::Ask(AskId::new(3))));
        assert_eq!("L7".parse(), Ok(Subject::Lease(LeaseId::new(7))));
        assert_eq!("l7".parse(), Ok(Subject::Lease(LeaseId::new(7))));
        for text in ["", "7", "a", "L", "l", "x3", "a3b", "a+3", "L-7"] {
            assert!(text.parse::<Subject>().is_err(), "{text}");
        }
        assert_eq!(lease_id("7"), Ok(LeaseId::new(7)));
        for text in ["", "L", "+7", "a7", "L18446744073709551616"] {
            assert!(lease_id(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_and_counts_as_people_type_them() {
        assert_eq!(device_count("2").map(NonZeroU32::get), Ok(2));
        for text in ["0", "x", "", "-1", "4294967296"] {
            assert!(device_count(text).expect_err(text).contains("1, 2 or more"), "{text}");
        }
        assert_eq!(lease_name(&"é".repeat(64)), Ok("é".repeat(64)));
        assert!(lease_name("").is_err());
        assert!(lease_name(&"x".repeat(100_000)).expect_err("too long").contains("100000 letters"));
        assert_eq!(name_of_program(&format!("a\u{1b}{}", "b".repeat(80))), format!("a?{}", "b".repeat(62)));
    }

    #[test]
    fn a_recall_takes_an_amount() {
        assert_eq!(plain_amount("2GiB"), Ok(gib(2)));
        assert!(plain_amount("50%").is_err() && plain_amount("0GiB").is_err());
        assert!(positive_duration("0s").is_err());
    }
}
