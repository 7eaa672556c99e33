//! What is unlisted with nothing on its way, and how much above it lies.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What a context takes of the card that is on no list, and how far that may be off; measured on driver 580.
const CONTEXT_UNLISTED: i64 = 5 << 20;
const CONTEXT_UNSURE: i64 = 2 << 20;

/// More unlisted bytes than all segments on their way together are a stranger's once they stay so long.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The most sums of sizes that are gone through, a millisecond's work: all sums of eleven different sizes.
const SUMS_MAX: usize = 2048;

/// What is unlisted when nothing is on its way. It moves with the contexts that come and go, follows every fall below
/// it at once, and what stays above it after two seconds where that cannot be segments.
#[derive(Debug)]
pub(super) struct Floor {
    unlisted: i64,
    contexts: usize,
    excess: Option<Excess>,
}

/// Unlisted bytes beyond all explanation, and since when there were at least so many.
#[derive(Debug)]
struct Excess {
    since: Instant,
    least: i64,
}

/// Bytes above the floor, and how far that may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Above {
    bytes: i64,
    unsure: i64,
}

impl Floor {
    /// A floor at so many unlisted bytes, with so many contexts.
    pub(super) fn at(unlisted: i64, contexts: usize) -> Self {
        Self { unlisted, contexts, excess: None }
    }

    /// What is above it now.
    pub(super) fn above(&mut self, unlisted: i64, contexts: usize) -> Above {
        let count = |contexts| i64::try_from(contexts).expect("a card has few processes");
        let more: i64 = count(contexts) - count(self.contexts);
        let bytes = unlisted - self.unlisted - more * CONTEXT_UNLISTED;
        if bytes < 0 {
            *self = Self::at(unlisted, contexts);
            return Above { bytes: 0, unsure: 0 };
        }
        Above { bytes, unsure: more.abs() * CONTEXT_UNSURE }
    }

    /// Rises to what stays above it beyond the segments on their way.
    pub(super) fn settle(&mut self, now: Instant, above: Above, on_their_way: i64) {
        let excess = above.bytes - on_their_way;
        if excess <= 0 {
            self.excess = None;
            return;
        }
        let seen = self.excess.get_or_insert(Excess { since: now, least: excess });
        seen.least = seen.least.min(excess);
        if now.duration_since(seen.since) >= SETTLED_AFTER {
            self.unlisted += seen.least;
            self.excess = None;
        }
    }
}

impl Above {
    /// The most of these segments' sizes that it can hold: each is there whole or not at all, so that a few bytes of
    /// other things hide none. Those too small to be told from what contexts take get the benefit of the doubt.
    pub(super) fn holds_of(self, sizes: &[i64]) -> i64 {
        let (large, small): (Vec<i64>, Vec<i64>) = sizes.iter().partition(|size| **size > 2 * self.unsure);
        let of_large = largest_sum_within(self.bytes + self.unsure, &large);
        of_large + largest_sum_within(self.bytes - of_large - self.unsure, &small)
    }
}

/// The largest sum of some of the sizes that is at most the limit, or the limit itself where there are very many.
fn largest_sum_within(limit: i64, sizes: &[i64]) -> i64 {
    let mut sums = BTreeSet::from([0]);
    for size in sizes {
        let with: Vec<i64> = sums.iter().map(|sum| sum + size).filter(|sum| *sum <= limit).collect();
        sums.extend(with);
        if sums.len() > SUMS_MAX {
            return limit;
        }
    }
    sums.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;
    const GIB: i64 = 1 << 30;

    #[test]
    fn sums_of_whole_segments() {
        assert_eq!(largest_sum_within(7, &[8, 3]), 3);
        assert_eq!(largest_sum_within(10, &[8, 3, 2]), 10);
        assert_eq!(largest_sum_within(1, &[8, 3, 2]), 0);
        assert_eq!(largest_sum_within(-1, &[8]), 0);
        let many: Vec<i64> = (0..20).map(|n| 1 << n).collect();
        assert_eq!(largest_sum_within(777, &many), 777);
    }

    #[test]
    fn contexts_carry_the_floor_with_them() {
        let mut floor = Floor::at(8 * MIB, 1);
        assert_eq!(floor.above(13 * MIB, 2), Above { bytes: 0, unsure: 2 * MIB });
        assert_eq!(floor.above(8 * MIB + GIB, 1), Above { bytes: GIB, unsure: 0 });
        // Further down than a context explains: this is the floor now.
        assert_eq!(floor.above(2 * MIB, 0), Above { bytes: 0, unsure: 0 });
        assert_eq!(floor.above(2 * MIB, 0), Above { bytes: 0, unsure: 0 });
        assert_eq!(floor.above(3 * MIB, 0), Above { bytes: MIB, unsure: 0 });
    }

    #[test]
    fn a_context_more_or_less_hides_no_large_segment() {
        let above = |bytes| Above { bytes, unsure: 2 * MIB };
        assert_eq!(above(8 * GIB - MIB).holds_of(&[8 * GIB, GIB]), 8 * GIB);
        assert_eq!(above(8 * GIB + MIB).holds_of(&[8 * GIB, GIB]), 8 * GIB);
        assert_eq!(above(MIB).holds_of(&[2 * MIB]), 0);
        assert_eq!(above(4 * MIB).holds_of(&[2 * MIB]), 2 * MIB);
        assert_eq!(Above { bytes: 2 * MIB, unsure: 0 }.holds_of(&[2 * MIB]), 2 * MIB);
    }
}
