//! The daemon.

pub mod device;
pub mod witness;

/// Runs the daemon as `gpuleased` does; the command line of the process is its input.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
