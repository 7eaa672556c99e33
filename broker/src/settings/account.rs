//! Accounts as the configuration and operators name them.

use std::fmt;

use gpulease_words::Uid;
use uzers::os::unix::GroupExt as _;

/// An account, or all those that have no budget by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Account {
    /// Everything together.
    Host,
    /// A group of the file.
    Group(String),
    /// Each user without a budget of his own.
    EachUser,
    /// A user.
    User(Uid),
    /// Each user's jobs of names that match.
    Job(String),
}

impl Account {
    /// Reads `host`, `group.NAME`, `user.NAME`, `user.*` or `job.PATTERN`. Asks the name service for users, which may take
    /// long.
    ///
    /// # Errors
    /// What is wrong with it, and how it is written.
    pub(crate) fn named(text: &str) -> Result<Self, String> {
        const FORMS: &str = "write host, group.NAME, user.NAME, user.* or job.PATTERN";
        match text.split_once('.') {
            None if text == "host" => Ok(Self::Host),
            Some(("group", name)) => Ok(Self::Group(checked(text, name)?)),
            Some(("user", "*")) => Ok(Self::EachUser),
            Some(("user", name)) => user(name).map(Self::User),
            Some(("job", pattern)) => Ok(Self::Job(checked(text, pattern)?)),
            Some(_) | None => Err(format!("{text:?} is no account; {FORMS}")),
        }
    }

    /// As it is named, a user by name and number where he has a name. Asks the name service.
    pub(crate) fn for_people(&self) -> String {
        let name = match self {
            Self::User(uid) => uzers::get_user_by_uid(uid.get()),
            Self::Host | Self::Group(_) | Self::EachUser | Self::Job(_) => None,
        };
        match name {
            Some(user) => {
                format!("user.{} ({})", crate::text::shown(&user.name().to_string_lossy()), user.uid())
            }
            None => self.to_string(),
        }
    }

    /// The names of the table and of the entry in it that the file has for it, users by number.
    pub(crate) fn place(&self) -> (&'static str, Option<String>) {
        match self {
            Self::Host => ("host", None),
            Self::Group(name) => ("group", Some(name.clone())),
            Self::EachUser => ("user", Some("*".to_owned())),
            Self::User(uid) => ("user", Some(uid.to_string())),
            Self::Job(pattern) => ("job", Some(pattern.clone())),
        }
    }
}

/// As it is named, users by number.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place() {
            (table, None) => f.write_str(table),
            (table, Some(name)) => write!(f, "{table}.{name}"),
        }
    }
}

fn checked(whole: &str, name: &str) -> Result<String, String> {
    crate::text::name(name).map(str::to_owned).map_err(|why| format!("{whole:?}: {why}"))
}

/// The users that a member of a group stands for: one by name or number, or, as `@NAME`, all that the name service lists
/// for a group of the system.
pub(super) fn members(word: &str) -> Result<Vec<Uid>, String> {
    let Some(name) = word.strip_prefix('@') else {
        return user(word).map(|uid| vec![uid]);
    };
    let group = uzers::get_group_by_name(name).ok_or_else(|| {
        format!(
            "the name service knows no group {name:?}; correct the name (`getent group {name}` asks the same)"
        )
    })?;
    Ok(listed(&group))
}

/// Who is listed and has no account asks for nothing.
fn listed(group: &uzers::Group) -> Vec<Uid> {
    let uid = |name| uzers::get_user_by_name(name).map(|user| Uid::new(user.uid()));
    group.members().iter().filter_map(uid).collect()
}

/// The user of a name or a number.
pub(super) fn user(name: &str) -> Result<Uid, String> {
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

    #[test]
    fn a_group_of_the_system_is_all_whom_it_lists() {
        let group = uzers::Group::new(4_000_000_001, "vision");
        let group = group.add_member("root").add_member("no-such-user-here");
        assert_eq!(listed(&group), [Uid::new(0)]);
        assert!(members("@root").is_ok(), "every system has it");
        assert_eq!(members("root"), Ok(vec![Uid::new(0)]));
    }

    #[test]
    fn accounts_read_back_as_printed() {
        for text in ["host", "group.nlp", "user.*", "user.4000000001", "job.sweep-*", "job.a.b"] {
            assert_eq!(Account::named(text).expect("an account").to_string(), text);
        }
        assert_eq!(Account::named("user.root"), Ok(Account::User(Uid::new(0))));
        assert_eq!(Account::User(Uid::new(0)).for_people(), "user.root (0)");
        assert_eq!(Account::User(Uid::new(4_000_000_001)).for_people(), "user.4000000001");
        for bad in ["", "hosts", "group.", "user.", "job.", "user.no-such-user-here", "team.x", "job.a\x1bb"]
        {
            assert!(Account::named(bad).is_err(), "{bad:?}");
        }
    }
}
