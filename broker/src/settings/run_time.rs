//! What operators set at run time: tables like those of the configuration, kept in a file of their own.

use std::fmt::Write as _;

use serde::Deserialize;

use super::BadSetting;
use super::account::Account;
use super::budget::Table;
use super::file::InOrder;

/// Settings of accounts that go before the configuration's, the latest account last.
pub(crate) type RunTime = Vec<(Account, Table)>;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Kept {
    host: Table,
    group: InOrder<Table>,
    user: InOrder<Table>,
    job: InOrder<Table>,
}

/// Reads what [`text`] made. Users are numbers in it.
///
/// # Errors
/// When somebody else has written to it, with line and column.
pub(crate) fn parse(text: &str) -> Result<RunTime, BadSetting> {
    let Kept { host, group, user, job } =
        toml::from_str(text).map_err(|error| BadSetting(error.to_string().trim_end().to_owned()))?;
    let named = [("group", group), ("user", user), ("job", job)].into_iter();
    let named = named.flat_map(|(kind, InOrder(entries))| {
        entries.into_iter().map(move |(name, table)| (format!("{kind}.{name}"), table))
    });
    std::iter::once(("host".to_owned(), host))
        .chain(named)
        .filter(|(_, table)| !table.is_empty())
        .map(|(name, table)| Ok((Account::named(&name).map_err(BadSetting)?, table)))
        .collect()
}

/// The settings as a file.
pub(crate) fn text(run_time: &RunTime) -> String {
    let mut text = String::from(
        "# Budgets set at run time (`gpulease budget set`), kept by gpuleased, which goes before its configuration.\n\
         # Change them with `gpulease budget`, not here.\n",
    );
    for (account, table) in run_time {
        let (kind, name) = account.place();
        let header = name.map_or(kind.to_owned(), |name| format!("{kind}.{}", quoted(&name)));
        let _ = write!(text, "\n[{header}]\n");
        for (key, written) in table.iter() {
            let _ = writeln!(text, "{} = {}", key.word(), quoted(&written.text));
        }
    }
    text
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Key;

    #[test]
    fn what_is_kept_reads_back() {
        let mut table = Table::default();
        table.set(Key::Limit, "20GiB").expect("sound");
        table.set(Key::OnOverdue, "terminate 30s").expect("sound");
        table.set(Key::Weight, "3").expect("sound");
        let accounts = ["host", "group.a \"b\"", "user.4000000001", "job.sweep-*", "job.a"];
        let run_time: RunTime =
            accounts.iter().map(|name| (Account::named(name).expect("one"), table.clone())).collect();
        assert_eq!(parse(&text(&run_time)), Ok(run_time));
        assert_eq!(parse(&text(&Vec::new())), Ok(Vec::new()));
    }

    #[test]
    fn what_somebody_else_wrote_is_refused_with_its_place() {
        for bad in ["[user.1]\nlimt = \"2GiB\"", "[user.1]\nlimit = \"2\"", "[group.a]\nmembers = []"] {
            let why = parse(bad).expect_err(bad).to_string();
            assert!(why.contains("line "), "{why}");
        }
    }
}
