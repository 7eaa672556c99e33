//! A lease, for blocking callers.

use std::ops::Deref;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId};

use super::park::block_on;
use super::{Allocation, Entry, Segment};
use crate::error::{AskError, Error};
use crate::gate::Presence;
use crate::resident::Resident;

/// [`crate::Lease`] for callers without a runtime. What does not wait is reached through it.
#[derive(Debug)]
pub struct Lease(crate::Lease);

impl Lease {
    /// See [`crate::Lease::allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate(&self, bytes: Bytes) -> Result<Segment, AskError> {
        self.allocation(bytes).allocate()
    }

    /// See [`crate::Lease::allocate_on`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate_on(&self, device: DeviceId, bytes: Bytes) -> Result<Segment, AskError> {
        self.allocation(bytes).on(device).allocate()
    }

    /// See [`crate::Lease::allocation`].
    pub fn allocation(&self, bytes: Bytes) -> Allocation<'_> {
        Allocation::from(self.0.allocation(bytes))
    }

    /// See [`crate::Lease::enter`].
    ///
    /// # Errors
    /// As there.
    pub fn enter(&self) -> Result<Resident<'_>, Error> {
        self.0.enter_blocking()
    }

    /// See [`crate::Lease::entry`].
    pub fn entry(&self) -> Entry<'_> {
        Entry::from(self.0.entry())
    }

    /// See [`crate::Lease::presence_after`].
    ///
    /// # Errors
    /// As there.
    pub fn presence_after(&self, now: Presence, within: Duration) -> Result<Presence, Error> {
        block_on(self.0.presence_after(now, within))
    }

    /// See [`crate::Lease::come_home`].
    ///
    /// # Errors
    /// As there.
    pub fn come_home(&self) -> Result<(), Error> {
        block_on(self.0.come_home())
    }

    /// See [`crate::Lease::pin`].
    ///
    /// # Errors
    /// As there.
    pub fn pin(&self) -> Result<(), AskError> {
        block_on(self.0.pin())
    }

    /// See [`crate::Lease::resize`].
    ///
    /// # Errors
    /// As there.
    pub fn resize(&self, reserve: Bytes, limit: Bytes) -> Result<(), AskError> {
        block_on(self.0.resize(reserve, limit))
    }

    /// See [`crate::Lease::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<Bytes, AskError> {
        block_on(self.0.release())
    }

    /// The async face of this lease.
    #[must_use]
    pub fn face(&self) -> &crate::Lease {
        &self.0
    }
}

impl From<crate::Lease> for Lease {
    fn from(lease: crate::Lease) -> Self {
        Self(lease)
    }
}

impl Deref for Lease {
    type Target = crate::Lease;

    fn deref(&self) -> &crate::Lease {
        &self.0
    }
}
