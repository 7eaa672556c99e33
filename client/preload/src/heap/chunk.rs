//! A segment that is given out in parts.

use gpulease_client::Bytes;
use offset_allocator::{Allocation, Allocator};

use crate::piece::Piece;

/// Parts begin at multiples of this, as the driver's own allocations do.
const UNIT: u64 = 512;
/// The allocator makes room for its book at once, 28 bytes for each.
const PARTS_MAX: u32 = 1 << 16;

/// A part of a chunk.
pub(super) type Part = Allocation;

/// A segment that is given out in parts.
pub(super) struct Chunk {
    piece: Piece,
    book: Allocator,
    parts: u32,
}

impl Chunk {
    pub(super) fn new(piece: Piece) -> Self {
        let units = u32::try_from(piece.bytes().get() / UNIT).expect("a chunk is small");
        Self { piece, book: Allocator::with_max_allocs(units, units.min(PARTS_MAX) + 2), parts: 0 }
    }

    /// Takes a part; its address, too.
    pub(super) fn part(&mut self, bytes: Bytes) -> Option<(Part, u64)> {
        let units = u32::try_from(bytes.get().div_ceil(UNIT)).ok()?;
        let part = self.book.allocate(units)?;
        self.parts += 1;
        Some((part, self.base() + u64::from(part.offset) * UNIT))
    }

    /// The part is free again.
    pub(super) fn take_back(&mut self, part: Part) {
        self.book.free(part);
        self.parts -= 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts == 0
    }

    pub(super) fn base(&self) -> u64 {
        self.piece.at()
    }
}
