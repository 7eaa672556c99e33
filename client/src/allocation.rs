//! Taking memory inside a lease.

use std::time::Duration;

use gpulease_words::{Bytes, DeviceId};

use crate::error::AskError;
use crate::lease::Lease;
use crate::segment::Segment;

/// An ask for a segment.
pub struct Allocation<'l> {
    _lease: &'l Lease,
}

impl<'l> Allocation<'l> {
    pub(crate) fn new(lease: &'l Lease, _bytes: Bytes) -> Self {
        Self { _lease: lease }
    }
    /// On this device of the lease.
    #[must_use]
    pub fn on(self, _device: DeviceId) -> Self {
        self
    }
    /// Above the reserve: wait at most so long.
    #[must_use]
    pub fn wait_at_most(self, _wait: Duration) -> Self {
        self
    }
    /// Above the reserve: wait without end (the default).
    #[must_use]
    pub fn wait_forever(self) -> Self {
        self
    }
    /// Above the reserve: be refused at once where there is no room.
    #[must_use]
    pub fn no_wait(self) -> Self {
        self
    }
    /// As the 64-byte handle of `cuIpcGetMemHandle`, for programs that take nothing else.
    #[must_use]
    pub fn cuda_ipc(self) -> Self {
        self
    }
    /// Asks, waits for the answer, and maps the memory.
    pub async fn allocate(self) -> Result<Segment, AskError> {
        unimplemented!()
    }
}
