//! Segments and leases on their way back: `Freed` is the only credit.

use gpulease_arbiter::{Authority, Denial, Effect, Event, LeaseState, Notice};
use gpulease_words::{LeaseId, Pid, SegmentId, Uid, mib};

use crate::desk::{Answer, Ask, Desk, NOW, device, want};

#[test]
fn freed_bytes_are_credited_when_they_are_proven_and_once() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(80));
    let segment = desk.segment(client, lease, 80);
    assert_eq!(desk.free(client, lease, segment), Answer::Done);
    assert!(desk.said.contains(&Effect::Reclaim { segment, device: device(0) }));
    assert_eq!((desk.device(0).draining, desk.device(0).free), (mib(80), mib(20)));
    desk.tell(Event::Freed { segment });
    assert_eq!((desk.device(0).set_aside, desk.device(0).free), (mib(20), mib(80)));
    desk.tell(Event::Freed { segment });
    assert_eq!((desk.device(0).set_aside, desk.device(0).free), (mib(20), mib(80)));
    assert_eq!(desk.free(client, lease, segment), Answer::Denied(Denial::NoSuchSegment));
}

#[test]
fn words_about_segments_that_are_not_there_change_nothing() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20));
    let segment = desk.segment(client, lease, 20);
    for of in [segment, SegmentId::new(77)] {
        desk.tell(Event::Freed { segment: of });
        desk.tell(Event::Unproven { segment: of, suspects: vec![Pid::new(1)] });
        desk.tell(Event::Created { segment: of });
        desk.tell(Event::CreateFailed { segment: of, why: String::new() });
        assert_eq!((desk.device(0).held, desk.said.len()), (mib(20), 0));
    }
    desk.tell(Event::Claimed { segment: SegmentId::new(77) });
    assert!(!desk.view(lease).used);
    desk.tell(Event::Claimed { segment });
    assert!(desk.view(lease).used);
}

#[test]
fn what_can_not_be_proven_stays_charged_with_its_suspects() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20));
    let segment = desk.segment(client, lease, 20);
    desk.free(client, lease, segment);
    desk.tell(Event::Unproven { segment, suspects: vec![Pid::new(8), Pid::new(7)] });
    let view = desk.view(lease);
    assert_eq!(
        (view.quarantined, view.suspects, view.set_aside),
        (mib(20), vec![Pid::new(7), Pid::new(8)], mib(0))
    );
    desk.release(client, lease);
    assert_eq!(desk.view(lease).state, LeaseState::Draining);
    desk.tell(Event::Freed { segment });
    assert!(desk.said.contains(&Effect::LeaseGone { lease }));
    assert_eq!(desk.device(0).free, mib(100));
}

#[test]
fn a_release_gives_back_what_is_set_aside_and_waits_for_what_is_mapped() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60));
    let segments = [20, 10].map(|bytes| desk.segment(client, lease, bytes));
    desk.free(client, lease, segments[1]);
    assert_eq!(desk.release(client, lease), Answer::Released(mib(30)));
    let book = desk.device(0);
    assert_eq!((book.set_aside, book.held, book.draining, book.free), (mib(0), mib(20), mib(10), mib(70)));
    assert_eq!(desk.release(client, lease), Answer::Released(mib(30)), "again, with one effect");
    let denied = desk.allocate(client, lease, 2);
    assert_eq!(desk.answer(denied), Answer::Denied(Denial::Ending));
    desk.tell(Event::Freed { segment: segments[1] });
    desk.give_back(client, lease, segments[0]);
    assert_eq!(desk.arbiter.lease(lease), None);
    assert_eq!(desk.release(client, lease), Answer::Denied(Denial::NoSuchLease));
}

#[test]
fn only_who_may_releases() {
    let mut desk = Desk::new(&[100]);
    let [owner, twin, other] = [1, 1, 2].map(|uid| desk.client(uid));
    let mut lease = desk.lease(owner, want(10));
    let release =
        |desk: &mut Desk, authority, lease| desk.ask(|request| Event::Release { request, authority, lease });
    for authority in
        [Authority::Session(twin.session), Authority::Session(other.session), Authority::User(Uid::new(2))]
    {
        assert_eq!(release(&mut desk, authority, lease), Answer::Denied(Denial::NoSuchLease));
    }
    assert_eq!(release(&mut desk, Authority::Operator, LeaseId::new(9)), Answer::Denied(Denial::NoSuchLease));
    for authority in [Authority::User(Uid::new(1)), Authority::Operator] {
        assert_eq!(release(&mut desk, authority, lease), Answer::Released(mib(0)));
        let ended = Notice::Ended { lease, denial: Denial::EndedByOther };
        assert_eq!(desk.notices(), [(owner.session, ended)]);
        lease = desk.lease(owner, want(10));
    }
    desk.release(owner, lease);
    assert!(desk.notices().is_empty());
}

#[test]
fn a_death_drains_what_the_process_had_and_serves_the_next() {
    let mut desk = Desk::with_overhead(&[100], 10);
    let [victim, next] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(victim, want(60));
    let segment = desk.segment(victim, lease, 40);
    desk.queue(next, want(50));
    desk.die(victim);
    assert_eq!(desk.view(lease).state, LeaseState::Draining);
    assert_eq!(desk.granted(), [2], "60 were free: 50 and a context of 10");
    assert_eq!((desk.device(0).draining, desk.device(0).free), (mib(40), mib(0)));
    desk.tell(Event::Freed { segment });
    assert_eq!(desk.arbiter.lease(lease), None);
    assert_eq!(desk.device(0).free, mib(40));
}

#[test]
fn a_segment_in_the_making_of_a_dead_process_is_taken_back_when_made() {
    for fails in [true, false] {
        let mut desk = Desk::new(&[100]);
        let victim = desk.client(1);
        let lease = desk.lease(victim, want(60));
        let asked = desk.allocate(victim, lease, 40);
        let segment = desk.making();
        desk.die(victim);
        assert_eq!((desk.device(0).draining, desk.device(0).set_aside), (mib(40), mib(0)));
        if fails {
            desk.tell(Event::CreateFailed { segment, why: "full".to_owned() });
        } else {
            desk.tell(Event::Created { segment });
            assert_eq!(desk.said, [Effect::Reclaim { segment, device: device(0) }]);
            desk.tell(Event::Freed { segment });
        }
        assert_eq!(desk.device(0).free, mib(100));
        assert!(desk.said.contains(&Effect::LeaseGone { lease }));
        assert_eq!(desk.answer(asked), Answer::Denied(Denial::Withdrawn));
    }
}

#[test]
fn a_release_disappoints_those_who_wait_for_segments() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(100));
    let other = desk.lease(client, want(60).patient(NOW));
    let made = desk.allocate(client, lease, 20);
    let segment = desk.making();
    let waits = desk.allocate_as(
        client,
        lease,
        60,
        gpulease_arbiter::Patience::Endless,
        gpulease_arbiter::Guard::Outside,
    );
    desk.release(client, lease);
    for request in [made, waits] {
        assert_eq!(desk.answer(request), Answer::Denied(Denial::Ending));
    }
    desk.tell(Event::Created { segment });
    assert_eq!(desk.said, [Effect::Reclaim { segment, device: device(0) }]);
    assert!(desk.arbiter.lease(other).is_some());
}
