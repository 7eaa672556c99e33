//! `gpuleased`
fn main() -> std::process::ExitCode {
    gpulease_broker::main()
}
