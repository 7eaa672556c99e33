//! Entering, for blocking callers.

use std::time::Duration;

use super::park::block_on;
use crate::error::Error;
use crate::resident::Resident;
use crate::waiting::Waiting;

/// [`crate::Entry`] for callers without a runtime. Every method is as there.
#[derive(Debug)]
#[must_use = "a lease is entered by `enter`"]
pub struct Entry<'l>(crate::Entry<'l>);

impl<'l> Entry<'l> {
    /// Wait at most so long.
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self(self.0.wait_at_most(wait))
    }

    /// Called with each update while the lease stands in the line for its return.
    pub fn on_waiting(self, update: impl FnMut(&Waiting) + Send + 'l) -> Self {
        Self(self.0.on_waiting(update))
    }

    /// Waits until the lease's memory is here, and keeps it here while the guard lives.
    ///
    /// # Errors
    /// As [`crate::Entry::enter`].
    pub fn enter(self) -> Result<Resident<'l>, Error> {
        block_on(self.0.enter())
    }
}

impl<'l> From<crate::Entry<'l>> for Entry<'l> {
    fn from(entry: crate::Entry<'l>) -> Self {
        Self(entry)
    }
}
