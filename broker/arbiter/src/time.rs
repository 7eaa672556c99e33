//! Time as the arbiter is told it.

use std::time::Duration;

/// A point in time, counted from the broker's start by a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Duration);

impl Time {
    /// The broker's start.
    pub const START: Self = Self(Duration::ZERO);

    /// `elapsed` after the broker's start.
    #[must_use]
    pub const fn after_start(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// How long after the broker's start.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// How long after `earlier`; zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `span` later; the end of time where that does not fit.
    #[must_use]
    pub const fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}
