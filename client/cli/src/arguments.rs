//! The command line: commands, options and their help.

mod amount;

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use gpulease_words::{LeaseId, parse_duration};

use amount::positive_duration;
pub(crate) use amount::{Amounts, Memory, Subject, Whole, name_of_program};

use crate::exit;

const EXAMPLES: &str = "\
Examples:
  gpulease                                         what is leased, and who waits
  gpulease run -m 8GiB -- python train.py          run in 8 GiB, waiting for them if need be
  gpulease run -m 8GiB..20GiB -t 4h -- ./train     8 GiB set aside, growth up to 20, for at most 4 hours
  gpulease why a3                                  why ask a3 still waits
  gpulease demo                                    see it all work, on a private broker

Sizes: 8GiB, 8192MiB, 50% (of a device's capacity); 8G is 8GiB, 8GB is decimal.
Durations: 30s, 2h, 1h30m, 2:00:00, 1-00:00:00.";

/// Lease GPU memory from the broker of this host, and see who holds it.
#[derive(Debug, Parser)]
#[command(name = "gpulease", version, after_help = EXAMPLES, after_long_help = long_help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    pub(crate) status: StatusArguments,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

impl Arguments {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// Where it makes no sense, with what to do.
    pub(crate) fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        Self::try_parse_from(line).map_err(|error| with_tip(error, line))
    }
}

/// A command without its `--` is the likeliest slip; clap alone says only that it is unexpected.
fn with_tip(mut error: clap::Error, line: &[OsString]) -> clap::Error {
    let runs = line.get(1..).is_some_and(|rest| rest.iter().any(|word| word == "run"));
    if error.kind() == ErrorKind::UnknownArgument && runs && !line.iter().any(|word| word == "--") {
        let tip = "the command comes after `--`: gpulease run -m 8GiB -- python train.py";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn long_help() -> String {
    format!("{EXAMPLES}\n\n{}", exit::table_text())
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// The broker's job socket; else that of GPULEASE_SOCKET, else /run/gpulease/gpulease.sock, else the user's own
    // The library reads the variable: clap shows what comes from the environment as required in usage lines.
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON (sizes in bytes, unknown figures null) instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Options of the state.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArguments {
    /// Show the state again whenever it changes
    #[arg(long)]
    pub(crate) watch: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show devices, leases and the line (as `gpulease` alone does)
    Status(StatusArguments),
    /// Run a command in a lease, waiting in line for it
    Run(Box<RunArguments>),
    /// Hold a lease without a command, until Ctrl-C, the time, or `gpulease release`
    Hold(Box<HoldArguments>),
    /// Give leases back
    Release(ReleaseArguments),
    /// Show the line: who waits, for what, and what is short
    Queue,
    /// Show and change budgets: what each account may have, and what it is charged
    Budget(BudgetArguments),
    /// Say why an ask (a3) waits, or how a lease (L7) stands
    Why(WhyArguments),
    /// Show what happened, and with --follow what happens
    Events(EventsArguments),
    /// Look for what keeps gpulease from working here, and say what to do about it
    Doctor,
    /// Let jobs compete on a private broker for a minute, and check each promise
    Demo(DemoArguments),
    /// A job of the demo
    #[command(hide = true)]
    DemoJob(DemoJobArguments),
    /// Print a completion script for a shell
    Completion(CompletionArguments),
    /// Ask the holder of a lease for bytes (operators)
    Recall(RecallArguments),
    /// End a lease of anybody (operators)
    End(EndArguments),
}

const RUN_EXAMPLES: &str = "\
Examples:
  gpulease run -m 8GiB -- python train.py
  gpulease run -m 8GiB..20GiB -t 4h -n resnet -- ./train --epochs 90
  gpulease run -m 50% --gpus 2 --wait 10m -- torchrun --nproc-per-node 2 train.py

The program gets GPULEASE_SOCKET, GPULEASE_LEASE, GPULEASE_TOKEN and GPULEASE_MEMORY_BYTES; every
process of it may join the lease with them. On GPUs it also gets CUDA_VISIBLE_DEVICES.
The code of the program is returned; 75 means no room in time, 77 not allowed, 124 the time limit.";

/// What to lease.
#[derive(Clone, Debug, Args)]
pub(crate) struct Wish {
    /// Memory on each device: set aside, or set aside and the limit of growth (8GiB..20GiB, 25%..50%, 8GiB.. for all there is)
    #[arg(short, long, allow_hyphen_values = true, value_name = "SIZE[..[LIMIT]]")]
    pub(crate) memory: Memory,
    /// So many devices, any of them
    #[arg(long, value_name = "N", conflicts_with = "device", value_parser = amount::device_count)]
    pub(crate) gpus: Option<NonZeroU32>,
    /// These devices, by index or UUID
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) device: Vec<String>,
    /// A name, for people and for the job's budget; else the program's
    #[arg(short, long, value_parser = amount::lease_name)]
    pub(crate) name: Option<String>,
    /// Never suspend it
    #[arg(long)]
    pub(crate) pinned: bool,
    /// Refuse at once where there is no room
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
    /// Wait in line at most so long; else for as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Say nothing but what goes wrong
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Options of `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = RUN_EXAMPLES, override_usage = "gpulease run -m SIZE[..LIMIT] [OPTIONS] -- CMD...")]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) wish: Wish,
    /// End the program after so long: SIGTERM, then SIGKILL after --grace
    #[arg(short, long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) time: Option<Duration>,
    /// How long the program has between SIGTERM and SIGKILL when its time is over
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10s")]
    pub(crate) grace: Duration,
    /// Say so when no process has claimed leased memory after so long
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "30s", hide = true)]
    pub(crate) unused_after: Duration,
    /// Leave the program's GPU memory alone: for programs that use the gpulease library themselves
    #[arg(long)]
    pub(crate) no_preload: bool,
    /// Let allocations above what is set aside wait in line at most so long; else they are out of memory at once
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "no_preload")]
    pub(crate) wait_for_memory: Option<Duration>,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Options of `hold`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  gpulease hold -m 8GiB -t 2h -n notebook
  gpulease hold -m 4GiB --export >lease.env &      then, in the same or another shell: . ./lease.env; ./train")]
pub(crate) struct HoldArguments {
    #[command(flatten)]
    pub(crate) wish: Wish,
    /// Give it back after so long
    #[arg(short, long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) time: Option<Duration>,
    /// Print the environment as lines for a shell, and nothing else
    #[arg(long)]
    pub(crate) export: bool,
}

/// Options of `release`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReleaseArguments {
    /// Leases of yours, like L7
    #[arg(required = true, value_name = "ID", value_parser = amount::lease_id)]
    pub(crate) leases: Vec<LeaseId>,
}

/// Options of `budget`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BudgetArguments {
    #[command(subcommand)]
    pub(crate) what: Option<BudgetCommand>,
}

/// What to do with budgets.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum BudgetCommand {
    /// List every account that is charged, waits or has a limit, and each setting with its origin (as `gpulease budget` alone does)
    Ls,
    /// Set what an account may have, from now on and across restarts (operators)
    Set(BudgetSetArguments),
    /// Forget what was set for an account; the broker's configuration holds again (operators)
    Rm(BudgetRmArguments),
}

const BUDGET_SETTINGS: &str = "\
Settings:
  limit=20GiB            the most it may be charged, on all devices together; 50% is of all devices
  guarantee=8GiB         always there for it, on each device (groups and users by name)
  weight=2               its share of what is contended, against its siblings
  leases_max=4           the most leases at one time
  max_wait=2m            its asks are barriers after so long
  suspendable=false      its leases stay where they are
  on_overdue=keep        or \"terminate 30s\": SIGTERM, and SIGKILL after that
Example: gpulease budget set user.anna limit=40GiB guarantee=8GiB";

/// Options of `budget set`.
#[derive(Clone, Debug, Args)]
#[command(after_help = BUDGET_SETTINGS)]
pub(crate) struct BudgetSetArguments {
    /// host, group.NAME, user.NAME, user.* (each other user) or job.PATTERN
    #[arg(value_parser = amount::account)]
    pub(crate) account: String,
    /// What to set
    #[arg(required = true, value_name = "SETTING=VALUE", value_parser = amount::assignment)]
    pub(crate) settings: Vec<(String, String)>,
}

/// Options of `budget rm`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BudgetRmArguments {
    /// As for `budget set`
    #[arg(value_parser = amount::account)]
    pub(crate) account: String,
    /// Only this setting; else all that were set
    pub(crate) setting: Option<String>,
}

/// Options of `why`.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhyArguments {
    /// An ask like a3, or a lease like L7
    #[arg(value_name = "ID")]
    pub(crate) subject: Subject,
}

/// Options of `events`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Without options: what the broker remembers. With --follow: only what is new from now on.
With both --since-start and --follow: all that is remembered first, then what is new.")]
pub(crate) struct EventsArguments {
    /// Go on as things happen, until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// All that the broker remembers first
    #[arg(long)]
    pub(crate) since_start: bool,
}

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArguments {
    /// Use these devices (`cuda:0`, `host:8GiB`), as gpuleased takes them; else every GPU, else host memory
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Vec<String>,
    /// Keep the private broker's directory (its log, configuration and events) and say where it is
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Options of a job of the demo.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoJobArguments {
    /// Decides weights and data
    #[arg(long)]
    pub(crate) seed: u64,
    /// Its name
    #[arg(long)]
    pub(crate) name: String,
}

/// Options of `completion`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompletionArguments {
    /// bash, zsh, fish, elvish or powershell
    pub(crate) shell: clap_complete::Shell,
}

/// Options of `recall`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecallArguments {
    /// The lease, like L7
    #[arg(value_name = "ID", value_parser = amount::lease_id)]
    pub(crate) lease: LeaseId,
    /// So many bytes; else all that it holds above what is set aside for it
    #[arg(long, value_name = "SIZE", value_parser = amount::plain_amount)]
    pub(crate) bytes: Option<gpulease_words::Bytes>,
    /// The deadline; past it the lease is overdue and gets no growth
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "30s")]
    pub(crate) within: Duration,
}

/// Options of `end`.
#[derive(Clone, Debug, Args)]
pub(crate) struct EndArguments {
    /// The lease, like L7
    #[arg(value_name = "ID", value_parser = amount::lease_id)]
    pub(crate) lease: LeaseId,
}

#[cfg(test)]
mod tests;
