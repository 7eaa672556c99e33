//! Asking and waiting, for blocking callers.

use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, Uid};

use super::park::block_on;
use super::{Lease, Segment};
use crate::error::{AcquireError, AskError};
use crate::waiting::Waiting;

/// [`crate::LeaseBuilder`] for callers without a runtime. Every method is as there.
#[must_use = "an ask is put by `acquire`"]
pub struct LeaseBuilder<'a>(crate::LeaseBuilder<'a>);

impl<'a> LeaseBuilder<'a> {
    /// How far the lease may grow on each device.
    pub fn up_to(self, limit: Bytes) -> Self {
        Self(self.0.up_to(limit))
    }

    /// Its name, for people, and its job account.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self(self.0.name(name))
    }

    /// On these devices, on all or on none.
    pub fn on_devices(self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        Self(self.0.on_devices(devices))
    }

    /// On any so many devices.
    pub fn gpus(self, count: u32) -> Self {
        Self(self.0.gpus(count))
    }

    /// Wait at most so long.
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self(self.0.wait_at_most(wait))
    }

    /// Be refused at once where there is no room.
    pub fn no_wait(self) -> Self {
        Self(self.0.no_wait())
    }

    /// Wait without end (the default). Nothing can withdraw the ask then but the end of the process.
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// Never suspend the lease.
    pub fn pinned(self) -> Self {
        Self(self.0.pinned())
    }

    /// Let processes of this other user join with the token.
    pub fn guest(self, uid: Uid) -> Self {
        Self(self.0.guest(uid))
    }

    /// Called with each update while the ask waits.
    pub fn on_waiting(self, update: impl FnMut(&Waiting) + Send + 'a) -> Self {
        Self(self.0.on_waiting(update))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// As [`crate::LeaseBuilder::acquire`].
    pub fn acquire(self) -> Result<Lease, AcquireError> {
        block_on(self.0.acquire()).map(Lease::from)
    }
}

impl<'a> From<crate::LeaseBuilder<'a>> for LeaseBuilder<'a> {
    fn from(ask: crate::LeaseBuilder<'a>) -> Self {
        Self(ask)
    }
}

/// [`crate::Allocation`] for callers without a runtime. Every method is as there.
#[must_use = "an ask is put by `allocate`"]
pub struct Allocation<'l>(crate::Allocation<'l>);

impl Allocation<'_> {
    /// On this device of the lease.
    pub fn on(self, device: DeviceId) -> Self {
        Self(self.0.on(device))
    }

    /// Above the reserve: wait at most so long.
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self(self.0.wait_at_most(wait))
    }

    /// Above the reserve: be refused at once where there is no room.
    pub fn no_wait(self) -> Self {
        Self(self.0.no_wait())
    }

    /// Above the reserve: wait without end (the default).
    pub fn wait_forever(self) -> Self {
        Self(self.0.wait_forever())
    }

    /// As the 64-byte handle of `cuIpcGetMemHandle`.
    pub fn cuda_ipc(self) -> Self {
        Self(self.0.cuda_ipc())
    }

    /// Asks, waits for the answer, and maps the memory.
    ///
    /// # Errors
    /// As [`crate::Allocation::allocate`].
    pub fn allocate(self) -> Result<Segment, AskError> {
        block_on(self.0.allocate()).map(Segment::from)
    }
}

impl<'l> From<crate::Allocation<'l>> for Allocation<'l> {
    fn from(ask: crate::Allocation<'l>) -> Self {
        Self(ask)
    }
}
