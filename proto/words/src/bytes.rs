//! Amounts of memory.

use std::fmt;
use std::str::FromStr;

/// The unit in which device memory is created and mapped: 2 MiB, the CUDA driver's minimum
/// granularity on every card measured so far.
pub const GRANULARITY: Bytes = mib(2);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// `n` MiB (2^20 bytes each).
///
/// # Panics
/// In a constant or at run time, when the amount does not fit 64 bits.
#[must_use]
pub const fn mib(n: u64) -> Bytes {
    Bytes(n.checked_mul(MIB).expect("an amount of memory fits 64 bits"))
}

/// `n` GiB (2^30 bytes each).
///
/// # Panics
/// In a constant or at run time, when the amount does not fit 64 bits.
#[must_use]
pub const fn gib(n: u64) -> Bytes {
    Bytes(n.checked_mul(GIB).expect("an amount of memory fits 64 bits"))
}

/// An amount of memory in bytes.
///
/// Printed as MiB or GiB, exactly where that is short and to one digit otherwise.
///
/// ```
/// use gpulease_words::{Bytes, gib, mib};
/// assert_eq!(gib(2).checked_sub(mib(512)), Some(mib(1536)));
/// assert_eq!(gib(2).to_string(), "2 GiB");
/// assert_eq!(mib(1536).to_string(), "1.5 GiB");
/// assert_eq!(Bytes::new(1).to_string(), "1 B");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// No memory.
    pub const ZERO: Self = Self(0);
    /// The largest amount that can be written.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` bytes.
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether there is nothing.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or `None` past 2^64 - 1.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The difference, or `None` below zero.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Self(rest)),
            None => None,
        }
    }

    /// `n` times as much, or `None` past 2^64 - 1.
    #[must_use]
    pub const fn checked_mul(self, n: u64) -> Option<Self> {
        match self.0.checked_mul(n) {
            Some(product) => Some(Self(product)),
            None => None,
        }
    }

    /// What is left after `other` is taken, zero where it is more: for shortfalls and room, never
    /// for an account that has to balance.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, the largest amount past 2^64 - 1: for estimates, never for an account that has to
    /// balance.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The next multiple of [`GRANULARITY`], or `None` past 2^64 - 1.
    #[must_use]
    pub const fn round_up(self) -> Option<Self> {
        match self.0.checked_next_multiple_of(GRANULARITY.0) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }

    /// The multiple of [`GRANULARITY`] at or below.
    #[must_use]
    pub const fn round_down(self) -> Self {
        Self(self.0 - self.0 % GRANULARITY.0)
    }

    /// Whether it is a multiple of [`GRANULARITY`].
    #[must_use]
    pub const fn is_granular(self) -> bool {
        self.0.is_multiple_of(GRANULARITY.0)
    }
}

impl std::iter::Sum for Bytes {
    /// # Panics
    /// Past 2^64 - 1 bytes: sums are of memory that exists.
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |a, b| a.checked_add(b).expect("memory that exists fits 64 bits"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            TIB.. if self.0.is_multiple_of(TIB) => (TIB, "TiB"),
            GIB.. => (GIB, "GiB"),
            MIB.. => (MIB, "MiB"),
            KIB.. => (KIB, "KiB"),
            _ => (1, "B"),
        };
        if self.0.is_multiple_of(unit) {
            f.pad(&format!("{} {name}", self.0 / unit))
        } else {
            // One digit, rounded down, so that "7.9 GiB" is never shown as the 8 it is not.
            let tenths = u128::from(self.0) * 10 / u128::from(unit);
            f.pad(&format!("{}.{} {name}", tenths / 10, tenths % 10))
        }
    }
}

/// A size as a person writes it: an amount, or a share of a device.
///
/// `8GiB`, `8192MiB` and a bare `8G` (2^30 each, as Slurm, Docker and MPS users mean it), `8GB`
/// (decimal), `512B`, `1.5GiB`, `50%`. Case does not matter, one space before the unit is allowed.
///
/// ```
/// use gpulease_words::{Bytes, Size, gib};
/// assert_eq!("8G".parse(), Ok(Size::Amount(gib(8))));
/// assert_eq!("8GB".parse(), Ok(Size::Amount(Bytes::new(8_000_000_000))));
/// assert_eq!("50%".parse::<Size>().unwrap().of(gib(8)), gib(4));
/// assert!("8".parse::<Size>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// An amount.
    Amount(Bytes),
    /// Hundredths of a percent of a whole, at most 10,000.
    Share(u32),
}

impl Size {
    /// The amount it stands for where the whole is `total`; a share is rounded down.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            Self::Amount(bytes) => bytes,
            Self::Share(hundredths) => {
                let bytes = u128::from(total.get()) * u128::from(hundredths) / 10_000;
                Bytes::new(u64::try_from(bytes).expect("a share of at most 100 % fits as the whole does"))
            }
        }
    }
}

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError {
    text: String,
    why: &'static str,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a size: {}", self.text, self.why)
    }
}

impl std::error::Error for ParseSizeError {}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        parse(text.trim()).map_err(|why| ParseSizeError { text: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<Size, &'static str> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.is_empty() {
        return Err("write a number and a unit, like 8GiB, 512MiB or 50%");
    }
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let scale: u64 = match unit.as_str() {
        "" => return Err("it has no unit; write 8GiB, 512MiB or 50%"),
        "%" => {
            let hundredths = scaled(number, 100)?;
            return u32::try_from(hundredths)
                .ok()
                .filter(|h| *h <= 10_000)
                .map(Size::Share)
                .ok_or("a share is at most 100%");
        }
        "b" => 1,
        "k" | "ki" | "kib" => KIB,
        "m" | "mi" | "mib" => MIB,
        "g" | "gi" | "gib" => GIB,
        "t" | "ti" | "tib" => TIB,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(
                "its unit is unknown; known are B, KiB, MiB, GiB, TiB (K, M, G, T for short), KB, MB, GB, TB and %",
            );
        }
    };
    scaled(number, scale).map(|n| Size::Amount(Bytes::new(n)))
}

/// `number` (digits with at most one point) times `scale`, which has to come out whole.
fn scaled(number: &str, scale: u64) -> Result<u64, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return Err("its number is malformed; write 1.5GiB, not .5GiB or 1.GiB");
    }
    if fraction.len() > 9 {
        return Err("it has more than nine digits after the point");
    }
    let too_large = "it is more than 2^64 - 1 bytes";
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| too_large)?;
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).expect("at most nine digits"));
    let product = digits.checked_mul(u128::from(scale)).ok_or(too_large)?;
    u64::try_from(product / divisor).map_err(|_| too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, String> {
        match text.parse() {
            Ok(Size::Amount(b)) => Ok(b.get()),
            Ok(Size::Share(s)) => Err(format!("share {s}")),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn sizes_as_people_write_them() {
        for (text, n) in [
            ("0B", 0),
            ("1b", 1),
            ("8G", 8 * GIB),
            ("8gib", 8 * GIB),
            ("8 GiB", 8 * GIB),
            ("8192MiB", 8 * GIB),
            ("8GB", 8_000_000_000),
            ("1.5GiB", GIB + GIB / 2),
            ("0.5K", 512),
            ("16777215T", 16_777_215 * TIB),
        ] {
            assert_eq!(bytes(text), Ok(n), "{text}");
        }
    }

    #[test]
    fn sizes_that_make_no_sense_say_why() {
        for (text, word) in [
            ("", "number and a unit"),
            ("GiB", "number and a unit"),
            ("-8GiB", "number and a unit"),
            ("8", "no unit"),
            ("8X", "unknown"),
            ("8  GiB", "unknown"),
            ("1..5GiB", "malformed"),
            (".5GiB", "number is malformed"),
            ("1.GiB", "malformed"),
            ("101%", "at most 100%"),
            ("18446744073709551616B", "2^64"),
            ("16777216T", "2^64"),
            ("99999999999999999999999999999999999999999999G", "2^64"),
        ] {
            let error = bytes(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn shares_are_of_the_whole() {
        assert_eq!("100%".parse::<Size>().map(|s| s.of(Bytes::MAX)), Ok(Bytes::MAX));
        assert_eq!("12.5%".parse::<Size>().map(|s| s.of(gib(8))), Ok(gib(1)));
    }

    #[test]
    fn printing_never_rounds_up() {
        assert_eq!(Bytes::new(8 * GIB - 1).to_string(), "7.9 GiB");
        assert_eq!(mib(640).to_string(), "640 MiB");
        assert_eq!(Bytes::MAX.to_string(), "17179869183.9 GiB");
        assert_eq!(format!("{:>8}", gib(1)), "   1 GiB");
    }

    #[test]
    fn arithmetic_is_checked() {
        assert_eq!(Bytes::MAX.checked_add(Bytes::new(1)), None);
        assert_eq!(Bytes::ZERO.checked_sub(Bytes::new(1)), None);
        assert_eq!(gib(1).checked_mul(u64::MAX), None);
        assert_eq!(Bytes::MAX.round_up(), None);
        assert_eq!(Bytes::new(1).round_up(), Some(mib(2)));
        assert_eq!(Bytes::new(mib(4).get() - 1).round_down(), mib(2));
        assert!(mib(4).is_granular() && !mib(3).is_granular());
    }
}
