//! Guarantees, what may be pinned, host memory, and budgets that change.

use std::collections::BTreeMap;
use std::time::Duration;

use gpulease_arbiter::{
    Arbiter, Budget, Budgets, Denial, DeviceSpec, Effect, Event, Guard, LeaseState, Notice, OnOverdue,
    Patience, Pinning, Policy, Signal,
};
use gpulease_words::{Bytes, Reason, Uid, mib};

use crate::desk::{Answer, Ask, Desk, device, guarantee, limit, moving, policy, want};

fn users(of: impl IntoIterator<Item = (u32, Budget)>) -> Budgets {
    let users = of.into_iter().map(|(uid, budget)| (Uid::new(uid), budget)).collect();
    Budgets { users, ..Budgets::default() }
}

fn set(desk: &mut Desk, budgets: Budgets) -> Answer {
    desk.ask(|request| Event::SetBudgets { request, budgets: Box::new(budgets) })
}

#[test]
fn what_is_lent_leaves_at_once_for_an_ask_within_its_guarantee() {
    let mut desk = Desk::with(moving(200), users([(1, guarantee(40))]), &[100], 0);
    let [owner, other] = [1, 2].map(|uid| desk.client(uid));
    let lent = desk.lease(other, want(90));
    let segment = desk.held(other, lent, 90);
    assert!(!desk.view(lent).guaranteed);
    let ask = desk.queue(owner, want(40));
    assert_eq!(desk.view(lent).state, LeaseState::Suspending, "no residency, no wait");
    let waiting = desk.waiting(ask);
    assert!(waiting.guaranteed && waiting.barrier);
    assert_eq!(waiting.at_latest.map(|at| at >= desk.now), Some(true));
    desk.leave(other, lent, &[segment]);
    assert_eq!(desk.granted(), [1], "with the last byte that it needed");
    assert_eq!(desk.snapshot().leases.len(), 2);
    let own = desk.snapshot().leases[1].id;
    assert!(desk.view(own).guaranteed);
    let third = desk.client(3);
    desk.pass(200);
    desk.queue(third, want(90));
    desk.pass(200);
    assert_eq!(desk.view(own).state, LeaseState::Active, "one within its guarantee is never suspended");
}

#[test]
fn beyond_the_guarantee_one_is_as_any_other() {
    let mut desk = Desk::with(moving(200), users([(1, guarantee(40))]), &[100], 0);
    let [owner, other] = [1, 2].map(|uid| desk.client(uid));
    let first = desk.lease(owner, want(40));
    let second = desk.lease(owner, want(2));
    assert!(desk.view(first).guaranteed && !desk.view(second).guaranteed);
    let lent = desk.lease(other, want(50));
    desk.held(other, lent, 50);
    let ask = desk.queue(owner, want(20));
    assert!(!desk.waiting(ask).guaranteed);
    assert_eq!(desk.view(lent).state, LeaseState::Active);
    desk.release(owner, second);
    desk.release(owner, first);
    assert_eq!(desk.granted(), [1]);
}

#[test]
fn an_ask_is_covered_as_soon_as_its_account_has_given_enough_back() {
    let mut desk = Desk::with(moving(200), users([(1, guarantee(40))]), &[100], 0);
    let [owner, other] = [1, 2].map(|uid| desk.client(uid));
    let first = desk.lease(owner, want(30));
    let lent = desk.lease(other, want(70));
    desk.held(other, lent, 70);
    let ask = desk.queue(owner, want(40));
    assert!(!desk.waiting(ask).guaranteed, "70 would be more than 40");
    desk.release(owner, first);
    assert!(desk.waiting(ask).guaranteed);
    assert_eq!(desk.view(lent).state, LeaseState::Suspending);
}

#[test]
fn a_users_guarantee_comes_out_of_his_groups() {
    let groups = BTreeMap::from([("lab".to_owned(), guarantee(60))]);
    let memberships = BTreeMap::from([(Uid::new(1), "lab".to_owned())]);
    let budgets = Budgets { groups, memberships, ..users([(1, guarantee(40))]) };
    let mut desk = Desk::with(moving(400), budgets, &[200], 0);
    let [alice, bob] = [1, 2].map(|uid| desk.client_in(uid, Some("lab")));
    let bobs = desk.lease(bob, want(20));
    assert!(desk.view(bobs).guaranteed, "40 of 60 are alice's, 20 are for anyone");
    let more = desk.lease(bob, want(2));
    assert!(!desk.view(more).guaranteed);
    let own = desk.lease(alice, want(40));
    assert!(desk.view(own).guaranteed, "whatever bob has");
}

#[test]
fn promises_that_can_not_be_kept_are_refused_with_the_sum() {
    let device = DeviceSpec { id: device(0), capacity: mib(100), overhead_estimate: mib(0) };
    let policy = Policy { headroom: mib(10), pinned_max: Some(mib(30)), ..policy() };
    let fit = |budgets: &Budgets| budgets.fit(&policy, &[device]);
    assert_eq!(fit(&users([(1, guarantee(40)), (2, guarantee(20))])), Ok(()));
    let denial =
        fit(&users([(1, guarantee(40)), (2, guarantee(22))])).expect_err("62 + 30 + 10 are over 100");
    let text = denial.to_string();
    assert!(
        text.contains("guarantees of 62 MiB") && text.contains("30 MiB") && text.contains("100 MiB"),
        "{text}"
    );
    let groups = BTreeMap::from([("lab".to_owned(), guarantee(30))]);
    let memberships = BTreeMap::from([(Uid::new(1), "lab".to_owned())]);
    let over = Budgets { groups, memberships, ..users([(1, guarantee(32))]) };
    let account = "group.lab".to_owned();
    let expected = Denial::GuaranteeOverParent { account, guarantee: mib(30), children: mib(32) };
    assert_eq!(fit(&over), Err(expected));
    let over = users([(1, Budget { limit: Some(mib(20)), ..guarantee(22) })]);
    assert!(matches!(fit(&over), Err(Denial::GuaranteeOverLimit { .. })));
    let everyone = Budgets { default_user: guarantee(2), ..Budgets::default() };
    assert!(matches!(fit(&everyone), Err(Denial::GuaranteeUncounted { .. })));
    assert_eq!(expected_reason(&everyone, &policy, device), Reason::ImpossibleBudget);
}

fn expected_reason(budgets: &Budgets, policy: &Policy, device: DeviceSpec) -> Reason {
    budgets.fit(policy, &[device]).expect_err("it is impossible").reason()
}

#[test]
fn pinned_leases_share_what_may_be_pinned() {
    let policy = Policy { pinned_max: Some(mib(40)), ..moving(200) };
    let mut desk = Desk::with(policy, Budgets::default(), &[100], 0);
    let [first, second] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(first, want(30).pinned());
    assert!(!desk.view(lease).movable);
    let ask = desk.queue(second, want(20).pinned());
    assert_eq!(desk.why(ask), (Reason::PinnedFull, 10));
    desk.pass(200);
    desk.lease(second, want(60));
    assert_eq!(
        desk.why(ask).0,
        Reason::PinnedFull,
        "a barrier for a pinned place holds no device bytes back"
    );
    assert!(matches!(desk.refused(second, want(42).pinned()), Denial::PinnedFull { .. }), "it never fits");
    desk.release(first, lease);
    assert_eq!(desk.granted(), [2]);
}

#[test]
fn without_host_memory_left_a_lease_is_pinned_or_waits() {
    let policy = Policy { pinned_max: Some(mib(30)), ..moving(50) };
    let mut desk = Desk::with(policy, Budgets::default(), &[100], 0);
    let client = desk.client(1);
    let movable = desk.lease(client, want(40));
    assert!(desk.view(movable).movable);
    let pinned = desk.lease(client, want(20));
    assert!(!desk.view(pinned).movable, "the arena has 10 left, and 30 may be pinned");
    let ask = desk.queue(client, want(20));
    assert_eq!(desk.why(ask), (Reason::ArenaFull, 10));
    let refused = desk.refused(client, want(20).patient(crate::desk::NOW));
    assert_eq!(refused, Denial::ArenaFull { capacity: mib(50), free: mib(10), asked: mib(20) });
    desk.release(client, movable);
    assert_eq!(desk.granted(), [1]);
}

#[test]
fn an_account_that_is_not_suspendable_pins() {
    let pinning = Budget { pinning: Pinning::Pinned, ..Budget::default() };
    let policy = Policy { pinned_max: Some(mib(30)), ..moving(50) };
    let mut desk = Desk::with(policy, users([(1, pinning)]), &[100], 0);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let [pinned, movable] = [desk.lease(client, want(10)), desk.lease(other, want(10))];
    assert!(!desk.view(pinned).movable && desk.view(movable).movable);
}

#[test]
fn a_lowered_limit_takes_nothing_away_and_asks_surplus_back() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(80));
    desk.segment(client, lease, 20);
    let surplus = desk.segment(client, lease, 40);
    assert_eq!(set(&mut desk, users([(1, limit(40))])), Answer::Done);
    let deadline = desk.now.plus(Duration::from_secs(10));
    let notice = Notice::Recall { lease, device: device(0), bytes: mib(20), deadline };
    assert_eq!(desk.notices(), [(client.session, notice)]);
    assert_eq!(desk.view(lease).held, mib(60));
    assert!(matches!(desk.refused(client, want(2).patient(crate::desk::NOW)), Denial::AccountFull { .. }));
    desk.give_back(client, lease, surplus);
    desk.lease(client, want(20));
}

#[test]
fn budgets_are_set_all_or_none() {
    let mut desk = Desk::new(&[100]);
    let client = desk.client(1);
    let before = desk.snapshot().accounts;
    let refused = set(&mut desk, users([(1, guarantee(102))]));
    assert!(matches!(refused, Answer::Denied(Denial::GuaranteesTooLarge { .. })));
    assert_eq!(desk.snapshot().accounts, before);
    let lease = desk.lease(client, want(40));
    assert_eq!(set(&mut desk, users([(1, guarantee(60))])), Answer::Done);
    assert!(
        !desk.view(lease).guaranteed,
        "what was lent stays lent, and is protected while its account is within"
    );
    let within = desk.lease(client, want(20));
    assert!(desk.view(within).guaranteed);
    assert_eq!(set(&mut desk, Budgets::default()), Answer::Done);
    assert!(!desk.view(within).guaranteed);
}

#[test]
fn an_account_may_wait_for_a_shorter_time() {
    let hasty = Budget { max_wait: Some(Duration::from_secs(5)), ..Budget::default() };
    let mut desk = Desk::with_budgets(&[100], users([(1, hasty.clone())]));
    let [hasty_one, other] = [1, 2].map(|uid| desk.client(uid));
    desk.lease(other, want(60));
    let ask = desk.queue(hasty_one, want(80));
    let slow = desk.queue(other, want(80));
    desk.pass(5);
    assert!(desk.waiting(ask).barrier && !desk.waiting(slow).barrier);
    assert_eq!(set(&mut desk, users([(2, hasty)])), Answer::Done);
    desk.pass(1);
    assert!(desk.waiting(slow).barrier);
}

#[test]
fn surplus_is_asked_for_first_and_who_keeps_it_is_suspended() {
    let mut desk = Desk::with(moving(300), Budgets::default(), &[100], 0);
    let [client, other] = [1, 2].map(|uid| desk.client(uid));
    let lease = desk.lease(client, want(20).up_to(100));
    let segments = [desk.held(client, lease, 20), desk.held(client, lease, 80)];
    desk.queue(other, want(60));
    desk.pass(100);
    let told: Vec<_> = desk.notices();
    assert!(matches!(told[..], [(_, Notice::Recall { bytes, .. })] if bytes == mib(60)), "{told:?}");
    assert_eq!(desk.view(lease).state, LeaseState::Active);
    desk.pass(10);
    assert!(desk.view(lease).overdue);
    assert_eq!(desk.view(lease).state, LeaseState::Suspending);
    desk.leave(client, lease, &segments);
    assert_eq!(desk.snapshot().leases.len(), 2);
}

#[test]
fn policy_may_end_who_keeps_what_is_recalled() {
    let grace = Duration::from_secs(3);
    let strict = Budget { on_overdue: Some(OnOverdue::Terminate { grace }), ..Budget::default() };
    let mut desk = Desk::with_budgets(&[100], users([(1, strict)]));
    let client = desk.client(1);
    let lease = desk.lease(client, want(20).up_to(60));
    desk.held(client, lease, 60);
    let within = Duration::from_secs(5);
    desk.ask(|request| Event::Recall { request, lease, bytes: Bytes::ZERO, within });
    desk.pass(5);
    assert!(desk.said.contains(&Effect::Signal { process: client.process, signal: Signal::Term }));
    desk.pass(2);
    assert!(desk.said.is_empty());
    desk.pass(1);
    assert_eq!(desk.said, [Effect::Signal { process: client.process, signal: Signal::Kill }]);
}

#[test]
#[should_panic(expected = "guarantees of 102 MiB")]
fn an_arbiter_is_not_made_with_budgets_that_break() {
    let device = DeviceSpec { id: device(0), capacity: mib(100), overhead_estimate: mib(0) };
    drop(Arbiter::new(policy(), users([(1, guarantee(102))]), &[device]));
}

#[test]
fn three_jobs_that_together_exceed_the_card_take_turns_within_the_bound() {
    let mut desk = Desk::with(moving(400), Budgets::default(), &[100], 0);
    let clients = [1, 2, 3].map(|uid| desk.client(uid));
    let first = desk.lease(clients[0], want(60));
    let mut segments = BTreeMap::from([(first, desk.held(clients[0], first, 60))]);
    let mut leases = BTreeMap::from([(first, clients[0])]);
    for client in &clients[1..] {
        desk.queue(*client, want(60));
    }
    let mut longest = Duration::ZERO;
    for _ in 0..9 {
        let next = desk.snapshot().waiting[0].clone();
        let promised = next.at_latest.expect("it is bounded");
        let resident = desk.snapshot().leases.iter().find(|l| l.state == LeaseState::Active).map(|l| l.id);
        let resident = resident.expect("one has its memory");
        while desk.view(resident).state == LeaseState::Active {
            desk.pass(1);
        }
        let client = leases[&resident];
        desk.leave(client, resident, &[segments[&resident]]);
        desk.resume(client, resident);
        assert!(desk.now <= promised, "{:?} is later than {promised:?}", desk.now);
        longest = longest.max(desk.now.since(next.since));
        if let Some(back) = next.lease {
            desk.come_back(leases[&back], back, &[segments[&back]]);
            assert_eq!(desk.view(back).state, LeaseState::Active);
        } else {
            let lease = desk.snapshot().leases.last().expect("it was granted").id;
            let client = clients.iter().find(|c| Some(c.session) == desk.view(lease).session);
            let client = *client.expect("it is one of them");
            leases.insert(lease, client);
            segments.insert(lease, desk.held(client, lease, 60));
        }
    }
    assert!(
        desk.snapshot().leases.iter().all(|lease| lease.suspensions >= 2),
        "{:?}",
        desk.snapshot().leases
    );
    assert!(longest >= Duration::from_secs(100));
}

/// Leases of one account were all taken at once, those too that its guarantee covered as soon as the first had left.
#[test]
fn an_account_keeps_what_its_guarantee_covers_of_it() {
    let states_after_an_ask_for = |asked: u64| {
        let mut desk = Desk::with(moving(400), users([(1, guarantee(20))]), &[100], 0);
        let [owner, other] = [1, 2].map(|uid| desk.client(uid));
        let leases = [40, 16].map(|bytes| desk.lease(owner, want(bytes)));
        for (lease, bytes) in leases.iter().zip([40, 16]) {
            desk.held(owner, *lease, bytes);
            desk.idle(owner, *lease);
            assert!(!desk.view(*lease).guaranteed);
        }
        desk.pass(30);
        desk.queue(other, want(asked));
        leases.map(|lease| desk.view(lease).state)
    };
    assert_eq!(states_after_an_ask_for(84), [LeaseState::Suspending, LeaseState::Active]);
    assert_eq!(
        states_after_an_ask_for(86),
        [LeaseState::Active; 2],
        "it would take 16 of the 20 that are owed"
    );
}

/// A time was promised that counted on the guarantee of another user of the same group.
#[test]
fn what_a_group_owes_to_others_in_it_is_promised_to_nobody() {
    let groups = BTreeMap::from([("lab".to_owned(), guarantee(40))]);
    let memberships = BTreeMap::from([(Uid::new(1), "lab".to_owned())]);
    let budgets = Budgets { groups, memberships, ..users([(1, guarantee(20))]) };
    let mut desk = Desk::with(moving(400), budgets, &[100], 0);
    let [alice, bob] = [1, 2].map(|uid| desk.client_in(uid, Some("lab")));
    let hoarder = desk.client(3);
    desk.lease(alice, want(10));
    let lent = desk.lease(hoarder, want(90));
    desk.held(hoarder, lent, 90);
    let promised = |desk: &mut Desk, bytes| {
        let ask = desk.queue(bob, want(bytes));
        let at = desk.waiting(ask).at_latest;
        desk.tell(Event::Close { request: gpulease_arbiter::RequestId(bytes), session: bob.session });
        at.is_some()
    };
    assert!(!promised(&mut desk, 82), "20 of 100 are alice's");
    let bob = desk.client_in(2, Some("lab"));
    let ask = desk.queue(bob, want(80));
    assert!(desk.waiting(ask).at_latest.is_some());
}

/// A time was promised that counted on a pinned lease within its guarantee, because it had kept its surplus too long.
#[test]
fn what_is_pinned_within_a_guarantee_is_promised_to_nobody() {
    let policy = Policy { pinned_max: Some(mib(40)), ..moving(400) };
    let mut desk = Desk::with(policy, users([(1, guarantee(20))]), &[100], 0);
    let owner = desk.client(1);
    let pinned = desk.lease(owner, want(20).up_to(60).pinned());
    desk.held(owner, pinned, 20);
    desk.held(owner, pinned, 40);
    let ask = desk.queue(owner, want(50));
    desk.pass(110);
    assert!(desk.view(pinned).overdue, "surplus was asked back, and kept");
    assert_eq!(desk.waiting(ask).at_latest, None, "40 of 100 are left beside what is pinned");
}

/// A lease within its guarantee grew by a resize to all that was free, and kept it against everybody.
#[test]
fn a_lease_that_grows_out_of_its_guarantee_is_lent() {
    let resized = |terms: gpulease_arbiter::Terms, to: u64| {
        let policy = Policy { pinned_max: Some(mib(20)), ..moving(400) };
        let mut desk = Desk::with(policy, users([(1, guarantee(20))]), &[100], 0);
        let owner = desk.client(1);
        let lease = desk.lease(owner, terms.up_to(100));
        let (session, reserve, limit) = (owner.session, mib(to), mib(100));
        let answer = desk.ask(|request| Event::Resize { request, session, lease, reserve, limit });
        (answer, desk.view(lease).guaranteed)
    };
    assert_eq!(resized(want(10), 20), (Answer::Resized, true));
    assert_eq!(resized(want(10), 80), (Answer::Resized, false));
    assert_eq!(resized(want(10).pinned(), 20), (Answer::Resized, true));
    let (answer, guaranteed) = resized(want(10).pinned(), 22);
    let expected =
        Denial::PinnedFull { device: device(0), pinned_max: mib(20), pinned: mib(0), asked: mib(22) };
    assert_eq!((answer, guaranteed), (Answer::Denied(expected), true), "all of it would count as pinned");
}

/// Each new surplus put the end off by one more deadline.
#[test]
fn an_ask_gives_holders_of_surplus_one_deadline() {
    let mut desk = Desk::with(moving(400), users([(1, guarantee(40))]), &[100], 0);
    let [owner, one, two] = [1, 2, 3].map(|uid| desk.client(uid));
    let first = desk.lease(one, want(10).up_to(50));
    desk.held(one, first, 10);
    desk.segment(one, first, 40);
    let second = desk.lease(two, want(50));
    desk.held(two, second, 50);
    desk.queue(owner, want(40));
    assert!(desk.view(first).state == LeaseState::Active, "40 of it are surplus, and asked for");
    desk.pass(9);
    let (session, reserve, limit) = (two.session, mib(10), mib(50));
    desk.ask(|request| Event::Resize { request, session, lease: second, reserve, limit });
    desk.pass(1);
    assert!(desk.view(first).overdue);
    let states = [first, second].map(|lease| desk.view(lease).state);
    assert!(
        states.contains(&LeaseState::Suspending),
        "not another 10 s for the 40 of the second: {states:?}"
    );
}

/// A barrier that waits for a lease of its group to end had pledged all that its user may have. Growth of that user stood
/// behind it, and was not seen when the group's guarantee came to cover it: whoever asked next was, and went first.
#[test]
fn what_a_barrier_pledged_hides_no_growth_that_a_guarantee_comes_to_cover() {
    let lab = Budget { leases_max: Some(2), ..guarantee(40) };
    let groups = BTreeMap::from([("lab".to_owned(), lab)]);
    let budgets = Budgets { groups, ..users([(1, limit(60))]) };
    let mut desk = Desk::with(moving(400), budgets, &[100], 0);
    let [alice, bob] = [1, 2].map(|uid| desk.client_in(uid, Some("lab")));
    let full = desk.lease(bob, want(40));
    let small = desk.lease(alice, want(10).up_to(60));
    desk.held(alice, small, 10);
    let barrier = desk.queue(alice, want(50));
    desk.pass(100);
    assert!(
        desk.waiting(barrier).barrier,
        "it waits for a third lease of the group, with 10 + 50 of 60 MiB taken"
    );
    desk.allocate_as(alice, small, 20, Patience::Endless, Guard::Outside);
    assert_eq!(
        desk.line().len(),
        2,
        "50 MiB of the device are free, and those of its user are pledged: {:?}",
        desk.said
    );
    let (session, reserve) = (bob.session, mib(10));
    desk.ask(|request| Event::Resize { request, session, lease: full, reserve, limit: reserve });
    assert!(
        desk.said.iter().any(|effect| matches!(effect, Effect::Create { lease, .. } if *lease == small)),
        "the group is due 30 MiB again"
    );
}
