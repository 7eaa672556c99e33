//! What was freed in the order of a stream, until somebody has it again.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::null_mut;

use gpulease_client::Bytes;

use crate::code::{Code, SUCCESS, check};
use crate::driver;
use crate::entries::Streams;

/// `CU_EVENT_DISABLE_TIMING`
const NO_TIMING: u32 = 2;

/// `CU_STREAM_PER_THREAD`
const PER_THREAD: usize = 2;

/// Something may serve for what is up to this fraction smaller.
const SLACK: u64 = 8;

/// An allocation that was freed.
pub(super) struct Waiting {
    pub(super) at: u64,
    pub(super) bytes: Bytes,
    pub(super) pool: usize,
    pub(super) device: i32,
    /// Where it was freed, which may have it again at once.
    pub(super) stream: Order,
    pub(super) event: Event,
}

/// A stream, as far as it orders what is taken after what was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order(usize);

/// A point in the work of a stream.
pub(super) struct Event(*mut c_void);

// SAFETY: an event of the driver may be used from any thread, and the handle is only a name.
unsafe impl Send for Event {}

/// All that was freed and is kept.
#[derive(Default)]
pub(super) struct Line {
    freed: Vec<Waiting>,
    /// Events for the next.
    events: Vec<Event>,
}

impl Order {
    /// Each thread has its own default stream, all by one name.
    const OFTEN: Self = Self(usize::MAX);

    pub(super) fn of(stream: *mut c_void, streams: Streams) -> Self {
        let own = stream as usize == PER_THREAD || streams == Streams::PerThread && stream.is_null();
        if own { Self::OFTEN } else { Self(stream as usize) }
    }
}

impl Waiting {
    /// Waits for the work before the free.
    pub(super) fn wait(&self) -> Result<(), Code> {
        // SAFETY: the event is alive.
        check(unsafe { driver::cuEventSynchronize(self.event.0) })
    }

    fn is_ready(&self) -> bool {
        // SAFETY: the event is alive.
        unsafe { driver::cuEventQuery(self.event.0) == SUCCESS }
    }

    fn serves(&self, bytes: Bytes) -> bool {
        self.bytes >= bytes && self.bytes.get() - bytes.get() <= self.bytes.get() / SLACK
    }
}

/// Marks the present end of a stream's work.
///
/// # Errors
/// What the driver says, for a stream of another context, say; and the event, if there is one, which marks nothing.
pub(super) fn mark(
    spare: Option<Event>,
    stream: *mut c_void,
    streams: Streams,
) -> Result<Event, Option<Event>> {
    let event = spare.map_or_else(Event::new, Ok).map_err(|_| None)?;
    // SAFETY: the event is ours and the stream the caller's.
    let code = unsafe {
        match streams {
            Streams::Shared => driver::cuEventRecord(event.0, stream),
            Streams::PerThread => driver::cuEventRecord_ptsz(event.0, stream),
        }
    };
    if code == SUCCESS { Ok(event) } else { Err(Some(event)) }
}

impl Line {
    /// An event that marks nothing any more.
    pub(super) fn spare_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    pub(super) fn add(&mut self, waiting: Waiting) {
        self.freed.push(waiting);
    }

    /// One of these for that stream: what it freed itself, else what is ready. The newest first.
    pub(super) fn again(&mut self, pool: usize, device: i32, bytes: Bytes, order: Order) -> Option<Waiting> {
        let fits =
            |waiting: &Waiting| waiting.pool == pool && waiting.device == device && waiting.serves(bytes);
        let own = self
            .freed
            .iter()
            .rposition(|waiting| waiting.stream == order && order != Order::OFTEN && fits(waiting));
        let any = || self.freed.iter().rposition(|waiting| fits(waiting) && waiting.is_ready());
        let found = own.or_else(any)?;
        let waiting = self.freed.swap_remove(found);
        self.events.push(Event(waiting.event.0));
        Some(waiting)
    }

    /// The pools that have any.
    pub(super) fn pools(&self) -> BTreeSet<usize> {
        self.freed.iter().map(|waiting| waiting.pool).collect()
    }

    /// All of a pool.
    pub(super) fn of_pool(&mut self, pool: usize) -> Vec<Waiting> {
        self.freed.extract_if(.., |waiting| waiting.pool == pool).collect()
    }

    /// What a pool has beyond so much, the oldest first.
    pub(super) fn beyond(&mut self, pool: usize, keep: Bytes) -> Vec<Waiting> {
        let of_pool = |waiting: &&Waiting| waiting.pool == pool;
        let mut excess: Bytes = self.freed.iter().filter(of_pool).map(|waiting| waiting.bytes).sum();
        excess = excess.saturating_sub(keep);
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for waiting in self.freed.drain(..) {
            if waiting.pool == pool && !excess.is_zero() && waiting.is_ready() {
                excess = excess.saturating_sub(waiting.bytes);
                gone.push(waiting);
            } else {
                kept.push(waiting);
            }
        }
        self.freed = kept;
        gone
    }

    /// The device's context goes, and with it its events.
    pub(super) fn let_go(&mut self, device: i32) {
        self.freed.retain(|waiting| waiting.device != device);
        self.events.clear();
    }

    pub(super) fn all(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.freed)
    }

    /// An event that marks nothing any more may serve again.
    pub(super) fn take_back(&mut self, event: Event) {
        self.events.push(event);
    }
}

impl Event {
    fn new() -> Result<Self, Code> {
        let mut event = null_mut();
        // SAFETY: the pointer is to a handle of ours.
        check(unsafe { driver::cuEventCreate(&mut event, NO_TIMING) })?;
        Ok(Self(event))
    }
}
