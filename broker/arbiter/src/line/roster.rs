//! An ordered set of those who wait, in which the first that may fit is found in O(log n).
//!
//! A treap: a search tree by [`Place`], a heap by a rank that is drawn from a counter, so that the
//! same calls give the same tree. Each node knows the [`Summary`] of what is below it; a search
//! skips whatever the bounds don't admit.

use gpulease_words::AskId;

use crate::accounts::NodeId;
use crate::line::shape::{Bounds, Summary};

/// Who waits: an ask in its job's roster, an account in its parent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Ask(AskId),
    Account(NodeId),
}

/// Where: the lesser share goes first, then the earlier arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Zero for an ask: within one job the earlier goes first.
    pub(crate) share: u128,
    /// Of the oldest ask. Asks are numbered as they come.
    pub(crate) oldest: AskId,
    pub(crate) who: Who,
}

/// Those who wait below one account.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    root: Link,
    drawn: u64,
}

type Link = Option<Box<Spot>>;

#[derive(Debug)]
struct Spot {
    place: Place,
    rank: u64,
    own: Summary,
    total: Summary,
    left: Link,
    right: Link,
}

impl Roster {
    /// Of all in it; `None` where it is empty.
    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.root.as_ref().map(|spot| &spot.total)
    }

    /// Puts one in.
    pub(crate) fn insert(&mut self, place: Place, own: Summary) {
        self.drawn += 1;
        let spot = Box::new(Spot {
            place,
            rank: scramble(self.drawn),
            total: own.clone(),
            own,
            left: None,
            right: None,
        });
        self.root = Some(inserted(self.root.take(), spot));
    }

    /// Takes one out.
    ///
    /// # Panics
    /// When it is not there.
    pub(crate) fn remove(&mut self, place: Place) {
        self.root = removed(self.root.take(), place);
    }

    /// The first in order that the bounds admit and for which `visit` finds something.
    pub(crate) fn first<R>(&self, bounds: &Bounds, visit: &mut impl FnMut(Who) -> Option<R>) -> Option<R> {
        first(&self.root, bounds, visit)
    }

    /// Panics when the tree is out of order or a summary is wrong.
    pub(crate) fn check(&self) {
        check(&self.root, None, None);
    }

    /// All in order, each with its summary.
    pub(crate) fn entries(&self) -> Vec<(Place, Summary)> {
        let mut entries = Vec::new();
        collect(&self.root, &mut entries);
        entries
    }

    /// All in order.
    pub(crate) fn walk(&self, visit: &mut impl FnMut(Who)) {
        walk(&self.root, visit);
    }
}

impl Spot {
    fn sum_up(mut self: Box<Self>) -> Box<Self> {
        self.total.assign(&self.own);
        for below in [&self.left, &self.right].into_iter().flatten() {
            self.total.join(&below.total);
        }
        self
    }
}

/// A well spread number for each number (the finalizer of splitmix64).
const fn scramble(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn inserted(link: Link, mut new: Box<Spot>) -> Box<Spot> {
    let Some(mut spot) = link else {
        return new;
    };
    if new.rank > spot.rank {
        (new.left, new.right) = split(Some(spot), new.place);
        return new.sum_up();
    }
    if new.place < spot.place {
        spot.left = Some(inserted(spot.left.take(), new));
    } else {
        spot.right = Some(inserted(spot.right.take(), new));
    }
    spot.sum_up()
}

fn split(link: Link, at: Place) -> (Link, Link) {
    let Some(mut spot) = link else {
        return (None, None);
    };
    if spot.place < at {
        let (left, right) = split(spot.right.take(), at);
        spot.right = left;
        (Some(spot.sum_up()), right)
    } else {
        let (left, right) = split(spot.left.take(), at);
        spot.left = right;
        (left, Some(spot.sum_up()))
    }
}

fn removed(link: Link, place: Place) -> Link {
    let mut spot = link.unwrap_or_else(|| panic!("{place:?} is not in the roster"));
    match place.cmp(&spot.place) {
        std::cmp::Ordering::Less => spot.left = removed(spot.left.take(), place),
        std::cmp::Ordering::Greater => spot.right = removed(spot.right.take(), place),
        std::cmp::Ordering::Equal => return merged(spot.left.take(), spot.right.take()),
    }
    Some(spot.sum_up())
}

fn merged(left: Link, right: Link) -> Link {
    match (left, right) {
        (None, link) | (link, None) => link,
        (Some(mut l), Some(r)) if l.rank > r.rank => {
            l.right = merged(l.right.take(), Some(r));
            Some(l.sum_up())
        }
        (Some(l), Some(mut r)) => {
            r.left = merged(Some(l), r.left.take());
            Some(r.sum_up())
        }
    }
}

fn first<R>(link: &Link, bounds: &Bounds, visit: &mut impl FnMut(Who) -> Option<R>) -> Option<R> {
    let spot = link.as_ref().filter(|spot| bounds.admit(&spot.total))?;
    if let Some(found) = first(&spot.left, bounds, visit) {
        return Some(found);
    }
    let own = bounds.admit(&spot.own).then(|| visit(spot.place.who)).flatten();
    own.or_else(|| first(&spot.right, bounds, visit))
}

fn walk(link: &Link, visit: &mut impl FnMut(Who)) {
    if let Some(spot) = link {
        walk(&spot.left, visit);
        visit(spot.place.who);
        walk(&spot.right, visit);
    }
}

fn collect(link: &Link, entries: &mut Vec<(Place, Summary)>) {
    if let Some(spot) = link {
        collect(&spot.left, entries);
        entries.push((spot.place, spot.own.clone()));
        collect(&spot.right, entries);
    }
}

fn check(link: &Link, after: Option<Place>, before: Option<Place>) {
    let Some(spot) = link else {
        return;
    };
    assert!(after.is_none_or(|place| place < spot.place) && before.is_none_or(|place| spot.place < place));
    let mut total = spot.own.clone();
    for below in [&spot.left, &spot.right].into_iter().flatten() {
        assert!(below.rank <= spot.rank, "a roster's heap is out of order");
        total.join(&below.total);
    }
    assert_eq!(total, spot.total, "a roster's summary");
    check(&spot.left, after, Some(spot.place));
    check(&spot.right, Some(spot.place), before);
}
