//! A right to device memory.

use std::ffi::OsString;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId};

use crate::allocation::Allocation;
use crate::client::Client;
use crate::error::{AskError, Denied, Error};
use crate::pressure::Pressure;
use crate::resident::Resident;
use crate::segment::Segment;
use crate::token::Token;

/// A lease.
#[derive(Debug)]
pub struct Lease {}

/// Whether a lease can still grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can.
    Active,
    /// The broker ended it.
    Ended(Denied),
    /// The broker was restarted and does not know it.
    Lost,
}

impl Lease {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        unimplemented!()
    }
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        unimplemented!()
    }
    /// Its devices.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        unimplemented!()
    }
    /// Set aside on each device.
    #[must_use]
    pub fn reserve(&self) -> Bytes {
        unimplemented!()
    }
    /// How far it may grow on each device.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        unimplemented!()
    }
    /// How long it waited to be granted.
    #[must_use]
    pub fn waited(&self) -> Duration {
        unimplemented!()
    }
    /// Whether it can still grow.
    #[must_use]
    pub fn standing(&self) -> Standing {
        unimplemented!()
    }
    /// The session it belongs to.
    #[must_use]
    pub fn client(&self) -> Client {
        unimplemented!()
    }
    /// The secret with which other processes join it.
    #[must_use]
    pub fn token(&self) -> Token {
        unimplemented!()
    }
    /// What a child needs to join: GPULEASE_SOCKET, GPULEASE_LEASE, GPULEASE_TOKEN, GPULEASE_MEMORY_BYTES.
    #[must_use]
    pub fn env(&self) -> [(&'static str, OsString); 4] {
        unimplemented!()
    }
    /// Takes memory on its first device.
    pub async fn allocate(&self, bytes: Bytes) -> Result<Segment, AskError> {
        self.allocation(bytes).allocate().await
    }
    /// Takes memory on this device.
    pub async fn allocate_on(&self, device: DeviceId, bytes: Bytes) -> Result<Segment, AskError> {
        self.allocation(bytes).on(device).allocate().await
    }
    /// Takes memory with options.
    pub fn allocation(&self, bytes: Bytes) -> Allocation<'_> {
        Allocation::new(self, bytes)
    }
    /// Waits until its memory is here, and keeps it here while the guard lives.
    pub async fn enter(&self) -> Result<Resident<'_>, Error> {
        unimplemented!()
    }
    /// A guard, where that needs no waiting.
    pub fn try_enter(&self) -> Result<Option<Resident<'_>>, Error> {
        unimplemented!()
    }
    /// As [`Self::enter`], blocking this thread.
    pub fn enter_blocking(&self) -> Result<Resident<'_>, Error> {
        unimplemented!()
    }
    /// Changes what is set aside and how far it may grow, on each device.
    pub async fn resize(&self, _reserve: Bytes, _limit: Bytes) -> Result<(), AskError> {
        unimplemented!()
    }
    /// Gives it back; returns what is still mapped and drains as its holders unmap or die.
    pub async fn release(self) -> Result<Bytes, AskError> {
        unimplemented!()
    }
    /// The broker's wishes for bytes, from now on.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        unimplemented!()
    }
}
