//! The exporter: a process of the daemon's own that makes CUDA IPC handles.
//!
//! Such handles need `cuMemAlloc`, and that a context, which the daemon itself never has. So each
//! device gets a small process, the daemon's program started anew, at the first request for a
//! handle; it has the memory, and the daemon orders over a socket pair:
//!
//! ```text
//! daemon                        exporter
//!   (starts it) ------------>  context           0.3 s, some 520 MiB of the card
//!   <----------------------- ready
//!   make 7, 1 GiB ---------->  cuMemAlloc, cuIpcGetMemHandle
//!   <------------- made 7, 64 bytes
//!   handed 7 to pid 4711 --->  opens a pidfd
//!   free 7 ----------------->  cuMemFree
//!   <---------------- freed 7
//! ```
//!
//! **When the daemon dies** the exporter frees what was handed to nobody and keeps the rest for as
//! long as any process lives that it was handed to: a broker's death does not reach its consumers,
//! and no memory stays behind for ever. A process that got the 64 bytes from one of those and not
//! from the broker is not waited for. A service manager that kills the whole control group takes
//! the exporter with it; its unit has to say that only the daemon itself is stopped.
//!
//! **When the exporter dies** CUDA calls it undefined what its consumers see; on driver 580 they
//! can go on. The daemon goes on in any case: the next request starts another, and what the dead
//! one had is proven free when the card shows it.
//!
//! **Idle** for a minute, it ends by itself and gives its context back to the card.
//!
//! A handle is a bearer secret, and who has mapped it may use the memory after it was freed; the
//! promises about tenants' memory hold for handles only as far as CUDA goes.

mod canary;
mod frame;
mod order;
mod process;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

pub use canary::{Scrubbing, check_scrubbing};
pub(crate) use order::{Exporter, Trouble};

const EXPORT: &str = "--cuda-ipc-exporter";

/// How long an exporter keeps its context with nothing to export: long enough for a job that starts its programs one
/// by one.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Runs this process as a helper if its arguments say so. To be called first of all by each program that runs the
/// daemon, since the daemon starts its own program anew for them.
#[must_use]
pub fn maybe_run() -> Option<ExitCode> {
    // What is no Unicode is nothing that the daemon says.
    let mut arguments = std::env::args_os().skip(1).map_while(|argument| argument.into_string().ok());
    let (mode, uuid) = (arguments.next()?, arguments.next()?);
    if mode != EXPORT {
        return canary::maybe_run(&mode, &uuid);
    }
    let idle = arguments.next().and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    Some(process::run(&uuid, idle.unwrap_or(IDLE_MAX)))
}

/// How helpers are started: a program whose `main` begins with [`maybe_run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: PathBuf,
    /// Shown in place of the path in lists of processes.
    name: OsString,
    idle: Duration,
}

impl Default for Program {
    /// This very program, even if its file was replaced meanwhile, under the daemon's name.
    fn default() -> Self {
        Self { path: "/proc/self/exe".into(), name: "gpuleased".into(), idle: IDLE_MAX }
    }
}

impl Program {
    /// Another program, for tests.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { name: path.clone().into_os_string(), path, idle: IDLE_MAX }
    }

    /// With exporters that end after so many idle seconds.
    #[must_use]
    pub fn with_idle(self, idle: Duration) -> Self {
        Self { idle, ..self }
    }

    fn exporter(&self, uuid: &str) -> Command {
        let mut command = self.command(EXPORT, uuid);
        command.arg(self.idle.as_secs().to_string());
        command
    }

    /// A command that runs it in a process group of its own, so that a terminal's signals don't reach it.
    fn command(&self, mode: &str, uuid: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.arg0(&self.name).arg(mode).arg(uuid).process_group(0);
        command
    }
}
