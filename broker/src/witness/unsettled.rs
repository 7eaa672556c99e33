//! First figures of contexts, which count once they stand still.
//!
//! A lease is charged an estimate for a process's context until the card shows it. A context grows
//! for a tenth of a second and more; a figure that is seen in the middle of that would free what the
//! context is about to take. A process that was told of with zero makes another context: until that
//! stands it is told of with the estimate, since its lease may be charged nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, ProcessId};

/// How long a first figure has to stand still.
pub(super) const SETTLES: Duration = Duration::from_millis(500);

/// What was seen of processes that nothing was told of yet, and since when it is the same.
#[derive(Debug, Default)]
pub(super) struct Unsettled(BTreeMap<ProcessId, (Bytes, Instant)>);

impl Unsettled {
    /// Whether a figure waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.0.is_empty()
    }

    /// Leaves first figures that may still grow out where nothing was `told` of the process, and else puts the estimate
    /// in their place. What is more than that is not free, and counts at once.
    pub(super) fn settled(
        &mut self,
        mut overheads: BTreeMap<ProcessId, Bytes>,
        told: impl Fn(ProcessId) -> Option<Bytes>,
        estimate: Bytes,
        now: Instant,
    ) -> BTreeMap<ProcessId, Bytes> {
        let before = std::mem::take(&mut self.0);
        overheads.retain(|process, bytes| {
            let (told, earlier) = (told(*process), before.get(process));
            let is_first = match told {
                None | Some(Bytes::ZERO) => true,
                Some(_) => earlier.is_some(),
            };
            if *bytes >= estimate || !is_first {
                return true;
            }
            let since = earlier.filter(|(seen, _)| seen == bytes).map_or(now, |(_, since)| *since);
            if now.duration_since(since) >= SETTLES {
                return true;
            }
            self.0.insert(*process, (*bytes, since));
            *bytes = estimate;
            told.is_some()
        });
        overheads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::mib;

    const PROCESS: ProcessId = ProcessId::new(7);
    const ESTIMATE: Bytes = Bytes::new(640 << 20);

    fn told(unsettled: &mut Unsettled, bytes: Bytes, now: Instant) -> Option<Bytes> {
        told_after(unsettled, None, bytes, now)
    }

    fn told_after(
        unsettled: &mut Unsettled,
        before: Option<Bytes>,
        bytes: Bytes,
        now: Instant,
    ) -> Option<Bytes> {
        let told = unsettled.settled([(PROCESS, bytes)].into(), |_| before, ESTIMATE, now);
        told.get(&PROCESS).copied()
    }

    #[test]
    fn a_context_that_grows_is_not_told_of_until_it_stands() {
        let (mut unsettled, start) = (Unsettled::default(), Instant::now());
        assert_eq!(told(&mut unsettled, mib(30), start), None);
        let grown = start + SETTLES;
        assert_eq!(told(&mut unsettled, mib(526), grown), None, "it has grown, and may grow on");
        assert!(unsettled.is_waiting());
        assert_eq!(told(&mut unsettled, mib(526), grown + SETTLES / 2), None);
        assert_eq!(told(&mut unsettled, mib(526), grown + SETTLES), Some(mib(526)));
        assert!(!unsettled.is_waiting());
    }

    #[test]
    fn what_is_more_than_was_set_aside_is_told_at_once() {
        let (mut unsettled, start) = (Unsettled::default(), Instant::now());
        assert_eq!(told(&mut unsettled, mib(641), start), Some(mib(641)));
    }

    #[test]
    fn who_was_told_of_before_is_told_of_at_once() {
        let (mut unsettled, start) = (Unsettled::default(), Instant::now());
        let overheads = BTreeMap::from([(PROCESS, mib(30))]);
        assert_eq!(unsettled.settled(overheads.clone(), |_| Some(mib(4)), ESTIMATE, start), overheads);
    }

    #[test]
    fn who_left_the_card_begins_anew() {
        let (mut unsettled, start) = (Unsettled::default(), Instant::now());
        assert_eq!(told(&mut unsettled, mib(526), start), None);
        unsettled.settled(BTreeMap::new(), |_| None, ESTIMATE, start);
        assert_eq!(told(&mut unsettled, mib(526), start + SETTLES), None);
    }

    /// Its second context counted as soon as it began: what a new lease had set aside for it was free before it was there.
    #[test]
    fn a_context_that_was_gone_comes_anew_as_large_as_it_may_get() {
        let (mut unsettled, start) = (Unsettled::default(), Instant::now());
        assert_eq!(told_after(&mut unsettled, Some(Bytes::ZERO), mib(30), start), Some(ESTIMATE));
        let grown = start + SETTLES;
        assert_eq!(told_after(&mut unsettled, Some(ESTIMATE), mib(526), grown), Some(ESTIMATE));
        assert_eq!(told_after(&mut unsettled, Some(ESTIMATE), mib(526), grown + SETTLES), Some(mib(526)));
        assert_eq!(told_after(&mut unsettled, Some(mib(526)), mib(520), grown + SETTLES), Some(mib(520)));
    }
}
