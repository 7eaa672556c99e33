//! The arena: host memory for the contents of leases that are not on their device.
//!
//! Each segment that may be suspended has a host copy, a memory file of its size, from its creation
//! to its end. How much may exist is the arbiter's to say; here the files are made, touched ahead of
//! time so that a swap need not wait for the kernel, and given up. A file that was given up is empty
//! at once, but its pages may be locked in a process that still maps it: until the kernel shows that
//! nobody does, they count as draining.

pub(crate) mod room;
mod toucher;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use gpulease_words::{Bytes, SegmentId};

use crate::memory_file;
use toucher::{Order, Toucher};

/// The host copies of a broker. Its thread ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Arena {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    gauge: Gauge,
}

/// What exists, readable from any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gauge(Arc<Mutex<Level>>);

/// What a [`Gauge`] shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    /// What the host has given of the copies so far.
    pub(crate) touched: Bytes,
    /// Copies given up that a process still maps.
    pub(crate) draining: Bytes,
    /// Copies that the host has no memory for, with what the kernel said.
    pub(crate) lacking: BTreeMap<SegmentId, String>,
}

impl Gauge {
    pub(crate) fn read(&self) -> Level {
        self.level().clone()
    }

    fn level(&self) -> MutexGuard<'_, Level> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    /// An arena of at most so much; `changed` is told whenever its gauge shows something else.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub(crate) fn start(limit: Bytes, changed: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let (orders, inbox) = channel();
        let gauge = Gauge::default();
        let toucher = Toucher::new(limit, gauge.clone(), Box::new(changed));
        let thread = std::thread::Builder::new().name("arena".into()).spawn(move || toucher.run(&inbox))?;
        Ok(Self { orders: Some(orders), thread: Some(thread), gauge })
    }

    /// Makes a segment's host copy, and begins to touch it; what to hand over.
    ///
    /// # Errors
    /// A sentence, where the kernel makes no file.
    pub(crate) fn make(&self, segment: SegmentId, bytes: Bytes) -> Result<OwnedFd, String> {
        let made = memory_file::make(&format!("gpulease-copy-{segment}"), bytes);
        let (own, given) =
            made.map_err(|errno| format!("its host copy of {bytes} could not be made: {errno}"))?;
        self.order(Order::Touch { segment, own, bytes });
        Ok(given)
    }

    /// The copy is needed no more. One that is not there is forgotten already.
    pub(crate) fn forget(&self, segment: SegmentId) {
        self.order(Order::Forget(segment));
    }

    pub(crate) fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    fn order(&self, order: Order) {
        let orders = self.orders.as_ref().expect("taken only by drop");
        orders.send(order).expect("the arena's thread outlives its orders and does not panic");
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
