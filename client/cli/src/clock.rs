//! Wall-clock time for people.

use std::fmt;
use std::mem::MaybeUninit;

/// A point in time as the clock on the wall shows it here.
#[derive(Clone, Copy)]
pub(crate) struct LocalTime {
    fields: Option<libc::tm>,
    ms: u64,
}

impl LocalTime {
    /// The time so many milliseconds after 1970.
    pub(crate) fn of(unix_ms: u64) -> Self {
        let seconds = libc::time_t::try_from(unix_ms / 1_000).ok();
        Self { fields: seconds.and_then(local), ms: unix_ms % 1_000 }
    }
}

fn local(seconds: libc::time_t) -> Option<libc::tm> {
    let mut fields = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid for the call, and `localtime_r` writes the whole struct unless it returns null.
    let filled = unsafe { libc::localtime_r(&raw const seconds, fields.as_mut_ptr()) };
    // SAFETY: not null means that the struct was written.
    (!filled.is_null()).then(|| unsafe { fields.assume_init() })
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(tm) = self.fields else { return f.write_str("N/A") };
        let (year, month) = (i64::from(tm.tm_year) + 1_900, tm.tm_mon + 1);
        write!(
            f,
            "{year:04}-{month:02}-{:02} {:02}:{:02}:{:02}",
            tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec
        )?;
        write!(f, ".{:03}", self.ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_its_milliseconds_and_an_impossible_one_is_unknown() {
        // The zone of the machine moves the day by at most one.
        let text = LocalTime::of(1_000_000_000_042).to_string();
        assert!(text.starts_with("2001-09-0") && text.ends_with(":40.042"), "{text}");
        assert_eq!(LocalTime { fields: None, ms: 0 }.to_string(), "N/A");
        assert!(local(libc::time_t::MAX).is_none(), "the year does not fit");
    }
}
