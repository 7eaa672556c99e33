//! Bytes that the broker wants back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use gpulease_words::{Bytes, DeviceId};
use tokio::sync::broadcast::Receiver;
use tokio::task::{AbortHandle, spawn_blocking};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt};

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

/// The recall notices of one lease, from [`Lease::pressure`](crate::Lease::pressure) on; a [`Stream`], too.
#[derive(Debug)]
pub struct Pressure {
    notices: BroadcastStream<Recall>,
}

/// Ends [`Lease::on_pressure`](crate::Lease::on_pressure) when it is dropped.
#[derive(Debug)]
#[must_use = "nothing is called any more once it is dropped"]
pub struct PressureListener(AbortHandle);

impl Pressure {
    pub(crate) fn new(notices: Receiver<Recall>) -> Self {
        Self { notices: BroadcastStream::new(notices) }
    }

    /// The next notice; `None` when the lease is gone. Dropping the future loses no notice.
    pub async fn next(&mut self) -> Option<Recall> {
        StreamExt::next(self).await
    }

    /// A notice that has come already.
    pub fn try_next(&mut self) -> Option<Recall> {
        let next = Pin::new(self).poll_next(&mut Context::from_waker(std::task::Waker::noop()));
        if let Poll::Ready(recall) = next { recall } else { None }
    }
}

impl Stream for Pressure {
    type Item = Recall;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Recall>> {
        loop {
            match ready!(Pin::new(&mut self.notices).poll_next(cx)) {
                Some(Ok(recall)) => return Poll::Ready(Some(recall)),
                // Older ones than are kept: a newer one says more.
                Some(Err(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl PressureListener {
    /// To be called with the library's runtime as the context. Each call has a thread to itself, one after the other.
    pub(crate) fn start(mut pressure: Pressure, call: impl Fn(Recall) + Send + Sync + 'static) -> Self {
        let call = Arc::new(call);
        let listening = tokio::spawn(async move {
            while let Some(recall) = pressure.next().await {
                let call = Arc::clone(&call);
                // A program's panic is said on standard error, and ends no other call.
                let _ = spawn_blocking(move || call(recall)).await;
            }
        });
        Self(listening.abort_handle())
    }
}

impl Drop for PressureListener {
    fn drop(&mut self) {
        self.0.abort();
    }
}
