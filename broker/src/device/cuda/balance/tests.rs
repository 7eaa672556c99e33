//! A card under the test's hand, and what the book makes of it.

use super::super::floor::SETTLED_AFTER;
use super::*;
use crate::witness::{ProcessUse, Reading};
use gpulease_words::{Uid, gib, mib};
use std::time::Duration;

const A: SegmentId = SegmentId::new(1);
const B: SegmentId = SegmentId::new(2);
const CONTEXT: Bytes = Bytes::new(518 << 20);
const JOB: Pid = Pid::new(100);
const OTHER: Pid = Pid::new(200);
/// Of another user.
const STRANGER: Pid = Pid::new(300);
const NOBODY_KNOWS: Pid = Pid::new(400);
const USER: Uid = Uid::new(1_000);

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
        let mut balance = Balance::new(start);
        balance.doubts = Doubts::among(user_of);
        Self { balance, unlisted, listed, handled, now: Instant::now(), base: Bytes::ZERO }
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

    /// As [`Self::release`] of 64 MiB of the job's, while the broker sees so much come free.
    fn release_seen(&mut self, came: Return, change: impl FnOnce(&mut Self)) {
        let before = self.standing();
        self.handled = self.handled.checked_sub(mib(64)).expect("it was handled");
        change(self);
        let passage = Passage { before: Some(before), tenants: Tenants::of(JOB, USER) };
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

fn user_of(pid: Pid) -> Option<Uid> {
    match pid {
        JOB | OTHER => Some(USER),
        STRANGER => Some(Uid::new(1_001)),
        _ => None,
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
        bench.release_seen(came, |card| card.list(OTHER, taken));
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
        bench.release_seen(came, |card| {
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
fn in_doubt_it_depends_on_whose_he_is_and_what_was_free_and_in_doubt_before() {
    let holders = |pid, free: Bytes, most| {
        let mut bench = Bench::new(&[mib(64)]);
        bench.balance.doubt_at_most(most);
        bench.listed.insert(pid, CONTEXT);
        bench.base = bench.standing().free.saturating_sub(free);
        bench.release_seen(Return::Nothing, |card| card.list(pid, mib(64)));
        (bench.balance.holders(A), bench.is_back(A))
    };
    let his_own = (vec![], true);
    assert_eq!(holders(STRANGER, gib(9), Bytes::ZERO), his_own, "another user's takes for himself");
    assert_eq!(holders(OTHER, mib(127), mib(64)), his_own, "the same user's may, too");
    assert_eq!(holders(OTHER, mib(128), mib(64)), (vec![OTHER], false), "but had no need to");
    assert_eq!(holders(OTHER, mib(127), mib(62)), (vec![OTHER], false), "nor so much");
    assert_eq!(holders(NOBODY_KNOWS, mib(127), mib(62)), (vec![NOBODY_KNOWS], false));
}

/// What is passed on twice is not taken for what its holder allocates, until he gives it back.
#[test]
fn what_is_in_doubt_adds_up_while_he_has_it() {
    let mut bench = Bench::new(&[mib(64), mib(2)]);
    bench.base = gib(140);
    bench.balance.doubt_at_most(mib(64));
    bench.listed.insert(OTHER, CONTEXT);
    bench.release_seen(Return::Nothing, |card| card.list(OTHER, mib(64)));
    assert!(bench.is_back(A));
    bench.release(B, mib(2), |card| card.list(OTHER, mib(2)));
    assert_eq!(bench.balance.holders(B), [OTHER]);
    bench.change(|card| card.unlist(OTHER, mib(2)));
    assert!(bench.is_back(B));
    bench.change(|card| card.unlist(OTHER, mib(64)));
    bench.change(|card| card.handled = mib(2));
    bench.release(B, mib(2), |card| card.list(OTHER, mib(2)));
    assert!(bench.is_back(B), "nothing is in doubt any more");
}

/// A holder lets go late, and somebody takes just that.
#[test]
fn who_takes_what_another_lets_go_is_its_heir_unless_he_is_another_users() {
    for (pid, heirs) in [(STRANGER, vec![]), (OTHER, vec![OTHER])] {
        let mut bench = Bench::new(&[mib(64)]);
        bench.listed.insert(pid, CONTEXT);
        bench.release_seen(Return::Nothing, |card| card.list(JOB, mib(64)));
        bench.change(|card| {
            card.unlist(JOB, mib(64));
            card.list(pid, mib(64));
        });
        assert_eq!(bench.balance.holders(A), heirs);
        assert_eq!(bench.is_back(A), heirs.is_empty());
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
