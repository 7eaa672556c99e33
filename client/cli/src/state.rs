//! The state: devices, leases and the line, once or live.

mod bar;
mod document;
mod live;
mod page;

use serde::Serialize;

pub(crate) use document::{Account, SCHEMA_VERSION, State, Waiting, kind_word, seconds};
pub(crate) use page::{accounts, span, user};

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
