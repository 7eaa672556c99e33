//! Segments that the program does not need now, and that the library may give back.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_words::{Bytes, DeviceId};

use crate::segment::Segment;

/// More are not kept: the oldest is given back for the newest.
const KEPT_AT_MOST: usize = 64;

/// The spare segments of one lease in this process.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    /// The oldest first.
    segments: VecDeque<Segment>,
    /// A spare segment keeps its lease's state alive, so that none is kept where no handle is left to take it.
    handles: usize,
}

impl Spares {
    pub(crate) fn handle_made(&self) {
        self.shelf().handles += 1;
    }

    /// With the last handle everything goes back.
    pub(crate) fn handle_gone(&self) {
        let mut shelf = self.shelf();
        shelf.handles = shelf.handles.checked_sub(1).expect("a handle that goes was made");
        let gone = if shelf.handles == 0 { std::mem::take(&mut shelf.segments) } else { VecDeque::new() };
        // Unlocked, since what goes is unmapped, which takes time.
        drop(shelf);
        drop(gone);
    }

    /// Keeps one; returns what has to go for it.
    pub(crate) fn keep(&self, segment: Segment) -> Option<Segment> {
        let mut shelf = self.shelf();
        if shelf.handles == 0 {
            return Some(segment);
        }
        let oldest = if shelf.segments.len() == KEPT_AT_MOST { shelf.segments.pop_front() } else { None };
        shelf.segments.push_back(segment);
        oldest
    }

    /// The newest of this size on this device.
    pub(crate) fn take(&self, device: DeviceId, bytes: Bytes) -> Option<Segment> {
        let mut shelf = self.shelf();
        let fits = |segment: &Segment| segment.device() == device && segment.bytes() == bytes;
        let at = shelf.segments.iter().rposition(fits)?;
        shelf.segments.remove(at)
    }

    /// At least so much of this device, the largest first, or all there is.
    pub(crate) fn give_up(&self, device: DeviceId, bytes: Bytes) -> Vec<Segment> {
        let mut shelf = self.shelf();
        let all = std::mem::take(&mut shelf.segments).into_iter();
        let (mut on_it, others): (Vec<_>, Vec<_>) = all.partition(|segment| segment.device() == device);
        shelf.segments = others.into();
        on_it.sort_by_key(Segment::bytes);
        let (mut given, mut sum) = (Vec::new(), Bytes::ZERO);
        while sum < bytes
            && let Some(segment) = on_it.pop()
        {
            sum = sum.saturating_add(segment.bytes());
            given.push(segment);
        }
        shelf.segments.extend(on_it);
        given
    }

    /// All of them.
    pub(crate) fn give_up_all(&self) -> VecDeque<Segment> {
        std::mem::take(&mut self.shelf().segments)
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
