//! A raw CUDA IPC consumer; see [`gpulease_examples::ipc_consumer`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gpulease_examples::ipc_consumer::main()
}
