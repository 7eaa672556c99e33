//! `gpulease doctor`: what keeps gpulease from working here, and what to do about it.

mod broker;
mod finding;
mod gpus;
mod host;

use std::path::{Path, PathBuf};

use finding::{Finding, Level};
use serde::Serialize;

use crate::arguments::Common;
use crate::connection;
use crate::exit::{Exit, Failure, Outcome};
use crate::look::Look;
use crate::output;
use crate::state::SCHEMA_VERSION;

#[derive(Serialize)]
struct Document {
    schema_version: u32,
    version: &'static str,
    findings: Vec<Finding>,
}

/// Looks at everything, and fails where something is wrong.
pub(crate) async fn doctor(common: &Common) -> Outcome {
    let (socket, mut findings) = broker_and_its_findings(common).await;
    if let Some(socket) = socket {
        findings.extend(host::directory(&socket));
    }
    findings.extend(gpus::findings());
    findings.push(host::open_files());
    findings.push(host::namespace());
    findings.extend(host::job(|name| std::env::var(name).ok()));
    let failed = findings.iter().any(|finding| finding.level == Level::Fail);
    if common.json {
        let version = env!("CARGO_PKG_VERSION");
        output::print_document(&Document { schema_version: SCHEMA_VERSION, version, findings })?;
    } else {
        let look = Look::of_stdout();
        output::print(&findings.iter().map(|finding| finding.lines(look)).collect::<String>())?;
    }
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

async fn broker_and_its_findings(common: &Common) -> (Option<PathBuf>, Vec<Finding>) {
    let observer = match connection::observer(common).await {
        Ok(observer) => observer,
        Err(failure) => return (None, vec![unreachable(&failure)]),
    };
    let socket = observer.socket().to_owned();
    match observer.status().await {
        Ok(state) => (Some(socket.clone()), broker::findings(&state, &socket)),
        Err(error) => (Some(socket), vec![unreachable(&error.into())]),
    }
}

/// The message of the failure says what to do itself.
fn unreachable(failure: &Failure) -> Finding {
    Finding::fail("broker", failure.message.clone(), "then run `gpulease doctor` again")
}

/// The folder of a socket.
fn folder(socket: &Path) -> &Path {
    socket.parent().unwrap_or(Path::new("/"))
}
