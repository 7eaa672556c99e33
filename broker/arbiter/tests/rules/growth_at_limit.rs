//! Growth beside what its own lease is about to get back: a program that frees and asks at once is not refused for that.

use gpulease_arbiter::{Budgets, Denial, Event, Guard, Patience, RequestId};
use gpulease_words::{LeaseId, Reason, SegmentId, mib};

use crate::desk::{Answer, Ask, Client, Desk, NOW, device, limit, seconds, want};

/// A card of 100 that is full: a lease of 20 up to 60 which holds 60, another's 40.
struct Full {
    desk: Desk,
    client: Client,
    lease: LeaseId,
    grown: SegmentId,
}

impl Full {
    fn new() -> Self {
        let mut desk = Desk::new(&[100]);
        let [client, other] = [1, 2].map(|uid| desk.client(uid));
        let lease = desk.lease(client, want(20).up_to(60));
        desk.segment(client, lease, 20);
        let grown = desk.segment(client, lease, 40);
        desk.lease(other, want(40));
        Self { desk, client, lease, grown }
    }

    /// The 40 above the reserve are given back and not proven free, and so much is asked for at once.
    fn freed_and_asked(bytes: u64, patience: Patience, guard: Guard) -> (Self, RequestId) {
        let mut full = Self::new();
        full.desk.free(full.client, full.lease, full.grown);
        let asked = full.desk.allocate_as(full.client, full.lease, bytes, patience, guard);
        (full, asked)
    }

    /// The same below a limit of 100, and nothing free on the card.
    fn with_room_to_its_limit() -> Self {
        let mut full = Self::new();
        let (session, lease) = (full.client.session, full.lease);
        let resized = full.desk.ask(|request| Event::Resize {
            request,
            session,
            lease,
            reserve: mib(20),
            limit: mib(100),
        });
        assert_eq!(resized, Answer::Resized);
        full.desk.free(full.client, full.lease, full.grown);
        full
    }

    fn proven(&mut self) {
        self.desk.tell(Event::Freed { segment: self.grown });
    }
}

const WAYS: [(Patience, Guard); 3] =
    [(NOW, Guard::Outside), (Patience::Endless, Guard::Inside), (Patience::Endless, Guard::Outside)];

/// A job at its limit freed 40 MiB, asked for 30, and was refused as `beyond_lease`: what drained was still counted.
#[test]
fn what_drains_is_waited_for_where_only_that_is_above_the_limit() {
    for (patience, guard) in WAYS {
        let (mut full, asked) = Full::freed_and_asked(40, patience, guard);
        full.desk.pass(1_000);
        let view = &full.desk.snapshot().waiting[0];
        assert_eq!((view.reason, view.short_by, view.barrier), (Reason::Draining, mib(40), false));
        full.proven();
        let segment = full.desk.making();
        full.desk.tell(Event::Created { segment });
        assert_eq!(full.desk.answer(asked), Answer::Allocated(segment));
        assert_eq!(full.desk.view(full.lease).held, mib(60));
    }
    for (patience, guard) in WAYS {
        let (full, asked) = Full::freed_and_asked(42, patience, guard);
        let expected = Denial::BeyondLease { limit: mib(60), held: mib(20), asked: mib(42) };
        assert_eq!(full.desk.answer(asked), Answer::Denied(expected), "it never fits");
    }
}

#[test]
fn what_can_not_be_proven_free_stays_above_the_limit() {
    let (mut full, asked) = Full::freed_and_asked(40, Patience::Endless, Guard::Outside);
    full.desk.tell(Event::Unproven { segment: full.grown, suspects: Vec::new() });
    let expected = Denial::BeyondLease { limit: mib(60), held: mib(60), asked: mib(40) };
    assert_eq!(full.desk.answer(asked), Answer::Denied(expected));
}

#[test]
fn the_wait_for_what_drains_ends_with_the_patience() {
    let (mut full, asked) = Full::freed_and_asked(40, seconds(5), Guard::Outside);
    full.desk.pass(4);
    assert!(!full.desk.answers.contains_key(&asked));
    full.desk.pass(1);
    let Answer::Denied(Denial::WaitOver { short_by, .. }) = full.desk.answer(asked) else {
        panic!("{:?}", full.desk.answer(asked))
    };
    assert_eq!(short_by, mib(40));
}

/// What comes back above the reserve is nobody's: it goes by the line, and who would not wait hears that then.
#[test]
fn what_came_back_is_given_in_the_order_of_the_line() {
    for (patience, guard) in WAYS {
        let mut full = Full::new();
        let stranger = full.desk.client(3);
        full.desk.queue(stranger, want(20));
        full.desk.pass(100);
        full.desk.free(full.client, full.lease, full.grown);
        let asked = full.desk.allocate_as(full.client, full.lease, 40, patience, guard);
        full.proven();
        let answer = full.desk.answers.get(&asked).cloned();
        match (patience, guard) {
            (Patience::None, _) => {
                let expected = Denial::NoRoom { asked: mib(40), room: mib(20), device: device(0) };
                assert_eq!(answer, Some(Answer::Denied(expected)));
            }
            (_, Guard::Inside) => {
                assert_eq!(answer, Some(Answer::Denied(Denial::WouldDeadlock { asked: mib(40) })));
            }
            (_, Guard::Outside) => {
                assert_eq!((answer, full.desk.snapshot().waiting[0].short_by), (None, mib(20)));
            }
        }
    }
}

/// The same on a card that is full below the lease's limit.
#[test]
fn who_would_not_wait_waits_for_what_his_own_lease_gets_back() {
    for (patience, guard) in &WAYS[..2] {
        let mut full = Full::with_room_to_its_limit();
        let request = full.desk.allocate_as(full.client, full.lease, 40, *patience, *guard);
        assert!(!full.desk.answers.contains_key(&request));
        full.proven();
        assert_eq!(full.desk.view(full.lease).held, mib(60));
    }
    for (asked, waits) in [(10, true), (12, false)] {
        let mut desk = Desk::new(&[100]);
        let [client, other] = [1, 2].map(|uid| desk.client(uid));
        let lease = desk.lease(client, want(20).up_to(100));
        desk.segment(client, lease, 20);
        let grown = desk.segment(client, lease, 10);
        desk.lease(other, want(70));
        desk.free(client, lease, grown);
        let request = desk.allocate(client, lease, asked);
        assert_eq!(desk.answers.contains_key(&request), !waits, "{asked} of the 10 that come back");
    }
}

#[test]
fn who_would_not_wait_is_refused_once_nothing_more_comes_back() {
    let mut full = Full::with_room_to_its_limit();
    let asked = full.desk.allocate_as(full.client, full.lease, 40, NOW, Guard::Outside);
    assert!(!full.desk.answers.contains_key(&asked));
    full.desk.tell(Event::Unproven { segment: full.grown, suspects: Vec::new() });
    let expected = Denial::NoRoom { asked: mib(40), room: mib(0), device: device(0) };
    assert_eq!(full.desk.answer(asked), Answer::Denied(expected));
}

#[test]
fn two_that_wait_beside_each_other_are_looked_at_again_one_after_the_other() {
    let (mut full, first) = Full::freed_and_asked(30, Patience::Endless, Guard::Outside);
    let second = full.desk.allocate_as(full.client, full.lease, 20, NOW, Guard::Outside);
    assert!(!full.desk.answers.contains_key(&second), "either fits");
    full.proven();
    assert!(!full.desk.answers.contains_key(&first), "it is being made");
    let expected = Denial::BeyondLease { limit: mib(60), held: mib(50), asked: mib(20) };
    assert_eq!(full.desk.answer(second), Answer::Denied(expected));
}

/// Growth that waits in the line, beside what its lease takes within the reserve and gives back.
#[test]
fn growth_in_the_line_steps_aside_while_its_lease_drains() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(30).up_to(60));
    desk.segment(client, lease, 20);
    let others = desk.lease(other, want(70));
    let asked = desk.allocate_as(client, lease, 40, Patience::Endless, Guard::Outside);
    desk.pass(100);
    let seen = |desk: &Desk| {
        let view = &desk.snapshot().waiting[0];
        (view.reason, view.short_by, view.barrier)
    };
    assert_eq!(seen(&desk), (Reason::NoRoom, mib(30), true));
    let short = desk.segment(client, lease, 10);
    desk.free(client, lease, short);
    assert_eq!(seen(&desk), (Reason::Draining, mib(10), false));
    desk.release(other, others);
    assert_eq!(desk.view(lease).held, mib(20), "there is room, and its limit is in the way");
    desk.tell(Event::Freed { segment: short });
    assert_eq!(desk.view(lease).held, mib(60));
    assert!(!desk.answers.contains_key(&asked), "it is being made");
}

/// The limit was overrun: what was promised within the reserve was not counted beside growth.
#[test]
fn what_is_promised_counts_in_the_limit() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(50).up_to(60));
    let old = desk.segment(client, lease, 40);
    desk.free(client, lease, old);
    // 10 are set aside, 40 drain: 50 wait for both.
    desk.allocate(client, lease, 50);
    let growth = desk.allocate(client, lease, 20);
    let expected = Denial::BeyondLease { limit: mib(60), held: mib(50), asked: mib(20) };
    assert_eq!(desk.answer(growth), Answer::Denied(expected));
    desk.tell(Event::Freed { segment: old });
    assert_eq!(desk.view(lease).held, mib(50));
}

/// A lease's limit is what its account could give it: the account counts what drains, too.
#[test]
fn what_drains_is_not_held_against_the_limit_of_the_account() {
    let budgets = Budgets { default_user: limit(60), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[100], budgets);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(60));
    desk.segment(client, lease, 20);
    let grown = desk.segment(client, lease, 40);
    desk.free(client, lease, grown);
    let asked = desk.allocate(client, lease, 40);
    assert!(!desk.answers.contains_key(&asked));
    desk.tell(Event::Freed { segment: grown });
    assert_eq!(desk.view(lease).held, mib(60));
}
