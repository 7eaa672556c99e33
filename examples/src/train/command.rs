//! `train-digits`, the program.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use gpulease_client::{AskError, Denied, Error, Reason};

use super::{Event, Options, run};

/// Trains a network to name handwritten digits, all of it in memory leased from gpuleased.
#[derive(Debug, Parser)]
#[command(name = "train-digits", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Write one JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  train-digits -m 1GiB                                asks the broker for 1 GiB
  train-digits -m 512MiB --up-to 2GiB --grow-at 500   grows while there is room
  gpulease run -m 1GiB -- train-digits                trains in the lease around it
  train-digits -m 1GiB --bare host                    no broker, the same losses

Exit codes: 0 done, 2 wrong usage, 69 no broker, 75 no room in time, 77 not
allowed, 1 anything else.";

/// Runs `train-digits` on the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs `train-digits` on these arguments, the first of which is the program's name.
#[must_use]
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Arguments { options, json } = Arguments::parse_from(arguments);
    let mut tell = |event: &Event| {
        // Whoever closed the pipe wants no more reports; the training goes on.
        let _ = if json { write_json(event) } else { writeln!(io::stdout(), "{event}") };
    };
    match run(&options, &mut tell) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let reason = denial(&error).map(|denied| denied.reason.to_string());
            let message = format!("{error:#}");
            if json {
                tell(&Event::Failed { reason, message });
            } else {
                eprintln!("train-digits: {message}");
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

fn write_json(event: &Event) -> io::Result<()> {
    let line = serde_json::to_string(event)?;
    writeln!(io::stdout(), "{line}")
}

/// The broker's refusal, where `error` is one.
fn denial(error: &anyhow::Error) -> Option<&Denied> {
    let failed = match error.downcast_ref::<AskError>() {
        Some(AskError::Denied(denied)) => return Some(denied),
        Some(AskError::Failed(failed)) => Some(failed),
        None => error.downcast_ref::<Error>(),
    };
    match failed {
        Some(Error::Refused(denied)) => Some(denied),
        _ => None,
    }
}

/// The exit code for what failed.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let failed = match error.downcast_ref::<AskError>() {
        Some(AskError::Failed(failed)) => Some(failed),
        _ => error.downcast_ref::<Error>(),
    };
    match (denial(error), failed) {
        (Some(denied), _) if matches!(denied.reason, Reason::WaitOver | Reason::NoRoom) => 75,
        (Some(_), _) => 77,
        (None, Some(Error::NoBroker { .. })) => 69,
        (None, _) => 1,
    }
}
