//! The account tree of the configuration, and what operators set above it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use gpulease_arbiter::{Budget, Budgets, OnOverdue, Pinning};
use gpulease_words::{Bytes, Uid};

use super::BadSetting;
use super::account::{Account, members as members_of, user};
use super::budget::{GroupTable, Measure, Overdue, Table, Value};

/// The budgets of the host, its groups, users and jobs. Shares of limits are of what the broker leases on all devices
/// together, shares of guarantees of what it leases on the smallest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    /// In the order of the file, which is that in which patterns of jobs are tried.
    tables: Vec<(Account, Table)>,
    groups: Vec<String>,
    memberships: BTreeMap<Uid, String>,
}

impl Accounts {
    /// With the names of users looked up.
    pub(super) fn new(
        host: &Table,
        groups: &[(String, GroupTable)],
        users: &[(String, Table)],
        jobs: &[(String, Table)],
    ) -> Result<Self, BadSetting> {
        let mut accounts = Self { tables: vec![(Account::Host, host.clone())], ..Self::default() };
        for (name, GroupTable { members, table }) in groups {
            crate::text::name(name).map_err(|why| BadSetting(format!("[group.{name:?}]: {why}")))?;
            accounts.groups.push(name.clone());
            accounts.tables.push((Account::Group(name.clone()), table.clone()));
            for member in members {
                let uids = members_of(member)
                    .map_err(|why| BadSetting(format!("[group.{name}]: members: {why}")))?;
                // The first group of the file that lists a user is his.
                for uid in uids {
                    accounts.memberships.entry(uid).or_insert_with(|| name.clone());
                }
            }
        }
        accounts.add_users(users)?;
        accounts.tables.extend(jobs.iter().map(|(name, table)| (Account::Job(name.clone()), table.clone())));
        accounts.tables.retain(|(_, table)| !table.is_empty());
        Ok(accounts)
    }

    /// A user may be written by name and by number, but only once: nobody could say which of two limits holds.
    fn add_users(&mut self, users: &[(String, Table)]) -> Result<(), BadSetting> {
        let mut names: BTreeMap<Uid, &str> = BTreeMap::new();
        for (name, table) in users {
            if name == "*" {
                self.tables.push((Account::EachUser, table.clone()));
                continue;
            }
            let uid = user(name).map_err(|why| BadSetting(format!("[user.{name}]: {why}")))?;
            if let Some(other) = names.insert(uid, name) {
                return Err(BadSetting(format!(
                    "[user.{other}] and [user.{name}] are the same user, number {uid}; write his settings in one of them"
                )));
            }
            self.tables.push((Account::User(uid), table.clone()));
        }
        Ok(())
    }

    /// These with what was set at run time before it. Patterns of jobs that only the run time has are tried first.
    ///
    /// # Errors
    /// When the file does not have a group.
    pub(crate) fn under(&self, run_time: &[(Account, Table)]) -> Result<Self, BadSetting> {
        let mut accounts = self.clone();
        let mut new = Vec::new();
        for (account, table) in run_time {
            if let Account::Group(name) = account
                && !self.groups.contains(name)
            {
                let why = format!("the file has no {account}; groups and their members are made there");
                return Err(BadSetting(why));
            }
            match accounts.tables.iter_mut().find(|(known, _)| known == account) {
                Some((_, below)) => *below = table.over(below),
                None => new.push((account.clone(), table.clone())),
            }
        }
        new.append(&mut accounts.tables);
        accounts.tables = new;
        Ok(accounts)
    }

    /// The accounts that have settings, in the order in which patterns of jobs are tried.
    pub(crate) fn tables(&self) -> &[(Account, Table)] {
        &self.tables
    }

    /// The settings of one account.
    pub(crate) fn table(&self, account: &Account) -> Option<&Table> {
        self.tables.iter().find(|(known, _)| known == account).map(|(_, table)| table)
    }

    /// The groups of the file.
    pub(crate) fn groups(&self) -> &[String] {
        &self.groups
    }

    /// The first group of the file that lists a user.
    pub(crate) fn memberships(&self) -> &BTreeMap<Uid, String> {
        &self.memberships
    }

    /// What is budgeted, in a line for each account, on these devices.
    pub(crate) fn lines(&self, measure: Measure) -> Vec<String> {
        let line = |(account, table): &(Account, Table)| {
            let settings: Vec<_> = table
                .iter()
                .map(|(key, written)| {
                    let value =
                        written.value.bytes(measure).map_or(written.text.clone(), |bytes| bytes.to_string());
                    format!("{} {value}", key.word())
                })
                .collect();
            format!("{}: {}", account.for_people(), settings.join(", "))
        };
        self.tables.iter().map(line).collect()
    }

    /// The budgets on these devices.
    pub(crate) fn budgets(&self, measure: Measure) -> Budgets {
        let mut budgets = Budgets { memberships: self.memberships.clone(), ..Budgets::default() };
        for (account, table) in &self.tables {
            let budget = budget(table, measure);
            match account {
                Account::Host => budgets.host = budget,
                Account::Group(name) => drop(budgets.groups.insert(name.clone(), budget)),
                Account::EachUser => budgets.default_user = budget,
                Account::User(uid) => drop(budgets.users.insert(*uid, budget)),
                Account::Job(pattern) => budgets.jobs.push((pattern.clone(), budget)),
            }
        }
        budgets
    }
}

fn budget(table: &Table, measure: Measure) -> Budget {
    let mut budget = Budget { weight: NonZeroU32::MIN, ..Budget::default() };
    for (_, written) in table.iter() {
        match written.value {
            Value::Limit(_) => budget.limit = written.value.bytes(measure),
            Value::Weight(weight) => budget.weight = weight,
            Value::LeasesMax(most) => budget.leases_max = Some(most),
            Value::Guarantee(_) => budget.guarantee = written.value.bytes(measure).unwrap_or(Bytes::ZERO),
            Value::MaxWait(span) => budget.max_wait = Some(span),
            Value::Suspendable(true) => budget.pinning = Pinning::Movable,
            Value::Suspendable(false) => budget.pinning = Pinning::Pinned,
            Value::OnOverdue(Overdue::Keep) => budget.on_overdue = Some(OnOverdue::Keep),
            Value::OnOverdue(Overdue::Terminate(grace)) => {
                budget.on_overdue = Some(OnOverdue::Terminate { grace });
            }
        }
    }
    budget
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Key;
    use gpulease_words::gib;
    use std::time::Duration;

    fn group(members: &[&str]) -> GroupTable {
        GroupTable { members: members.iter().map(ToString::to_string).collect(), ..GroupTable::default() }
    }

    fn with(key: Key, text: &str) -> Table {
        let mut table = Table::default();
        table.set(key, text).expect("sound");
        table
    }

    fn limited(text: &str) -> Table {
        with(Key::Limit, text)
    }

    fn measure() -> Measure {
        Measure::of([gib(16)].into_iter())
    }

    #[test]
    fn the_first_group_of_the_file_has_the_user() {
        let groups =
            [("zebras".to_owned(), group(&["root"])), ("ants".to_owned(), group(&["0", "4000000001"]))];
        let accounts = Accounts::new(&Table::default(), &groups, &[], &[]).expect("known users");
        assert_eq!(accounts.memberships().get(&Uid::new(0)).map(String::as_str), Some("zebras"));
        assert_eq!(accounts.memberships().get(&Uid::new(4_000_000_001)).map(String::as_str), Some("ants"));
    }

    #[test]
    fn an_unknown_user_is_refused_by_name() {
        let groups = [("a".to_owned(), group(&["no-such-user-here"]))];
        let error = Accounts::new(&Table::default(), &groups, &[], &[]).expect_err("unknown").to_string();
        assert!(error.contains("[group.a]") && error.contains("no-such-user-here"), "{error}");
        let groups = [("a".to_owned(), group(&["@no-such-group-here"]))];
        let error = Accounts::new(&Table::default(), &groups, &[], &[]).expect_err("unknown").to_string();
        assert!(error.contains("[group.a]") && error.contains("getent group no-such-group-here"), "{error}");
        let users = [("no-such-user-here".to_owned(), Table::default())];
        assert!(Accounts::new(&Table::default(), &[], &users, &[]).is_err());
    }

    #[test]
    fn the_same_user_twice_is_refused_with_both_names() {
        let users = [("root".to_owned(), limited("1GiB")), ("0".to_owned(), limited("2GiB"))];
        let error = Accounts::new(&Table::default(), &[], &users, &[]).expect_err("twice").to_string();
        assert!(error.contains("[user.root] and [user.0]"), "{error}");
        assert!(Accounts::new(&Table::default(), &[], &users[..1], &[]).is_ok());
    }

    #[test]
    fn shares_are_of_all_devices_together() {
        let users = [("*".to_owned(), limited("25%")), ("root".to_owned(), limited("3GiB"))];
        let accounts = Accounts::new(&limited("50%"), &[], &users, &[]).expect("known users");
        let budgets = accounts.budgets(measure());
        assert_eq!(budgets.host.limit, Some(gib(8)));
        assert_eq!(budgets.default_user.limit, Some(gib(4)));
        assert_eq!(budgets.users.get(&Uid::new(0)).and_then(|budget| budget.limit), Some(gib(3)));
    }

    #[test]
    fn every_setting_reaches_the_arbiter() {
        let mut table = Table::default();
        for (key, text) in [
            (Key::Guarantee, "25%"),
            (Key::MaxWait, "2m"),
            (Key::Suspendable, "false"),
            (Key::OnOverdue, "terminate 30s"),
            (Key::LeasesMax, "4"),
        ] {
            table.set(key, text).expect(text);
        }
        let budget = budget(&table, measure());
        assert_eq!((budget.guarantee, budget.max_wait), (gib(4), Some(Duration::from_secs(120))));
        assert_eq!((budget.pinning, budget.leases_max), (Pinning::Pinned, Some(4)));
        assert_eq!(budget.on_overdue, Some(OnOverdue::Terminate { grace: Duration::from_secs(30) }));
    }

    #[test]
    fn what_is_set_at_run_time_goes_before_the_file_and_the_rest_stays() {
        let mut root = limited("3GiB");
        root.set(Key::Weight, "2").expect("sound");
        let jobs = [("*".to_owned(), limited("1GiB"))];
        let file = Accounts::new(&Table::default(), &[], &[("root".to_owned(), root)], &jobs).expect("sound");
        let run_time = [
            (Account::User(Uid::new(0)), limited("5GiB")),
            (Account::Job("sweep-*".to_owned()), limited("2GiB")),
        ];
        let budgets = file.under(&run_time).expect("sound").budgets(measure());
        let root = &budgets.users[&Uid::new(0)];
        assert_eq!((root.limit, root.weight.get()), (Some(gib(5)), 2));
        assert_eq!(budgets.of_job("sweep-1").limit, Some(gib(2)), "a pattern of the run time is tried first");
        assert_eq!(budgets.of_job("other").limit, Some(gib(1)));
    }

    #[test]
    fn a_group_that_the_file_does_not_have_is_refused() {
        let file = Accounts::default();
        let run_time = [(Account::Group("nlp".to_owned()), limited("1GiB"))];
        let why = file.under(&run_time).expect_err("no such group").to_string();
        assert!(why.contains("group.nlp"), "{why}");
    }
}
