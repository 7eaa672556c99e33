//! Asking for a lease.

use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, Uid};

use crate::client::Client;
use crate::error::AcquireError;
use crate::lease::Lease;
use crate::waiting::Waiting;

/// An ask for a lease.
pub struct LeaseBuilder<'a> {
    _client: &'a Client,
}

impl<'a> LeaseBuilder<'a> {
    pub(crate) fn new(client: &'a Client, _reserve: Bytes) -> Self {
        Self { _client: client }
    }

    /// How far the lease may grow on each device.
    #[must_use]
    pub fn up_to(self, _limit: Bytes) -> Self {
        self
    }

    /// Its name, for people, and its job account.
    #[must_use]
    pub fn name(self, _name: impl Into<String>) -> Self {
        self
    }

    /// On these devices, on all or on none.
    #[must_use]
    pub fn on_devices(self, _devices: impl IntoIterator<Item = DeviceId>) -> Self {
        self
    }

    /// On any so many devices.
    #[must_use]
    pub fn gpus(self, _count: u32) -> Self {
        self
    }

    /// Wait at most so long.
    #[must_use]
    pub fn wait_at_most(self, _wait: Duration) -> Self {
        self
    }

    /// Be refused at once where there is no room.
    #[must_use]
    pub fn no_wait(self) -> Self {
        self
    }

    /// Wait without end (the default); dropping the future withdraws the ask.
    #[must_use]
    pub fn wait_forever(self) -> Self {
        self
    }

    /// Never suspend the lease.
    #[must_use]
    pub fn pinned(self) -> Self {
        self
    }

    /// Let processes of this other user join with the token.
    #[must_use]
    pub fn guest(self, _uid: Uid) -> Self {
        self
    }

    /// Called with each update while the ask waits.
    #[must_use]
    pub fn on_waiting(self, _update: impl FnMut(&Waiting) + Send + 'a) -> Self {
        self
    }

    /// Asks, and waits for the answer.
    pub async fn acquire(self) -> Result<Lease, AcquireError> {
        unimplemented!()
    }
}
