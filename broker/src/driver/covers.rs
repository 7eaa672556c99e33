//! What the holds of devices are to cover, told to them as the books change.

use std::collections::BTreeMap;

use gpulease_arbiter::DeviceView;
use gpulease_words::{Bytes, DeviceId};

use super::{DeviceFacts, Driver};
use crate::device::{Cover, Order};

/// What each device with a hold was told last.
#[derive(Debug)]
pub(super) struct Covers {
    told: BTreeMap<DeviceId, Option<Cover>>,
}

impl Covers {
    /// Of those that have a hold.
    pub(super) fn of<'a>(facts: impl IntoIterator<Item = &'a DeviceFacts>) -> Self {
        let held = facts.into_iter().filter(|facts| facts.gauge.hold().is_some());
        Self { told: held.map(|facts| (facts.id, None)).collect() }
    }
}

impl Driver {
    /// Tells the devices with a hold what is new in their books.
    pub(super) fn tell_covers(&mut self) {
        if self.covers.told.is_empty() {
            return;
        }
        for book in self.arbiter.books() {
            // Before the first look at a card nobody knows what others have of it.
            let seen = self.facts.iter().any(|facts| facts.id == book.id && facts.used.is_some());
            let Some(told) = self.covers.told.get_mut(&book.id).filter(|_| seen) else { continue };
            let measured = self.overheads.iter().filter(|((_, device), _)| *device == book.id);
            let cover = cover(&book, measured.map(|(_, bytes)| *bytes).sum());
            if *told != Some(cover) {
                *told = Some(cover);
                self.order(book.id, Order::Cover(cover));
            }
        }
    }
}

/// What a book says, where so much of its overhead is on the card already.
fn cover(book: &DeviceView, measured: Bytes) -> Cover {
    let in_segments: Bytes = [book.held, book.draining, book.quarantined].into_iter().sum();
    let off_book = book.off_book.unwrap_or_default();
    Cover {
        room: book.capacity.saturating_sub(book.overhead).saturating_sub(off_book),
        promised: in_segments.saturating_add(book.set_aside),
        expected: book.overhead.saturating_sub(measured),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_arbiter::{Arbiter, Budgets, DeviceSpec, Policy};
    use gpulease_words::{gib, mib};

    #[test]
    fn contexts_and_outsiders_are_left_out_and_promises_counted() {
        let spec = DeviceSpec { id: DeviceId::new(0), capacity: gib(8), overhead_estimate: mib(640) };
        let book = &Arbiter::new(Policy::default(), Budgets::default(), &[spec]).books()[0];
        let all = Cover { room: gib(8), promised: Bytes::ZERO, expected: Bytes::ZERO };
        assert_eq!(cover(book, Bytes::ZERO), all);
        let mut book = book.clone();
        (book.overhead, book.off_book) = (mib(1163), Some(mib(861)));
        (book.held, book.draining, book.quarantined, book.set_aside) = (gib(1), mib(2), mib(4), mib(8));
        let expected =
            Cover { room: gib(6).saturating_add(mib(24)), promised: mib(1038), expected: mib(640) };
        assert_eq!(cover(&book, mib(523)), expected);
    }
}
