//! The daemon.

pub mod device;
pub mod exporter;
pub mod witness;

/// Runs the daemon as `gpuleased` does; the command line of the process is its input.
pub fn main() -> std::process::ExitCode {
    if let Some(code) = exporter::maybe_run() {
        return code;
    }
    std::process::ExitCode::SUCCESS
}
