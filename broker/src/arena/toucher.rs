//! The arena's thread: it has pages given to host copies ahead of time, and watches copies go.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, SegmentId, mib};
use rustix::fs::FallocateFlags;

use super::Gauge;
use crate::memory_file;

/// Touched at one time: some 20 ms of the kernel's work, after which orders are looked at.
const STEP: Bytes = mib(64);

/// Between two looks at copies that somebody still maps: nobody waits for it.
const LOOK: Duration = Duration::from_millis(100);

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Order {
    Touch { segment: SegmentId, own: OwnedFd, bytes: Bytes },
    Forget(SegmentId),
}

#[derive(Debug)]
struct Copy {
    own: OwnedFd,
    bytes: Bytes,
    touched: Bytes,
}

/// The thread's state.
pub(super) struct Toucher {
    limit: Bytes,
    gauge: Gauge,
    copies: BTreeMap<SegmentId, Copy>,
    /// Given up, and perhaps still mapped.
    leaving: Vec<(OwnedFd, Bytes)>,
    look_at: Instant,
    changed: Box<dyn Fn() + Send>,
}

impl Toucher {
    pub(super) fn new(limit: Bytes, gauge: Gauge, changed: Box<dyn Fn() + Send>) -> Self {
        let (copies, leaving) = (BTreeMap::new(), Vec::new());
        Self { limit, gauge, copies, leaving, look_at: Instant::now(), changed }
    }

    pub(super) fn run(mut self, inbox: &Receiver<Order>) {
        while let Ok(order) = self.next(inbox) {
            if let Some(order) = order {
                self.carry_out(order);
            } else {
                self.touch_some();
            }
            self.look_after_leaving();
        }
    }

    /// The next order; `None` where there is something else to do. An error is the end.
    fn next(&self, inbox: &Receiver<Order>) -> Result<Option<Order>, TryRecvError> {
        if self.untouched().is_some() {
            return match inbox.try_recv() {
                Err(TryRecvError::Empty) => Ok(None),
                other => other.map(Some),
            };
        }
        let waited = if self.leaving.is_empty() {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(self.look_at.saturating_duration_since(Instant::now()))
        };
        match waited {
            Ok(order) => Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TryRecvError::Disconnected),
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Touch { segment, own, bytes } => {
                let before = self.copies.insert(segment, Copy { own, bytes, touched: Bytes::ZERO });
                assert!(before.is_none(), "segment {segment} has a host copy already");
            }
            Order::Forget(segment) => {
                if let Some(Copy { own, bytes, .. }) = self.copies.remove(&segment) {
                    memory_file::empty(own.as_fd(), bytes);
                    self.leaving.push((own, bytes));
                    self.look_at = Instant::now();
                }
                self.gauge.level().lacking.remove(&segment);
                self.show();
            }
        }
    }

    /// The first copy that is not all there, if the arena has the room now.
    fn untouched(&self) -> Option<SegmentId> {
        let level = self.gauge.level();
        let is_next = |(segment, copy): &(&SegmentId, &Copy)| {
            copy.touched < copy.bytes && !level.lacking.contains_key(segment)
        };
        let (segment, copy) = self.copies.iter().find(is_next)?;
        let missing = copy.bytes.checked_sub(copy.touched)?;
        let there = self.touched().checked_add(self.draining())?;
        there.checked_add(missing).is_some_and(|sum| sum <= self.limit).then_some(*segment)
    }

    fn touch_some(&mut self) {
        let Some(segment) = self.untouched() else { return };
        let copy = self.copies.get_mut(&segment).expect("it was just found");
        let missing = copy.bytes.checked_sub(copy.touched).expect("no more is touched than there is");
        let step = missing.min(STEP);
        let given = rustix::fs::fallocate(&copy.own, FallocateFlags::empty(), copy.touched.get(), step.get());
        match given {
            Ok(()) => copy.touched = copy.touched.checked_add(step).expect("within its size"),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                let why = format!("the host has no memory for a host copy of {}: {errno}", copy.bytes);
                tracing::warn!("{why}; until it has, the lease stays where it is");
                self.gauge.level().lacking.insert(segment, why);
            }
        }
        self.show();
    }

    fn look_after_leaving(&mut self) {
        if self.leaving.is_empty() || Instant::now() < self.look_at {
            return;
        }
        let before = self.leaving.len();
        self.leaving.retain(|(own, _)| !memory_file::is_sole_holder(own.as_fd()));
        if self.leaving.len() < before {
            // The host has memory again; those that got none may try once more.
            self.gauge.level().lacking.clear();
        }
        self.look_at = Instant::now() + LOOK;
        self.show();
    }

    fn touched(&self) -> Bytes {
        self.copies.values().map(|copy| copy.touched).sum()
    }

    fn draining(&self) -> Bytes {
        self.leaving.iter().map(|(_, bytes)| *bytes).sum()
    }

    fn show(&self) {
        let (touched, draining) = (self.touched(), self.draining());
        let mut level = self.gauge.level();
        if (level.touched, level.draining) != (touched, draining) {
            (level.touched, level.draining) = (touched, draining);
            drop(level);
            (self.changed)();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arena, Level};
    use super::*;

    const A: SegmentId = SegmentId::new(1);
    const B: SegmentId = SegmentId::new(2);

    /// Waits for the arena's thread, which has no other sign of its progress.
    fn until(arena: &Arena, what: impl Fn(&Level) -> bool) -> Level {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let level = arena.gauge().read();
            if what(&level) {
                return level;
            }
            assert!(Instant::now() < deadline, "it does not come to that: {level:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_copy_is_touched_ahead_and_gone_when_nobody_has_it() {
        let arena = Arena::start(mib(8), || ()).expect("a thread");
        let given = arena.make(A, mib(4)).expect("made");
        until(&arena, |level| level.touched == mib(4));
        assert_eq!(memory_file::touched(given.as_fd()), mib(4));
        arena.forget(A);
        let level = until(&arena, |level| level.draining == mib(4));
        assert_eq!(level.touched, Bytes::ZERO);
        assert_eq!(memory_file::touched(given.as_fd()), Bytes::ZERO, "its pages go at once");
        drop(given);
        until(&arena, |level| level.draining.is_zero());
        arena.forget(A);
    }

    #[test]
    fn what_somebody_still_has_leaves_no_room_for_others() {
        let arena = Arena::start(mib(4), || ()).expect("a thread");
        let given = arena.make(A, mib(4)).expect("made");
        until(&arena, |level| level.touched == mib(4));
        arena.forget(A);
        until(&arena, |level| level.draining == mib(4));
        let other = arena.make(B, mib(2)).expect("made");
        assert_eq!(memory_file::touched(other.as_fd()), Bytes::ZERO);
        drop(given);
        until(&arena, |level| level.touched == mib(2) && level.draining.is_zero());
    }

    #[test]
    fn a_client_cannot_resize_its_copy() {
        let arena = Arena::start(mib(4), || ()).expect("a thread");
        let given = arena.make(A, mib(2)).expect("made");
        assert!(rustix::fs::ftruncate(&given, 1 << 30).is_err());
    }
}
