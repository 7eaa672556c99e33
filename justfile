# The tasks of this project. `just` lists them.

_default:
    @just --list --unsorted

# Everything that must hold before a change lands.
check: fmt-check clippy deny test

# The tests, as the README and the automatic run have them.
test:
    cargo test --workspace

fmt-check:
    cargo fmt --all -- --check

clippy:
    cargo clippy --workspace --all-targets -- -D warnings

# Licences, sources, bans and known faults of the dependencies (needs cargo-deny, and the network for the faults).
deny:
    cargo deny check

# The simulator over many more seeds than the tests run.
sim-long seeds="20000":
    GPULEASE_SIM_SEEDS={{seeds}} cargo test --release -p gpulease-tests --test main -- simulator --nocapture

# The benches of our own code.
bench:
    cargo bench --workspace

# Everything a machine with a GPU and no toolchain needs, in .gpu-bundle: programs, tests, benchmark.
gpu-bundle:
    .ci/gpu-bundle

# The GPU kernels, from .cu to the .ptx beside it (needs nvcc).
kernels:
    .ci/kernels
