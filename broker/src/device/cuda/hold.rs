//! The hold: what is not leased stays allocated by the broker, so that nobody allocates around it.
//!
//! It is memory of the broker's own that no other process has ever had a descriptor of. A segment
//! is made of pieces of it, so that the driver is asked for nothing. What comes back is never put
//! into it: who had it may map it still, and has written to it. It is given back to the driver, and
//! as much is made anew at once; that it can be made is the proof that it is back.
//!
//! How large it is to be the [books](Cover) say, and the card: the headroom and contexts that are
//! expected stay free, whoever uses the rest.

mod stock;

use std::time::{Duration, Instant};

use gpulease_cuda::{Allocation, CudaError, Device};
use gpulease_words::{Bytes, gib};

use self::stock::{Change, SIZES, Stock};
use super::chunks;
use super::piece::Piece;
use crate::device::{CHUNKS_MAX, Cover};

/// Of a segment's pieces, for what is made anew.
const MADE_MAX: usize = 16;

/// How often pieces are melted for one segment. Each time somebody else has to be faster.
const TAKES_MAX: usize = 16;

/// Room grows into the hold only after it has been there so long: a context that was seen half made is not done.
const GROWS_AFTER: Duration = Duration::from_secs(1);

/// The card's own figure moves by less than this for reasons that are nobody's.
const SLACK: Bytes = Bytes::new(16 << 20);

/// Between two looks after it, and while there is more to do.
const TENDED_EVERY: Duration = Duration::from_millis(250);
const TENDED_SOON: Duration = Duration::from_millis(1);

/// Pieces of each size of which a descriptor is made ahead of time, and how many at a time: each takes 0.6 ms.
const EXPORTED_MAX: [usize; 3] = [64, 15, 32];
const EXPORTED_AT_ONCE: usize = 4;

/// What the broker keeps of a card.
#[derive(Debug)]
pub(super) struct Hold {
    card: Device,
    /// What stays free for contexts and libraries of processes that are no members, or not yet.
    headroom: Bytes,
    /// By size, as in [`SIZES`].
    pieces: [Vec<Piece>; 3],
    cover: Option<Cover>,
    /// More room than is in force, and since when.
    wider: Option<(Bytes, Instant)>,
    /// Descriptors are made ahead of time.
    exports: Exports,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exports {
    Ahead,
    /// The kernel or the driver refused one.
    AtNeed,
}

/// Whether there is more to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    More,
    Done,
}

impl Hold {
    /// One with nothing in it.
    pub(super) fn new(card: Device, headroom: Bytes) -> Self {
        Self { card, headroom, pieces: Default::default(), cover: None, wider: None, exports: Exports::Ahead }
    }

    /// What is in it.
    pub(super) fn bytes(&self) -> Bytes {
        self.stock().bytes()
    }

    fn stock(&self) -> Stock {
        Stock([0, 1, 2].map(|place: usize| self.pieces[place].len() as u64))
    }

    /// The books have changed. Less room counts at once, more of it when it lasts.
    pub(super) fn cover(&mut self, now: Instant, cover: Cover) {
        let cover = Cover { room: cover.room.round_down(), ..cover };
        let Some(former) = self.cover else {
            self.cover = Some(cover);
            return;
        };
        if cover.room <= former.room {
            (self.cover, self.wider) = (Some(cover), None);
            return;
        }
        let since = self.wider.map_or(now, |(_, since)| since);
        self.wider = Some((cover.room, since));
        self.cover = Some(Cover { room: former.room, ..cover });
        self.widen(now);
    }

    /// Lets room that has lasted count.
    pub(super) fn widen(&mut self, now: Instant) {
        if let (Some((room, since)), Some(cover)) = (self.wider, &mut self.cover)
            && now.duration_since(since) >= GROWS_AFTER
        {
            cover.room = room;
            self.wider = None;
        }
    }

    /// How large it should be beside segments of so many bytes where so much of the card is free.
    ///
    /// It shrinks by the books alone. Where a stranger has used the headroom up it is not made larger for him; it is
    /// what the hold leaves free when it grows.
    pub(super) fn target(&self, segments: Bytes, free: Bytes) -> Bytes {
        let (Some(cover), now) = (self.cover, self.bytes()) else { return self.bytes() };
        let by_books = self.at_most(segments);
        if now >= by_books {
            return by_books;
        }
        let owed = cover.promised.saturating_sub(segments).min(by_books);
        let kept_free = self.headroom.saturating_add(cover.expected);
        let more = free.saturating_sub(kept_free).round_down();
        // The card's own figure trembles.
        let more = if more < SLACK && by_books.saturating_sub(now) > more { Bytes::ZERO } else { more };
        by_books.min(now.saturating_add(more).max(owed).round_down())
    }

    /// The most that the books leave it beside segments of so many bytes.
    pub(super) fn at_most(&self, segments: Bytes) -> Bytes {
        self.cover.map_or(Bytes::ZERO, |cover| cover.room.saturating_sub(segments).round_down())
    }

    /// Makes as many bytes as can be had, at most these; says how many.
    pub(super) fn grow(&mut self, bytes: Bytes) -> Bytes {
        let (before, growth) = (self.bytes(), self.stock().growth(bytes.round_down()));
        let mut missing = Bytes::ZERO;
        for (place, size) in SIZES.into_iter().enumerate() {
            // What could not be had in larger pieces may be there in smaller ones.
            let instead = missing.get() / size.get();
            let wanted = growth.0[place] + instead;
            let made = self.make(place, wanted);
            let short = size.checked_mul(wanted - made).expect("it is within the card");
            let rest = missing.saturating_sub(size.checked_mul(instead).expect("it is within the card"));
            missing = rest.saturating_add(short);
        }
        self.bytes().saturating_sub(before)
    }

    /// Makes so many bytes that just went back to the driver, at once: in one piece where there are such pieces.
    pub(super) fn make_again(&mut self, bytes: Bytes) {
        let made = SIZES.iter().position(|size| *size == bytes).map_or(0, |place| self.make(place, 1));
        if made == 0 {
            self.grow(bytes);
        }
    }

    /// Makes pieces of a size until the driver refuses; says how many.
    fn make(&mut self, place: usize, pieces: u64) -> u64 {
        for made in 0..pieces {
            match Allocation::create(self.card, SIZES[place]) {
                // Those with a descriptor stay last, where pieces are taken.
                Ok(memory) => self.pieces[place].insert(0, memory.into()),
                Err(error) => {
                    if !error.is_out_of_memory() {
                        tracing::warn!("the hold does not grow: {error}");
                    }
                    return made;
                }
            }
        }
        pieces
    }

    /// Gives so many bytes back to the driver, or all.
    pub(super) fn shrink(&mut self, bytes: Bytes) {
        let bytes = bytes.min(self.bytes()).round_down();
        let choice = self.stock().choose(bytes, u64::MAX);
        self.give_back(choice.taken);
        self.give_back(choice.melted);
        self.grow(choice.rest());
    }

    /// Pieces for a segment of so many bytes, in address order. Where somebody takes what was to be made anew, it is
    /// tried again as long as the hold has enough. How much of the card is free is asked where it matters.
    ///
    /// # Errors
    /// What the driver says; then nothing of the hold is lost but what somebody else was faster to take.
    pub(super) fn take(&mut self, bytes: Bytes, free: impl Fn() -> Bytes) -> Result<Vec<Piece>, CudaError> {
        for _ in 1..TAKES_MAX {
            match self.try_to_take(bytes, &free) {
                Err(error) if error.is_out_of_memory() && self.bytes() >= bytes => {}
                outcome => return outcome,
            }
        }
        self.try_to_take(bytes, free)
    }

    /// What is made anew, and what is left of the melted, is made before anything is given back for it where the
    /// headroom has room, so that nobody can get in between.
    fn try_to_take(&mut self, bytes: Bytes, free: impl FnOnce() -> Bytes) -> Result<Vec<Piece>, CudaError> {
        let choice = self.stock().choose(bytes, (CHUNKS_MAX - MADE_MAX) as u64);
        let mut rest = choice.rest();
        let ahead = self.make_ahead(choice.made);
        if ahead.is_some() && !rest.is_zero() && self.spare(free()) >= rest {
            rest = rest.saturating_sub(self.grow(rest));
        }
        self.give_back(choice.melted);
        let made = ahead.map_or_else(|| chunks::create(self.card, choice.made, MADE_MAX, || true), Ok);
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                self.grow(choice.melted.bytes());
                return Err(error);
            }
        };
        let mut pieces = self.take_out(choice.taken);
        pieces.extend(made.into_iter().map(Piece::from));
        self.grow(rest);
        Ok(pieces)
    }

    /// What the headroom has for a moment: half of it stays for contexts that are made meanwhile.
    fn spare(&self, free: Bytes) -> Bytes {
        free.saturating_sub(Bytes::new(self.headroom.get() / 2))
    }

    /// What a segment lacks, out of the headroom; `None` where that has no room for it in one piece.
    fn make_ahead(&self, bytes: Bytes) -> Option<Vec<Allocation>> {
        if bytes.is_zero() {
            return Some(Vec::new());
        }
        let made = if bytes < gib(1) { Allocation::create(self.card, bytes).ok() } else { None };
        made.map(|memory| vec![memory])
    }

    fn take_out(&mut self, stock: Stock) -> Vec<Piece> {
        let mut out = Vec::new();
        for (pieces, count) in self.pieces.iter_mut().zip(stock.0) {
            let count = usize::try_from(count).expect("it counts what is there");
            // Those with a descriptor are last.
            out.extend(pieces.drain(pieces.len() - count..));
        }
        out
    }

    fn give_back(&mut self, stock: Stock) {
        for (pieces, count) in self.pieces.iter_mut().zip(stock.0) {
            let count = usize::try_from(count).expect("it counts what is there");
            pieces.drain(..count).for_each(Piece::release);
        }
    }

    /// Whether the sizes could be in better order.
    pub(super) fn is_untidy(&self) -> bool {
        self.stock().changes().next().is_some()
    }

    /// Brings the sizes in better order by one step where so much of the card is free that the new pieces are there
    /// before the old ones go: else somebody could get in between.
    pub(super) fn tidy(&mut self, free: Bytes) {
        let spare = self.spare(free);
        let has_room = |(_, new): &(Stock, Stock)| new.bytes() <= spare;
        let Some((old, new)) = self.stock().changes().map(Change::exchange).find(has_room) else { return };
        let mut superfluous = old;
        for (place, wanted) in new.0.into_iter().enumerate() {
            let made = self.make(place, wanted);
            if made < wanted {
                superfluous = Stock::default();
                superfluous.0[place] = made;
            }
        }
        self.give_back(superfluous);
    }

    /// Makes some descriptors ahead of time; says whether there are more to make.
    pub(super) fn export_some(&mut self) -> Work {
        let next = self
            .pieces
            .iter_mut()
            .zip(EXPORTED_MAX)
            .flat_map(|(pieces, most)| pieces.iter_mut().rev().take(most));
        let bare = next.filter(|piece| !piece.is_exported());
        let mut made = 0;
        for piece in bare.take(if self.exports == Exports::Ahead { EXPORTED_AT_ONCE } else { 0 }) {
            if let Err(error) = piece.export_ahead() {
                tracing::warn!("descriptors are not made ahead of time any more: {error}");
                self.exports = Exports::AtNeed;
                return Work::Done;
            }
            made += 1;
        }
        if made == EXPORTED_AT_ONCE { Work::More } else { Work::Done }
    }

    /// After which time to look after it again.
    pub(super) const fn again(more: Work) -> Duration {
        match more {
            Work::More => TENDED_SOON,
            Work::Done => TENDED_EVERY,
        }
    }
}
