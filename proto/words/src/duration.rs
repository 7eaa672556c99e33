//! Spans of time as people write and read them.

use std::fmt;
use std::time::Duration;

/// Why a text is no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseDurationError {
    text: String,
    why: &'static str,
}

impl fmt::Display for ParseDurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a duration: {}", self.text, self.why)
    }
}

impl std::error::Error for ParseDurationError {}

/// Reads `250ms`, `30s`, `2h`, `1h30m`, `2:00:00` (h:m:s), `5:00` (m:s) and `1-00:00:00` (days first,
/// as Slurm writes it). A bare number is refused, since tools disagree on whether it means seconds or minutes.
///
/// # Errors
/// Anything else, and more than 2^64 - 1 seconds.
///
/// ```
/// use std::time::Duration;
/// use gpulease_words::parse_duration;
/// assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
/// assert_eq!(parse_duration("1-00:00:00"), Ok(Duration::from_secs(86_400)));
/// assert!(parse_duration("90").is_err());
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, ParseDurationError> {
    let trimmed = text.trim();
    let parsed = if trimmed.contains(':') { clock(trimmed) } else { units(trimmed) };
    parsed.map_err(|why| ParseDurationError { text: text.to_owned(), why })
}

const TOO_LONG: &str = "it is more than 2^64 - 1 seconds";

fn clock(text: &str) -> Result<Duration, &'static str> {
    const FORM: &str = "write h:mm:ss, m:ss or d-hh:mm:ss";
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (number(days).ok_or(FORM)?, rest),
        None => (0, text),
    };
    let parts: Vec<u64> = rest.split(':').map(number).collect::<Option<_>>().ok_or(FORM)?;
    let (hours, minutes, seconds) = match parts[..] {
        [m, s] if days == 0 => (0, m, s),
        [h, m, s] => (h, m, s),
        _ => return Err(FORM),
    };
    if seconds > 59 || (parts.len() == 3 && minutes > 59) || (text.contains('-') && hours > 23) {
        return Err("minutes and seconds go up to 59, and hours to 23 after days");
    }
    total(&[(days, 86_400), (hours, 3_600), (minutes, 60), (seconds, 1)]).map(Duration::from_secs)
}

fn units(text: &str) -> Result<Duration, &'static str> {
    if text.is_empty() {
        return Err("write a number and a unit, like 30s, 10m, 2h or 1h30m");
    }
    if number(text).is_some() {
        return Err("it has no unit; write 90s, 90m or 1:30:00");
    }
    let (mut rest, mut seconds, mut millis, mut last) = (text, 0_u64, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let n = number(&rest[..digits]).ok_or("write a number and a unit, like 30s, 10m, 2h or 1h30m")?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let scale = match &rest[..letters] {
            "ms" => 0,
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return Err("its unit is unknown; known are ms, s, m, h and d"),
        };
        if scale >= last {
            return Err("its units go from large to small, each once, like 1h30m");
        }
        last = scale;
        rest = &rest[letters..];
        if scale == 0 {
            millis = n;
        } else {
            seconds = seconds.checked_add(n.checked_mul(scale).ok_or(TOO_LONG)?).ok_or(TOO_LONG)?;
        }
    }
    Duration::from_secs(seconds).checked_add(Duration::from_millis(millis)).ok_or(TOO_LONG)
}

fn number(text: &str) -> Option<u64> {
    // `u64::from_str` alone would take a leading plus sign.
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn total(terms: &[(u64, u64)]) -> Result<u64, &'static str> {
    terms.iter().try_fold(0_u64, |sum, (n, scale)| {
        n.checked_mul(*scale).and_then(|t| sum.checked_add(t)).ok_or(TOO_LONG)
    })
}

/// A duration for people: `1h30m`, `2m5s`, `12s`, `1.2s`, `350ms`.
#[derive(Clone, Copy, Debug)]
pub struct DurationText(
    /// The duration to print.
    pub Duration,
);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, ms) = (self.0.as_secs(), self.0.subsec_millis());
        let text = match s {
            0 => format!("{ms}ms"),
            1..10 => format!("{s}.{}s", ms / 100),
            10..60 => format!("{s}s"),
            60..3_600 => format!("{}m{}s", s / 60, s % 60),
            3_600..86_400 => format!("{}h{}m", s / 3_600, s % 3_600 / 60),
            _ => format!("{}d{}h", s / 86_400, s % 86_400 / 3_600),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_write_them() {
        for (text, ms) in [
            ("250ms", 250),
            ("0s", 0),
            ("30s", 30_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("5:00", 300_000),
            ("90:00", 5_400_000),
            ("2:00:00", 7_200_000),
            ("1-00:00:00", 86_400_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn durations_that_make_no_sense_say_why() {
        for (text, word) in [
            ("", "number and a unit"),
            ("90", "no unit"),
            ("+5s", "number and a unit"),
            ("-5s", "number and a unit"),
            ("5", "no unit"),
            ("s", "number and a unit"),
            ("5w", "unknown"),
            ("30m1h", "large to small"),
            ("1h1h", "large to small"),
            ("1:60", "59"),
            ("1-24:00:00", "59"),
            ("1-5:00", "h:mm:ss"),
            ("::", "h:mm:ss"),
            ("18446744073709551616s", "number and a unit"),
            ("18446744073709551615d", "2^64"),
        ] {
            let error = parse_duration(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn durations_for_people() {
        for (ms, text) in [
            (0, "0ms"),
            (350, "350ms"),
            (1_250, "1.2s"),
            (12_999, "12s"),
            (125_000, "2m5s"),
            (5_400_000, "1h30m"),
            (93_600_000, "1d2h"),
        ] {
            assert_eq!(DurationText(Duration::from_millis(ms)).to_string(), text);
        }
    }
}
