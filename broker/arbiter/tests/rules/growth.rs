//! Segments within the reserve and above it.

use gpulease_arbiter::{Budgets, Denial, Effect, Event, Guard, Patience, SegmentKind};
use gpulease_words::{Bytes, Reason, SegmentId, mib};

use crate::desk::{Answer, Ask, Desk, NOW, device, limit, seconds, want};

#[test]
fn the_limit_of_the_lease_is_met_to_the_last_segment() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(100).up_to(200));
    desk.segment(client, lease, 100);
    let denied = desk.allocate(client, lease, 102);
    let expected = Denial::BeyondLease { limit: mib(200), held: mib(100), asked: mib(102) };
    assert_eq!(desk.answer(denied), Answer::Denied(expected));
    desk.segment(client, lease, 100);
    let view = desk.view(lease);
    assert_eq!((view.held, view.set_aside, view.held_peak, view.segments), (mib(200), mib(0), mib(200), 2));
}

#[test]
fn segments_that_make_no_sense() {
    let mut desk = Desk::new(&[1000, 1000]);
    let [client, other] = [1, 1].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(100).on(&[1]));
    let allocate = |desk: &mut Desk, session, on, bytes| {
        desk.ask(|request| Event::Allocate {
            request,
            session,
            lease,
            device: device(on),
            bytes,
            kind: SegmentKind::CudaIpc,
            patience: Patience::None,
            guard: Guard::Outside,
        })
    };
    for bytes in [Bytes::ZERO, Bytes::new(1), mib(3), Bytes::MAX] {
        assert!(matches!(
            allocate(&mut desk, client.session, 1, bytes),
            Answer::Denied(Denial::Malformed(_))
        ));
    }
    let beyond = allocate(&mut desk, client.session, 1, Bytes::MAX.round_down());
    assert!(matches!(beyond, Answer::Denied(Denial::BeyondLease { .. })));
    let elsewhere = allocate(&mut desk, client.session, 0, mib(2));
    assert_eq!(
        elsewhere,
        Answer::Denied(Denial::NoSuchDevice { device: device(0), devices: "1".to_owned() })
    );
    let stranger = allocate(&mut desk, other.session, 1, mib(2));
    assert_eq!(stranger, Answer::Denied(Denial::NoSuchLease), "of the same user, but no member");
    desk.tell(Event::DeviceLost { device: device(1) });
    let lost = allocate(&mut desk, client.session, 1, mib(2));
    assert_eq!(lost, Answer::Denied(Denial::DeviceLost { device: device(1) }));
}

#[test]
fn within_the_reserve_there_is_always_room() {
    let mut desk = Desk::new(&[1000]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(400));
    desk.lease(other, want(600));
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(300)) });
    desk.segment(client, lease, 400);
    assert_eq!(desk.view(lease).held, mib(400));
}

#[test]
fn growth_uses_what_is_set_aside_first() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(100).up_to(300));
    desk.allocate(client, lease, 160);
    let book = desk.device(0);
    assert_eq!((book.held, book.set_aside, book.free), (mib(160), mib(0), mib(840)));
}

#[test]
fn growth_without_room_says_so_or_waits() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(20).up_to(80));
    let busy = desk.lease(other, want(50));
    let denied = desk.allocate(client, lease, 60);
    let expected = Denial::NoRoom { asked: mib(40), room: mib(30), device: device(0) };
    assert_eq!(desk.answer(denied), Answer::Denied(expected));
    let inside = desk.allocate_as(client, lease, 60, Patience::Endless, Guard::Inside);
    assert_eq!(desk.answer(inside), Answer::Denied(Denial::WouldDeadlock { asked: mib(60) }));
    let waits = desk.allocate_as(client, lease, 60, seconds(50), Guard::Outside);
    let view = &desk.snapshot().waiting[0];
    assert_eq!((view.lease, view.short_by, view.reserve), (Some(lease), mib(10), mib(60)));
    desk.release(other, busy);
    let segment = desk.making();
    desk.tell(Event::Created { segment });
    assert_eq!(desk.answer(waits), Answer::Allocated(segment));
}

#[test]
fn inside_a_guard_what_is_there_is_given() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(80));
    desk.allocate_as(client, lease, 80, Patience::Endless, Guard::Inside);
    assert_eq!(desk.device(0).held, mib(80));
}

#[test]
fn a_waiting_growth_needs_less_when_its_own_lease_gets_bytes_back() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(40).up_to(80));
    let first = desk.segment(client, lease, 40);
    desk.lease(other, want(50));
    desk.allocate_as(client, lease, 20, Patience::Endless, Guard::Outside);
    assert_eq!(desk.snapshot().waiting[0].short_by, mib(10));
    desk.give_back(client, lease, first);
    let segment = desk.making();
    assert_eq!((desk.view(lease).held, desk.view(lease).set_aside), (mib(20), mib(20)));
    assert!(segment > first);
}

#[test]
fn own_draining_bytes_are_waited_for_whatever_the_patience() {
    for (patience, guard) in [(NOW, Guard::Outside), (Patience::Endless, Guard::Inside)] {
        let mut desk = Desk::new(&[100]);
        let [client, other] = [1, 2].map(|uid| desk.client(uid));
        let lease = desk.lease(client, want(50));
        desk.lease(other, want(50));
        let old = desk.segment(client, lease, 50);
        desk.free(client, lease, old);
        let waits = desk.allocate_as(client, lease, 30, patience, guard);
        assert_eq!(desk.snapshot().waiting[0].reason, Reason::Draining);
        desk.pass(1_000);
        assert!(!desk.answers.contains_key(&waits));
        desk.tell(Event::Freed { segment: old });
        let segment = desk.making();
        desk.tell(Event::Created { segment });
        assert_eq!(desk.answer(waits), Answer::Allocated(segment));
        assert_eq!(desk.view(lease).set_aside, mib(20));
    }
}

#[test]
fn an_allocation_beside_a_waiting_one_takes_nothing_of_it() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(50).up_to(100));
    let old = desk.segment(client, lease, 40);
    desk.free(client, lease, old);
    // 10 are set aside, 40 drain: 30 wait for 20 of those.
    desk.allocate(client, lease, 30);
    desk.segment(client, lease, 10);
    assert_eq!((desk.device(0).set_aside, desk.device(0).free), (mib(0), mib(50)));
    // The reserve is spoken for: this is growth.
    desk.segment(client, lease, 20);
    assert_eq!((desk.device(0).held, desk.device(0).free), (mib(30), mib(30)));
    desk.tell(Event::Freed { segment: old });
    assert_eq!(
        (desk.device(0).held, desk.device(0).set_aside, desk.device(0).free),
        (mib(60), mib(0), mib(40))
    );
}

/// A storm's seed 5903: the growth was granted with what it had lacked before the promise.
#[test]
fn what_is_promised_to_one_allocation_is_not_there_for_another_that_waits() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(50).up_to(100));
    let [_, old] = [30, 10].map(|bytes| desk.segment(client, lease, bytes));
    let busy = desk.lease(other, want(40));
    desk.free(client, lease, old);
    desk.allocate_as(client, lease, 30, Patience::Endless, Guard::Outside);
    // 10 are set aside and 10 are free: 30 of growth lack 10.
    assert_eq!(desk.snapshot().waiting[0].short_by, mib(10));
    // 20 within the reserve wait for the 10 that drain, and have the 10 set aside.
    desk.allocate(client, lease, 20);
    assert_eq!(desk.snapshot().waiting[1].short_by, mib(20));
    desk.release(other, busy);
    assert_eq!((desk.view(lease).held, desk.device(0).free), (mib(60), mib(20)));
    desk.tell(Event::Freed { segment: old });
    assert_eq!((desk.view(lease).held, desk.view(lease).set_aside), (mib(80), mib(0)));
}

#[test]
fn own_bytes_that_can_not_be_proven_free_turn_the_wait_into_growth() {
    for room in [true, false] {
        let mut desk = Desk::new(&[100]);
        let [client, other] = [1, 2].map(|uid| desk.client(uid));
        let lease = desk.lease(client, want(50).up_to(100));
        desk.lease(other, want(if room { 20 } else { 50 }));
        let old = desk.segment(client, lease, 50);
        desk.free(client, lease, old);
        let waits = desk.allocate(client, lease, 30);
        desk.tell(Event::Unproven { segment: old, suspects: Vec::new() });
        if room {
            assert_eq!(desk.device(0).held, mib(30));
        } else {
            let expected = Denial::NoRoom { asked: mib(30), room: mib(0), device: device(0) };
            assert_eq!(desk.answer(waits), Answer::Denied(expected));
        }
    }
}

#[test]
fn growth_over_the_budget_is_refused_or_waits_for_the_account() {
    let budgets = Budgets { default_user: limit(100), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[1000], budgets);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60).up_to(200));
    let other = desk.lease(client, want(20));
    desk.segment(client, lease, 60);
    let never = desk.allocate(client, lease, 42);
    let account = "user.1".to_owned();
    let expected = Denial::BeyondLease { limit: mib(100), held: mib(60), asked: mib(42) };
    assert_eq!(desk.answer(never), Answer::Denied(expected), "the lease's limit is what its budget can give");
    let full = desk.allocate(client, lease, 40);
    let expected = Denial::AccountFull { account, limit: mib(100), charged: mib(80), asked: mib(40) };
    assert_eq!(desk.answer(full), Answer::Denied(expected));
    desk.allocate_as(client, lease, 40, Patience::Endless, Guard::Outside);
    desk.release(client, other);
    assert_eq!(desk.device(0).held, mib(100));
}

#[test]
fn growth_larger_than_the_card_is_refused() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(400));
    desk.segment(client, lease, 20);
    let denied = desk.allocate_as(client, lease, 72, Patience::Endless, Guard::Outside);
    let expected = Denial::BeyondLease { limit: mib(90), held: mib(20), asked: mib(72) };
    assert_eq!(desk.answer(denied), Answer::Denied(expected), "the lease's limit is what the card can give");
    // Its context turns out larger than it was taken for.
    desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: mib(14) });
    let denied = desk.allocate_as(client, lease, 70, Patience::Endless, Guard::Outside);
    let expected = Denial::TooLarge { asked: mib(70), overhead: mib(14), largest: mib(66) };
    assert_eq!(desk.answer(denied), Answer::Denied(expected));
    desk.segment(client, lease, 66);
}

#[test]
fn a_failed_creation_leaves_things_as_they_were() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(80));
    let before = desk.device(0);
    let asked = desk.allocate(client, lease, 50);
    let segment = desk.making();
    desk.tell(Event::CreateFailed { segment, why: "out of memory".to_owned() });
    assert_eq!(desk.answer(asked), Answer::Denied(Denial::DeviceRefused { why: "out of memory".to_owned() }));
    let after = desk.device(0);
    assert_eq!((before.free, before.set_aside, before.held), (after.free, after.set_aside, after.held));
    desk.tell(Event::Created { segment });
    desk.tell(Event::CreateFailed { segment, why: "again".to_owned() });
    assert!(desk.said.is_empty());
}

#[test]
fn an_abandoned_allocation_leaves_the_line_or_is_taken_back_when_made() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(20).up_to(80));
    desk.lease(other, want(70));
    let waits = desk.allocate_as(client, lease, 60, Patience::Endless, Guard::Outside);
    desk.tell(Event::Abandoned { request: waits });
    assert!(desk.line().is_empty() && desk.said.is_empty());
    let made = desk.allocate(client, lease, 20);
    let segment = desk.making();
    desk.tell(Event::Abandoned { request: made });
    desk.tell(Event::Created { segment });
    assert_eq!(desk.said, [Effect::Reclaim { segment, device: device(0) }]);
    desk.tell(Event::Freed { segment });
    assert_eq!(desk.view(lease).set_aside, mib(20));
    assert!(!desk.answers.contains_key(&made));
}

/// A client gave an allocation up while the device was slow, asked again within its reserve, and was refused for what
/// it had just given up.
#[test]
fn what_is_given_up_while_it_is_made_is_on_its_way_back_at_once() {
    for fails in [false, true] {
        let mut desk = Desk::new(&[100]);
        let client = desk.client(1);
        let lease = desk.lease(client, want(20));
        let given_up = desk.allocate(client, lease, 20);
        let segment = desk.making();
        desk.tell(Event::Abandoned { request: given_up });
        assert_eq!((desk.device(0).held, desk.device(0).draining), (mib(0), mib(20)));
        let again = desk.allocate(client, lease, 20);
        assert!(!desk.answers.contains_key(&again), "it waits for the lease's own bytes");
        if fails {
            desk.tell(Event::CreateFailed { segment, why: String::new() });
        } else {
            desk.tell(Event::Created { segment });
            desk.tell(Event::Freed { segment });
        }
        let second = desk.making();
        desk.tell(Event::Created { segment: second });
        assert_eq!(desk.answer(again), Answer::Allocated(second));
    }
}

#[test]
fn segments_of_a_lease_are_bounded() {
    let policy = gpulease_arbiter::Policy { segments_per_lease: 2, ..crate::desk::policy() };
    let mut desk = Desk::with(policy, Budgets::default(), &[100], 0);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20));
    let first = desk.segment(client, lease, 2);
    desk.segment(client, lease, 2);
    let denied = desk.allocate(client, lease, 2);
    let expected = Denial::TooMany { what: "segments", account: "L1".to_owned(), max: 2 };
    assert_eq!(desk.answer(denied), Answer::Denied(expected));
    desk.give_back(client, lease, first);
    assert_eq!(desk.segment(client, lease, 2), SegmentId::new(3));
}

#[test]
fn a_resize_takes_what_it_needs_or_nothing() {
    let mut desk = Desk::new(&[100, 100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(20).any(2).up_to(40));
    desk.lease(other, want(50).on(&[1]));
    let resize = |desk: &mut Desk, reserve: u64, limit: u64| {
        let (reserve, limit) = (mib(reserve), mib(limit));
        desk.ask(|request| Event::Resize { request, session: client.session, lease, reserve, limit })
    };
    let refused = resize(&mut desk, 52, 60);
    assert_eq!(refused, Answer::Denied(Denial::NoRoom { asked: mib(32), room: mib(30), device: device(1) }));
    assert_eq!((desk.device(0).set_aside, desk.view(lease).limit), (mib(20), mib(40)));
    assert_eq!(resize(&mut desk, 50, 60), Answer::Resized);
    assert_eq!(desk.view(lease).set_aside, mib(100));
    assert_eq!(resize(&mut desk, 10, 60), Answer::Resized);
    assert_eq!((desk.device(0).free, desk.device(1).free), (mib(90), mib(40)));
    assert!(matches!(resize(&mut desk, 0, 60), Answer::Denied(Denial::Malformed(_))));
    assert!(matches!(resize(&mut desk, 20, 10), Answer::Denied(Denial::Malformed(_))));
    let stolen = desk.ask(|request| Event::Resize {
        request,
        session: other.session,
        lease,
        reserve: mib(2),
        limit: mib(2),
    });
    assert_eq!(stolen, Answer::Denied(Denial::NoSuchLease));
}

#[test]
fn a_lowered_limit_refuses_what_waits_beyond_it() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(20).up_to(80));
    desk.lease(other, want(70));
    let [far, near] = [60, 40].map(|n| desk.allocate_as(client, lease, n, Patience::Endless, Guard::Outside));
    let (reserve, limit) = (mib(20), mib(50));
    desk.ask(|request| Event::Resize { request, session: client.session, lease, reserve, limit });
    let expected = Denial::BeyondLease { limit: mib(50), held: mib(0), asked: mib(60) };
    assert_eq!(desk.answer(far), Answer::Denied(expected));
    assert!(!desk.answers.contains_key(&near));
}

#[test]
fn a_resize_leaves_what_waits_for_its_own_bytes() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(50).up_to(80));
    let old = desk.segment(client, lease, 50);
    desk.free(client, lease, old);
    let waits = desk.allocate(client, lease, 30);
    let (reserve, limit) = (mib(50), mib(50));
    desk.ask(|request| Event::Resize { request, session: client.session, lease, reserve, limit });
    assert!(!desk.answers.contains_key(&waits));
    desk.tell(Event::Freed { segment: old });
    assert_eq!(desk.view(lease).held, mib(30));
}

#[test]
fn a_limit_below_what_is_held_takes_nothing_away() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(60));
    desk.segment(client, lease, 60);
    let (reserve, limit) = (mib(20), mib(20));
    let resized =
        desk.ask(|request| Event::Resize { request, session: client.session, lease, reserve, limit });
    assert_eq!(resized, Answer::Resized);
    assert_eq!(desk.view(lease).held, mib(60));
    let denied = desk.allocate(client, lease, 2);
    assert!(matches!(desk.answer(denied), Answer::Denied(Denial::BeyondLease { .. })));
}
