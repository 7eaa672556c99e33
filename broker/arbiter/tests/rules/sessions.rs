//! Sessions open, drift, come back and end.

use gpulease_arbiter::{Denial, Effect, Event, Guard, Patience};
use gpulease_words::{SessionId, mib};

use crate::desk::{Answer, Ask, Client, Desk, want};

#[test]
fn a_session_that_stays_away_makes_its_leases_overdue_until_it_is_back() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(60));
    desk.segment(client, lease, 20);
    desk.tell(Event::Adrift { session: client.session });
    desk.pass(9);
    assert!(desk.view(lease).adrift && !desk.view(lease).overdue);
    desk.tell(Event::Adrift { session: client.session });
    desk.pass(1);
    assert_eq!(desk.said, [Effect::Overdue { lease }], "the second word does not start the grace anew");
    let denied = desk.allocate(client, lease, 2);
    assert_eq!(desk.answer(denied), Answer::Denied(Denial::Overdue));
    desk.tell(Event::Rejoined { session: client.session });
    assert!(!desk.view(lease).overdue && !desk.view(lease).adrift);
    desk.segment(client, lease, 2);
}

#[test]
fn one_that_is_back_in_time_was_never_away() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20));
    desk.tell(Event::Adrift { session: client.session });
    desk.pass(9);
    desk.tell(Event::Rejoined { session: client.session });
    desk.pass(60);
    assert!(!desk.view(lease).overdue);
}

#[test]
fn closing_withdraws_asks_and_gives_leases_back() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60));
    let segment = desk.segment(client, lease, 10);
    let ask = desk.request(|request| Event::Acquire {
        request,
        session: client.session,
        ask_name: 101,
        terms: want(50),
    });
    let growth = desk.lease(client, want(10).up_to(90));
    let grows = desk.allocate_as(client, growth, 60, Patience::Endless, Guard::Outside);
    assert_eq!(desk.ask(|request| Event::Close { request, session: client.session }), Answer::Done);
    assert_eq!(desk.answer(ask), Answer::Denied(Denial::Withdrawn));
    assert_eq!(desk.answer(grows), Answer::Denied(Denial::Withdrawn));
    assert_eq!(desk.device(0).held, mib(10), "it is mapped still");
    assert!(!desk.said.contains(&Effect::ProcessGone { process: client.process }));
    desk.die(client);
    desk.tell(Event::Freed { segment });
    assert_eq!(desk.device(0).free, mib(100));
    let again = desk.ask(|request| Event::Close { request, session: client.session });
    assert_eq!(again, Answer::Denied(Denial::NoSuchSession));
}

#[test]
fn a_process_is_watched_while_it_is_needed() {
    let mut desk = Desk::new(&[100]);
    let peer = desk.peer(1, None);
    let [first, second] = [desk.open(peer.clone()), desk.open(peer)];
    let close = |desk: &mut Desk, client: Client| {
        desk.ask(|request| Event::Close { request, session: client.session })
    };
    close(&mut desk, first);
    assert!(desk.said.contains(&Effect::SessionGone { session: first.session }));
    let gone = Effect::ProcessGone { process: first.process };
    assert!(!desk.said.contains(&gone));
    close(&mut desk, second);
    assert!(desk.said.contains(&gone));
    desk.tell(Event::Died { process: first.process });
    assert!(desk.said.is_empty());
}

#[test]
fn a_death_ends_all_sessions_of_the_process_and_answers_what_they_asked() {
    let mut desk = Desk::new(&[100]);
    let peer = desk.peer(1, None);
    let [first, second] = [desk.open(peer.clone()), desk.open(peer)];
    desk.lease(first, want(60));
    desk.queue(second, want(60));
    desk.die(first);
    let gone = |session| Effect::SessionGone { session };
    assert!(desk.said.contains(&gone(first.session)) && desk.said.contains(&gone(second.session)));
    let withdrawn = |effect: &&Effect| matches!(effect, Effect::Denied { denial: Denial::Withdrawn, .. });
    assert_eq!(desk.said.iter().filter(withdrawn).count(), 1);
    assert_eq!((desk.device(0).free, desk.snapshot().sessions), (mib(100), 0));
}

#[test]
fn who_has_no_session_gets_nothing() {
    let mut desk = Desk::new(&[100]);
    let nobody = SessionId::new(42);
    let answer = desk.ask(|request| Event::Acquire { request, session: nobody, ask_name: 1, terms: want(2) });
    assert_eq!(answer, Answer::Denied(Denial::NoSuchSession));
    desk.tell(Event::Adrift { session: nobody });
    desk.tell(Event::Rejoined { session: nobody });
    desk.tell(Event::Unattended { session: nobody, ask_name: 1 });
    assert!(desk.said.is_empty());
}

#[test]
fn a_spurious_wake_up_is_harmless_and_time_does_not_run_back() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    desk.lease(client, want(60));
    desk.queue(client, want(60).patient(crate::desk::seconds(50)));
    desk.pass(30);
    let before = desk.arbiter.poll_timeout();
    desk.arbiter.handle_timeout(gpulease_arbiter::Time::START);
    desk.arbiter.handle_timeout(desk.now);
    assert_eq!(desk.arbiter.poll_effect(), None);
    assert_eq!(desk.arbiter.poll_timeout(), before);
    let generation = desk.arbiter.generation();
    desk.pass(30);
    assert!(desk.line().is_empty() && desk.arbiter.generation() > generation);
}
