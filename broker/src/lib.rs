//! The daemon: it owns the memory of a host's GPUs and leases it to jobs.
//!
//! ```no_run
//! use gpulease_broker::{Daemon, DeviceChoice, Settings};
//! use gpulease_words::mib;
//!
//! # fn main() -> Result<(), gpulease_broker::StartError> {
//! let settings = Settings {
//!     socket: Some("/tmp/lab/gpulease.sock".into()),
//!     devices: vec![DeviceChoice::Host(mib(64))],
//!     ..Settings::default()
//! };
//! let running = Daemon::start(settings)?;
//! println!("jobs connect to {}", running.socket().display());
//! running.stop();
//! # Ok(())
//! # }
//! ```

mod arena;
mod budgets;
mod credentials;
mod daemon;
pub mod device;
mod driver;
mod entrance;
mod event_log;
pub mod exporter;
mod grpc;
mod handoff;
mod kernel;
mod liveness;
mod memory_file;
mod settings;
mod sockets;
mod text;
mod tickets;
mod users;
pub mod witness;
mod worker;

pub use daemon::{Daemon, Running, StartError};
pub use device::choice::DeviceChoice;
pub use settings::{Accounts, BadSetting, HEADROOM, Hold, Log, LogFormat, Settings};
pub use sockets::Unplaced;

/// Runs the daemon as `gpuleased` does; the command line of the process is its input.
#[must_use]
pub fn main() -> std::process::ExitCode {
    exporter::maybe_run().unwrap_or_else(|| main_with(std::env::args_os()))
}

/// Runs the daemon with another command line, whose first word is the program's name. The `main` of the program has to
/// begin with [`exporter::maybe_run`], since helper processes are started from it.
#[must_use]
pub fn main_with(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> std::process::ExitCode {
    daemon::main(arguments)
}
