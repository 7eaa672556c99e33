//! `gpulease recall` and `gpulease end`: what operators do to anybody's lease.

use gpulease_words::DurationText;
use serde::Serialize;

use crate::arguments::{Common, EndArguments, RecallArguments};
use crate::connection;
use crate::exit::{Exit, Outcome};
use crate::output;
use crate::release::given_back;
use crate::state::SCHEMA_VERSION;

#[derive(Serialize)]
struct Recalled {
    schema_version: u32,
    id: String,
    recalled_bytes: u64,
    within_seconds: f64,
}

/// Asks the holder for bytes.
pub(crate) async fn recall(common: &Common, arguments: &RecallArguments) -> Outcome {
    let operator = connection::operator(common).await?;
    let RecallArguments { lease, bytes, within } = *arguments;
    let asked = operator.recall(lease, bytes, within).await?;
    if common.json {
        let (id, within_seconds) = (lease.to_string(), within.as_secs_f64());
        let recalled_bytes = asked.get();
        output::print_document(&Recalled {
            schema_version: SCHEMA_VERSION,
            id,
            recalled_bytes,
            within_seconds,
        })?;
    } else if asked.is_zero() {
        output::print(&format!(
            "{lease} has nothing above what is set aside for it, so nothing is asked of it\n"
        ))?;
    } else {
        let within = DurationText(within);
        output::print(&format!("{lease} is asked for {asked} within {within}; past that it is overdue\n"))?;
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Ended {
    schema_version: u32,
    id: String,
    draining_bytes: u64,
}

/// Ends a lease of anybody.
pub(crate) async fn end(common: &Common, arguments: &EndArguments) -> Outcome {
    let operator = connection::operator(common).await?;
    let draining = operator.end(arguments.lease).await?;
    if common.json {
        let (id, draining_bytes) = (arguments.lease.to_string(), draining.get());
        output::print_document(&Ended { schema_version: SCHEMA_VERSION, id, draining_bytes })?;
    } else {
        output::print(&format!("{} {}\n", arguments.lease, given_back(draining)))?;
    }
    Ok(Exit::Done)
}
