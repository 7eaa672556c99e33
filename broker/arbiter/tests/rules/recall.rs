//! Surplus asked back, and what becomes of one who does not give it.

use std::time::Duration;

use gpulease_arbiter::{Denial, Effect, Event, Guard, Notice, Patience, Time};
use gpulease_words::{LeaseId, mib};

use crate::desk::{Answer, Ask, Client, Desk, device, want};

/// A lease of 20 up to 100 that holds 20, 30 and 10 more.
fn holder() -> (Desk, Client, LeaseId, [gpulease_words::SegmentId; 3]) {
    let mut desk = Desk::new(&[200]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(100));
    let segments = [20, 30, 10].map(|bytes| desk.segment(client, lease, bytes));
    (desk, client, lease, segments)
}

fn recall(desk: &mut Desk, lease: LeaseId, bytes: u64) -> Answer {
    desk.ask(|request| Event::Recall { request, lease, bytes: mib(bytes), within: Duration::from_secs(5) })
}

#[test]
fn at_most_the_surplus_is_asked() {
    for (asked, expected) in [(0, 40), (10, 10), (500, 40)] {
        let (mut desk, client, lease, _) = holder();
        assert_eq!(recall(&mut desk, lease, asked), Answer::Recalled(mib(expected)));
        let deadline = Time::after_start(Duration::from_secs(5));
        let notice = Notice::Recall { lease, device: device(0), bytes: mib(expected), deadline };
        assert_eq!(desk.notices(), [(client.session, notice)]);
    }
}

#[test]
fn a_lease_without_surplus_owes_nothing() {
    let mut desk = Desk::new(&[200]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(100));
    desk.segment(client, lease, 20);
    assert_eq!(recall(&mut desk, lease, 0), Answer::Recalled(mib(0)));
    assert_eq!(desk.arbiter.poll_timeout(), None);
    assert_eq!(recall(&mut desk, LeaseId::new(9), 0), Answer::Denied(Denial::NoSuchLease));
    desk.release(client, lease);
    assert_eq!(recall(&mut desk, lease, 0), Answer::Denied(Denial::Ending));
}

#[test]
fn enough_given_back_in_time_ends_it() {
    let (mut desk, client, lease, segments) = holder();
    recall(&mut desk, lease, 30);
    desk.free(client, lease, segments[1]);
    desk.pass(10);
    assert!(!desk.view(lease).overdue);
    desk.segment(client, lease, 2);
}

#[test]
fn too_little_makes_it_overdue_until_enough_is_back() {
    let (mut desk, client, lease, segments) = holder();
    recall(&mut desk, lease, 40);
    desk.free(client, lease, segments[1]);
    desk.pass(5);
    assert_eq!(desk.said, [Effect::Overdue { lease }]);
    let denied = desk.allocate(client, lease, 2);
    assert_eq!(desk.answer(denied), Answer::Denied(Denial::Overdue));
    desk.tell(Event::Freed { segment: segments[1] });
    desk.free(client, lease, segments[2]);
    assert!(!desk.view(lease).overdue, "given back is enough; the proof is the device's");
    desk.segment(client, lease, 2);
}

#[test]
fn an_overdue_lease_has_its_reserve_and_no_growth() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(40).up_to(100));
    desk.segment(client, lease, 60);
    desk.lease(other, want(40));
    let waits = desk.allocate_as(client, lease, 30, Patience::Endless, Guard::Outside);
    recall(&mut desk, lease, 0);
    desk.pass(5);
    assert_eq!(desk.answer(waits), Answer::Denied(Denial::Overdue));
    let (reserve, limit) = (mib(80), mib(100));
    let resized =
        desk.ask(|request| Event::Resize { request, session: client.session, lease, reserve, limit });
    assert_eq!(resized, Answer::Denied(Denial::Overdue));
}

#[test]
fn a_lease_becomes_overdue_once_and_stays_so_for_each_reason() {
    let (mut desk, client, lease, segments) = holder();
    recall(&mut desk, lease, 40);
    desk.tell(Event::Adrift { session: client.session });
    desk.pass(5);
    assert_eq!(desk.said, [Effect::Overdue { lease }]);
    desk.pass(5);
    assert!(desk.said.is_empty(), "it stayed away as well, and is overdue already");
    desk.tell(Event::Rejoined { session: client.session });
    assert!(desk.view(lease).overdue);
    for segment in &segments[1..] {
        desk.free(client, lease, *segment);
    }
    assert!(!desk.view(lease).overdue);
}

#[test]
fn a_session_that_comes_back_is_told_again() {
    let (mut desk, client, lease, _) = holder();
    desk.tell(Event::Adrift { session: client.session });
    recall(&mut desk, lease, 10);
    assert!(desk.notices().is_empty(), "nobody is there");
    desk.tell(Event::Rejoined { session: client.session });
    let deadline = Time::after_start(Duration::from_secs(5));
    assert_eq!(
        desk.notices(),
        [(client.session, Notice::Recall { lease, device: device(0), bytes: mib(10), deadline })]
    );
}

/// One with memory of a lease that another process asked for, as below `gpulease run`.
#[test]
fn a_member_that_comes_back_is_told_again() {
    let (mut desk, _, lease, _) = holder();
    let member = desk.client(1);
    desk.ask(|request| Event::Join { request, session: member.session, lease, ancestors: Vec::new() });
    desk.tell(Event::Adrift { session: member.session });
    recall(&mut desk, lease, 10);
    desk.tell(Event::Rejoined { session: member.session });
    let deadline = Time::after_start(Duration::from_secs(5));
    assert_eq!(
        desk.notices(),
        [(member.session, Notice::Recall { lease, device: device(0), bytes: mib(10), deadline })]
    );
}
