//! After `max_wait` nothing overtakes an ask: not on its devices, and not in its accounts.

use std::collections::BTreeMap;

use gpulease_arbiter::{Budget, Budgets, Denial, Effect, Event, Guard};
use gpulease_words::{LeaseId, Reason, Uid, mib};

use crate::desk::{Answer, Ask, Client, Desk, NOW, device, limit, seconds, want};

/// A card of 100 of which `held` are leased.
fn card(held: u64) -> (Desk, Client, LeaseId) {
    let mut desk = Desk::new(&[100]);
    let holder = desk.client(99);
    let lease = desk.lease(holder, want(held));
    (desk, holder, lease)
}

#[test]
fn small_asks_pass_a_large_one_until_it_is_a_barrier() {
    let (mut desk, holder, lease) = card(50);
    let [large, small] = [1, 2].map(|uid| desk.client(uid));
    let barrier = desk.queue(large, want(80));
    desk.pass(99);
    desk.lease(small, want(10));
    desk.pass(1);
    assert!(desk.waiting(barrier).barrier);
    let behind = desk.queue(small, want(10));
    assert_eq!(desk.why(behind), (Reason::Barrier, 10));
    let denial = desk.refused(small, want(10).patient(NOW));
    assert_eq!(denial, Denial::NoRoom { asked: mib(10), room: mib(0), device: device(0) });
    desk.release(holder, lease);
    assert_eq!(desk.granted(), [1, 2], "80 of 90, then the 10 that are left");
}

#[test]
fn what_a_barrier_does_not_need_is_free_to_all() {
    let (mut desk, _, _) = card(50);
    let [large, small] = [1, 2].map(|uid| desk.client(uid));
    let other = desk.lease(small, want(10));
    desk.queue(large, want(60).patient(seconds(500)));
    desk.pass(100);
    desk.release(small, other);
    // 50 are free, 60 are wanted: all of it is held back.
    desk.queue(small, want(2));
    desk.pass(400);
    assert_eq!(desk.line().len(), 0, "its patience is over, and so is the barrier");
}

#[test]
fn of_two_barriers_the_younger_gets_only_what_the_older_does_not_need() {
    let (mut desk, holder, lease) = card(100);
    let [one, two, three] = [1, 2, 3].map(|uid| desk.client(uid));
    desk.queue(one, want(70));
    desk.pass(10);
    desk.queue(two, want(40));
    desk.queue(three, want(30));
    desk.pass(100);
    desk.release(holder, lease);
    assert_eq!(desk.granted(), [1], "30 are left, and 40 were due before them");
    let first = desk.snapshot().leases[0].id;
    desk.release(one, first);
    assert_eq!(desk.granted(), [2, 3]);
}

#[test]
fn growth_waits_behind_a_barrier() {
    let (mut desk, _, _) = card(50);
    let [large, grower] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(grower, want(10).up_to(40));
    desk.queue(large, want(60));
    desk.segment(grower, lease, 20);
    desk.pass(100);
    let denied = desk.allocate(grower, lease, 2);
    let expected = Denial::NoRoom { asked: mib(2), room: mib(0), device: device(0) };
    assert_eq!(desk.answer(denied), Answer::Denied(expected));
}

#[test]
fn growth_becomes_a_barrier_as_well() {
    let (mut desk, holder, lease) = card(60);
    let [grower, small] = [1, 2].map(|uid| desk.client(uid));
    let mine = desk.lease(grower, want(10).up_to(80));
    let growth = desk.allocate_as(grower, mine, 60, seconds(500), Guard::Outside);
    desk.pass(100);
    desk.queue(small, want(2));
    desk.release(holder, lease);
    assert!(desk.said.iter().any(|effect| matches!(effect, Effect::Create { .. })));
    assert!(!desk.answers.contains_key(&growth), "it is answered once the device made it");
    assert_eq!(desk.granted(), [2]);
}

#[test]
fn any_device_is_bound_where_least_is_missing_and_is_served_elsewhere_if_that_is_sooner() {
    let mut desk = Desk::new(&[100, 100]);
    let [holder, client, small] = [9, 1, 2].map(|uid| desk.client(uid));
    desk.lease(holder, want(70).on(&[0]));
    let far = desk.lease(holder, want(90).on(&[1]));
    let ask = desk.queue(client, want(60));
    desk.pass(100);
    assert_eq!(desk.waiting(ask).devices, [device(0)]);
    desk.queue(small, want(2).on(&[0]));
    desk.lease(small, want(2).on(&[1]));
    desk.release(holder, far);
    assert_eq!(desk.granted(), [1, 2], "device 1 has room, and so device 0 is free again");
}

#[test]
fn a_gang_that_is_a_barrier_holds_back_on_each_of_its_devices() {
    let mut desk = Desk::new(&[100, 100]);
    let [holder, gang, small] = [9, 1, 2].map(|uid| desk.client(uid));
    let blocker = desk.lease(holder, want(60).on(&[1]));
    desk.queue(gang, want(50).any(2));
    desk.pass(100);
    let [a, b] = [0, 1].map(|n| desk.queue(small, want(52).on(&[n])));
    assert_eq!(desk.why(a), (Reason::Barrier, 2));
    assert_eq!(desk.why(b), (Reason::NoRoom, 52));
    desk.lease(small, want(50).on(&[0]));
    desk.release(holder, blocker);
    assert_eq!(desk.granted(), [1]);
}

#[test]
fn a_barrier_that_the_card_can_not_serve_now_holds_nobody_up() {
    let (mut desk, holder, lease) = card(20);
    let [large, small] = [1, 2].map(|uid| desk.client(uid));
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(30)) });
    let ask = desk.queue(large, want(80));
    desk.pass(100);
    desk.lease(small, want(10));
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(20)) });
    desk.queue(small, want(10));
    desk.tell(Event::OffBook { device: device(0), bytes: Some(mib(22)) });
    assert_eq!(desk.granted(), [2], "80 can't be had while outsiders have 22");
    assert_eq!(desk.line(), [ask]);
    desk.release(holder, lease);
}

#[test]
fn ones_own_budget_makes_nobody_else_wait() {
    let budgets = Budgets { users: BTreeMap::from([(Uid::new(1), limit(60))]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[100], budgets);
    let [capped, other] = [1, 2].map(|uid| desk.client(uid));
    let mine = desk.lease(capped, want(40));
    let ask = desk.queue(capped, want(50));
    desk.pass(100);
    assert_eq!(desk.why(ask), (Reason::AccountLimit, 30));
    desk.lease(other, want(60));
    let next = desk.queue(capped, want(20));
    assert_eq!(desk.why(next).0, Reason::NoRoom);
    desk.release(capped, mine);
    assert_eq!(desk.why(ask), (Reason::NoRoom, 10), "now it collects");
    desk.queue(other, want(2));
}

#[test]
fn a_barrier_is_not_starved_inside_its_group() {
    let budgets = Budgets { groups: BTreeMap::from([("lab".to_owned(), limit(60))]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[200], budgets);
    let [large, small] = [1, 2].map(|uid| desk.client_in(uid, Some("lab")));
    let outside = desk.client(3);
    let leases = [20, 20].map(|bytes| desk.lease(small, want(bytes)));
    let ask = desk.queue(large, want(50));
    desk.pass(100);
    let next = desk.queue(small, want(20));
    assert_eq!(
        desk.why(next),
        (Reason::BehindOthers, 20),
        "the group has room for 20, but 50 were due before"
    );
    let denial = desk.refused(small, want(20).patient(NOW));
    let (account, asked) = ("group.lab".to_owned(), mib(20));
    assert_eq!(denial, Denial::AccountDue { account, limit: mib(60), charged: mib(40), asked });
    desk.lease(outside, want(100));
    desk.release(small, leases[0]);
    assert_eq!(desk.line().len(), 2);
    desk.release(small, leases[1]);
    assert_eq!(desk.granted(), [1]);
    assert_eq!(desk.why(next), (Reason::AccountLimit, 10));
    assert!(!desk.line().contains(&ask));
}

#[test]
fn barriers_of_one_account_hold_back_no_more_than_its_limit() {
    let budgets = Budgets { default_user: limit(60), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[200], budgets);
    let holders: Vec<_> = (10..14).map(|uid| desk.client(uid)).collect();
    let leases: Vec<_> = holders.iter().map(|holder| desk.lease(*holder, want(50))).collect();
    let [one, two] = [1, 2].map(|uid| desk.client(uid));
    for _ in 0..4 {
        desk.queue(one, want(60));
    }
    desk.pass(100);
    desk.queue(two, want(40));
    desk.release(holders[0], leases[0]);
    assert_eq!(desk.granted(), [] as [u32; 0], "the first of the four collects 60");
    desk.release(holders[1], leases[1]);
    assert_eq!(desk.granted(), [1, 2], "60, and the 40 that the other three can't use");
}

#[test]
fn a_context_that_grows_sends_the_youngest_pledge_back() {
    let budgets = Budgets { default_user: limit(80), ..Budgets::default() };
    let mut desk = Desk::with(crate::desk::policy(), budgets, &[110], 2);
    let [holder, client, other] = [9, 1, 2].map(|uid| desk.client(uid));
    desk.lease(holder, want(70));
    desk.lease(client, want(10));
    let ask = desk.queue(client, want(60));
    desk.pass(100);
    let held_up = desk.queue(other, want(6));
    assert_eq!(desk.why(held_up).0, Reason::Barrier);
    // 10 + 12 + 60 is over 80: the ask may not hold anything back any more.
    desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: mib(12) });
    assert_eq!(desk.why(ask), (Reason::AccountLimit, 2));
    assert_eq!(desk.granted(), [2]);
    desk.tell(Event::Overhead { process: client.process, device: device(0), bytes: mib(8) });
    assert_eq!(desk.why(ask).0, Reason::NoRoom);
}

#[test]
fn a_barrier_that_lacks_a_slot_holds_back_no_bytes() {
    let one = Budget { leases_max: Some(1), ..Budget::default() };
    let budgets = Budgets { users: BTreeMap::from([(Uid::new(1), one)]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[100], budgets);
    let [slot, other] = [1, 2].map(|uid| desk.client(uid));
    let busy = desk.lease(other, want(60));
    let first = desk.queue(slot, want(50));
    let second = desk.queue(slot, want(50));
    desk.release(other, busy);
    assert_eq!(desk.line(), [second]);
    desk.pass(100);
    assert_eq!(desk.why(second), (Reason::AccountLimit, 0));
    assert_eq!(desk.waiting(second).account.as_deref(), Some("user.1"));
    desk.lease(other, want(50));
    assert!(first < second);
}

#[test]
fn a_barrier_whose_device_is_lost_is_bound_to_another() {
    let mut desk = Desk::new(&[100, 100]);
    let [holder, client] = [9, 1].map(|uid| desk.client(uid));
    desk.lease(holder, want(70).on(&[0]));
    desk.lease(holder, want(90).on(&[1]));
    let ask = desk.queue(client, want(60));
    desk.pass(100);
    desk.tell(Event::DeviceLost { device: device(0) });
    assert_eq!(desk.waiting(ask).devices, [device(1)]);
    assert_eq!(desk.why(ask), (Reason::NoRoom, 50));
}
