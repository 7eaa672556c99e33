//! Trains on handwritten digits in leased memory; see [`gpulease_examples::train`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gpulease_examples::train::main()
}
