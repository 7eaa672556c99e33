//! Handles that are the driver's, for as long as a handle or a mapping keeps their memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Handles that count against the lease.
#[derive(Default)]
pub(super) struct OfDriver {
    handles: BTreeMap<u64, Kept>,
    /// Handles by the address that they are mapped at.
    places: BTreeMap<u64, u64>,
}

/// What keeps the memory of a handle.
#[derive(Default)]
struct Kept {
    handles: u32,
    mappings: u32,
}

impl OfDriver {
    pub(super) fn made(&mut self, handle: u64) {
        self.handles.insert(handle, Kept { handles: 1, mappings: 0 });
    }

    pub(super) fn retained(&mut self, handle: u64) {
        if let Some(kept) = self.handles.get_mut(&handle) {
            kept.handles += 1;
        }
    }

    /// A handle was released. Returns it where that was the last of its memory.
    pub(super) fn released(&mut self, handle: u64) -> Option<u64> {
        let kept = self.handles.get_mut(&handle)?;
        kept.handles = kept.handles.saturating_sub(1);
        self.over(handle)
    }

    pub(super) fn mapped(&mut self, at: u64, handle: u64) {
        if let Some(kept) = self.handles.get_mut(&handle) {
            kept.mappings += 1;
            self.places.insert(at, handle);
        }
    }

    /// All in a range was unmapped. Returns the handles whose memory is gone with that.
    pub(super) fn unmapped(&mut self, range: Range<u64>) -> Vec<u64> {
        let places: Vec<(u64, u64)> = self.places.range(range).map(|(at, handle)| (*at, *handle)).collect();
        let gone = places.into_iter().filter_map(|(at, handle)| {
            self.places.remove(&at);
            let kept = self.handles.get_mut(&handle)?;
            kept.mappings = kept.mappings.saturating_sub(1);
            self.over(handle)
        });
        gone.collect()
    }

    fn over(&mut self, handle: u64) -> Option<u64> {
        let over = self.handles.get(&handle).is_some_and(|kept| kept.handles == 0 && kept.mappings == 0);
        over.then(|| self.handles.remove(&handle).map(|_| handle)).flatten()
    }
}
