//! Leases leave their device and come back.

use gpulease_arbiter::{
    Budgets, Denial, Effect, Event, Guard, LeaseState, Notice, Patience, Policy, SegmentKind,
};
use gpulease_words::{LeaseId, Reason, SegmentId, mib};

use crate::desk::{Answer, Ask, Client, Desk, NOW, device, moving, want};

/// One device of 100 with an idle lease of 60 that holds it in two segments, past its residency.
fn idler() -> (Desk, Client, LeaseId, [SegmentId; 2]) {
    let mut desk = Desk::movable(100, 200);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60));
    let segments = [40, 20].map(|bytes| desk.held(client, lease, bytes));
    desk.pass(30);
    desk.idle(client, lease);
    (desk, client, lease, segments)
}

fn state(desk: &Desk, lease: LeaseId) -> LeaseState {
    desk.view(lease).state
}

fn made_again(desk: &Desk) -> Vec<SegmentId> {
    let again = desk.said.iter().filter_map(|effect| match effect {
        Effect::Restore { segment, .. } => Some(*segment),
        _ => None,
    });
    again.collect()
}

#[test]
fn an_idle_lease_leaves_for_another_and_each_byte_is_credited_when_it_is_proven() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    let ask = desk.queue(other, want(80));
    let deadline = desk.now.plus(desk_drain());
    assert_eq!(desk.notices(), [(client.session, Notice::Suspend { lease, deadline })]);
    assert_eq!(desk.why(ask), (Reason::Recalled, 40));
    assert_eq!(desk.waiting(ask).recalled, [lease]);
    desk.drained(client, lease);
    assert_eq!(desk.notices(), [(client.session, Notice::SwapOut { lease })]);
    desk.swapped_out(client, lease, segments[0]);
    assert_eq!(desk.said, [Effect::Reclaim { segment: segments[0], device: device(0) }]);
    assert_eq!((desk.device(0).free, desk.device(0).draining), (mib(40), mib(40)));
    desk.tell(Event::Freed { segment: segments[0] });
    assert_eq!(desk.granted(), [2], "80 are free, though the lease has not left altogether");
    desk.swapped_out(client, lease, segments[1]);
    desk.tell(Event::Freed { segment: segments[1] });
    let view = desk.view(lease);
    assert_eq!((view.state, view.held, view.swapped), (LeaseState::Suspended, mib(0), mib(60)));
    let arena = desk.snapshot().arena;
    assert_eq!((arena.filled, arena.set_aside, arena.free), (mib(60), mib(80), mib(60)));
}

const fn desk_drain() -> std::time::Duration {
    std::time::Duration::from_secs(10)
}

#[test]
fn it_comes_back_when_all_of_it_is_free_and_is_resumed_when_all_of_it_is_filled() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.leave(client, lease, &segments);
    let second = LeaseId::new(lease.get() + 1);
    let back = desk.resume(client, lease);
    assert!(matches!(desk.answer(back), Answer::Queued(_)));
    assert_eq!(desk.snapshot().waiting[0].short_by, mib(40));
    desk.release(other, second);
    assert_eq!(made_again(&desk), segments);
    desk.tell(Event::Created { segment: segments[0] });
    assert_eq!(desk.notices(), [(client.session, Notice::SegmentBack { lease, segment: segments[0] })]);
    desk.restored(client, lease, segments[0]);
    assert_eq!(state(&desk, lease), LeaseState::Resuming);
    assert!(matches!(desk.answer(back), Answer::Queued(_)), "half of it is not all of it");
    desk.tell(Event::Created { segment: segments[1] });
    desk.restored(client, lease, segments[1]);
    assert_eq!(desk.answer(back), Answer::Resumed);
    assert_eq!((state(&desk, lease), desk.view(lease).held), (LeaseState::Active, mib(60)));
    let again = desk.resume(client, lease);
    assert_eq!(desk.answer(again), Answer::Resumed, "it is there");
}

#[test]
fn nothing_moves_without_host_memory() {
    let mut desk = Desk::new(&[100]);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(60));
    desk.held(client, lease, 60);
    desk.pass(40);
    desk.idle(client, lease);
    let ask = desk.queue(other, want(80));
    assert!(desk.notices().is_empty());
    desk.pass(200);
    assert!(desk.said.is_empty(), "{:?}", desk.said);
    assert_eq!((desk.why(ask), desk.waiting(ask).at_latest), ((Reason::NoRoom, 40), None));
}

#[test]
fn a_busy_lease_keeps_its_memory_until_the_ask_is_a_barrier_and_its_residency_is_over() {
    let mut desk = Desk::movable(100, 200);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(60));
    desk.held(client, lease, 60);
    desk.pass(40);
    desk.queue(other, want(80));
    assert!(desk.notices().is_empty(), "its account would have the smaller share afterwards");
    desk.pass(99);
    assert_eq!(state(&desk, lease), LeaseState::Active);
    desk.pass(1);
    assert_eq!(state(&desk, lease), LeaseState::Suspending);

    let mut desk = Desk::movable(100, 200);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let blocker = desk.lease(other, want(60));
    desk.queue(other, want(80));
    desk.pass(90);
    desk.release(other, blocker);
    let _ = client;
    assert_eq!(desk.granted(), [2]);
}

/// Residency was by what a lease has on all its devices together, and the promise to others by the largest device.
#[test]
fn a_lease_over_several_devices_keeps_its_memory_by_the_one_that_takes_longest_to_swap() {
    let policy = Policy { swap_bytes_per_second: mib(1), ..moving(400) };
    let mut desk = Desk::with(policy, Budgets::default(), &[100, 100], 0);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(40).any(2));
    desk.queue(other, want(80).on(&[0]));
    desk.pass(399);
    assert_eq!(state(&desk, lease), LeaseState::Active, "ten times the 40 s of one device");
    desk.pass(1);
    assert_eq!(state(&desk, lease), LeaseState::Suspended);
    assert_eq!(desk.granted(), [2]);
}

#[test]
fn an_account_beyond_its_share_gives_at_once_when_its_residency_is_over() {
    let mut desk = Desk::movable(100, 200);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let first = desk.lease(client, want(30));
    let second = desk.lease(client, want(60));
    desk.held(client, first, 30);
    desk.held(client, second, 60);
    desk.queue(other, want(20));
    assert!(desk.notices().is_empty(), "its residency is not over");
    desk.pass(30);
    assert_eq!(state(&desk, first), LeaseState::Suspending, "60 are left to the one, 20 go to the other");
    assert_eq!(state(&desk, second), LeaseState::Active);
}

#[test]
fn who_does_not_drain_in_time_stays_and_is_left_alone_for_longer_each_time() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    let ask = desk.queue(other, want(80));
    desk.pass(10);
    assert_eq!(state(&desk, lease), LeaseState::Active);
    let cancelled = |(_, notice): &(_, Notice)| matches!(notice, Notice::SuspendCancelled { .. });
    assert!(desk.notices().iter().any(cancelled), "{:?}", desk.said);
    desk.pass(59);
    assert_eq!(state(&desk, lease), LeaseState::Active);
    desk.pass(1);
    assert_eq!(state(&desk, lease), LeaseState::Suspending, "after 60 s it is asked again");
    desk.pass(10);
    desk.pass(119);
    assert_eq!(state(&desk, lease), LeaseState::Active);
    desk.pass(1);
    assert_eq!(state(&desk, lease), LeaseState::Suspending, "after 120 s more");
    desk.leave(client, lease, &segments);
    assert_eq!(desk.view(lease).suspensions, 1);
    assert!(desk.snapshot().waiting.iter().all(|view| view.id != ask), "it was granted");
}

/// A tenant that never fetches what it took would be spared for ever, and its gate closed all the time.
#[test]
fn who_does_not_fetch_a_segment_is_left_alone_as_who_does_not_drain() {
    let mut desk = Desk::movable(100, 200);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60));
    let unclaimed = desk.segment(client, lease, 40);
    desk.pass(30);
    desk.idle(client, lease);
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.drained(client, lease);
    desk.pass(10);
    assert_eq!(state(&desk, lease), LeaseState::Active, "it was not fetched in the time to drain");
    desk.pass(59);
    assert_eq!(state(&desk, lease), LeaseState::Active, "it is left alone for a while");
    desk.pass(1);
    assert_eq!(state(&desk, lease), LeaseState::Suspending);
    desk.tell(Event::Claimed { segment: unclaimed });
    desk.leave(client, lease, &[unclaimed]);
    assert_eq!(desk.granted(), [2]);
}

#[test]
fn a_swap_that_fails_half_way_brings_back_what_is_out_before_all_others() {
    let (mut desk, client, lease, segments) = idler();
    let [other, third] = [2, 3].map(|uid| desk.client(uid));
    desk.queue(other, want(100));
    desk.drained(client, lease);
    desk.swapped_out(client, lease, segments[0]);
    desk.tell(Event::Freed { segment: segments[0] });
    let small = desk.lease(third, want(50));
    let held = desk.held(third, small, 50);
    desk.tell(Event::SwapFailed { session: client.session, lease, why: "no".to_owned() });
    assert_eq!(state(&desk, lease), LeaseState::Resuming);
    assert!(made_again(&desk).is_empty(), "another has the room");
    assert_eq!(state(&desk, small), LeaseState::Suspending, "and is asked for it at once");
    desk.leave(third, small, &[held]);
    assert_eq!(made_again(&desk), [segments[0]], "before the ask that was there first");
    desk.tell(Event::Created { segment: segments[0] });
    desk.restored(client, lease, segments[0]);
    assert_eq!((state(&desk, lease), desk.view(lease).held), (LeaseState::Active, mib(60)));
    let why = "no".to_owned();
    assert_eq!(desk.notices(), [(client.session, Notice::SuspendCancelled { lease, why })]);
    desk.pass(59);
    assert_eq!(state(&desk, lease), LeaseState::Active, "it is left alone for a while");
}

/// Nothing has to be asked for then, whoever waits for it.
#[test]
fn a_swap_that_fails_while_what_is_out_is_not_proven_is_waited_for() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(100));
    desk.drained(client, lease);
    desk.swapped_out(client, lease, segments[0]);
    desk.tell(Event::SwapFailed { session: client.session, lease, why: "no".to_owned() });
    assert_eq!(state(&desk, lease), LeaseState::Resuming);
    let request = desk.resume(client, lease);
    desk.tell(Event::Freed { segment: segments[0] });
    assert_eq!(made_again(&desk), [segments[0]]);
    desk.tell(Event::Created { segment: segments[0] });
    desk.restored(client, lease, segments[0]);
    assert!(desk.said.contains(&Effect::Resumed { request, lease }));
    assert_eq!((state(&desk, lease), desk.view(lease).held), (LeaseState::Active, mib(60)));
}

#[test]
fn a_swap_that_fails_before_anything_is_out_changes_nothing() {
    let (mut desk, client, lease, _) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    let before = desk.device(0);
    desk.tell(Event::SwapFailed { session: client.session, lease, why: "a graph is captured".to_owned() });
    assert_eq!(state(&desk, lease), LeaseState::Active);
    assert_eq!(desk.device(0), before);
    desk.drained(client, lease);
    assert!(desk.said.is_empty(), "a late word");
}

#[test]
fn a_lease_that_is_away_gives_no_memory_and_says_so() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    let inside = desk.allocate_as(client, lease, 2, Patience::Endless, Guard::Inside);
    assert!(matches!(desk.answer(inside), Answer::Denied(Denial::BeyondLease { .. })));
    desk.leave(client, lease, &segments);
    let denied = desk.allocate_as(client, lease, 2, NOW, Guard::Outside);
    assert_eq!(desk.answer(denied), Answer::Denied(Denial::Suspended));
    let (reserve, limit) = (mib(10), mib(10));
    let resized =
        desk.ask(|request| Event::Resize { request, session: client.session, lease, reserve, limit });
    assert_eq!(resized, Answer::Denied(Denial::Suspended));
}

#[test]
fn a_wish_that_comes_while_it_leaves_waits_until_it_is_away() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.drained(client, lease);
    let back = desk.resume(client, lease);
    assert!(matches!(desk.answer(back), Answer::Queued(_)));
    let ask = desk.snapshot().waiting.iter().find(|view| view.lease == Some(lease)).map(|view| view.id);
    assert_eq!(desk.why(ask.expect("it waits")).0, Reason::Suspended);
    for segment in segments {
        desk.swapped_out(client, lease, segment);
        desk.tell(Event::Freed { segment });
    }
    assert_eq!(desk.granted(), Vec::<u32>::new());
    assert_eq!(desk.waiting(ask.expect("it waits")).short_by, mib(40));
    desk.tell(Event::Abandoned { request: back });
    assert!(desk.snapshot().waiting.is_empty(), "nobody wants it back");
}

#[test]
fn death_at_each_step_frees_all_of_it() {
    for steps in 0..6 {
        let (mut desk, client, lease, segments) = idler();
        let other = desk.client(2);
        desk.queue(other, want(100));
        let second = LeaseId::new(lease.get() + 1);
        if steps > 0 {
            desk.drained(client, lease);
        }
        if steps > 1 {
            desk.swapped_out(client, lease, segments[0]);
        }
        if steps > 2 {
            desk.tell(Event::Freed { segment: segments[0] });
            desk.swapped_out(client, lease, segments[1]);
            desk.tell(Event::Freed { segment: segments[1] });
            desk.resume(client, lease);
        }
        if steps > 3 {
            desk.release(other, second);
        }
        if steps > 4 {
            desk.tell(Event::Created { segment: segments[0] });
        }
        desk.die(client);
        for segment in segments {
            desk.tell(Event::Created { segment });
            desk.tell(Event::Freed { segment });
        }
        assert!(desk.arbiter.lease(lease).is_none(), "after {steps} steps");
        desk.die(other);
        assert_eq!(desk.device(0).free, mib(100), "after {steps} steps");
        assert_eq!(desk.snapshot().arena.free, mib(200), "after {steps} steps");
        assert_eq!(desk.arbiter.poll_timeout(), None, "after {steps} steps");
    }
}

/// A lease of two members comes back after a failed swap; the one with all segments dies while the last of them is
/// on its way in. By his death nothing is on its way any more: the lease is back, and he was told so.
#[test]
fn the_dead_are_told_nothing() {
    let (mut desk, client, lease, segments) = idler();
    let [other, worker] = [2, 1].map(|uid| desk.client(uid));
    desk.ask(|request| Event::Join { request, session: worker.session, lease, ancestors: Vec::new() });
    desk.queue(other, want(100));
    desk.drained(client, lease);
    desk.swapped_out(client, lease, segments[0]);
    desk.tell(Event::Freed { segment: segments[0] });
    desk.tell(Event::SwapFailed { session: client.session, lease, why: "no".to_owned() });
    desk.tell(Event::Created { segment: segments[0] });
    assert_eq!(state(&desk, lease), LeaseState::Resuming);
    desk.die(client);
    assert_eq!(state(&desk, lease), LeaseState::Active, "the worker keeps it");
    assert_eq!(desk.notices(), [], "nobody who hears it holds a segment");
}

#[test]
fn a_lease_that_is_released_while_it_is_away_is_gone_with_its_copies() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.leave(client, lease, &segments);
    let back = desk.resume(client, lease);
    desk.release(client, lease);
    assert_eq!(desk.answer(back), Answer::Denied(Denial::Ending));
    for segment in segments {
        assert!(desk.said.contains(&Effect::Forget { segment }));
    }
    assert!(desk.said.contains(&Effect::LeaseGone { lease }));
}

#[test]
fn a_segment_can_be_freed_while_it_is_away() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.leave(client, lease, &segments);
    assert_eq!(desk.free(client, lease, segments[0]), Answer::Done);
    assert!(desk.said.contains(&Effect::Forget { segment: segments[0] }));
    assert_eq!(desk.free(client, lease, segments[0]), Answer::Denied(Denial::NoSuchSegment));
}

#[test]
fn who_is_not_there_is_not_suspended_and_is_reminded_when_he_comes_back() {
    let (mut desk, client, lease, segments) = idler();
    desk.tell(Event::Adrift { session: client.session });
    let other = desk.client(2);
    desk.queue(other, want(80));
    assert_eq!(state(&desk, lease), LeaseState::Active);
    desk.tell(Event::Rejoined { session: client.session });
    assert_eq!(state(&desk, lease), LeaseState::Suspending);
    desk.tell(Event::Adrift { session: client.session });
    desk.tell(Event::Rejoined { session: client.session });
    assert!(matches!(desk.notices()[..], [(_, Notice::Suspend { .. })]), "{:?}", desk.said);
    desk.drained(client, lease);
    desk.swapped_out(client, lease, segments[0]);
    desk.tell(Event::Adrift { session: client.session });
    desk.tell(Event::Rejoined { session: client.session });
    assert_eq!(desk.notices(), [(client.session, Notice::SwapOut { lease })]);
}

#[test]
fn a_second_process_with_segments_and_handles_that_anyone_can_open_pin_a_lease() {
    let mut desk = Desk::movable(100, 200);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60).up_to(60));
    desk.held(client, lease, 20);
    assert!(desk.view(lease).movable);
    let denied = desk.ask(|request| Event::Pin { request, session: client.session, lease });
    assert!(matches!(denied, Answer::Denied(Denial::PinnedFull { .. })), "{denied:?}");
    let ipc = desk.request(|request| Event::Allocate {
        request,
        session: client.session,
        lease,
        device: device(0),
        bytes: mib(2),
        kind: SegmentKind::CudaIpc,
        patience: NOW,
        guard: Guard::Outside,
    });
    assert!(matches!(desk.answer(ipc), Answer::Denied(Denial::PinnedFull { .. })));
    let worker = desk.client(1);
    desk.ask(|request| Event::Join { request, session: worker.session, lease, ancestors: Vec::new() });
    let denied = desk.allocate(worker, lease, 2);
    assert!(matches!(desk.answer(denied), Answer::Denied(Denial::PinnedFull { .. })));
    assert!(desk.view(lease).movable, "refused, it may still be suspended");
}

#[test]
fn a_suspension_that_nobody_needs_any_more_is_called_off() {
    let (mut desk, client, lease, _) = idler();
    let other = desk.client(2);
    let (session, ask_name) = (other.session, 77);
    desk.acquire_as(other, ask_name, want(80));
    assert_eq!(state(&desk, lease), LeaseState::Suspending);
    desk.ask(|request| Event::Withdraw { request, session, ask_name });
    assert_eq!(state(&desk, lease), LeaseState::Active);
    let cancelled = |(to, notice): &(_, Notice)| {
        *to == client.session && matches!(notice, Notice::SuspendCancelled { .. })
    };
    assert!(desk.notices().iter().any(cancelled));
}

#[test]
fn a_device_that_can_not_make_a_segment_again_is_asked_again() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.leave(client, lease, &segments);
    desk.resume(client, lease);
    desk.release(other, LeaseId::new(lease.get() + 1));
    desk.tell(Event::CreateFailed { segment: segments[0], why: "a stranger took it".to_owned() });
    assert!(made_again(&desk).is_empty());
    desk.pass(1);
    assert_eq!(made_again(&desk), [segments[0]]);
    desk.come_back(client, lease, &segments);
    assert_eq!(state(&desk, lease), LeaseState::Active);
}

#[test]
fn memory_that_is_not_proven_is_not_granted_and_what_was_in_it_is_safe() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.drained(client, lease);
    desk.swapped_out(client, lease, segments[0]);
    desk.tell(Event::Unproven { segment: segments[0], suspects: Vec::new() });
    assert_eq!(desk.device(0).quarantined, mib(40));
    desk.swapped_out(client, lease, segments[1]);
    desk.tell(Event::Freed { segment: segments[1] });
    assert_eq!(state(&desk, lease), LeaseState::Suspending);
    desk.tell(Event::Freed { segment: segments[0] });
    assert_eq!(state(&desk, lease), LeaseState::Suspended);
}

#[test]
fn one_that_hangs_while_it_leaves_is_overdue() {
    let (mut desk, client, lease, segments) = idler();
    let other = desk.client(2);
    desk.queue(other, want(80));
    desk.drained(client, lease);
    desk.pass(10);
    assert!(desk.said.contains(&Effect::Overdue { lease }));
    assert!(desk.view(lease).overdue);
    for segment in segments {
        desk.swapped_out(client, lease, segment);
        desk.tell(Event::Freed { segment });
    }
    assert!(!desk.view(lease).overdue);
}

/// Two leases of 60 on a device of 100: the first is away and wants to come back, the second has
/// drained for it and holds three segments of 20.
fn exchange() -> (Desk, [Client; 2], [LeaseId; 2], [[SegmentId; 3]; 2]) {
    let mut desk = Desk::movable(100, 400);
    let clients = [1, 2].map(|uid| desk.client(uid));
    let first = desk.lease(clients[0], want(60));
    let ours = [20, 20, 20].map(|bytes| desk.held(clients[0], first, bytes));
    desk.pass(30);
    desk.idle(clients[0], first);
    desk.queue(clients[1], want(60));
    desk.leave(clients[0], first, &ours);
    let second = LeaseId::new(first.get() + 1);
    let theirs = [20, 20, 20].map(|bytes| desk.held(clients[1], second, bytes));
    desk.resume(clients[0], first);
    desk.pass(100);
    assert_eq!(state(&desk, second), LeaseState::Suspending);
    desk.drained(clients[1], second);
    (desk, clients, [first, second], [ours, theirs])
}

#[test]
fn one_comes_back_while_the_other_leaves() {
    let (mut desk, clients, [first, second], [ours, theirs]) = exchange();
    assert_eq!(state(&desk, first), LeaseState::Resuming);
    assert_eq!(made_again(&desk), ours[..2], "40 are free");
    desk.come_back(clients[0], first, &ours[..2]);
    assert_eq!(state(&desk, first), LeaseState::Resuming);
    desk.swapped_out(clients[1], second, theirs[0]);
    assert!(made_again(&desk).is_empty(), "swapped out is not proven");
    desk.tell(Event::Freed { segment: theirs[0] });
    assert_eq!(made_again(&desk), ours[2..]);
    desk.come_back(clients[0], first, &ours[2..]);
    assert_eq!(state(&desk, first), LeaseState::Active);
    assert_eq!(state(&desk, second), LeaseState::Suspending);
    for segment in &theirs[1..] {
        desk.swapped_out(clients[1], second, *segment);
        desk.tell(Event::Freed { segment: *segment });
    }
    assert_eq!(state(&desk, second), LeaseState::Suspended);
}

#[test]
fn nothing_is_begun_before_the_other_has_drained() {
    let (mut desk, clients, [first, second], [ours, theirs]) = exchange();
    desk.come_back(clients[0], first, &ours[..2]);
    for segment in theirs {
        desk.swapped_out(clients[1], second, segment);
        desk.tell(Event::Freed { segment });
    }
    desk.come_back(clients[0], first, &ours[2..]);
    desk.resume(clients[1], second);
    desk.pass(100);
    assert_eq!(state(&desk, first), LeaseState::Suspending);
    assert_eq!(state(&desk, second), LeaseState::Suspended, "the first may still stay");
    desk.pass(10);
    assert_eq!((state(&desk, first), state(&desk, second)), (LeaseState::Active, LeaseState::Suspended));
}

#[test]
fn who_had_begun_recedes_when_the_other_stays_after_all() {
    let (mut desk, clients, [first, second], [ours, theirs]) = exchange();
    desk.swapped_out(clients[1], second, theirs[0]);
    desk.tell(Event::Freed { segment: theirs[0] });
    assert_eq!(made_again(&desk), ours[2..]);
    desk.tell(Event::SwapFailed { session: clients[1].session, lease: second, why: "no".to_owned() });
    assert_eq!(state(&desk, first), LeaseState::Resuming, "segments are on their way back");
    desk.come_back(clients[0], first, &ours);
    assert_eq!(
        state(&desk, first),
        LeaseState::Suspending,
        "it had all that it needs, and is asked for it at once"
    );
    assert_eq!(state(&desk, second), LeaseState::Resuming);

    let (mut desk, clients, [first, second], [ours, theirs]) = exchange();
    desk.come_back(clients[0], first, &ours[..1]);
    let why = "no".to_owned();
    desk.swapped_out(clients[1], second, theirs[0]);
    desk.tell(Event::SwapFailed { session: clients[1].session, lease: second, why });
    desk.come_back(clients[0], first, &ours[1..2]);
    assert_eq!(desk.notices(), [(clients[0].session, Notice::SwapOut { lease: first })]);
    desk.tell(Event::Freed { segment: theirs[0] });
    assert_eq!(made_again(&desk), [theirs[0]]);
    for segment in &ours[..2] {
        desk.swapped_out(clients[0], first, *segment);
        desk.tell(Event::Freed { segment: *segment });
    }
    desk.come_back(clients[1], second, &theirs[..1]);
    assert_eq!((state(&desk, first), state(&desk, second)), (LeaseState::Suspended, LeaseState::Active));
    assert_eq!(desk.line().len(), 1, "it waits as before");
}

/// A lease that had begun to come back waited behind an older ask that became a barrier later, and that ask
/// waited for what the lease had taken: forever.
#[test]
fn who_has_begun_is_not_overtaken_by_one_who_turns_barrier_later() {
    let mut desk = Desk::movable(100, 400);
    let [one, two, three] = [1, 2, 3].map(|uid| desk.client(uid));
    let first = desk.lease(one, want(60));
    let ours = [20, 20, 20].map(|bytes| desk.held(one, first, bytes));
    desk.lease(three, want(2));
    desk.pass(30);
    desk.idle(one, first);
    desk.queue(two, want(60));
    desk.leave(one, first, &ours);
    let second = LeaseId::new(first.get() + 2);
    let theirs = [20, 20, 20].map(|bytes| desk.held(two, second, bytes));
    let older = desk.queue(three, want(80));
    desk.resume(one, first);
    desk.pass(94);
    desk.idle(two, second);
    assert_eq!(state(&desk, second), LeaseState::Suspending);
    desk.drained(two, second);
    assert_eq!(made_again(&desk), ours[..1], "38 are free");
    desk.come_back(one, first, &ours[..1]);
    desk.pass(8);
    assert!(desk.waiting(older).barrier);
    desk.swapped_out(two, second, theirs[0]);
    desk.tell(Event::Freed { segment: theirs[0] });
    assert_eq!(made_again(&desk), ours[1..2]);
    desk.come_back(one, first, &ours[1..2]);
    for segment in &theirs[1..] {
        desk.swapped_out(two, second, *segment);
        desk.tell(Event::Freed { segment: *segment });
    }
    desk.come_back(one, first, &ours[2..]);
    assert_eq!((state(&desk, first), state(&desk, second)), (LeaseState::Active, LeaseState::Suspended));
    desk.pass(30);
    assert_eq!(state(&desk, first), LeaseState::Suspending, "and then it is the older one's turn");
}
