//! See `gpulease_tests::bare_echo`; the folder for its sockets is the argument.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("bare-echo: which folder?");
        return ExitCode::FAILURE;
    };
    match gpulease_tests::bare_echo::serve(folder.as_ref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare-echo: {error}");
            ExitCode::FAILURE
        }
    }
}
