//! The private broker of the demo: a process and a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gpulease_client::Observer;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::cast::{Cast, Role};
use super::set::Set;
use super::tether;
use crate::exit::{Exit, Failure};
use crate::signals::Mask;

/// How long the broker may take to answer first: a GPU's driver takes a tenth of a second, a busy host more.
const START_WAIT: Duration = Duration::from_secs(20);

/// Between two tries to reach it.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// How long it may take to stop.
const STOP_WAIT: Duration = Duration::from_secs(20);

/// The lines of its log that are shown where it fails.
const LOG_LINES_SHOWN: usize = 12;

/// A running broker. Dropping it kills it.
pub(super) struct Stage {
    folder: TempDir,
    broker: Child,
    observer: Observer,
}

impl Stage {
    /// Starts the broker and waits until it answers.
    ///
    /// # Errors
    /// Where it does not, with what it said.
    pub(super) async fn open(set: &Set, configuration: &str, mask: Mask) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new().prefix("gpulease-demo-").tempdir().map_err(cannot)?;
        std::fs::write(folder.path().join("gpuleased.toml"), configuration).map_err(cannot)?;
        let log = std::fs::File::create(folder.path().join("gpuleased.log")).map_err(cannot)?;
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.arg0(crate::DAEMON).arg("--socket").arg(socket_in(folder.path()));
        command.arg("--config").arg(folder.path().join("gpuleased.toml"));
        command.args(["--capacity", &format!("{}B", set.capacity.get())]);
        set.devices.iter().for_each(|device| {
            command.args(["--device", device]);
        });
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).env_remove("NOTIFY_SOCKET");
        // What is set for the host's broker is not meant for this one.
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GPULEASED_"))
        {
            command.env_remove(name);
        }
        tether(&mut command, mask);
        let mut broker = command.spawn().map_err(cannot)?;
        match answering(folder.path(), &mut broker).await {
            Ok(observer) => Ok(Self { folder, broker, observer }),
            Err(why) => Err(Failure::new(Exit::Failed, format!("{why}\n{}", tail(folder.path())))),
        }
    }

    /// The job socket.
    pub(super) fn socket(&self) -> PathBuf {
        socket_in(self.folder.path())
    }

    /// A view of its state.
    pub(super) fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The broker's process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.broker.id()
    }

    /// Stops it as a service manager would, and keeps or removes the folder.
    ///
    /// # Errors
    /// A sentence, where it does not stop, or not in peace.
    pub(super) async fn close(self, keep: Keep) -> Result<Option<PathBuf>, String> {
        let Self { folder, mut broker, observer } = self;
        drop(observer);
        let pid = broker.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // It has not been waited for, so the pid is still its own.
            let _ = kill_process(pid, Signal::TERM);
        }
        let ended = tokio::time::timeout(STOP_WAIT, broker.wait()).await;
        let log = tail(folder.path());
        let kept = match keep {
            Keep::Folder => Some(folder.keep()),
            Keep::Nothing => None,
        };
        match ended {
            Ok(Ok(status)) if status.success() => Ok(kept),
            Ok(Ok(status)) => Err(format!("the broker ended with {status}\n{log}")),
            Ok(Err(error)) => Err(format!("the broker's end cannot be told: {error}")),
            Err(_) => Err(format!("the broker did not stop within {} s\n{log}", STOP_WAIT.as_secs())),
        }
    }
}

/// Whether the broker's folder outlives the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Folder,
    Nothing,
}

fn cannot(error: std::io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the demo's broker cannot be started: {error}"))
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("gpulease.sock")
}

/// Budgets for the accounts of the demo's jobs; Greta's is half of what she asks for.
pub(super) fn budgets(cast: Cast) -> String {
    let mut text = String::from("# The demo's budgets: each job has an account of its own.\n");
    let mut budget = |role: Role, bytes: gpulease_words::Bytes| {
        text.push_str(&format!("[job.{}]\nlimit = \"{}B\"\n", role.name(), bytes.get()));
    };
    budget(Role::Greta, cast.budget_of_greta());
    Role::TRAINING.into_iter().for_each(|role| budget(role, cast.budget_of(role)));
    text
}

async fn answering(folder: &Path, broker: &mut Child) -> Result<Observer, String> {
    let start = Instant::now();
    loop {
        let last = match Observer::connect_to(socket_in(folder)).await {
            Ok(observer) => return Ok(observer),
            Err(error) => error,
        };
        if let Some(status) = ended(broker)? {
            return Err(format!("the demo's broker ended with {status} before it answered"));
        }
        if start.elapsed() > START_WAIT {
            return Err(format!(
                "the demo's broker did not answer within {} s: {last}",
                START_WAIT.as_secs()
            ));
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

fn ended(broker: &mut Child) -> Result<Option<ExitStatus>, String> {
    broker.try_wait().map_err(|error| format!("the broker's end cannot be told: {error}"))
}

fn tail(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join("gpuleased.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    shown.iter().map(|line| format!("  {line}\n")).collect()
}
