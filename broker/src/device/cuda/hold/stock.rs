//! Which pieces of the hold a segment is made of: arithmetic.
//!
//! Pieces come in three sizes of which each is a multiple of the next, so that taking the largest
//! that fit finds a sum wherever there is one. Memory can't be cut: where pieces don't add up, one
//! larger piece is *melted*, given back to the driver, and what is needed and the rest are made anew.

use std::fmt;

use gpulease_words::{Bytes, GRANULARITY, gib, mib};

/// The sizes of pieces, largest first.
pub(in super::super) const SIZES: [Bytes; 3] = [gib(1), mib(64), mib(2)];

/// Kept of the smaller sizes where there is enough: three large pieces less, in pieces for wishes that are no multiples
/// of a large one. The whole of a card of 140 GiB is within what one segment can have.
const KEPT: [u64; 3] = [0, 47, 32];

/// More of a size than this are too many: some become one larger piece.
const MANY: [u64; 3] = [u64::MAX, 96, 128];

/// So many pieces of each size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Stock(pub(super) [u64; 3]);

/// How a segment is made out of a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Pieces that it gets as they are.
    pub(super) taken: Stock,
    /// Pieces that are given back to the driver for what it needs beside.
    pub(super) melted: Stock,
    /// What is made anew for it, out of the melted and, where the hold has less than is wanted, out of what is free.
    pub(super) made: Bytes,
}

/// What makes the sizes fit better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A piece of this size becomes pieces of the next smaller one.
    Split(usize),
    /// Pieces of this size become one of the next larger one.
    Merge(usize),
}

impl Stock {
    /// The sum of their bytes.
    pub(super) fn bytes(self) -> Bytes {
        let each = self.0.iter().zip(SIZES).map(|(n, size)| size.checked_mul(*n));
        each.map(|bytes| bytes.expect("no card has so much")).sum()
    }

    pub(super) fn pieces(self) -> u64 {
        self.0.iter().sum()
    }

    /// What to add to these so that they grow by so many bytes, a multiple of the granularity.
    pub(super) fn growth(self, bytes: Bytes) -> Self {
        let (mut rest, mut growth) = (bytes, [0; 3]);
        for (place, size) in SIZES.iter().enumerate().rev() {
            let short = KEPT[place].saturating_sub(self.0[place]);
            let fills = short.min(rest.get() / size.get());
            take(&mut growth, &mut rest, place, fills);
        }
        for (place, size) in SIZES.iter().enumerate() {
            let fit = rest.get() / size.get();
            take(&mut growth, &mut rest, place, fit);
        }
        Self(growth)
    }

    /// How to make a segment of so many bytes, a multiple of the granularity, in at most so many pieces, of which a
    /// few are for what is made anew.
    pub(super) fn choose(self, bytes: Bytes, pieces_max: u64) -> Choice {
        let (mut rest, mut taken) = (bytes, [0; 3]);
        for (place, size) in SIZES.iter().enumerate() {
            let fit = (rest.get() / size.get()).min(self.0[place]);
            take(&mut taken, &mut rest, place, fit);
        }
        let mut choice = Choice { taken: Self(taken), melted: Self::default(), made: rest };
        choice.melt_surplus(pieces_max);
        if let (false, Some(place)) = (rest.is_zero(), self.spare_beyond(taken)) {
            choice.melted.0[place] += 1;
        }
        choice
    }

    /// The smallest size of which there is one more than these.
    fn spare_beyond(self, taken: [u64; 3]) -> Option<usize> {
        (0..3).rev().find(|place| self.0[*place] > taken[*place])
    }

    /// What would make the sizes fit better.
    pub(super) fn changes(self) -> impl Iterator<Item = Change> {
        let is_short = move |place: &usize| self.0[*place] < KEPT[*place] / 2 && self.0[place - 1] > 0;
        let splits = [2, 1].into_iter().filter(is_short).map(|place| Change::Split(place - 1));
        let merges = [2, 1].into_iter().filter(move |place| self.0[*place] > MANY[*place]).map(Change::Merge);
        splits.chain(merges)
    }
}

impl Change {
    /// So many pieces of one size become so many of another.
    pub(super) fn exchange(self) -> (Stock, Stock) {
        let (from, to) = match self {
            Self::Split(place) => (place, place + 1),
            Self::Merge(place) => (place, place - 1),
        };
        let bytes = SIZES[from].max(SIZES[to]);
        let (mut old, mut new) = (Stock::default(), Stock::default());
        old.0[from] = bytes.get() / SIZES[from].get();
        new.0[to] = bytes.get() / SIZES[to].get();
        (old, new)
    }
}

impl Choice {
    /// The smallest of what is taken is melted where there are too many pieces.
    fn melt_surplus(&mut self, pieces_max: u64) {
        for place in [2, 1, 0] {
            let over = self.taken.pieces().saturating_sub(pieces_max);
            let melted = over.min(self.taken.0[place]);
            self.taken.0[place] -= melted;
            self.melted.0[place] += melted;
            let bytes = SIZES[place].checked_mul(melted).expect("it was taken");
            self.made = self.made.saturating_add(bytes);
        }
    }

    /// What is left of the melted and goes back into the hold.
    pub(super) fn rest(&self) -> Bytes {
        self.melted.bytes().saturating_sub(self.made)
    }
}

impl fmt::Display for Stock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [large, middle, small] = self.0;
        write!(f, "{large} x 1 GiB, {middle} x 64 MiB, {small} x 2 MiB")
    }
}

fn take(into: &mut [u64; 3], rest: &mut Bytes, place: usize, pieces: u64) {
    let bytes = SIZES[place].checked_mul(pieces).expect("it is within the rest");
    into[place] += pieces;
    *rest = rest.checked_sub(bytes).expect("it is within the rest");
    debug_assert!(rest.get().is_multiple_of(GRANULARITY.get()), "sizes are multiples of it");
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 224;

    /// Every way to take pieces, the slow way: whether some of these add up to the bytes.
    fn adds_up(stock: Stock, bytes: Bytes) -> bool {
        let [large, middle, small] = stock.0;
        (0..=large).any(|l| {
            (0..=middle).any(|m| {
                let sum = Stock([l, m, 0]).bytes();
                bytes.checked_sub(sum).is_some_and(|rest| rest.get() / SIZES[2].get() <= small)
            })
        })
    }

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: u64) -> u64 {
            // Any sequence without a pattern will do (xorshift).
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    #[test]
    fn every_choice_is_exact_small_and_within_the_stock() {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        for _ in 0..20_000 {
            let stock = Stock([dice.below(6), dice.below(40), dice.below(300)]);
            let bytes = GRANULARITY.checked_mul(1 + dice.below(4_000)).expect("it fits");
            let choice = stock.choose(bytes, MOST);
            let case = format!("{bytes} of {stock}: {choice:?}");
            assert_eq!(choice.taken.bytes().saturating_add(choice.made), bytes, "{case}");
            assert!(choice.taken.pieces() <= MOST, "{case}");
            for place in 0..3 {
                assert!(choice.taken.0[place] + choice.melted.0[place] <= stock.0[place], "{case}");
            }
            // What the hold has is enough: then nothing comes from elsewhere.
            if stock.bytes() >= bytes {
                assert!(choice.melted.bytes() >= choice.made, "{case}");
            } else {
                assert_eq!(choice.rest(), Bytes::ZERO, "{case}");
                assert_eq!(choice.taken.pieces() + choice.melted.pieces(), stock.pieces(), "{case}");
            }
            if adds_up(stock, bytes) && choice.taken.pieces() < MOST {
                assert_eq!((choice.made, choice.melted), (Bytes::ZERO, Stock::default()), "{case}");
            }
            // No more is melted than one larger piece, but for pieces that are too many.
            assert!(choice.rest() < SIZES[0], "{case}");
        }
    }

    #[test]
    fn growth_is_exact_and_keeps_small_ones() {
        let mut dice = Dice(77);
        for _ in 0..5_000 {
            let stock = Stock([dice.below(6), dice.below(40), dice.below(100)]);
            let bytes = GRANULARITY.checked_mul(dice.below(4_000)).expect("it fits");
            assert_eq!(stock.growth(bytes).bytes(), bytes, "{stock} by {bytes}");
        }
        assert_eq!(Stock::default().growth(gib(140)), Stock([137, 47, 32]));
        assert!(Stock::default().growth(gib(140)).pieces() <= MOST);
        assert_eq!(Stock([137, 47, 32]).growth(gib(1)), Stock([1, 0, 0]));
        assert_eq!(Stock([137, 47, 0]).growth(mib(66)), Stock([0, 0, 33]));
    }

    #[test]
    fn one_large_piece_is_melted_where_small_ones_do_not_add_up() {
        let stock = Stock([2, 0, 3]);
        let choice = stock.choose(mib(10), MOST);
        assert_eq!((choice.taken, choice.melted, choice.made), (Stock([0, 0, 3]), Stock([1, 0, 0]), mib(4)));
        assert_eq!(choice.rest(), mib(1020));
    }

    #[test]
    fn sizes_are_brought_in_order() {
        let changes = |stock| Stock(stock).changes().collect::<Vec<_>>();
        assert_eq!(changes([3, 47, 32]), []);
        assert_eq!(changes([3, 47, 15]), [Change::Split(1)]);
        assert_eq!(changes([3, 22, 15]), [Change::Split(1), Change::Split(0)]);
        assert_eq!(changes([3, 0, 16]), [Change::Split(0)]);
        assert_eq!(changes([0, 0, 15]), []);
        assert_eq!(changes([3, 47, 129]), [Change::Merge(2)]);
        assert_eq!(changes([3, 97, 129]), [Change::Merge(2), Change::Merge(1)]);
        for (change, old, new) in [
            (Change::Split(0), [1, 0, 0], [0, 16, 0]),
            (Change::Split(1), [0, 1, 0], [0, 0, 32]),
            (Change::Merge(1), [0, 16, 0], [1, 0, 0]),
            (Change::Merge(2), [0, 0, 32], [0, 1, 0]),
        ] {
            assert_eq!(change.exchange(), (Stock(old), Stock(new)));
        }
    }
}
