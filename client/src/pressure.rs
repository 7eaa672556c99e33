//! Bytes that the broker wants back.

use std::time::Instant;

use gpulease_words::{Bytes, DeviceId};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

/// How many notices a handle that nobody reads keeps; older ones are dropped, since a newer one
/// says more.
pub(crate) const NOTICES_KEPT: usize = 16;

/// The broker wants bytes of a lease back: drop caches and free segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Where.
    pub device: DeviceId,
    /// How much, at most what is above the reserve.
    pub bytes: Bytes,
    /// Until when; past it the lease is overdue and gets no growth.
    pub deadline: Instant,
}

/// The recall notices of one lease, from [`Lease::pressure`](crate::Lease::pressure) on.
#[derive(Debug)]
pub struct Pressure {
    notices: Receiver<Recall>,
}

impl Pressure {
    pub(crate) fn new(notices: Receiver<Recall>) -> Self {
        Self { notices }
    }

    /// The next notice; `None` when the lease is gone. Dropping the future loses no notice.
    pub async fn next(&mut self) -> Option<Recall> {
        loop {
            match self.notices.recv().await {
                Ok(recall) => return Some(recall),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// A notice that has come already.
    pub fn try_next(&mut self) -> Option<Recall> {
        loop {
            match self.notices.try_recv() {
                Ok(recall) => return Some(recall),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }
}
