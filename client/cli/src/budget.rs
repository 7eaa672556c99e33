//! `gpulease budget`: what accounts may have, where that comes from, and changing it.

use gpulease_client::proto as v1;
use gpulease_words::Bytes;
use serde::Serialize;

use crate::arguments::{BudgetRmArguments, BudgetSetArguments, Common};
use crate::connection;
use crate::escape::printable;
use crate::exit::{Exit, Outcome};
use crate::grid::{self, Column, Narrow};
use crate::look::Look;
use crate::output;
use crate::state::{self, Account, SCHEMA_VERSION};

#[derive(Serialize)]
struct Budgets<'a> {
    schema_version: u32,
    accounts: Vec<Account<'a>>,
    budgets: Vec<Budget<'a>>,
    kept_in: Option<&'a str>,
}

/// An account that has settings.
#[derive(Serialize)]
struct Budget<'a> {
    account: &'a str,
    members: &'a [String],
    settings: Vec<Setting<'a>>,
}

#[derive(Serialize)]
struct Setting<'a> {
    key: &'a str,
    value: &'a str,
    origin: &'static str,
    bytes: Option<u64>,
}

impl<'a> From<&'a v1::AccountBudget> for Budget<'a> {
    fn from(budget: &'a v1::AccountBudget) -> Self {
        let setting = |setting: &'a v1::BudgetSetting| Setting {
            key: &setting.key,
            value: &setting.value,
            origin: origin(setting),
            bytes: setting.bytes,
        };
        Self {
            account: &budget.account,
            members: &budget.members,
            settings: budget.settings.iter().map(setting).collect(),
        }
    }
}

fn origin(setting: &v1::BudgetSetting) -> &'static str {
    match setting.origin() {
        v1::BudgetOrigin::File => "file",
        v1::BudgetOrigin::RunTime => "run_time",
        v1::BudgetOrigin::Unspecified => "unknown",
    }
}

/// Lists accounts and their settings.
pub(crate) async fn list(common: &Common) -> Outcome {
    let observer = connection::observer(common).await?;
    let (reply, listed) = (observer.status().await?, observer.budgets().await?);
    if common.json {
        output::print_document(&Budgets {
            schema_version: SCHEMA_VERSION,
            accounts: reply.accounts.iter().map(Account::from).collect(),
            budgets: listed.budgets.iter().map(Budget::from).collect(),
            kept_in: Some(listed.kept_in.as_str()).filter(|path| !path.is_empty()),
        })?;
    } else {
        let look = Look::of_stdout();
        output::print(&state::accounts(&reply.accounts, look))?;
        output::print(&settings(&listed, look))?;
    }
    Ok(Exit::Done)
}

const COLUMNS: &[Column] = &[
    Column::left("SET FOR", Narrow::Cut),
    Column::left("SETTING", Narrow::Keep),
    Column::right("VALUE", Narrow::Keep),
    Column::right("BYTES", Narrow::LeaveOut(1)),
    Column::left("BY", Narrow::Keep),
];

/// The settings as a table, and where those of the run time are kept; nothing where there are none.
fn settings(listed: &v1::ListBudgetsReply, look: Look) -> String {
    let rows: Vec<_> = listed.budgets.iter().flat_map(rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let set = listed.budgets.iter().flat_map(|budget| &budget.settings);
    let at_run_time = set.into_iter().any(|setting| setting.origin() == v1::BudgetOrigin::RunTime);
    let kept = match (at_run_time, listed.kept_in.as_str()) {
        (false, _) => String::new(),
        (true, "") => {
            "\nWhat was set at run time ends with the broker, which keeps nothing (gpuleased --state DIRECTORY).\n"
                .to_owned()
        }
        (true, path) => format!("\nWhat was set at run time is kept in {}.\n", printable(path)),
    };
    format!("\n{}{kept}", grid::lines(COLUMNS, &rows, look))
}

fn rows(budget: &v1::AccountBudget) -> Vec<Vec<String>> {
    let row = |setting: &v1::BudgetSetting| {
        vec![
            printable(&budget.account).into_owned(),
            printable(&setting.key).into_owned(),
            printable(&setting.value).into_owned(),
            setting.bytes.map_or_else(String::new, |bytes| Bytes::new(bytes).to_string()),
            origin(setting).replace('_', " "),
        ]
    };
    budget.settings.iter().map(row).collect()
}

#[derive(Serialize)]
struct Changed<'a> {
    schema_version: u32,
    budget: Budget<'a>,
}

/// Sets what an account may have.
pub(crate) async fn set(common: &Common, arguments: &BudgetSetArguments) -> Outcome {
    let operator = connection::operator(common).await?;
    let budget = operator.set_budget(&arguments.account, &arguments.settings).await?;
    if common.json {
        let document = Changed { schema_version: SCHEMA_VERSION, budget: Budget::from(&budget) };
        output::print_document(&document)?;
    } else {
        output::print(&format!("{}\n", sentence(&budget)))?;
    }
    Ok(Exit::Done)
}

/// `user.anna: limit 40 GiB (50%), weight 2`
fn sentence(budget: &v1::AccountBudget) -> String {
    let part = |setting: &v1::BudgetSetting| {
        let (key, value) = (printable(&setting.key), printable(&setting.value));
        match setting.bytes.map(Bytes::new) {
            Some(bytes) if value.ends_with('%') => format!("{key} {bytes} ({value})"),
            Some(bytes) => format!("{key} {bytes}"),
            None => format!("{key} {value}"),
        }
    };
    let parts: Vec<_> = budget.settings.iter().map(part).collect();
    format!("{}: {}", printable(&budget.account), parts.join(", "))
}

#[derive(Serialize)]
struct Removed<'a> {
    schema_version: u32,
    account: &'a str,
    setting: Option<&'a str>,
}

/// Forgets what was set for an account.
pub(crate) async fn remove(common: &Common, arguments: &BudgetRmArguments) -> Outcome {
    let operator = connection::operator(common).await?;
    let (account, setting) = (arguments.account.as_str(), arguments.setting.as_deref());
    operator.remove_budget(account, setting).await?;
    if common.json {
        output::print_document(&Removed { schema_version: SCHEMA_VERSION, account, setting })?;
    } else {
        let what = setting.unwrap_or("everything");
        output::print(&format!(
            "{what} that was set for {account} is forgotten; the configuration holds again\n"
        ))?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::gib;

    fn listed(kept_in: &str) -> v1::ListBudgetsReply {
        let setting = |key: &str, value: &str, origin: v1::BudgetOrigin, bytes| v1::BudgetSetting {
            key: key.into(),
            value: value.into(),
            origin: origin.into(),
            bytes,
        };
        let anna = v1::AccountBudget {
            account: "user.anna".into(),
            settings: vec![
                setting("limit", "50%", v1::BudgetOrigin::File, Some(gib(40).get())),
                setting("weight", "2", v1::BudgetOrigin::RunTime, None),
            ],
            members: Vec::new(),
        };
        v1::ListBudgetsReply { budgets: vec![anna], kept_in: kept_in.into() }
    }

    #[test]
    fn each_setting_has_a_line_with_its_origin() {
        assert_eq!(
            settings(&listed("/var/lib/gpulease/budgets.toml"), Look::PLAIN),
            "
SET FOR    SETTING  VALUE   BYTES  BY
user.anna  limit      50%  40 GiB  file
user.anna  weight       2          run time

What was set at run time is kept in /var/lib/gpulease/budgets.toml.
"
        );
        assert!(settings(&listed(""), Look::PLAIN).contains("--state"));
        assert_eq!(settings(&v1::ListBudgetsReply::default(), Look::PLAIN), "");
    }

    #[test]
    fn what_was_set_is_said_with_what_it_comes_to() {
        assert_eq!(sentence(&listed("").budgets[0]), "user.anna: limit 40 GiB (50%), weight 2");
    }
}
