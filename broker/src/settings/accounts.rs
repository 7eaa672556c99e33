//! The account tree of the configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use gpulease_arbiter::{Budget, Budgets};
use gpulease_words::{Bytes, Size, Uid};
use serde::Deserialize;

use super::BadSetting;
use super::file::text;

/// What an account may have, as the file says it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AccountTable {
    #[serde(deserialize_with = "text")]
    limit: Option<Size>,
    weight: Option<NonZeroU32>,
    leases_max: Option<u32>,
}

/// A group's, with its members.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GroupTable {
    members: Vec<String>,
    #[serde(deserialize_with = "text")]
    limit: Option<Size>,
    weight: Option<NonZeroU32>,
    leases_max: Option<u32>,
}

impl GroupTable {
    fn account(&self) -> AccountTable {
        AccountTable { limit: self.limit, weight: self.weight, leases_max: self.leases_max }
    }
}

/// The budgets of the host, its groups, users and jobs. Shares are of what the broker leases on all devices together.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    host: AccountTable,
    groups: Vec<(String, AccountTable)>,
    users: Vec<(Uid, AccountTable)>,
    default_user: AccountTable,
    jobs: Vec<(String, AccountTable)>,
    memberships: BTreeMap<Uid, String>,
}

impl Accounts {
    /// With the names of users looked up.
    pub(super) fn new(
        host: &AccountTable,
        groups: &[(String, GroupTable)],
        users: &[(String, AccountTable)],
        jobs: &[(String, AccountTable)],
    ) -> Result<Self, BadSetting> {
        let mut accounts = Self { host: host.clone(), jobs: jobs.to_vec(), ..Self::default() };
        for (name, table) in groups {
            crate::text::name(name).map_err(|why| BadSetting(format!("[group.{name:?}]: {why}")))?;
            accounts.groups.push((name.clone(), table.account()));
            for member in &table.members {
                let uid =
                    user(member).map_err(|why| BadSetting(format!("[group.{name}]: members: {why}")))?;
                // The first group of the file that lists a user is his.
                accounts.memberships.entry(uid).or_insert_with(|| name.clone());
            }
        }
        for (name, table) in users {
            if name == "*" {
                accounts.default_user = table.clone();
            } else {
                let uid = user(name).map_err(|why| BadSetting(format!("[user.{name}]: {why}")))?;
                accounts.users.push((uid, table.clone()));
            }
        }
        Ok(accounts)
    }

    /// The first group of the file that lists a user.
    pub(crate) fn memberships(&self) -> &BTreeMap<Uid, String> {
        &self.memberships
    }

    /// What is budgeted, in a line for each account, where so much is leased on all devices together.
    pub(crate) fn lines(&self, capacity: Bytes) -> Vec<String> {
        let line = |path: String, table: &AccountTable| {
            let limit = table.limit.map(|limit| format!("limit {}", limit.of(capacity)));
            let weight = table.weight.map(|weight| format!("weight {weight}"));
            let leases = table.leases_max.map(|max| format!("at most {max} leases"));
            let parts: Vec<_> = limit.into_iter().chain(weight).chain(leases).collect();
            (!parts.is_empty()).then(|| format!("{path}: {}", parts.join(", ")))
        };
        let host = line("host".into(), &self.host);
        let groups = self.groups.iter().filter_map(|(name, table)| line(format!("group {name}"), table));
        let users = self.users.iter().filter_map(|(uid, table)| line(format!("user {uid}"), table));
        let others = line("each other user".into(), &self.default_user);
        let jobs = self.jobs.iter().filter_map(|(pattern, table)| line(format!("each job {pattern}"), table));
        host.into_iter().chain(groups).chain(users).chain(others).chain(jobs).collect()
    }

    /// The budgets where so much is leased on all devices together.
    pub(crate) fn budgets(&self, capacity: Bytes) -> Budgets {
        let budget = |table: &AccountTable| Budget {
            limit: table.limit.map(|limit| limit.of(capacity)),
            weight: table.weight.unwrap_or(NonZeroU32::MIN),
            leases_max: table.leases_max,
            ..Budget::default()
        };
        Budgets {
            host: budget(&self.host),
            groups: self.groups.iter().map(|(name, table)| (name.clone(), budget(table))).collect(),
            users: self.users.iter().map(|(uid, table)| (*uid, budget(table))).collect(),
            default_user: budget(&self.default_user),
            jobs: self.jobs.iter().map(|(pattern, table)| (pattern.clone(), budget(table))).collect(),
            default_job: Budget::default(),
            memberships: BTreeMap::new(),
        }
    }
}

/// The user of a name or a number.
fn user(name: &str) -> Result<Uid, String> {
    if let Ok(number) = name.parse() {
        return Ok(Uid::new(number));
    }
    let found = uzers::get_user_by_name(name).map(|user| Uid::new(user.uid()));
    found.ok_or_else(|| {
        format!("the name service knows no user {name:?}; correct the name (`id {name}` asks the same), or write the number")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::gib;

    fn group(members: &[&str]) -> GroupTable {
        GroupTable { members: members.iter().map(ToString::to_string).collect(), ..GroupTable::default() }
    }

    fn limited(limit: Size) -> AccountTable {
        AccountTable { limit: Some(limit), ..AccountTable::default() }
    }

    #[test]
    fn the_first_group_of_the_file_has_the_user() {
        let groups =
            [("zebras".to_owned(), group(&["root"])), ("ants".to_owned(), group(&["0", "4000000001"]))];
        let accounts = Accounts::new(&AccountTable::default(), &groups, &[], &[]).expect("known users");
        assert_eq!(accounts.memberships().get(&Uid::new(0)).map(String::as_str), Some("zebras"));
        assert_eq!(accounts.memberships().get(&Uid::new(4_000_000_001)).map(String::as_str), Some("ants"));
    }

    #[test]
    fn an_unknown_user_is_refused_by_name() {
        let groups = [("a".to_owned(), group(&["no-such-user-here"]))];
        let error =
            Accounts::new(&AccountTable::default(), &groups, &[], &[]).expect_err("unknown").to_string();
        assert!(error.contains("[group.a]") && error.contains("no-such-user-here"), "{error}");
        let users = [("no-such-user-here".to_owned(), AccountTable::default())];
        assert!(Accounts::new(&AccountTable::default(), &[], &users, &[]).is_err());
    }

    #[test]
    fn shares_are_of_all_devices_together() {
        let users = [
            ("*".to_owned(), limited(Size::Share(2_500))),
            ("root".to_owned(), limited(Size::Amount(gib(3)))),
        ];
        let accounts = Accounts::new(&limited(Size::Share(5_000)), &[], &users, &[]).expect("known users");
        let budgets = accounts.budgets(gib(16));
        assert_eq!(budgets.host.limit, Some(gib(8)));
        assert_eq!(budgets.default_user.limit, Some(gib(4)));
        assert_eq!(budgets.users.get(&Uid::new(0)).and_then(|budget| budget.limit), Some(gib(3)));
    }
}
