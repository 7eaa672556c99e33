//! The one reader of the clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpulease_arbiter::Time;

/// A monotonic clock that starts with the broker. It stands still while the host is suspended, so that no deadline
/// passes unseen; the wall clock is for display.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(super) fn now(self) -> Time {
        Time::after_start(self.start.elapsed())
    }

    /// The point as the timer takes it; far in the future where it does not fit.
    pub(super) fn instant(self, time: Time) -> tokio::time::Instant {
        const FAR: Duration = Duration::from_secs(365 * 86_400);
        let since = time.since_start().min(self.start.elapsed().saturating_add(FAR));
        tokio::time::Instant::from_std(self.start + since)
    }
}

/// Milliseconds since 1970, by the wall clock.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
