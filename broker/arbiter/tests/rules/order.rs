//! The order of the line: hierarchical weighted max-min, first come within a job, backfill.

use std::collections::BTreeMap;

use gpulease_arbiter::Budgets;
use gpulease_words::{Reason, Uid};

use crate::desk::{Ask, Desk, device, limit, want, weight};

/// A card of 100, all of it held by user 99; whoever asks now waits.
fn full(budgets: Budgets) -> (Desk, crate::desk::Client, gpulease_words::LeaseId) {
    let mut desk = Desk::with_budgets(&[100], budgets);
    let holder = desk.client(99);
    let lease = desk.lease(holder, want(100));
    (desk, holder, lease)
}

#[test]
fn equals_are_served_as_they_came() {
    let (mut desk, holder, lease) = full(Budgets::default());
    for uid in [3, 1, 2] {
        let client = desk.client(uid);
        desk.queue(client, want(50));
    }
    desk.release(holder, lease);
    assert_eq!(desk.granted(), [3, 1]);
}

#[test]
fn who_has_less_goes_first_and_a_flood_gains_nothing() {
    let (mut desk, holder, lease) = full(Budgets::default());
    let [flood, late] = [1, 2].map(|uid| desk.client(uid));
    for _ in 0..10 {
        desk.queue(flood, want(20));
    }
    for _ in 0..2 {
        desk.queue(late, want(20));
    }
    desk.release(holder, lease);
    assert_eq!(desk.granted(), [1, 2, 1, 2, 1]);
}

#[test]
fn weights_share_what_is_contended() {
    let budgets = Budgets { users: BTreeMap::from([(Uid::new(1), weight(3))]), ..Budgets::default() };
    let (mut desk, holder, lease) = full(budgets);
    let [heavy, light] = [1, 2].map(|uid| desk.client(uid));
    for _ in 0..6 {
        desk.queue(heavy, want(20));
        desk.queue(light, want(20));
    }
    desk.release(holder, lease);
    // 0/3 = 0/1, the first came first; 20/3 against 0; 20/3, 40/3 against 20; 60/3 = 20: the oldest ask counts.
    assert_eq!(desk.granted(), [1, 2, 1, 1, 2]);
}

#[test]
fn groups_come_before_users() {
    let (mut desk, holder, lease) = full(Budgets::default());
    for (uid, group) in [(1, "crowd"), (2, "crowd"), (3, "crowd"), (4, "few")] {
        let client = desk.client_in(uid, Some(group));
        for _ in 0..3 {
            desk.queue(client, want(20));
        }
    }
    desk.release(holder, lease);
    assert_eq!(desk.granted(), [1, 4, 2, 4, 3], "half to each group, not a quarter to each user");
}

#[test]
fn jobs_of_a_user_share_too() {
    let (mut desk, holder, lease) = full(Budgets::default());
    let client = desk.client(1);
    for _ in 0..3 {
        desk.queue(client, want(30).named("a"));
    }
    desk.queue(client, want(30).named("b"));
    desk.release(holder, lease);
    let names: Vec<String> = desk.snapshot().leases.into_iter().map(|view| view.name).collect();
    assert_eq!(names, ["a", "b", "a"]);
}

#[test]
fn an_ask_that_does_not_fit_does_not_stop_smaller_ones() {
    let (mut desk, holder, lease) = full(Budgets::default());
    let segment = desk.segment(holder, lease, 30);
    let [large, small] = [1, 2].map(|uid| desk.client(uid));
    let waits = desk.queue(large, want(80));
    desk.queue(small, want(70));
    desk.release(holder, lease);
    assert_eq!(desk.granted(), [2]);
    assert_eq!(desk.why(waits), (Reason::NoRoom, 80));
    desk.give_back(holder, lease, segment);
    assert_eq!(desk.why(waits), (Reason::NoRoom, 50));
}

#[test]
fn within_a_job_a_smaller_ask_passes_a_larger_one_that_can_not_go() {
    let (mut desk, holder, lease) = full(Budgets::default());
    desk.segment(holder, lease, 30);
    let client = desk.client(1);
    let large = desk.queue(client, want(80));
    desk.queue(client, want(40));
    desk.queue(client, want(30));
    desk.release(holder, lease);
    assert_eq!(desk.line(), [large]);
}

#[test]
fn another_device_is_another_matter() {
    let mut desk = Desk::new(&[100, 100]);
    let [holder, client] = [1, 2].map(|uid| desk.client(uid));
    desk.lease(holder, want(100).on(&[0]));
    let waits = desk.queue(client, want(50).on(&[0]));
    let other = desk.lease(client, want(50).on(&[1]));
    assert_eq!(desk.view(other).devices, [device(1)]);
    assert_eq!(desk.waiting(waits).device, Some(device(0)));
}

#[test]
fn the_snapshot_shows_the_order_of_service() {
    let (mut desk, _, _) = full(Budgets::default());
    let [rich, poor] = [99, 2].map(|uid| desk.client(uid));
    let first = desk.queue(rich, want(20));
    let second = desk.queue(rich, want(20));
    let third = desk.queue(poor, want(20));
    assert_eq!(desk.line(), [third, first, second], "user 99 holds the card already");
}

#[test]
fn an_account_at_its_limit_is_passed_over() {
    let budgets = Budgets { users: BTreeMap::from([(Uid::new(1), limit(60))]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[100], budgets);
    let [capped, other] = [1, 2].map(|uid| desk.client(uid));
    desk.lease(capped, want(40));
    let blocker = desk.lease(other, want(60));
    desk.queue(capped, want(40));
    desk.queue(other, want(60));
    desk.release(other, blocker);
    assert_eq!(desk.granted(), [2], "user 1 has less, and no budget for it");
}

#[test]
fn draining_bytes_are_named_as_what_is_missing() {
    let (mut desk, holder, lease) = full(Budgets::default());
    let segment = desk.segment(holder, lease, 100);
    let client = desk.client(1);
    let waits = desk.queue(client, want(60));
    assert_eq!(desk.why(waits), (Reason::NoRoom, 60));
    desk.free(holder, lease, segment);
    desk.release(holder, lease);
    assert_eq!(desk.why(waits), (Reason::Draining, 60));
    desk.tell(gpulease_arbiter::Event::Freed { segment });
    assert_eq!(desk.granted(), [1]);
}
