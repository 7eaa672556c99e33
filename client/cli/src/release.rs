//! `gpulease release`: leases given back from outside their programs.

use gpulease_words::Bytes;
use serde::Serialize;

use crate::arguments::{Common, ReleaseArguments};
use crate::connection;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;
use crate::state::SCHEMA_VERSION;

#[derive(Serialize)]
struct Document {
    schema_version: u32,
    released: Vec<Released>,
}

#[derive(Serialize)]
struct Released {
    id: String,
    draining_bytes: u64,
}

/// Gives each lease back; one that cannot be does not keep the others from it.
pub(crate) async fn release(common: &Common, arguments: &ReleaseArguments) -> Outcome {
    let observer = connection::observer(common).await?;
    let (mut released, mut failures) = (Vec::new(), Vec::new());
    for lease in &arguments.leases {
        match observer.release(*lease).await {
            Ok(draining) => {
                if !common.json {
                    output::print(&format!("{lease} {}\n", given_back(draining)))?;
                }
                released.push(Released { id: lease.to_string(), draining_bytes: draining.get() });
            }
            Err(error) => failures.push(Failure::from(error).before(&lease.to_string())),
        }
    }
    if common.json {
        output::print_document(&Document { schema_version: SCHEMA_VERSION, released })?;
    }
    last_of(failures, common)
}

/// What became of a lease, as the end of a sentence.
pub(crate) fn given_back(draining: Bytes) -> String {
    if draining.is_zero() {
        "is given back".to_owned()
    } else {
        format!("is given back; {draining} drain as its processes unmap them or end")
    }
}

/// Reports all but the last failure, which becomes the program's end.
fn last_of(mut failures: Vec<Failure>, common: &Common) -> Outcome {
    let last = failures.pop();
    for failure in failures {
        output::report(&failure, common);
    }
    last.map_or(Ok(Exit::Done), Err)
}
