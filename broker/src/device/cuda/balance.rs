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
//!   `unlisted` did not grow: it is back. A list that did grow names the holder, unless its process
//!   only took what had come free: an allocation comes free whole or not at all, so if the broker saw
//!   any of it come free, nobody has it ([`Return`]).
//! - **Later**: a holder has let go when its list has shrunk by b or it is gone. Of the segments
//!   without a holder as many bytes are back as `unlisted` is below what it would be with all of
//!   them in it, counted from a [floor](super::floor): `unlisted` when nothing was on its way.
//!
//! It is advice, not possession; that is the [hold](super::held)'s. Bytes are bytes here: a process
//! that keeps a segment and frees as much memory of its own at that moment passes for having let go
//! (what it keeps then counts as its own use, which the witness charges to it), and unlisted memory of
//! strangers that comes or goes meanwhile shifts the floor. Without a list `unlisted` holds
//! everybody's use, and others' allocations delay the proof while their frees can feign it.
//!
//! **In doubt.** One who takes a whole piece in the instant in which it comes free shows the same
//! figures as one who has it mapped. Who was given the segment is believed to have it. Of others it
//! depends: with room on the card nobody has to wait for that instant, so he has it; on a card that
//! has none he allocated it, but only up to an [amount](Doubts), so that nobody who passes
//! descriptors on gains more than that by it. Beyond it the segment stays with him.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use gpulease_words::{Bytes, Pid, SegmentId};

use super::doubts::Doubts;
use super::drain::{Drain, Missing, Passage, Place, Return, listed};
use super::floor::{Above, Floor};
use super::standing::{Standing, signed};

/// The book of segments that are on their way back.
#[derive(Debug)]
pub(super) struct Balance {
    floor: Floor,
    /// Oldest first.
    drains: Vec<Drain>,
    latest: Standing,
    /// What each holder used when a segment was last found with it, or was last let go.
    levels: BTreeMap<Pid, Bytes>,
    doubts: Doubts,
}

impl Balance {
    /// A book that starts with nothing on its way.
    pub(super) fn new(start: Standing) -> Self {
        let (drains, levels, doubts) = Default::default();
        Self { floor: floor(&start), drains, latest: start, levels, doubts }
    }

    /// So many bytes are credited in doubt from now on.
    pub(super) fn doubt_at_most(&mut self, bytes: Bytes) {
        self.doubts.most = bytes;
    }

    /// The handles of a segment's pieces were given up; the next reading says where their bytes went.
    pub(super) fn released(&mut self, segment: SegmentId, pieces: &[(Bytes, Return)], passage: &Passage) {
        let Passage { before, given } = passage;
        if let (true, Some(before)) = (self.drains.is_empty(), before) {
            self.floor = floor(before);
        }
        for &(bytes, came) in pieces {
            let place = Place::Unseen(before.clone());
            self.drains.push(Drain {
                segment,
                bytes,
                place,
                came,
                missing: Missing::Perhaps,
                given: given.clone(),
            });
        }
    }

    /// The exporter that had a segment is gone, at a time that nobody saw: any process that uses so much may have it,
    /// but for the broker's own, which map nothing.
    pub(super) fn lost(&mut self, segment: SegmentId, bytes: Bytes, own: &BTreeSet<Pid>) {
        let holders = &self.latest.at_least(bytes) - own;
        self.levels.extend(holders.iter().map(|pid| (*pid, self.latest.of(*pid))));
        self.drains.push(Drain {
            segment,
            bytes,
            place: listed(holders),
            came: Return::Unknown,
            missing: Missing::Perhaps,
            given: BTreeSet::new(),
        });
    }

    /// The card was read anew.
    pub(super) fn read(&mut self, now: Instant, standing: Standing) {
        self.look_at_holders(&standing);
        self.doubts.settle(&standing);
        self.look_at_allocators(&standing);
        // What of a list's growth is a piece before it of the same segment.
        let mut found: BTreeMap<SegmentId, Bytes> = BTreeMap::new();
        for drain in &mut self.drains {
            let before_it = found.entry(drain.segment).or_default();
            if let Some(holders) = drain.find(&standing, &self.latest, *before_it, &mut self.doubts) {
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

    /// Who was never given a segment and was believed to have it may turn out to be one who allocates: he goes on, or
    /// the card is full by now.
    fn look_at_allocators(&mut self, now: &Standing) {
        if self.drains.iter().any(|drain| matches!(drain.place, Place::Unseen(_))) {
            // What he has more may be those.
            return;
        }
        for drain in &mut self.drains {
            let Some(pid) = drain.doubtful_holder() else { continue };
            let goes_on = self.levels.get(&pid).is_some_and(|level| now.of(pid) > *level);
            let free = if goes_on { Bytes::ZERO } else { now.free };
            if self.doubts.allocated(pid, drain.bytes, free) {
                drain.place = drain.elsewhere();
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
            let grown = now.growth_since(&self.latest, *pid);
            let (taken, rest) = picked(&mut gone, grown);
            let was_given = taken.iter().any(|drain| drain.given.contains(pid));
            if rest.is_zero()
                && !taken.is_empty()
                && (was_given || !self.doubts.allocated(*pid, grown, self.latest.free))
            {
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

#[cfg(test)]
mod tests {
    use super::super::floor::SETTLED_AFTER;
    use super::*;
    use crate::witness::{ProcessUse, Reading};
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
        /// What is not free beside that.
        base: Bytes,
    }

    impl Bench {
        /// A job with a context has segments of these sizes mapped.
        fn new(segments: &[Bytes]) -> Self {
            let handled = segments.iter().copied().sum();
            let listed = [(JOB, CONTEXT)].into();
            let unlisted = mib(8);
            let start = standing(unlisted, &listed, handled);
            let (balance, now, base) = (Balance::new(start), Instant::now(), Bytes::ZERO);
            Self { balance, unlisted, listed, handled, now, base }
        }

        fn standing(&self) -> Standing {
            let standing = standing(self.unlisted, &self.listed, self.handled);
            Standing { free: standing.free.saturating_sub(self.base), ..standing }
        }

        /// The broker gives its handle up; `change` is what the card shows for it.
        fn release(&mut self, segment: SegmentId, bytes: Bytes, change: impl FnOnce(&mut Self)) {
            let before = self.standing();
            self.handled = self.handled.checked_sub(bytes).expect("it was handled");
            change(self);
            let passage = Passage { before: Some(before), ..Passage::default() };
            self.balance.released(segment, &[(bytes, Return::Unknown)], &passage);
            self.read();
        }

        /// As [`Self::release`] on a card on which so much is free, while the broker sees so much come free.
        fn release_seen(&mut self, free: Bytes, came: Return, change: impl FnOnce(&mut Self)) {
            let before = Standing { free, ..self.standing() };
            self.handled = self.handled.checked_sub(mib(64)).expect("it was handled");
            change(self);
            let passage = Passage { before: Some(before), given: [JOB].into() };
            self.balance.released(A, &[(mib(64), came)], &passage);
            self.read();
        }

        fn release_pieces(&mut self, segment: SegmentId, pieces: &[Bytes], change: impl FnOnce(&mut Self)) {
            let (before, bytes) = (self.standing(), pieces.iter().copied().sum());
            self.handled = self.handled.checked_sub(bytes).expect("it was handled");
            change(self);
            let passage = Passage { before: Some(before), ..Passage::default() };
            let pieces: Vec<_> = pieces.iter().map(|bytes| (*bytes, Return::Unknown)).collect();
            self.balance.released(segment, &pieces, &passage);
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
        Standing::new(&reading(used, listed), handled)
    }

    fn reading(used: Bytes, listed: &BTreeMap<Pid, Bytes>) -> Reading {
        let processes = listed.iter().map(|(pid, bytes)| ProcessUse { pid: *pid, bytes: *bytes });
        Reading { used, usable: gib(140), processes: Some(processes.collect()) }
    }

    /// An allocation comes free whole or not at all: who takes all but a rest of it was no holder.
    #[test]
    fn who_takes_what_came_free_is_no_holder() {
        for (came, taken) in [(Return::Whole, mib(64)), (Return::Part, mib(66)), (Return::Part, gib(1))] {
            let mut bench = Bench::new(&[mib(64)]);
            bench.listed.insert(OTHER, CONTEXT);
            bench.release_seen(gib(2), came, |card| card.list(OTHER, taken));
            assert_eq!(bench.balance.holders(A), []);
            assert!(bench.is_back(A));
        }
    }

    /// A member that was given it has it, whatever somebody saw, and whoever else takes as much.
    #[test]
    fn who_was_given_it_and_has_more_by_as_much_is_its_holder() {
        for came in [Return::Whole, Return::Part, Return::Nothing, Return::Unknown] {
            let mut bench = Bench::new(&[mib(64)]);
            bench.balance.doubt_at_most(gib(1));
            bench.listed.insert(OTHER, CONTEXT);
            bench.release_seen(Bytes::ZERO, came, |card| {
                card.list(JOB, mib(64));
                card.list(OTHER, mib(64));
            });
            assert!(!bench.is_back(A));
            assert_eq!(bench.balance.holders(A), [JOB]);
            bench.change(|card| card.unlist(JOB, mib(64)));
            assert!(bench.is_back(A));
        }
    }

    /// Nothing was seen of it, and somebody has more by as much who was never given it.
    #[test]
    fn in_doubt_it_depends_on_what_was_free_and_how_much_was_in_doubt_before() {
        let holders = |free, most| {
            let mut bench = Bench::new(&[mib(64)]);
            bench.balance.doubt_at_most(most);
            bench.listed.insert(OTHER, CONTEXT);
            bench.release_seen(free, Return::Nothing, |card| card.list(OTHER, mib(64)));
            (bench.balance.holders(A), bench.is_back(A))
        };
        assert_eq!(holders(mib(127), mib(64)), (vec![], true), "he was waiting for it");
        assert_eq!(holders(mib(128), mib(64)), (vec![OTHER], false), "he could have had as much before");
        assert_eq!(holders(mib(127), mib(62)), (vec![OTHER], false), "too much is in doubt");
    }

    /// He takes what is free at the moment at which a segment comes free, and does not end with that.
    #[test]
    fn who_goes_on_allocating_or_fills_the_card_had_it_not() {
        let grown: fn(&mut Bench) = |card| card.list(OTHER, mib(2));
        let full: fn(&mut Bench) = |card| card.base = gib(140);
        for change in [grown, full] {
            let mut bench = Bench::new(&[mib(64)]);
            bench.balance.doubt_at_most(gib(1));
            bench.listed.insert(OTHER, CONTEXT);
            bench.release_seen(gib(2), Return::Nothing, |card| card.list(OTHER, mib(512)));
            bench.read();
            assert!(!bench.is_back(A), "he may have it");
            bench.change(change);
            assert!(bench.is_back(A));
        }
    }

    /// What is passed on twice is not taken for what its holder allocates.
    #[test]
    fn who_has_two_segments_that_he_was_not_given_has_them_both() {
        let mut bench = Bench::new(&[mib(64), mib(2)]);
        bench.balance.doubt_at_most(gib(1));
        bench.listed.insert(OTHER, CONTEXT);
        bench.release_seen(gib(2), Return::Nothing, |card| card.list(OTHER, mib(64)));
        bench.release(B, mib(2), |card| card.list(OTHER, mib(2)));
        bench.read();
        assert!(!bench.is_back(A) && !bench.is_back(B));
    }

    /// A holder lets go late, and somebody on a full card takes just that.
    #[test]
    fn who_takes_what_is_let_go_on_a_full_card_is_no_heir() {
        for (free, heirs) in [(mib(127), vec![]), (mib(128), vec![OTHER])] {
            let mut bench = Bench::new(&[mib(64)]);
            bench.balance.doubt_at_most(gib(1));
            bench.listed.insert(OTHER, CONTEXT);
            bench.release_seen(free, Return::Nothing, |card| card.list(JOB, mib(64)));
            bench.balance.latest.free = free;
            bench.change(|card| {
                card.unlist(JOB, mib(64));
                card.list(OTHER, mib(64));
            });
            assert_eq!(bench.balance.holders(A), heirs);
        }
    }

    #[test]
    fn what_came_whole_is_back_though_the_card_did_not_stand_still() {
        let mut bench = Bench::new(&[mib(64)]);
        bench.handled = Bytes::ZERO;
        bench.list(JOB, gib(1));
        bench.balance.released(A, &[(mib(64), Return::Whole)], &Passage::default());
        bench.read();
        assert!(bench.is_back(A));
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
        bench.balance.released(A, &[(gib(1), Return::Unknown)], &Passage::default());
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
        bench.balance.released(
            A,
            &[(gib(8), Return::Unknown)],
            &Passage { before: Some(before), ..Passage::default() },
        );
        bench.balance.read(bench.now, Standing::new(&after, Bytes::ZERO));
        assert!(bench.is_back(A));
    }

    #[test]
    fn without_a_list_only_a_drop_of_all_use_counts() {
        let silent = |used| Standing::new(&Reading { used, usable: gib(140), processes: None }, Bytes::ZERO);
        let handled = Standing::new(&Reading { used: gib(9), usable: gib(140), processes: None }, gib(8));
        let mut balance = Balance::new(handled.clone());
        balance.released(
            A,
            &[(gib(8), Return::Unknown)],
            &Passage { before: Some(handled), ..Passage::default() },
        );
        balance.read(Instant::now(), silent(gib(9)));
        assert!(!balance.take_if_back(A));
        balance.read(Instant::now(), silent(gib(1)));
        assert!(balance.take_if_back(A));
    }
}
