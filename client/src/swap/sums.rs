//! Check sums of a host copy: what comes back is what went out, or the resume fails aloud.

use std::sync::atomic::{AtomicU64, Ordering};

use gpulease_words::{Bytes, mib};
use twox_hash::XxHash3_64;

use crate::host::size;

/// What is copied and summed at a time. Small enough that the last one's sum, which nothing overlaps, takes a
/// millisecond; large enough that a copy's start (10 us) is nothing beside its 0.3 ms on the link.
pub const PIECE: Bytes = mib(16);

/// The XXH3 sum of each piece of a host copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums(Vec<u64>);

impl Sums {
    /// How many pieces so many bytes have.
    pub(crate) fn pieces(bytes: Bytes) -> usize {
        size(bytes).div_ceil(size(PIECE))
    }

    pub(crate) fn get(&self, piece: usize) -> Option<u64> {
        self.0.get(piece).copied()
    }

    /// Of how many pieces they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether they are of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Sums that several threads fill in.
pub(crate) struct SumsBeingMade(Vec<AtomicU64>);

impl SumsBeingMade {
    pub(crate) fn of(bytes: Bytes) -> Self {
        Self((0..Sums::pieces(bytes)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn set(&self, piece: usize, bytes: &[u8]) {
        self.0[piece].store(sum(bytes), Ordering::Relaxed);
    }

    pub(crate) fn done(self) -> Sums {
        Sums(self.0.into_iter().map(AtomicU64::into_inner).collect())
    }
}

pub(crate) fn sum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
