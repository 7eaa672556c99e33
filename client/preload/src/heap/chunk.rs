//! A segment that is given out in parts.

use gpulease_client::Bytes;
use offset_allocator::{Allocation, Allocator};

use crate::heap::Range;
use crate::piece::Piece;

/// Parts begin at multiples of this, as the driver's own allocations do.
const UNIT: u64 = 512;
/// The allocator makes room for its book at once, 28 bytes for each.
const PARTS_MAX: u32 = 1 << 16;
/// So many units are listed together.
const PAGE: usize = 512;

/// A part of a chunk: where it is in the chunk's book, and what was asked for.
#[derive(Clone, Copy)]
pub(super) struct Part {
    place: Allocation,
    bytes: Bytes,
}

/// A segment that is given out in parts.
pub(super) struct Chunk {
    piece: Piece,
    book: Allocator,
    list: List,
    parts: u32,
}

/// The parts by the unit in which they begin. A list of this kind has no search and no rebalancing: small allocations come
/// by the thousand.
struct List(Vec<Option<Box<[Option<Part>; PAGE]>>>);

impl Part {
    /// What was asked for.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Chunk {
    pub(super) fn new(piece: Piece) -> Self {
        let units = u32::try_from(piece.bytes().get() / UNIT).expect("a chunk is small");
        let book = Allocator::with_max_allocs(units, units.min(PARTS_MAX) + 2);
        Self { piece, book, list: List::new(units), parts: 0 }
    }

    /// Takes a part; its address.
    pub(super) fn part(&mut self, bytes: Bytes) -> Option<u64> {
        let units = u32::try_from(bytes.get().div_ceil(UNIT)).ok()?;
        let place = self.book.allocate(units)?;
        self.parts += 1;
        self.list.note(Part { place, bytes });
        Some(self.base() + u64::from(place.offset) * UNIT)
    }

    /// Strikes the part that begins at this address off the list. Nobody has its bytes before [`Self::take_back`].
    pub(super) fn strike(&mut self, at: u64) -> Option<Part> {
        let offset = at.checked_sub(self.base()).filter(|offset| offset.is_multiple_of(UNIT))?;
        self.list.strike(usize::try_from(offset / UNIT).ok()?)
    }

    /// The part's bytes are free again.
    pub(super) fn take_back(&mut self, part: Part) {
        self.book.free(part.place);
        self.parts -= 1;
    }

    /// The part that an address is in.
    pub(super) fn range_of(&self, at: u64) -> Option<Range> {
        let offset = at.checked_sub(self.base()).filter(|offset| *offset < self.piece.bytes().get())?;
        let part = self.list.last_until(usize::try_from(offset / UNIT).ok()?)?;
        let base = self.base() + u64::from(part.place.offset) * UNIT;
        let bytes = part.bytes.get();
        (at - base < bytes).then_some(Range { base, bytes: bytes as usize })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts == 0
    }

    pub(super) fn base(&self) -> u64 {
        self.piece.at()
    }
}

impl List {
    fn new(units: u32) -> Self {
        let pages = (units as usize).div_ceil(PAGE);
        Self(std::iter::repeat_with(|| None).take(pages).collect())
    }

    fn note(&mut self, part: Part) {
        let unit = part.place.offset as usize;
        let page = self.0[unit / PAGE].get_or_insert_with(|| Box::new([None; PAGE]));
        page[unit % PAGE] = Some(part);
    }

    fn strike(&mut self, unit: usize) -> Option<Part> {
        self.0.get_mut(unit / PAGE)?.as_mut()?[unit % PAGE].take()
    }

    /// The last that begins in this unit or before it.
    fn last_until(&self, unit: usize) -> Option<Part> {
        let (last, within) = (unit / PAGE, unit % PAGE);
        let own =
            self.0.get(last)?.as_ref().and_then(|page| page[..=within].iter().rev().find_map(|part| *part));
        let before = || {
            self.0[..last].iter().rev().flatten().find_map(|page| page.iter().rev().find_map(|part| *part))
        };
        own.or_else(before)
    }
}
