//! Competing jobs on one device; see [`gpulease_examples::shared_lab`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gpulease_examples::shared_lab::main()
}
