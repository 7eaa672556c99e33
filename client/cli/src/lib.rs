//! `gpulease`, the command line: run commands in leases, look at the broker's state, see a demo.

mod arguments;
mod ask;
mod budget;
mod clock;
mod connection;
mod demo;
mod doctor;
mod escape;
mod events;
mod exit;
mod grid;
mod hold;
mod look;
mod operators;
mod output;
mod progress;
mod release;
mod run;
mod signals;
mod state;
mod why;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;

use arguments::{Arguments, BudgetCommand, Command, Common};
use exit::{Exit, Failure, Outcome};
use signals::Signals;

/// The name under which this program is the daemon: `demo` starts itself so.
const DAEMON: &str = "gpuleased";

/// Runs `gpulease` on the arguments of the process, or the daemon where that is what it was called by.
#[must_use]
pub fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let called = line.first().and_then(|name| Path::new(name).file_name());
    if called.is_some_and(|name| name == DAEMON) {
        return gpulease_broker::main();
    }
    let arguments = match Arguments::read(&line) {
        Ok(arguments) => arguments,
        Err(error) => return misread(&error, &line),
    };
    let common = arguments.common.clone();
    match act(arguments) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::report(&failure, &common);
            failure.exit.into()
        }
    }
}

/// `--help` and `--version` come this way, too.
fn misread(error: &clap::Error, line: &[OsString]) -> ExitCode {
    let as_document = line.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    if as_document && error.use_stderr() {
        let text = error.render().to_string();
        let failure = Failure::new(Exit::Usage, text.trim().trim_start_matches("error: "));
        output::report(&failure, &Common { socket: None, json: true });
        return Exit::Usage.into();
    }
    // Nothing is left to say where even this cannot be printed.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() }
}

fn act(arguments: Arguments) -> Outcome {
    let Arguments { common, status, command } = arguments;
    if status.watch && command.is_some() {
        return Err(Failure::new(Exit::Usage, "--watch is for the state alone: `gpulease --watch`"));
    }
    match command {
        None => wait_for(state::show(&common, status)),
        Some(Command::Status(status)) => wait_for(state::show(&common, status)),
        Some(Command::Queue) => wait_for(state::queue(&common)),
        Some(Command::Budget(budget)) => match budget.what {
            None | Some(BudgetCommand::Ls) => wait_for(budget::list(&common)),
            Some(BudgetCommand::Set(set)) => wait_for(budget::set(&common, &set)),
            Some(BudgetCommand::Rm(rm)) => wait_for(budget::remove(&common, &rm)),
        },
        Some(Command::Release(release)) => wait_for(release::release(&common, &release)),
        Some(Command::Why(why)) => wait_for(why::why(&common, &why)),
        Some(Command::Events(events)) => wait_for(events::events(&common, &events)),
        Some(Command::Recall(recall)) => wait_for(operators::recall(&common, &recall)),
        Some(Command::End(end)) => wait_for(operators::end(&common, &end)),
        Some(Command::Completion(completion)) => complete(completion.shell),
        Some(Command::Run(run)) => with_signals(|signals| run::run(&common, &run, signals)),
        Some(Command::Hold(hold)) => with_signals(|signals| hold::hold(&common, &hold, signals)),
        Some(Command::Demo(demo)) => with_signals(|signals| demo::demo(&common, &demo, signals)),
        Some(Command::DemoJob(job)) => demo::job(&job),
        Some(Command::Doctor) => wait_for(doctor::doctor(&common)),
    }
}

/// Runs a command that waits for the broker.
fn wait_for(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::new(Exit::Failed, format!("cannot start: {e}")))?;
    runtime.block_on(command)
}

/// Runs a command that passes signals on: they are taken over before the runtime starts a thread.
fn with_signals<F: Future<Output = Outcome>>(command: impl FnOnce(Signals) -> F) -> Outcome {
    let signals = Signals::take();
    let signals =
        signals.map_err(|e| Failure::new(Exit::Failed, format!("cannot take signals over: {e}")))?;
    wait_for(command(signals))
}

/// Commands that are hidden from help stay hidden from completion.
fn complete(shell: clap_complete::Shell) -> Outcome {
    let all = Arguments::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown = clap::Command::new("gpulease").args(all.get_arguments().cloned()).subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown, "gpulease", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
