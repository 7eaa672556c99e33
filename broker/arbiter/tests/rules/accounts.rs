//! Limits along the account path.

use std::collections::BTreeMap;
use std::time::Duration;

use gpulease_arbiter::{Budget, Budgets, Denial, Event};
use gpulease_words::{Reason, Uid, mib};

use crate::desk::{Answer, Ask, Desk, NOW, limit, seconds, want};

fn user_limit(of: u64) -> Budgets {
    Budgets { default_user: limit(of), ..Budgets::default() }
}

#[test]
fn the_budget_is_met_to_the_last_byte() {
    for (asked, fits) in [(512, true), (514, false)] {
        let mut desk = Desk::with_budgets(&[2048], user_limit(512));
        let client = desk.client(1);
        match desk.acquire(client, want(asked)) {
            Answer::Granted(_) => assert!(fits),
            Answer::Denied(denial) => {
                assert!(!fits);
                let account = "user.1".to_owned();
                assert_eq!(
                    denial,
                    Denial::OverBudget { account, limit: mib(512), asked: mib(514), overhead: mib(0) }
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_context_and_every_device_count_against_the_budget() {
    let mut desk = Desk::with(crate::desk::policy(), user_limit(512), &[1024, 1024], 56);
    let client = desk.client(1);
    let denial = desk.refused(client, want(202).any(2));
    let account = "user.1".to_owned();
    assert_eq!(denial, Denial::OverBudget { account, limit: mib(512), asked: mib(404), overhead: mib(112) });
    desk.lease(client, want(200).any(2));
}

#[test]
fn the_tightest_limit_is_named() {
    let budgets = Budgets {
        host: limit(900),
        groups: BTreeMap::from([("lab".to_owned(), limit(600))]),
        users: BTreeMap::from([(Uid::new(1), limit(700))]),
        jobs: vec![("big-*".to_owned(), limit(650))],
        ..Budgets::default()
    };
    let mut desk = Desk::with_budgets(&[2048], budgets);
    let [mine, other] = [desk.client_in(1, Some("lab")), desk.client_in(2, None)];
    let named = |denial: Denial| match denial {
        Denial::OverBudget { account, .. } => account,
        other => panic!("{other}"),
    };
    assert_eq!(named(desk.refused(mine, want(610).named("big-a"))), "group.lab");
    assert_eq!(named(desk.refused(other, want(660).named("big-a"))), "user.2/job.big-a");
    assert_eq!(named(desk.refused(other, want(902).named("small"))), "host");
    desk.lease(other, want(900).named("small"));
}

#[test]
fn a_full_account_waits_and_says_by_how_much() {
    let mut desk = Desk::with_budgets(&[2048], user_limit(512));
    let client = desk.client(1);
    let first = desk.lease(client, want(400));
    let denial = desk.refused(client, want(114).patient(NOW));
    let account = "user.1".to_owned();
    let full = Denial::AccountFull { account, limit: mib(512), charged: mib(400), asked: mib(114) };
    assert_eq!(denial, full);
    assert_eq!(denial.reason(), Reason::AccountLimit, "its own leases end some day");
    let waits = desk.queue(client, want(114));
    assert_eq!(desk.why(waits), (Reason::AccountLimit, 2));
    assert_eq!(desk.waiting(waits).account.as_deref(), Some("user.1"));
    desk.lease(client, want(112));
    desk.release(client, first);
    assert!(desk.line().is_empty());
}

#[test]
fn anothers_budget_is_not_touched() {
    let mut desk = Desk::with_budgets(&[2048], user_limit(512));
    let [one, two] = [1, 2].map(|uid| desk.client(uid));
    desk.lease(one, want(512));
    desk.queue(one, want(2));
    desk.lease(two, want(512));
}

#[test]
fn leases_are_counted_along_the_path() {
    let two = Budget { leases_max: Some(2), ..Budget::default() };
    let budgets = Budgets { groups: BTreeMap::from([("lab".to_owned(), two)]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[1000], budgets);
    let [a, b] = [1, 2].map(|uid| desk.client_in(uid, Some("lab")));
    let first = desk.lease(a, want(400));
    desk.queue(b, want(700));
    desk.lease(b, want(2));
    let account = "group.lab".to_owned();
    let many = Denial::TooMany { what: "leases", account, max: 2 };
    assert_eq!(desk.refused(a, want(2).patient(NOW)), many);
    let segment = desk.segment(a, first, 2);
    desk.release(a, first);
    assert_eq!(desk.snapshot().waiting.len(), 1, "a lease counts until it is gone");
    desk.give_back(a, first, segment);
    assert!(desk.line().is_empty());
}

/// Of the host, of a group and of a user: nobody loses what he has.
#[test]
fn another_number_of_leases_counts_from_now_on() {
    let most = |of: &str, leases| {
        let (budget, mut budgets) =
            (Budget { leases_max: Some(leases), ..Budget::default() }, Budgets::default());
        match of {
            "host" => budgets.host = budget,
            "group.lab" => budgets.groups = BTreeMap::from([("lab".to_owned(), budget)]),
            _ => budgets.users = BTreeMap::from([(Uid::new(1), budget)]),
        }
        budgets
    };
    for account in ["host", "group.lab", "user.1"] {
        let mut desk = Desk::with_budgets(&[1000], most(account, 1));
        let client = desk.client_in(1, Some("lab"));
        let refused = |desk: &mut Desk, max| {
            let many = Denial::TooMany { what: "leases", account: account.to_owned(), max };
            assert_eq!(desk.refused(client, want(2).patient(NOW)), many);
        };
        let set = |desk: &mut Desk, leases| {
            let budgets = Box::new(most(account, leases));
            desk.ask(|request| Event::SetBudgets { request, budgets })
        };
        desk.lease(client, want(2));
        refused(&mut desk, 1);
        set(&mut desk, 2);
        let second = desk.lease(client, want(2));
        refused(&mut desk, 2);
        set(&mut desk, 1);
        assert_eq!(desk.snapshot().leases.len(), 2);
        desk.release(client, second);
        refused(&mut desk, 1);
    }
}

/// A job of an account that had all its leases was refused although it would have waited.
#[test]
fn who_waits_is_granted_when_a_lease_of_its_account_ends() {
    let one = Budget { leases_max: Some(1), ..Budget::default() };
    let none = Budget { leases_max: Some(0), ..Budget::default() };
    let budgets =
        Budgets { users: BTreeMap::from([(Uid::new(1), one), (Uid::new(3), none)]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[100], budgets);
    let [mine, other, nobody] = [1, 2, 3].map(|uid| desk.client(uid));
    let first = desk.lease(mine, want(10));
    let [waits, later] = [want(20), want(30).patient(seconds(200))].map(|terms| desk.queue(mine, terms));
    let view = desk.waiting(waits);
    let why = (view.reason, view.short_by, view.account.as_deref(), view.at_latest);
    assert_eq!(why, (Reason::AccountLimit, mib(0), Some("user.1"), None));
    desk.pass(150);
    assert_eq!(desk.why(later).0, Reason::AccountLimit);
    desk.lease(other, want(90));
    desk.pass(50);
    let account = || "user.1".to_owned();
    let over = Denial::StillTooMany { waited: Duration::from_secs(200), account: account(), max: 1 };
    assert!(desk.answers.values().any(|answer| *answer == Answer::Denied(over.clone())), "{:?}", desk.said);
    desk.release(mine, first);
    assert_eq!(desk.why(waits), (Reason::NoRoom, 10), "the barrier has its place among the leases by now");
    let never = Denial::TooMany { what: "leases", account: "user.3".to_owned(), max: 0 };
    assert_eq!(desk.refused(nobody, want(2)), never, "one that may have none never gets one");
}

#[test]
fn a_user_stays_in_the_group_he_was_first_seen_in() {
    let budgets = Budgets { groups: BTreeMap::from([("lab".to_owned(), limit(100))]), ..Budgets::default() };
    let mut desk = Desk::with_budgets(&[1000], budgets);
    let inside = desk.client_in(1, Some("lab"));
    desk.lease(inside, want(60));
    let elsewhere = desk.client_in(1, None);
    desk.queue(elsewhere, want(60));
}

#[test]
fn accounts_go_when_nothing_is_in_them_and_those_with_budgets_are_shown() {
    let budgets = Budgets { users: BTreeMap::from([(Uid::new(9), limit(100))]), ..user_limit(512) };
    let mut desk = Desk::with_budgets(&[1000], budgets);
    let client = desk.client(1);
    let lease = desk.lease(client, want(60).named("net"));
    let paths = |desk: &Desk| {
        desk.snapshot().accounts.into_iter().map(|a| (a.path, a.charged.get() >> 20)).collect::<Vec<_>>()
    };
    let path = |name: &str, charged| (name.to_owned(), charged);
    let expected = [path("host", 60), path("user.1", 60), path("user.9", 0), path("user.1/job.net", 60)];
    assert_eq!(paths(&desk), expected);
    desk.release(client, lease);
    assert_eq!(paths(&desk), [path("host", 0), path("user.9", 0)]);
}
