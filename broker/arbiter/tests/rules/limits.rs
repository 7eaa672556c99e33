//! The limit of a lease, which is no more than it could ever get.

use std::collections::BTreeMap;

use gpulease_arbiter::{Budgets, Event, Policy};
use gpulease_words::{LeaseId, Uid, mib};

use crate::desk::{Answer, Ask, Client, Desk, guarantee, limit, moving, want};

/// A limit is what the program takes for its whole card, so it is no more than it could ever get.
#[test]
fn a_limit_is_at_most_what_devices_and_budgets_could_give() {
    let budgets = Budgets { default_user: limit(100), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[1000, 80], budgets);
    let client = desk.client(1);
    let limit_of = |desk: &Desk, id| {
        let snapshot = desk.snapshot();
        snapshot.leases.iter().find(|lease| lease.id == id).map(|lease| lease.limit)
    };
    let one = desk.lease(client, want(10).on(&[0]).up_to(60_000_000));
    assert_eq!(limit_of(&desk, one), Some(mib(100)), "its budget");
    let small = desk.lease(client, want(10).on(&[1]).up_to(1000));
    assert_eq!(limit_of(&desk, small), Some(mib(80)), "its device");
    let both = desk.lease(client, want(30).on(&[0, 1]).up_to(1000));
    assert_eq!(limit_of(&desk, both), Some(mib(70)), "its budget beside the other device's reserve");
    let modest = desk.lease(client, want(10).on(&[0]).up_to(60));
    assert_eq!(limit_of(&desk, modest), Some(mib(60)), "as asked");
}

fn resized(desk: &mut Desk, client: Client, lease: LeaseId, reserve: u64, limit: u64) -> u64 {
    let (session, reserve, limit) = (client.session, mib(reserve), mib(limit));
    let answer = desk.ask(|request| Event::Resize { request, session, lease, reserve, limit });
    assert_eq!(answer, Answer::Resized);
    desk.view(lease).limit.get() >> 20
}

/// `run --pinned -m 10GiB..80GiB` said 80 GiB where 40 may be pinned, and all beyond waited without end.
#[test]
fn what_can_not_be_moved_has_no_limit_above_what_may_be_pinned() {
    let policy = Policy { pinned_max: Some(mib(40)), ..moving(500) };
    let users = BTreeMap::from([(Uid::new(2), guarantee(30)), (Uid::new(3), guarantee(20))]);
    let mut desk = Desk::with(policy, Budgets { users, ..Budgets::default() }, &[100], 4);
    let limit_of = |desk: &Desk, lease| desk.view(lease).limit.get() >> 20;
    let nobody = desk.client(1);
    let lent = desk.lease(nobody, want(10).up_to(80).pinned());
    assert_eq!(limit_of(&desk, lent), 36, "with its context");
    assert_eq!(resized(&mut desk, nobody, lent, 10, 80), 36);
    assert_eq!(resized(&mut desk, nobody, lent, 10, 20), 20, "as asked");
    let movable = desk.lease(nobody, want(10).up_to(80));
    assert_eq!(limit_of(&desk, movable), 80, "it can move");
    let owner = desk.client(2);
    let own = desk.lease(owner, want(10).up_to(80).pinned());
    assert!(desk.view(own).guaranteed);
    assert_eq!(limit_of(&desk, own), 50, "its reserve is not counted as pinned");
    assert_eq!(resized(&mut desk, owner, own, 20, 80), 60);
    let owner = desk.client(3);
    let tight = desk.lease(owner, want(2).up_to(80).pinned());
    assert_eq!(limit_of(&desk, tight), 42);
}
