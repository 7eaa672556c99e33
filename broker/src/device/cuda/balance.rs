//! When bytes are back: the arithmetic behind a `Freed` without a hold.
//!
//! The driver tells nobody who maps an exported allocation. What it does tell, to the byte and at
//! once, is how much of the card is used, and by which process; and it counts shared memory so
//! (measured on driver 580):
//!
//! ```text
//! while the broker has its handle      used, on no process's list
//! after it gave the handle up:
//!   mapped by a listed process         used, and on that process's list from that moment
//!   held in another way                used, on no process's list: a descriptor kept, a mapping
//!                                      without a context, a teardown under way
//!   held by nobody                     not used
//! ```
//!
//! So with `unlisted = used - sum of the list - what the broker has handles of`, a segment of b
//! bytes whose handle was given up is back when neither `unlisted` has it nor any process's list.
//! Other processes' allocations and frees show in `used` and in their list alike and cancel out.
//!
//! - **At the release**: readings just before and just after. No list grew by b or more, and
//!   `unlisted` did not grow: it is back. A list that did grow names the holder.
//! - **Later**: a holder has let go when its list has shrunk by b or it is gone. Of the segments
//!   without a holder as many bytes are back as `unlisted` is below what it would be with all of
//!   them in it, counted from a [floor](super::floor): `unlisted` when nothing was on its way.
//!
//! It is advice, not possession. Bytes are bytes here: a process that keeps a segment and frees as
//! much memory of its own at that moment passes for having let go (what it keeps then counts as
//! its own use, which the witness charges to it), and unlisted memory of strangers that comes or
//! goes meanwhile shifts the floor. Without a list `unlisted` holds everybody's use, and others'
//! allocations delay the proof while their frees can feign it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpulease_words::{Bytes, Pid, SegmentId};

use super::floor::{Above, Floor};
use crate::witness::{ProcessUse, Reading};

/// A reading, brought to what matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Negative where the card counts the memory of two importers twice.
    unlisted: i64,
    listed: BTreeMap<Pid, Bytes>,
}

impl Standing {
    /// The standing at a reading, while the broker had handles of `handled` bytes. Those would be on its own list if
    /// its process had a context, as one that a broker is embedded in may have; so that list is left out.
    pub(super) fn new(reading: &Reading, handled: Bytes) -> Self {
        let own = Pid::new(std::process::id());
        let uses = reading.processes.iter().flatten().filter(|process| process.pid != own);
        let listed: BTreeMap<Pid, Bytes> = uses.map(|&ProcessUse { pid, bytes }| (pid, bytes)).collect();
        let unlisted =
            signed(reading.used) - listed.values().map(|b| signed(*b)).sum::<i64>() - signed(handled);
        Self { unlisted, listed }
    }

    /// The processes whose use is at least this.
    fn at_least(&self, bytes: Bytes) -> BTreeSet<Pid> {
        self.listed.iter().filter(|(_, used)| **used >= bytes).map(|(pid, _)| *pid).collect()
    }

    /// The processes whose use has grown by at least this.
    fn grown(&self, earlier: &Self, bytes: Bytes) -> BTreeSet<Pid> {
        self.listed.keys().copied().filter(|pid| self.growth_since(earlier, *pid) >= bytes).collect()
    }

    /// By how much a process's use is above what it was.
    fn growth_since(&self, earlier: &Self, pid: Pid) -> Bytes {
        self.of(pid).saturating_sub(earlier.of(pid))
    }

    fn of(&self, pid: Pid) -> Bytes {
        self.listed.get(&pid).copied().unwrap_or_default()
    }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).expect("no card has 2^63 bytes")
}

/// The book of segments that are on their way back.
#[derive(Debug)]
pub(super) struct Balance {
    floor: Floor,
    /// Oldest first.
    drains: Vec<Drain>,
    latest: Standing,
    /// What each holder used when a segment was last found with it, or was last let go.
    levels: BTreeMap<Pid, Bytes>,
}

#[derive(Debug)]
struct Drain {
    segment: SegmentId,
    bytes: Bytes,
    place: Place,
}

/// Where a segment's bytes are.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Not looked for yet; the standing before the release.
    Unseen(Option<Standing>),
    /// On these processes' lists.
    Listed(BTreeSet<Pid>),
    /// On no list, or back.
    Unlisted,
    Back,
}

impl Balance {
    /// A book that starts with nothing on its way.
    pub(super) fn new(start: Standing) -> Self {
        Self { floor: floor(&start), drains: Vec::new(), latest: start, levels: BTreeMap::new() }
    }

    /// The handle of a segment, or of a piece of it, was given up, just after this standing was read if there is one; the next reading
    /// says where its bytes went.
    pub(super) fn released(&mut self, segment: SegmentId, bytes: Bytes, before: Option<Standing>) {
        if let (true, Some(before)) = (self.drains.is_empty(), &before) {
            self.floor = floor(before);
        }
        self.drains.push(Drain { segment, bytes, place: Place::Unseen(before) });
    }

    /// The exporter that had a segment is gone, at a time that nobody saw: any process that uses so much may have it,
    /// but for the broker's own, which map nothing.
    pub(super) fn lost(&mut self, segment: SegmentId, bytes: Bytes, own: &BTreeSet<Pid>) {
        let holders = &self.latest.at_least(bytes) - own;
        self.levels.extend(holders.iter().map(|pid| (*pid, self.latest.of(*pid))));
        self.drains.push(Drain { segment, bytes, place: listed(holders) });
    }

    /// The card was read anew.
    pub(super) fn read(&mut self, now: Instant, standing: Standing) {
        self.look_at_holders(&standing);
        // What of a list's growth is a piece before it of the same segment.
        let mut found: BTreeMap<SegmentId, Bytes> = BTreeMap::new();
        for drain in &mut self.drains {
            let before_it = found.entry(drain.segment).or_default();
            if let Some(holders) = drain.find(&standing, &self.latest, *before_it) {
                if !holders.is_empty() {
                    *before_it = before_it.saturating_add(drain.bytes);
                }
                self.levels.extend(holders.iter().map(|pid| (*pid, standing.of(*pid))));
            }
        }
        let above = self.floor.above(standing.unlisted, standing.listed.len());
        let gone = self.credit(above);
        self.find_takers(gone, &standing);
        self.floor.settle(now, above, self.unlisted_drains().into_iter().sum());
        self.latest = standing;
    }

    /// A holder that is gone from the list has nothing; one whose use has fallen has let go of as much as that. The
    /// fall since the last reading counts too, since it may hide behind growth before.
    fn look_at_holders(&mut self, now: &Standing) {
        for (pid, level) in std::mem::take(&mut self.levels) {
            let used = now.of(pid);
            let fallen = match now.listed.contains_key(&pid) {
                true => level.max(self.latest.of(pid)).saturating_sub(used),
                false => Bytes::MAX,
            };
            let mut of_pid: Vec<&mut Drain> =
                self.drains.iter_mut().filter(|drain| drain.is_with(pid)).collect();
            let let_go = picked(&mut of_pid, fallen).0;
            let level = if let_go.is_empty() { level } else { used };
            let_go.into_iter().for_each(|drain| drain.leave(pid));
            if self.drains.iter().any(|drain| drain.is_with(pid)) {
                self.levels.insert(pid, level);
            }
        }
    }

    /// Credits, newest first, what of the unlisted segments can't lie in what is above the floor. Which those are.
    fn credit(&mut self, above: Above) -> BTreeSet<SegmentId> {
        let sizes = self.unlisted_drains();
        let mut back = sizes.iter().sum::<i64>() - above.holds_of(&sizes);
        let mut gone = BTreeSet::new();
        for drain in self.drains.iter_mut().rev().filter(|drain| drain.place == Place::Unlisted) {
            if signed(drain.bytes) <= back {
                back -= signed(drain.bytes);
                drain.place = Place::Back;
                gone.insert(drain.segment);
            }
        }
        gone
    }

    /// Some of what is gone from where it was may be on another process's list now: of one that took up a descriptor,
    /// or that had it mapped too and is the oldest holder from now on. Seen over a long time many lists grow; one that
    /// grew by just such bytes has them.
    fn find_takers(&mut self, gone: BTreeSet<SegmentId>, now: &Standing) {
        for (pid, used) in &now.listed {
            let still_gone = |drain: &&mut Drain| drain.place == Place::Back && gone.contains(&drain.segment);
            let mut gone: Vec<&mut Drain> = self.drains.iter_mut().filter(still_gone).collect();
            let (taken, rest) = picked(&mut gone, now.growth_since(&self.latest, *pid));
            if rest.is_zero() && !taken.is_empty() {
                taken.into_iter().for_each(|drain| drain.place = Place::Listed([*pid].into()));
                self.levels.insert(*pid, *used);
            }
        }
    }

    /// Whether a segment is back with each of its pieces; it is forgotten then.
    pub(super) fn take_if_back(&mut self, segment: SegmentId) -> bool {
        let known = self.drains.len();
        if self.drains.iter().all(|drain| drain.segment != segment || drain.place == Place::Back) {
            self.drains.retain(|drain| drain.segment != segment);
        }
        self.drains.len() < known
    }

    /// The processes on whose list a segment is.
    pub(super) fn holders(&self, segment: SegmentId) -> Vec<Pid> {
        let of_it = self.attributions().filter(|(drain, _)| drain.segment == segment);
        let pids: BTreeSet<Pid> = of_it.map(|(_, pid)| pid).collect();
        pids.into_iter().collect()
    }

    /// What the card counts as processes' own use and is on its way back.
    pub(super) fn attributed(&self) -> BTreeMap<Pid, Bytes> {
        let mut attributed: BTreeMap<Pid, Bytes> = BTreeMap::new();
        for (drain, pid) in self.attributions() {
            let sum = attributed.entry(pid).or_default();
            *sum = sum.saturating_add(drain.bytes);
        }
        attributed
    }

    /// Whether a process is on the card's list.
    pub(super) fn is_listed(&self, pid: Pid) -> bool {
        self.latest.listed.contains_key(&pid)
    }

    fn attributions(&self) -> impl Iterator<Item = (&Drain, Pid)> {
        self.drains.iter().flat_map(|drain| match &drain.place {
            Place::Listed(holders) => holders.iter().map(|pid| (drain, *pid)).collect::<Vec<_>>(),
            Place::Unseen(_) | Place::Unlisted | Place::Back => Vec::new(),
        })
    }

    /// Their sizes.
    fn unlisted_drains(&self) -> Vec<i64> {
        let unlisted = self.drains.iter().filter(|drain| drain.place == Place::Unlisted);
        unlisted.map(|drain| signed(drain.bytes)).collect()
    }
}

impl Drain {
    /// Looks for the first time where the bytes are; the holders, if there are any.
    fn find(&mut self, now: &Standing, latest: &Standing, before_it: Bytes) -> Option<BTreeSet<Pid>> {
        let Place::Unseen(before) = &self.place else { return None };
        let in_time = before.is_some();
        let before = before.as_ref().unwrap_or(latest);
        let holders = now.grown(before, self.bytes.saturating_add(before_it));
        let is_back = holders.is_empty() && in_time && now.unlisted <= before.unlisted;
        self.place = if is_back { Place::Back } else { listed(holders.clone()) };
        Some(holders)
    }

    fn is_with(&self, pid: Pid) -> bool {
        matches!(&self.place, Place::Listed(holders) if holders.contains(&pid))
    }

    fn leave(&mut self, pid: Pid) {
        if let Place::Listed(holders) = &mut self.place {
            holders.remove(&pid);
            if holders.is_empty() {
                self.place = Place::Unlisted;
            }
        }
    }
}

/// The largest of these that together fit into so many bytes, and what is left of those.
fn picked<'a>(drains: &mut Vec<&'a mut Drain>, bytes: Bytes) -> (Vec<&'a mut Drain>, Bytes) {
    drains.sort_by_key(|drain| std::cmp::Reverse(drain.bytes));
    let (mut left, mut picked) = (bytes, Vec::new());
    for drain in drains.drain(..) {
        if let Some(rest) = left.checked_sub(drain.bytes) {
            left = rest;
            picked.push(drain);
        }
    }
    (picked, left)
}

fn floor(standing: &Standing) -> Floor {
    Floor::at(standing.unlisted, standing.listed.len())
}

fn listed(holders: BTreeSet<Pid>) -> Place {
    if holders.is_empty() { Place::Unlisted } else { Place::Listed(holders) }
}

#[cfg(test)]
mod tests {
    use super::super::floor::SETTLED_AFTER;
    use super::*;
    use gpulease_words::{gib, mib};
    use std::time::Duration;

    const A: SegmentId = SegmentId::new(1);
    const B: SegmentId = SegmentId::new(2);
    const CONTEXT: Bytes = Bytes::new(518 << 20);
    const JOB: Pid = Pid::new(100);
    const OTHER: Pid = Pid::new(200);

    /// A card under the test's hand: what is used on no list, and the lists.
    struct Bench {
        balance: Balance,
        unlisted: Bytes,
        listed: BTreeMap<Pid, Bytes>,
        handled: Bytes,
        now: Instant,
    }

    impl Bench {
        /// A job with a context has segments of these sizes mapped.
        fn new(segments: &[Bytes]) -> Self {
            let handled = segments.iter().copied().sum();
            let listed = [(JOB, CONTEXT)].into();
            let unlisted = mib(8);
            let start = standing(unlisted, &listed, handled);
            Self { balance: Balance::new(start), unlisted, listed, handled, now: Instant::now() }
        }

        fn standing(&self) -> Standing {
            standing(self.unlisted, &self.listed, self.handled)
        }

        /// The broker gives its handle up; `change` is what the card shows for it.
        fn release(&mut self, segment: SegmentId, bytes: Bytes, change: impl FnOnce(&mut Self)) {
            let before = self.standing();
            self.handled = self.handled.checked_sub(bytes).expect("it was handled");
            change(self);
            self.balance.released(segment, bytes, Some(before));
            self.read();
        }

        fn release_pieces(&mut self, segment: SegmentId, pieces: &[Bytes], change: impl FnOnce(&mut Self)) {
            let (before, bytes) = (self.standing(), pieces.iter().copied().sum());
            self.handled = self.handled.checked_sub(bytes).expect("it was handled");
            change(self);
            pieces.iter().for_each(|bytes| self.balance.released(segment, *bytes, Some(before.clone())));
            self.read();
        }

        fn read(&mut self) {
            self.now += Duration::from_millis(1);
            self.balance.read(self.now, self.standing());
        }

        fn change(&mut self, change: impl FnOnce(&mut Self)) {
            change(self);
            self.read();
        }

        fn list(&mut self, pid: Pid, more: Bytes) {
            let used = self.listed.entry(pid).or_default();
            *used = used.saturating_add(more);
        }

        fn unlist(&mut self, pid: Pid, less: Bytes) {
            let used = self.listed.get_mut(&pid).expect("it is listed");
            *used = used.checked_sub(less).expect("it used so much");
        }

        fn keep(&mut self, more: Bytes) {
            self.unlisted = self.unlisted.saturating_add(more);
        }

        fn free(&mut self, less: Bytes) {
            self.unlisted = self.unlisted.checked_sub(less).expect("so much was unlisted");
        }

        fn is_back(&mut self, segment: SegmentId) -> bool {
            self.balance.take_if_back(segment)
        }
    }

    fn standing(unlisted: Bytes, listed: &BTreeMap<Pid, Bytes>, handled: Bytes) -> Standing {
        let used = [unlisted, listed.values().copied().sum(), handled].into_iter().sum();
        let processes = listed.iter().map(|(pid, bytes)| ProcessUse { pid: *pid, bytes: *bytes });
        Standing::new(&Reading { used, usable: gib(140), processes: Some(processes.collect()) }, handled)
    }

    #[test]
    fn what_nobody_holds_is_back_at_once_and_said_once() {
        let mut bench = Bench::new(&[gib(8)]);
        bench.release(A, gib(8), |_| ());
        assert!(bench.is_back(A));
        assert!(!bench.is_back(A));
    }

    #[test]
    fn the_smallest_segment_is_told_apart_too() {
        let mut bench = Bench::new(&[mib(2), mib(2)]);
        bench.release(A, mib(2), |card| card.keep(mib(2)));
        assert!(!bench.is_back(A));
        bench.release(B, mib(2), |_| ());
        assert!(bench.is_back(B) && !bench.is_back(A));
        bench.change(|card| card.free(mib(2)));
        assert!(bench.is_back(A));
    }

    #[test]
    fn others_allocations_neither_hide_nor_feign_it() {
        let mut bench = Bench::new(&[gib(1), gib(1)]);
        bench.list(OTHER, gib(5));
        bench.release(A, gib(1), |card| card.list(OTHER, mib(64)));
        assert!(bench.is_back(A));
        bench.release(B, gib(1), |card| {
            card.unlist(OTHER, gib(4));
            card.keep(gib(1));
        });
        assert!(!bench.is_back(B));
    }

    #[test]
    fn a_living_holder_is_named_until_it_lets_go() {
        let mut bench = Bench::new(&[gib(8)]);
        bench.release(A, gib(8), |card| card.list(JOB, gib(8)));
        assert_eq!(bench.balance.holders(A), [JOB]);
        assert_eq!(bench.balance.attributed(), [(JOB, gib(8))].into());
        bench.change(|card| card.unlist(JOB, gib(8).checked_sub(Bytes::new(1)).expect("more than a byte")));
        assert!(!bench.is_back(A));
        bench.change(|card| card.unlist(JOB, Bytes::new(1)));
        assert_eq!(bench.balance.holders(A), []);
        assert!(bench.is_back(A));
    }

    /// A process kept one piece of three, and the other two are back.
    #[test]
    fn one_piece_that_is_kept_keeps_its_segment() {
        for keep in [Bench::keep as fn(&mut Bench, Bytes), |card, bytes| card.list(JOB, bytes)] {
            let mut bench = Bench::new(&[mib(6)]);
            bench.release_pieces(A, &[mib(2); 3], |card| keep(card, mib(2)));
            assert!(!bench.is_back(A));
            bench.change(|card| match card.listed[&JOB] > CONTEXT {
                true => card.unlist(JOB, mib(2)),
                false => card.free(mib(2)),
            });
            assert!(bench.is_back(A));
        }
    }

    #[test]
    fn a_holder_that_grows_and_then_lets_go_in_one_step_has_let_go() {
        let mut bench = Bench::new(&[gib(1)]);
        bench.release(A, gib(1), |card| card.list(JOB, gib(1)));
        bench.change(|card| card.list(JOB, gib(3)));
        bench.change(|card| card.unlist(JOB, mib(1023)));
        assert!(!bench.is_back(A));
        bench.change(|card| card.list(JOB, mib(1023)));
        bench.change(|card| card.unlist(JOB, gib(1)));
        assert!(bench.is_back(A));
    }

    #[test]
    fn a_dying_holder_leaves_the_list_before_its_bytes_are_back() {
        let mut bench = Bench::new(&[gib(8)]);
        bench.release(A, gib(8), |card| card.list(JOB, gib(8)));
        bench.change(|card| {
            let used = card.listed.remove(&JOB).expect("it was listed");
            card.keep(used);
        });
        assert!(!bench.is_back(A));
        bench.change(|card| card.unlisted = mib(3));
        assert!(bench.is_back(A));
    }

    #[test]
    fn a_descriptor_kept_by_a_dead_process_heir_is_still_held() {
        let mut bench = Bench::new(&[gib(8)]);
        bench.release(A, gib(8), |card| card.list(JOB, gib(8)));
        bench.change(|card| {
            card.listed.remove(&JOB);
            card.unlisted = [mib(3), gib(8)].into_iter().sum();
        });
        assert!(!bench.is_back(A));
        assert_eq!(bench.balance.holders(A), []);
        bench.change(|card| card.free(gib(8)));
        assert!(bench.is_back(A));
    }

    #[test]
    fn who_takes_up_a_kept_descriptor_is_named() {
        let mut bench = Bench::new(&[gib(8)]);
        bench.listed.insert(OTHER, CONTEXT);
        bench.release(A, gib(8), |card| card.keep(gib(8)));
        bench.change(|card| {
            card.free(gib(8));
            card.list(OTHER, gib(8));
        });
        assert!(!bench.is_back(A));
        assert_eq!(bench.balance.holders(A), [OTHER]);
    }

    #[test]
    fn the_next_oldest_holder_is_named_when_the_oldest_lets_go() {
        let mut bench = Bench::new(&[gib(8), gib(1), mib(2)]);
        bench.listed.insert(OTHER, CONTEXT);
        let third = SegmentId::new(3);
        for (segment, bytes) in [(A, gib(8)), (B, gib(1)), (third, mib(2))] {
            bench.release(segment, bytes, |card| card.list(JOB, bytes));
        }
        // The job dies; one of its segments nobody else had.
        bench.change(|card| {
            card.listed.remove(&JOB);
            card.free(mib(5));
            card.list(OTHER, gib(8));
            card.list(OTHER, mib(2));
        });
        assert!(bench.is_back(B) && !bench.is_back(A) && !bench.is_back(third));
        assert_eq!((bench.balance.holders(A), bench.balance.holders(third)), (vec![OTHER], vec![OTHER]));
        bench.change(|card| card.unlist(OTHER, gib(8)));
        assert!(bench.is_back(A) && !bench.is_back(third));
    }

    #[test]
    fn one_that_stays_keeps_no_other_from_coming_back() {
        let mut bench = Bench::new(&[gib(8), gib(1)]);
        bench.release(A, gib(8), |card| card.keep(gib(8)));
        bench.release(B, gib(1), |card| card.keep(gib(1)));
        assert!(!bench.is_back(A) && !bench.is_back(B));
        // A context comes meanwhile, with its unlisted part.
        bench.change(|card| {
            card.list(OTHER, CONTEXT);
            card.keep(mib(5));
        });
        bench.change(|card| card.free(gib(1)));
        assert!(bench.is_back(B) && !bench.is_back(A));
        bench.change(|card| card.free(gib(8)));
        assert!(bench.is_back(A));
    }

    #[test]
    fn a_few_bytes_of_other_things_hide_no_segment() {
        let mut bench = Bench::new(&[gib(8), gib(1)]);
        bench.release(A, gib(8), |card| card.keep(gib(8)));
        bench.release(B, gib(1), |card| card.keep(gib(1)));
        bench.change(|card| {
            card.free(gib(1));
            card.keep(mib(100));
        });
        assert!(bench.is_back(B) && !bench.is_back(A));
    }

    #[test]
    fn never_more_is_credited_than_came_back() {
        let mut bench = Bench::new(&[gib(1), gib(8)]);
        bench.release(A, gib(1), |card| card.keep(gib(1)));
        bench.release(B, gib(8), |card| card.keep(gib(8)));
        bench.change(|card| card.free(gib(1)));
        assert!(bench.is_back(A) && !bench.is_back(B));
    }

    #[test]
    fn a_strangers_unlisted_memory_is_told_apart_once_it_stays() {
        let mut bench = Bench::new(&[gib(1)]);
        bench.release(A, gib(1), |card| card.keep(gib(1)));
        bench.change(|card| card.keep(gib(4)));
        bench.now += SETTLED_AFTER;
        bench.read();
        assert!(!bench.is_back(A));
        bench.change(|card| card.free(gib(1)));
        assert!(bench.is_back(A));
    }

    #[test]
    fn without_a_reading_before_nothing_is_proven_at_once() {
        let mut bench = Bench::new(&[gib(1)]);
        bench.handled = Bytes::ZERO;
        bench.list(JOB, gib(1));
        bench.balance.released(A, gib(1), None);
        bench.read();
        assert_eq!(bench.balance.holders(A), [JOB]);
        bench.change(|card| card.unlist(JOB, gib(1)));
        assert!(bench.is_back(A));
    }

    #[test]
    fn after_an_exporters_death_whoever_uses_so_much_may_have_it() {
        let mut bench = Bench::new(&[]);
        bench.list(OTHER, gib(1));
        bench.read();
        bench.listed.insert(JOB, gib(2));
        bench.read();
        bench.balance.lost(A, gib(1), &[JOB].into());
        assert_eq!(bench.balance.holders(A), [OTHER]);
        bench.read();
        assert!(!bench.is_back(A));
        bench.change(|card| card.listed.retain(|pid, _| *pid != OTHER));
        assert!(bench.is_back(A));
    }

    #[test]
    fn a_context_of_the_brokers_own_process_changes_nothing() {
        let own = Pid::new(std::process::id());
        let mut bench = Bench::new(&[gib(8)]);
        let listed = |bytes| Some(vec![ProcessUse { pid: own, bytes: [CONTEXT, bytes].into_iter().sum() }]);
        let reading = |made| Reading { used: gib(9), usable: gib(140), processes: listed(made) };
        let before = Standing::new(&reading(gib(8)), gib(8));
        let after = Reading { used: gib(1), ..reading(Bytes::ZERO) };
        bench.balance = Balance::new(before.clone());
        bench.balance.released(A, gib(8), Some(before));
        bench.balance.read(bench.now, Standing::new(&after, Bytes::ZERO));
        assert!(bench.is_back(A));
    }

    #[test]
    fn without_a_list_only_a_drop_of_all_use_counts() {
        let silent = |used| Standing::new(&Reading { used, usable: gib(140), processes: None }, Bytes::ZERO);
        let handled = Standing::new(&Reading { used: gib(9), usable: gib(140), processes: None }, gib(8));
        let mut balance = Balance::new(handled.clone());
        balance.released(A, gib(8), Some(handled));
        balance.read(Instant::now(), silent(gib(9)));
        assert!(!balance.take_if_back(A));
        balance.read(Instant::now(), silent(gib(1)));
        assert!(balance.take_if_back(A));
    }
}
