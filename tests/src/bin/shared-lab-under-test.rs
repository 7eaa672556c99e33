//! `shared-lab` under a name of its own: `cargo test` builds the bins of this package and of no other.
fn main() -> std::process::ExitCode {
    gpulease_examples::shared_lab::main()
}
