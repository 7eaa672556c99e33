//! `gpulease hold`: a lease without a command.

use std::ffi::OsStr;
use std::time::Duration;

use gpulease_client::{Client, Lease, Updates};
use gpulease_proto::v1::StatusReply;
use gpulease_words::DurationText;
use serde::Serialize;

use crate::arguments::{Common, HoldArguments};
use crate::exit::{Exit, Failure, Outcome};
use crate::run::{self, Variable};
use crate::signals::Signals;
use crate::state::SCHEMA_VERSION;
use crate::{ask, connection, output};

/// Holds a lease until a signal, the time, or until somebody gives it back.
pub(crate) async fn hold(common: &Common, arguments: &HoldArguments, mut signals: Signals) -> Outcome {
    let client = connection::client(common).await?;
    let lease = ask::acquire(&client, &arguments.wish, "hold", common, &mut signals).await?;
    // Before the lease is told of: who was told of it may count on its being looked after.
    let watched = client.observe().await?.watch().await?;
    tell(&lease, &client, common, arguments)?;
    let why = until_the_end(&lease, watched, arguments.time, &mut signals).await?;
    let id = lease.id();
    match why {
        End::Released => output::say(&format!("{id} was given back from outside")),
        End::Time(time) => {
            output::say(&format!("{id}: the time of {} is over", DurationText(time)));
            run::give_back(lease).await;
        }
        End::Signal => run::give_back(lease).await,
    }
    Ok(Exit::Done)
}

/// Why a hold ends.
enum End {
    Signal,
    Time(Duration),
    Released,
}

async fn until_the_end(
    lease: &Lease,
    watched: Updates<StatusReply>,
    time: Option<Duration>,
    signals: &mut Signals,
) -> Result<End, Failure> {
    let gone = std::pin::pin!(until_gone(lease, watched));
    let time_over = run::after(time);
    let signalled = async { while !signals.next().await.ends_a_wait() {} };
    tokio::select! {
        () = signalled => Ok(End::Signal),
        () = time_over => Ok(End::Time(time.unwrap_or_default())),
        gone = gone => gone.map(|()| End::Released),
    }
}

/// Waits until the broker no longer lists the lease as one that can be used.
async fn until_gone(lease: &Lease, mut updates: Updates<StatusReply>) -> Result<(), Failure> {
    while let Some(state) = updates.next().await? {
        let ours = state.leases.iter().find(|status| status.id == lease.id().get());
        if ours.is_none_or(|status| status.state == "draining") {
            return Ok(());
        }
    }
    Err(Failure::new(Exit::NoBroker, "the broker stopped, and the lease with it"))
}

#[derive(Serialize)]
struct Document {
    schema_version: u32,
    id: String,
    devices: Vec<u32>,
    reserve_bytes: u64,
    limit_bytes: u64,
    environment: serde_json::Map<String, serde_json::Value>,
}

fn tell(lease: &Lease, client: &Client, common: &Common, arguments: &HoldArguments) -> Result<(), Failure> {
    let variables = run::environment_of(lease, client.devices());
    if arguments.export {
        return output::print(&exports(&variables));
    }
    if common.json {
        let text = |value: &OsStr| serde_json::Value::from(value.to_string_lossy());
        let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), text(value))).collect();
        return output::print_line(&Document {
            schema_version: SCHEMA_VERSION,
            id: lease.id().to_string(),
            devices: lease.devices().iter().map(|device| device.get()).collect(),
            reserve_bytes: lease.reserve().get(),
            limit_bytes: lease.limit().get(),
            environment,
        });
    }
    let id = lease.id();
    output::print(&format!(
        "{id}\nPrograms join it with these variables (keep the token secret):\n{}Ctrl-C here, or `gpulease release {id}`, gives it back.\n",
        exports(&variables)
    ))
}

/// Lines that a POSIX shell reads back as they are.
fn exports(variables: &[Variable]) -> String {
    variables
        .iter()
        .map(|(name, value)| format!("export {name}={}\n", quoted(&value.to_string_lossy())))
        .collect()
}

fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_read_back_in_a_shell() {
        let variables = [("A", "/run/x/gpulease.sock".into()), ("B", "it's $HOME".into()), ("C", "".into())];
        let script = exports(&variables) + "printf '%s|%s|%s' \"$A\" \"$B\" \"$C\"";
        let out = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "/run/x/gpulease.sock|it's $HOME|");
    }
}
