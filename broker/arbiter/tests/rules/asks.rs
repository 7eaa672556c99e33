//! Asks: what is refused at once and how, what waits, taking an ask up again, giving it up.

use gpulease_arbiter::{Denial, DeviceWish, Effect, Event, Policy};
use gpulease_words::{Bytes, LeaseId, Reason, SessionId, mib};

use crate::desk::{Answer, Ask, Client, Desk, NOW, device, policy, seconds, want};

#[test]
fn terms_that_make_no_sense_say_why() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    let uneven = gpulease_arbiter::Terms { reserve: Bytes::new(mib(4).get() - 1), limit: mib(4), ..want(2) };
    for (terms, word) in [
        (want(0), "at least 2 MiB"),
        (uneven, "multiple of 2 MiB"),
        (want(4).up_to(2), "less than the reserve"),
        (want(4).named(""), "1 to 64"),
        (want(4).named(&"x".repeat(65)), "1 to 64"),
        (want(4).named("a\nb"), "one line"),
        (want(4).named("a\u{202e}b"), "one line"),
        (want(4).on(&[]), "no device"),
    ] {
        let denial = desk.refused(client, terms);
        assert_eq!(denial.reason(), Reason::Malformed);
        assert!(denial.to_string().contains(word), "{denial}");
    }
    desk.lease(client, want(4).named(&"é".repeat(64)));
}

#[test]
fn devices_that_are_not_there() {
    let mut desk = Desk::new(&[1000, 1000]);
    let client = desk.client(1);
    assert_eq!(desk.refused(client, want(2).any(3)), Denial::TooManyDevices { asked: 3, present: 2 });
    let denial = desk.refused(client, want(2).on(&[0, 2]));
    assert_eq!(denial, Denial::NoSuchDevice { device: device(2), devices: "0, 1".to_owned() });
    desk.tell(Event::DeviceLost { device: device(1) });
    assert_eq!(desk.refused(client, want(2).on(&[1])), Denial::DeviceLost { device: device(1) });
    assert_eq!(desk.refused(client, want(2).any(2)), Denial::TooManyDevices { asked: 2, present: 1 });
}

#[test]
fn more_than_the_card_is_refused_whatever_is_on_it_now() {
    let mut desk = Desk::with_overhead(&[1024, 512], 64);
    let client = desk.client(1);
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(500)) });
    let denial = desk.refused(client, want(962));
    assert_eq!(denial, Denial::TooLarge { asked: mib(962), overhead: mib(64), largest: mib(960) });
    desk.queue(client, want(960));
    let denial = desk.refused(client, want(450).any(2));
    assert_eq!(denial, Denial::TooLarge { asked: mib(450), overhead: mib(64), largest: mib(448) });
    let denial = desk.refused(client, Desk::huge());
    assert_eq!(denial.reason(), Reason::TooLarge);
}

#[test]
fn without_patience_the_answer_is_now_and_leaves_no_trace() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    desk.lease(client, want(600));
    let before = desk.snapshot();
    let denial = desk.refused(client, want(402).patient(NOW));
    assert_eq!(denial, Denial::NoRoom { asked: mib(402), room: mib(400), device: device(0) });
    let after = desk.snapshot();
    assert_eq!((before.devices, before.accounts, after.waiting.len()), (after.devices, after.accounts, 0));
    assert_eq!(desk.arbiter.poll_timeout(), None);
    desk.lease(client, want(400).patient(NOW));
}

#[test]
fn patience_ends_with_numbers() {
    let mut desk = Desk::new(&[1000]);
    let client = desk.client(1);
    desk.lease(client, want(600));
    desk.queue(client, want(500).patient(seconds(30)));
    desk.pass(29);
    assert_eq!(desk.line().len(), 1);
    desk.pass(1);
    let denial = Denial::WaitOver { waited: std::time::Duration::from_secs(30), short_by: mib(100) };
    assert!(
        desk.said.iter().any(|effect| matches!(effect, Effect::Denied { denial: d, .. } if *d == denial))
    );
    assert!(desk.line().is_empty());
}

#[test]
fn what_is_due_at_once_is_done_in_portions() {
    let bounds = Policy { asks_per_uid: 1_000, ..policy() };
    let mut desk = Desk::with(bounds, gpulease_arbiter::Budgets::default(), &[100], 0);
    let client = desk.client(1);
    desk.lease(client, want(100));
    for _ in 0..257 {
        desk.queue(client, want(10).patient(seconds(30)));
    }
    let late = gpulease_arbiter::Time::after_start(std::time::Duration::from_secs(60));
    desk.arbiter.handle_timeout(late);
    assert_eq!(desk.line().len(), 1);
    assert!(desk.arbiter.poll_timeout().is_some_and(|(at, _)| at < late));
    desk.arbiter.handle_timeout(late);
    assert!(desk.line().is_empty());
}

#[test]
fn bounds_on_asks_and_leases_name_the_account() {
    let bounds = Policy { asks_per_uid: 2, leases_per_uid: 3, ..policy() };
    let mut desk = Desk::with(bounds, gpulease_arbiter::Budgets::default(), &[100], 0);
    let [one, two] = [1, 2].map(|uid| desk.client(uid));
    desk.lease(one, want(98));
    desk.queue(one, want(98));
    desk.queue(one, want(98));
    let what = |what, max| Denial::TooMany { what, account: "user.1".to_owned(), max };
    assert_eq!(desk.refused(one, want(2)), what("waiting asks", 2));
    desk.lease(two, want(2));
    desk.queue(two, want(2));

    let mut desk =
        Desk::with(Policy { leases_per_uid: 3, ..policy() }, gpulease_arbiter::Budgets::default(), &[100], 0);
    let one = desk.client(1);
    for _ in 0..3 {
        desk.lease(one, want(2));
    }
    assert_eq!(desk.refused(one, want(2).patient(NOW)), what("leases", 3));
}

#[test]
fn the_broker_has_bounds_of_its_own() {
    let bounds = Policy { asks_max: 1, leases_max: 2, sessions_max: 3, sessions_per_uid: 2, ..policy() };
    let mut desk = Desk::with(bounds, gpulease_arbiter::Budgets::default(), &[100], 0);
    let [one, two, _] = [1, 2, 2].map(|uid| desk.client(uid));
    let peer = desk.peer(2, None);
    let refused =
        |what, account: &str, max| Answer::Denied(Denial::TooMany { what, account: account.to_owned(), max });
    assert_eq!(desk.ask(|request| Event::Open { request, peer }), refused("sessions", "user.2", 2));
    let peer = desk.peer(3, None);
    assert_eq!(desk.ask(|request| Event::Open { request, peer }), refused("sessions", "host", 3));
    desk.lease(one, want(50));
    desk.queue(one, want(60));
    assert_eq!(desk.acquire(two, want(60)), refused("waiting asks", "host", 1));
    desk.die(one);
    for _ in 0..2 {
        desk.lease(two, want(10));
    }
    assert_eq!(desk.acquire(two, want(10).patient(NOW)), refused("leases", "host", 2));
}

#[test]
fn the_same_name_is_the_same_ask() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60));
    let first = desk.acquire_as(client, 7, want(50));
    assert_eq!(desk.acquire_as(client, 7, want(50).patient(NOW)), first, "it waits on, in its place");
    assert!(matches!(desk.acquire_as(client, 7, want(48)), Answer::Denied(Denial::Malformed(_))));
    desk.release(client, lease);
    let Answer::Granted(second) = desk.acquire_as(client, 7, want(50)) else {
        panic!("it was granted and is told so again");
    };
    assert!(matches!(desk.acquire_as(client, 7, want(48)), Answer::Denied(Denial::Malformed(_))));
    desk.release(client, second);
    assert!(matches!(desk.acquire_as(client, 7, want(48)), Answer::Granted(third) if third != second));
}

#[test]
fn an_ask_taken_up_elsewhere_answers_the_first_asker() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    desk.lease(client, want(60));
    let ask = |session| move |request| Event::Acquire { request, session, ask_name: 1, terms: want(50) };
    let first = desk.request(ask(client.session));
    desk.request(ask(client.session));
    assert_eq!(desk.answer(first), Answer::Denied(Denial::Withdrawn));
}

#[test]
fn a_withdrawn_ask_is_answered_and_withdrawing_again_is_harmless() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60));
    let ask = desk.request(|request| Event::Acquire {
        request,
        session: client.session,
        ask_name: 9,
        terms: want(50),
    });
    let withdraw = |desk: &mut Desk, client: Client| {
        desk.ask(|request| Event::Withdraw { request, session: client.session, ask_name: 9 })
    };
    assert_eq!(withdraw(&mut desk, client), Answer::Done);
    assert_eq!(desk.answer(ask), Answer::Denied(Denial::Withdrawn));
    assert_eq!(withdraw(&mut desk, client), Answer::Done);
    desk.release(client, lease);
    desk.acquire_as(client, 9, want(50));
    assert_eq!(withdraw(&mut desk, client), Answer::Done);
    assert!(desk.snapshot().leases.is_empty(), "the lease that it became is released");
    let stranger = Client { session: SessionId::new(99), ..client };
    assert_eq!(withdraw(&mut desk, stranger), Answer::Denied(Denial::NoSuchSession));
}

fn unattended(desk: &mut Desk, client: Client) {
    desk.tell(Event::Unattended { session: client.session, ask_name: 1 });
}

#[test]
fn an_unattended_ask_is_withdrawn_after_the_grace_unless_taken_up() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    desk.lease(client, want(60));
    desk.acquire_as(client, 1, want(50));
    unattended(&mut desk, client);
    desk.pass(9);
    assert!(matches!(desk.acquire_as(client, 1, want(50)), Answer::Queued(_)));
    desk.pass(9);
    assert_eq!(desk.line().len(), 1);
    unattended(&mut desk, client);
    desk.pass(10);
    assert!(desk.line().is_empty() && desk.said.is_empty(), "nobody is there to be told");
}

#[test]
fn a_grant_to_a_broken_stream_waits_until_the_grace_is_over() {
    for back_in_time in [true, false] {
        let mut desk = Desk::new(&[100]);
        let client = desk.client(1);
        let blocker = desk.lease(client, want(60));
        desk.acquire_as(client, 1, want(50));
        unattended(&mut desk, client);
        desk.pass(6);
        desk.release(client, blocker);
        assert!(desk.said.contains(&Effect::Granted { request: None, lease: LeaseId::new(2) }));
        desk.pass(3);
        if back_in_time {
            assert_eq!(desk.acquire_as(client, 1, want(50)), Answer::Granted(LeaseId::new(2)));
        }
        desk.pass(5);
        assert_eq!(desk.arbiter.lease(LeaseId::new(2)).is_some(), back_in_time);
    }
}

#[test]
fn an_unattended_lease_that_is_used_stays() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let Answer::Granted(lease) = desk.acquire_as(client, 1, want(50)) else { panic!("there is room") };
    unattended(&mut desk, client);
    desk.segment(client, lease, 2);
    desk.pass(60);
    assert!(desk.arbiter.lease(lease).is_some());
}

#[test]
fn a_lost_device_takes_its_asks_with_it() {
    let mut desk = Desk::new(&[100, 100]);
    let client = desk.client(1);
    let busy = desk.lease(client, want(90).any(2));
    let named = desk.request(|request| Event::Acquire {
        request,
        session: client.session,
        ask_name: 101,
        terms: gpulease_arbiter::Terms { devices: DeviceWish::These([device(1)].into()), ..want(50) },
    });
    let pair = desk.request(|request| Event::Acquire {
        request,
        session: client.session,
        ask_name: 102,
        terms: want(50).any(2),
    });
    let any = desk.queue(client, want(50));
    desk.tell(Event::DeviceLost { device: device(1) });
    assert_eq!(desk.answer(named), Answer::Denied(Denial::DeviceLost { device: device(1) }));
    assert_eq!(desk.answer(pair), Answer::Denied(Denial::TooManyDevices { asked: 2, present: 1 }));
    assert_eq!(desk.line(), [any]);
    desk.release(client, busy);
    assert_eq!(desk.snapshot().leases[0].devices, [device(0)]);
}

impl Desk {
    fn huge() -> gpulease_arbiter::Terms {
        let most = Bytes::MAX.round_down();
        gpulease_arbiter::Terms { reserve: most, limit: Bytes::MAX, ..want(2) }
    }
}
