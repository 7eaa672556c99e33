//! `gpulease run`: a command in a lease.

mod gated;
mod preload;
mod program;
mod surroundings;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use gpulease_client::{Client, Lease, Pid};
use gpulease_words::DurationText;

use crate::arguments::{Common, RunArguments, name_of_program};
use crate::exit::{Exit, Failure, Outcome};
use crate::signals::{Caught, Sender, Signals, name};
use crate::{ask, connection, output};
use gated::{Child, Gated};
pub(crate) use surroundings::{Variable, of as environment_of};

/// How long the broker has to take the lease back once the program has ended; where it does not
/// answer, the end of this process gives the lease back all the same.
const RELEASE_WAIT: Duration = Duration::from_secs(3);

/// Runs the command. `signals` were taken before any thread was started.
pub(crate) async fn run(common: &Common, arguments: &RunArguments, mut signals: Signals) -> Outcome {
    let program = &arguments.command[0];
    let place = program::check(program, std::env::var_os("PATH"))?;
    let default_name = name_of_program(&place.file_name().unwrap_or(program).to_string_lossy());
    let client = connection::client(common).await?;
    let lease = ask::acquire(&client, &arguments.wish, &default_name, common, &mut signals).await?;
    let outcome = in_lease(&client, &lease, arguments, &mut signals).await;
    give_back(lease).await;
    outcome
}

async fn in_lease(
    client: &Client,
    lease: &Lease,
    arguments: &RunArguments,
    signals: &mut Signals,
) -> Outcome {
    let mut variables = surroundings::of(lease, client.devices());
    variables.extend(preload::variables(lease, client.devices(), arguments)?);
    if !arguments.wish.quiet {
        surroundings::replaced(&variables, |name| std::env::var_os(name))
            .iter()
            .for_each(|line| output::say(line));
    }
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]).envs(variables);
    let failed = |error: std::io::Error| program::exec_failed(&arguments.command[0], &error);
    let gated = Gated::fork(command, signals.before()).await.map_err(failed)?;
    client.admit_in_my_place(lease, Pid::new(gated.pid())).await?;
    let mut child = gated.open().await.map_err(failed)?;
    attend(&mut child, client, lease, arguments, signals).await
}

/// Stands by while the command runs: signals are passed on, its time is kept, and a command that
/// uses no leased memory is spoken of once.
async fn attend(
    child: &mut Child,
    client: &Client,
    lease: &Lease,
    arguments: &RunArguments,
    signals: &mut Signals,
) -> Outcome {
    let mut time_over = std::pin::pin!(after(arguments.time));
    let mut unused = std::pin::pin!(after((!arguments.wish.quiet).then_some(arguments.unused_after)));
    let mut grace_over = std::pin::pin!(after(None));
    let mut over = false;
    loop {
        tokio::select! {
            status = child.ended() => {
                let status = status.map_err(|e| Failure::new(Exit::Failed, format!("lost sight of the program: {e}")))?;
                return Ok(if over { Exit::TimeLimit } else { end_of(status) });
            }
            caught = signals.next() => pass_on(caught, child),
            () = &mut time_over => {
                over = true;
                stop(child, arguments);
                grace_over.set(after(Some(arguments.grace)));
                time_over.set(after(None));
            }
            () = &mut grace_over => {
                child.signal(libc::SIGKILL);
                grace_over.set(after(None));
            }
            () = &mut unused => {
                speak_of_unused(client, lease, arguments.unused_after).await;
                unused.set(after(None));
            }
        }
    }
}

/// Ends after so long; `None`: never.
pub(crate) async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// What the terminal sent, the child has too; what was sent to this process alone was meant for it.
fn pass_on(caught: Caught, child: &Child) {
    match caught.sender {
        Sender::Kernel => {}
        Sender::Process => child.signal(caught.number),
    }
}

fn stop(child: &Child, arguments: &RunArguments) {
    let time = arguments.time.unwrap_or_default();
    let (time, grace) = (DurationText(time), DurationText(arguments.grace));
    output::say(&format!(
        "the time limit of {time} is over: the program gets SIGTERM, and SIGKILL in {grace}"
    ));
    child.signal(libc::SIGTERM);
}

fn end_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Child(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => {
            if !matches!(signal, libc::SIGINT | libc::SIGPIPE) {
                output::say(&format!("the program was ended by {}", name(signal)));
            }
            Exit::Signal(signal)
        }
        (None, None) => Exit::Failed,
    }
}

/// Says so when no process of the job has claimed leased memory yet.
async fn speak_of_unused(client: &Client, lease: &Lease, time: Duration) {
    let Ok(observer) = client.observe().await else { return };
    let Ok(state) = observer.status().await else { return };
    let ours = state.leases.iter().find(|status| status.id == lease.id().get());
    if ours.is_some_and(|status| !status.used) {
        let (id, time) = (lease.id(), DurationText(time));
        output::say(&format!(
            "after {time} no process of the program has claimed memory of {id}: it uses no GPU yet, or takes what it uses \
             from outside the broker (docs/preload.md says which programs can't be helped)"
        ));
    }
}

/// Gives the lease back. What goes wrong here is said and changes no exit code: the lease ends
/// with this process in any case.
pub(crate) async fn give_back(lease: Lease) {
    let id = lease.id();
    let why = match tokio::time::timeout(RELEASE_WAIT, lease.release()).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => match error.denied() {
            // Somebody released it already, or its last process ended it.
            Some(_) => return,
            None => error.to_string(),
        },
        Err(_) => format!("the broker did not answer within {}", DurationText(RELEASE_WAIT)),
    };
    output::say(&format!("{id} ends with this process; it could not be given back before: {why}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_s_own_code_or_128_and_its_signal() {
        assert_eq!(end_of(ExitStatus::from_raw(7 << 8)), Exit::Child(7));
        assert_eq!(end_of(ExitStatus::from_raw(0)).code(), 0);
        assert_eq!(end_of(ExitStatus::from_raw(libc::SIGKILL)).code(), 137);
        assert_eq!(end_of(ExitStatus::from_raw(libc::SIGSEGV | 0x80)).code(), 139);
    }
}
