//! First figures of contexts, which count once they stand still.
//!
//! A lease is charged an estimate for a process's context until the card shows it. A context grows
//! for a tenth of a second and more; a figure that is seen in the middle of that would free what the
//! context is about to take.

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

    /// Leaves out the first figures that may still grow. What is more than the estimate is not free, and counts at once.
    pub(super) fn settled(
        &mut self,
        mut overheads: BTreeMap<ProcessId, Bytes>,
        is_known: impl Fn(ProcessId) -> bool,
        estimate: Bytes,
        now: Instant,
    ) -> BTreeMap<ProcessId, Bytes> {
        let before = std::mem::take(&mut self.0);
        overheads.retain(|process, bytes| {
            if *bytes >= estimate || is_known(*process) {
                return true;
            }
            let same = before.get(process).filter(|(seen, _)| seen == bytes);
            let since = same.map_or(now, |(_, since)| *since);
            let stands = now.duration_since(since) >= SETTLES;
            if !stands {
                self.0.insert(*process, (*bytes, since));
            }
            stands
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
        let told = unsettled.settled([(PROCESS, bytes)].into(), |_| false, ESTIMATE, now);
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
        assert_eq!(unsettled.settled(overheads.clone(), |_| true, ESTIMATE, start), overheads);
    }

    #[test]
    fn who_left_the_card_begins_anew() {
        let (mut unsettled, start) = (Unsettled::default(), Instant::now());
        assert_eq!(told(&mut unsettled, mib(526), start), None);
        unsettled.settled(BTreeMap::new(), |_| false, ESTIMATE, start);
        assert_eq!(told(&mut unsettled, mib(526), start + SETTLES), None);
    }
}
