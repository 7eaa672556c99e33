//! What a brokered allocation costs on a real card, beside what the driver's own calls cost.
fn main() -> std::process::ExitCode {
    gpulease_tests::gpu_bench::main()
}
