//! The state: devices, leases and the line, once or live.

mod bar;
mod document;
mod live;
mod page;

use serde::Serialize;

use document::Account;
pub(crate) use document::{SCHEMA_VERSION, State, Waiting, kind_word, seconds};
pub(crate) use page::{span, user};

use crate::arguments::{Common, StatusArguments};
use crate::connection;
use crate::exit::{Exit, Outcome};
use crate::look::Look;
use crate::output;

/// `gpulease` alone.
pub(crate) async fn show(common: &Common, arguments: StatusArguments) -> Outcome {
    let observer = connection::observer(common).await?;
    if arguments.watch {
        return live::watch(common, &observer).await;
    }
    let reply = observer.status().await?;
    if common.json {
        output::print_document(&State::from(&reply))?;
    } else {
        output::print(&page::page(&reply, Look::of_stdout()))?;
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Queue<'a> {
    schema_version: u32,
    waiting: Vec<Waiting<'a>>,
}

#[derive(Serialize)]
struct Budgets<'a> {
    schema_version: u32,
    accounts: Vec<Account<'a>>,
}

/// `gpulease budget`.
pub(crate) async fn budgets(common: &Common) -> Outcome {
    let reply = connection::observer(common).await?.status().await?;
    if common.json {
        let accounts = reply.accounts.iter().map(Account::from).collect();
        output::print_document(&Budgets { schema_version: SCHEMA_VERSION, accounts })?;
    } else {
        output::print(&page::accounts(&reply.accounts, Look::of_stdout()))?;
    }
    Ok(Exit::Done)
}

/// `gpulease queue`.
pub(crate) async fn queue(common: &Common) -> Outcome {
    let reply = connection::observer(common).await?.status().await?;
    if common.json {
        let waiting = reply.waiting.iter().map(Waiting::from).collect();
        output::print_document(&Queue { schema_version: SCHEMA_VERSION, waiting })?;
    } else if reply.waiting.is_empty() {
        output::print("Nobody waits.\n")?;
    } else {
        output::print(&page::line(&reply.waiting, Look::of_stdout()))?;
    }
    Ok(Exit::Done)
}
