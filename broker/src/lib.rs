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
mod settings;
mod sockets;
mod text;
mod tickets;
mod users;
pub mod witness;

pub use daemon::{Daemon, Running, StartError};
pub use device::choice::DeviceChoice;
pub use settings::{Accounts, BadSetting, Log, LogFormat, Settings};
pub use sockets::Unplaced;

/// Runs the daemon as `gpuleased` does; the command line of the process is its input.
#[must_use]
pub fn main() -> std::process::ExitCode {
    if let Some(code) = exporter::maybe_run() {
        return code;
    }
    daemon::main()
}
