//! Check sums of a host copy: what comes back is what went out, or the resume fails aloud.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use gpulease_cuda::sum_of_piece;
use gpulease_words::{Bytes, mib};
use twox_hash::XxHash3_64;

use crate::host::size;
use crate::swap::lane::SwapError;

/// What one check sum is of. Small enough that the last one's sum, which nothing overlaps, takes a millisecond;
/// large enough that a copy's start (10 us) is nothing beside its 0.3 ms on the link.
pub const PIECE: Bytes = mib(16);

/// Who makes check sums, and so how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumKind {
    /// Threads of this process, with XXH3, which reads the host copy once more: a host's memory may not have that much
    /// to give while the link takes its share.
    Host,
    /// The GPU, over its own memory: [`gpulease_cuda::PieceSums`].
    Gpu,
}

impl SumKind {
    /// The sum of a piece, made here.
    pub(crate) fn of(self, piece: &[u8]) -> u64 {
        match self {
            Self::Host => XxHash3_64::oneshot(piece),
            Self::Gpu => sum_of_piece(piece),
        }
    }
}

impl fmt::Display for SumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "on host threads (XXH3)",
            Self::Gpu => "on the GPU",
        })
    }
}

/// The check sum of each piece of a host copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums {
    kind: SumKind,
    of_pieces: Vec<u64>,
}

impl Sums {
    pub(crate) fn new(kind: SumKind, of_pieces: Vec<u64>) -> Self {
        Self { kind, of_pieces }
    }

    /// How many pieces so many bytes have.
    pub(crate) fn pieces(bytes: Bytes) -> usize {
        size(bytes).div_ceil(size(PIECE))
    }

    /// Compares a piece's sum, of this kind, with the one that it should have.
    pub(crate) fn check(&self, piece: usize, found: u64, of: Bytes) -> Result<(), SwapError> {
        if self.of_pieces.get(piece) == Some(&found) {
            return Ok(());
        }
        Err(SwapError::Corrupt { at: Bytes::new(piece as u64 * PIECE.get()), of })
    }

    /// Who made them.
    #[must_use]
    pub fn kind(&self) -> SumKind {
        self.kind
    }

    /// Of how many pieces they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.of_pieces.len()
    }

    /// Whether they are of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.of_pieces.is_empty()
    }
}

/// Sums that several threads of the host fill in.
pub(crate) struct SumsBeingMade(Vec<AtomicU64>);

impl SumsBeingMade {
    const KIND: SumKind = SumKind::Host;

    pub(crate) fn of(bytes: Bytes) -> Self {
        Self((0..Sums::pieces(bytes)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn set(&self, piece: usize, bytes: &[u8]) {
        self.0[piece].store(Self::KIND.of(bytes), Ordering::Relaxed);
    }

    pub(crate) fn done(self) -> Sums {
        Sums::new(Self::KIND, self.0.into_iter().map(AtomicU64::into_inner).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_checked_against_that_of_its_own_piece() {
        let sums = Sums::new(SumKind::Gpu, vec![5, 6]);
        assert_eq!(sums.check(1, 6, mib(20)), Ok(()));
        let corrupt = |at| Err(SwapError::Corrupt { at, of: mib(20) });
        assert_eq!(sums.check(0, 6, mib(20)), corrupt(Bytes::ZERO));
        assert_eq!(sums.check(2, 6, mib(20)), corrupt(mib(32)), "of a piece that has none");
        assert_ne!(sums, Sums::new(SumKind::Host, vec![5, 6]), "numbers of two kinds have nothing in common");
    }
}
