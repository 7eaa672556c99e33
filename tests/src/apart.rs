//! Tests that need a process of their own: one that finds another driver library than its parent.

use std::process::{Child, Command, Stdio};

use crate::puppet::Gpu;

/// Set in the processes that [`run`] starts.
const APART: &str = "GPULEASE_TEST_APART";

/// Tests that run in a process of their own, on each of some cards. The body runs there.
///
/// ```ignore
/// on_cards! {
///     /// Why.
///     fn it_works(Gpu::all("it_works")) {
///         // ...
///     }
/// }
/// ```
#[macro_export]
macro_rules! on_cards {
    ($($(#[$doc:meta])* fn $name:ident($cards:expr) $body:block)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                for card in $cards {
                    $crate::apart::run(concat!(module_path!(), "::parts::", stringify!($name)), &card);
                }
            }
        )*

        mod parts {
            #[allow(unused_imports, reason = "as many as the tests around need")]
            use super::*;

            $(
                #[test]
                #[ignore = "runs in a process of its own"]
                fn $name() {
                    if $crate::apart::is_apart() {
                        $body
                    }
                }
            )*
        }
    };
}

/// Runs an ignored test of this binary, by its whole name, in a process that finds this card.
///
/// # Panics
/// Where it fails, with what it printed.
pub fn run(test: &str, gpu: &Gpu) {
    run_with(test, gpu, &[]);
}

/// As [`run`], with more variables in its environment.
///
/// # Panics
/// As [`run`].
pub fn run_with(test: &str, gpu: &Gpu, variables: &[(&str, &str)]) {
    let mut command = command(test, gpu);
    let output = command.envs(variables.iter().copied()).output().expect("this program can be started again");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{test} on {gpu}:\n{said}");
    // A name that is wrong runs nothing, which succeeds too.
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    // The harness writes the test's name before the first.
    for line in said.lines().filter_map(|line| line.find("measured: ").map(|at| &line[at..])) {
        println!("{line}");
    }
}

/// Starts an ignored test as [`run`] does, with pipes for standard input and output.
///
/// # Panics
/// Where it can't be started.
#[must_use]
pub fn start(test: &str, gpu: &Gpu) -> Child {
    let mut command = command(test, gpu);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("this program can be started again")
}

/// Whether this process was started for the test that asks; where not, the test has nothing to do.
#[must_use]
pub fn is_apart() -> bool {
    std::env::var_os(APART).is_some()
}

fn command(test: &str, gpu: &Gpu) -> Command {
    let this = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(this);
    // A test's name has the module's path without the crate, which is always "main".
    let test = test.strip_prefix("main::").unwrap_or(test);
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    // Its parent's own trace says where it was called, and what it says itself is not to be lost among two.
    command.envs(gpu.environment()).env(APART, "1").env("RUST_BACKTRACE", "0");
    command
}
