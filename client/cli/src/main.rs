//! `gpulease`
fn main() -> std::process::ExitCode {
    gpulease_cli::main()
}
