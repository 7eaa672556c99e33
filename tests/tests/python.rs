//! The Python package as a user gets it: installed by pip into a fresh environment, and its own tests in a lease.
//!
//! Needs what no Rust toolchain brings: a Python with `venv`, and a package registry for the build tool. Without them it
//! says so on standard error and passes, unless `GPULEASE_TEST_PYTHON=1` insists.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gpulease_tests::daemon::Daemon;
use gpulease_tests::programs;
use gpulease_tests::standin::Standin;

/// What pip says where it reaches no registry, and not where a package can't be built.
const NO_REGISTRY: [&str; 3] =
    ["No matching distribution found for maturin", "Could not find a version", "Connection"];

/// Fewer are run only where some were lost.
const TESTS_AT_LEAST: usize = 85;

/// Why the test can't run here.
struct Missing(String);

#[test]
fn the_package_installs_into_a_fresh_environment_and_its_tests_pass_in_a_lease() {
    if let Err(Missing(why)) = install_and_test() {
        assert!(std::env::var_os("GPULEASE_TEST_PYTHON").is_none(), "GPULEASE_TEST_PYTHON is set, and {why}");
        // Not through `println!`, which is shown of failed tests only.
        let _ = writeln!(std::io::stderr(), "skipped: the Python package: {why}");
    }
}

fn install_and_test() -> Result<(), Missing> {
    let root =
        programs::sources().ok_or_else(|| Missing("its sources are not on this machine".to_owned()))?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let python = environment(folder.path())?;
    install(&python, &root.join("client/python"))?;
    on_host_memory(&python, &root.join("client/python"));
    on_a_card(&python, &root.join("client/python"));
    Ok(())
}

/// A fresh virtual environment; its interpreter.
fn environment(folder: &Path) -> Result<PathBuf, Missing> {
    let made = finish(tool("python3").args(["-m", "venv"]).arg(folder.join("venv")))
        .map_err(|error| Missing(format!("python3 can't be run: {error}")))?;
    if !made.status.success() {
        let said = text(&made);
        return Err(Missing(format!("`python3 -m venv` fails (install python3-venv): {said}")));
    }
    Ok(folder.join("venv/bin/python"))
}

/// As in the docs, but for the build's profile: Cargo has compiled the dependencies in it already.
fn install(python: &Path, package: &Path) -> Result<(), Missing> {
    let mut pip = tool(python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--retries", "1", "--timeout", "30"]);
    pip.args(["--config-settings", "build-args=--profile dev --locked"]).arg(package);
    let installed = finish(&mut pip).expect("the environment's Python can be run");
    let said = text(&installed);
    match installed.status.success() {
        true => Ok(()),
        false if NO_REGISTRY.iter().any(|words| said.contains(words)) => {
            Err(Missing(format!("pip reaches no registry for maturin, which builds it: {said}")))
        }
        false => panic!("the package can't be installed: {said}"),
    }
}

/// All its tests.
fn on_host_memory(python: &Path, package: &Path) {
    let daemon = Daemon::on_host("64MiB");
    let tests = ["discover", "-t", ".", "-s", "tests"];
    let mut run = in_a_lease(&daemon, &["-m", "8MiB..32MiB"], python, package, &tests);
    tests_pass(&mut run, &daemon, TESTS_AT_LEAST);
    daemon.stop();
}

/// Those of its pool on the second card of a stand-in driver, where leases can be suspended, and beside the preload library.
fn on_a_card(python: &Path, package: &Path) {
    let standin = Standin::with(&[("DEVICES", "2"), ("BYTES", "4GiB")]);
    let mut broker = Command::new(programs::gpuleased());
    standin.apply(&mut broker);
    broker.args(["--device", "cuda:0", "--device", "cuda:1", "--arena", "64MiB"]);
    let daemon = Daemon::start_command(broker);
    let lease = ["-m", "8MiB", "--device", "1", "--no-preload"];
    for (lease, tests, count) in
        [(&lease[..], "tests.on_a_card.Pool", 3), (&lease[..4], "tests.on_a_card.Preloaded", 1)]
    {
        let mut run = in_a_lease(&daemon, lease, python, package, &[tests]);
        standin.apply(&mut run);
        tests_pass(&mut run, &daemon, count);
    }
    daemon.stop();
}

fn in_a_lease(daemon: &Daemon, lease: &[&str], python: &Path, package: &Path, tests: &[&str]) -> Command {
    let mut run = tool(programs::gpulease());
    run.arg("--socket").arg(daemon.socket()).args(["run", "-q", "-n", "python"]).args(lease).arg("--");
    // The installed package is meant, and the folder of its sources is no part of the path.
    run.arg(python).args(["-W", "error::ResourceWarning", "-m", "unittest"]).args(tests).current_dir(package);
    run.env("GPULEASE_TEST_CLI", programs::gpulease()).env("PYTHONDONTWRITEBYTECODE", "1");
    run
}

fn tests_pass(run: &mut Command, daemon: &Daemon, at_least: usize) {
    let done = finish(run).expect("the command line can be run");
    let said = text(&done);
    assert!(done.status.success(), "{said}\n{}", daemon.log());
    let count =
        said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<usize>().ok());
    assert!(count.is_some_and(|count| count >= at_least), "tests were lost: {said}");
    assert!(!said.contains("skipped"), "in a lease none is skipped: {said}");
}

/// A command without what Cargo tells this test and what surrounds it of other leases and environments.
fn tool(program: impl AsRef<OsStr>) -> Command {
    const OTHERS: [&str; 5] = ["GPULEASE", "CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "PYTHON"];
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OTHERS.iter().any(|begin| text.starts_with(begin))
            || text == "VIRTUAL_ENV"
            || text == "LD_LIBRARY_PATH"
        {
            command.env_remove(&name);
        }
    }
    command
}

fn finish(command: &mut Command) -> std::io::Result<Output> {
    command.stdin(Stdio::null()).output()
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).trim().to_owned()
}
