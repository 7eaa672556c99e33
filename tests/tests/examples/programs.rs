//! The example programs against a real daemon.

use std::path::Path;
use std::process::{Command, Output};

use gpulease_cuda::Driver;
use gpulease_examples::train::{Event, Summary};
use gpulease_tests::daemon::Daemon;
use gpulease_tests::programs::{self, program};
use gpulease_tests::standin::Standin;

/// Runs an example to its end, with the broker at `socket`.
fn run(socket: &Path, name: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program(name));
    command.args(arguments).env("GPULEASE_SOCKET", socket);
    for variable in ["GPULEASE_LEASE", "GPULEASE_TOKEN", "GPULEASE_MEMORY_BYTES"] {
        command.env_remove(variable);
    }
    command.output().expect("an example can be started")
}

/// What `train-digits --json` told, and its exit code.
fn train(socket: &Path, arguments: &[&str]) -> (Vec<Event>, i32) {
    let output = run(socket, "train-digits-under-test", &[arguments, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let told = text.lines().map(|line| serde_json::from_str(line).expect("each line is an event")).collect();
    (told, output.status.code().expect("it ends by itself"))
}

/// As [`train`], of a run that succeeds: the step and loss of each report, and the summary.
fn trained(socket: &Path, arguments: &[&str]) -> (Vec<(u64, f64)>, Summary) {
    let (told, code) = train(socket, arguments);
    let Some(Event::Finished(summary)) = told.last() else {
        panic!("{arguments:?} ended with {code}: {told:?}")
    };
    assert_eq!(code, 0);
    let loss = |event: &Event| match event {
        Event::Trained { step, loss, .. } => Some((*step, *loss)),
        _ => None,
    };
    (told.iter().filter_map(loss).collect(), summary.clone())
}

/// The refusal that a run ends with: its reason, its sentence, the exit code.
fn refused(socket: &Path, arguments: &[&str]) -> (Option<String>, String, i32) {
    let (told, code) = train(socket, arguments);
    match told.last() {
        Some(Event::Failed { reason, message }) => (reason.clone(), message.clone(), code),
        _ => panic!("{arguments:?} ended with {code}: {told:?}"),
    }
}

const SMALL: &[&str] =
    &["-m", "12MiB", "--up-to", "32MiB", "--grow-at", "40", "--steps", "90", "--report-every", "10"];

#[test]
fn a_leased_run_has_the_losses_of_a_bare_one_to_the_last_digit() {
    let daemon = Daemon::on_host("64MiB");
    let (leased, summary) = trained(&daemon.socket(), SMALL);
    let (bare, other) = trained(&daemon.socket(), &[SMALL, &["--bare", "host"]].concat());
    assert_eq!(leased, bare);
    assert_eq!(summary.fingerprint, other.fingerprint);
    assert_eq!(summary.held_at_most_bytes, 32 << 20);
    assert!(leased[9].1 < leased[0].1, "the loss falls: {leased:?}");
    daemon.stop();
}

#[test]
fn a_run_uses_the_lease_that_it_is_started_in() {
    let daemon = Daemon::on_host("64MiB");
    let output = Command::new(programs::gpulease())
        .args(["run", "-m", "12MiB..32MiB", "--"])
        .arg(program("train-digits-under-test"))
        .args(["--grow-at", "40", "--steps", "90", "--report-every", "10", "--json"])
        .env("GPULEASE_SOCKET", daemon.socket())
        .output()
        .expect("gpulease can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().map(serde_json::from_str);
    let Some(Ok(Event::Finished(summary))) = last else {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr))
    };
    let (_, alone) = trained(&daemon.socket(), SMALL);
    assert_eq!(summary.fingerprint, alone.fingerprint);
    daemon.stop();
}

#[test]
fn a_gpu_run_has_the_losses_of_a_bare_one_to_the_last_digit() {
    if let Err(why) = Driver::load() {
        println!("skipped, for want of a GPU: {why}");
        return;
    }
    let daemon = Daemon::start(["--device", "cuda:0", "--capacity", "4GiB"]);
    let large = ["-m", "512MiB", "--up-to", "1GiB", "--grow-at", "300", "--steps", "600"];
    let (leased, summary) = trained(&daemon.socket(), &large);
    let (bare, other) = trained(&daemon.socket(), &[&large[..], &["--bare", "cuda:0"]].concat());
    assert_eq!(leased, bare);
    assert_eq!(summary.fingerprint, other.fingerprint);
    assert_eq!((summary.held_at_most_bytes, other.held_at_most_bytes), (1 << 30, 1 << 30));
    assert!(summary.accuracy > 0.95, "{summary:?}");
    daemon.stop();
}

#[test]
fn a_run_that_can_get_no_lease_says_why() {
    let daemon = Daemon::on_host("64MiB");
    let (reason, message, code) = refused(&daemon.socket(), &["-m", "128MiB"]);
    assert_eq!((reason.as_deref(), code), (Some("too_large"), 77), "{message}");
    assert!(message.contains("128 MiB") && message.contains("64 MiB"), "{message}");
    let (reason, message, code) = refused(&daemon.socket(), &[]);
    assert_eq!((reason, code), (None, 1), "{message}");
    assert!(message.contains("gpulease run"), "{message}");
    daemon.stop();

    let nowhere = tempfile::tempdir().expect("a temporary folder");
    let (reason, message, code) = refused(&nowhere.path().join("gpulease.sock"), &["-m", "2MiB"]);
    assert_eq!((reason, code), (None, 69), "{message}");
}

#[test]
fn a_shared_lab_runs_more_than_the_device_has() {
    let daemon = Daemon::on_host("64MiB");
    let output = run(&daemon.socket(), "shared-lab-under-test", &["--steps", "400"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for name in ["ada", "bela", "chen", "dora"] {
        let told = text.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
        assert!(told.iter().any(|line| line.contains("granted lease")), "{name}: {text}");
        assert!(told.iter().any(|line| line.contains("step    400 of 400")), "{name}: {text}");
    }
    assert!(text.contains("number 1 in line"), "they want 140 % at once, so one waits: {text}");
    daemon.stop();
}

#[test]
fn an_ipc_consumer_says_that_host_memory_has_no_handles() {
    let daemon = Daemon::on_host("64MiB");
    let output = run(&daemon.socket(), "ipc-consumer-under-test", &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains("only GPUs have CUDA IPC handles"), "{error}");
    daemon.stop();
}

/// The consumer has changed leased memory of that broker's GPU.
fn consumes(daemon: Daemon, mut consumer: Command) {
    let output = consumer.args(["-m", "64MiB"]).env("GPULEASE_SOCKET", daemon.socket()).output();
    let output = output.expect("the consumer can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("added one to each of 16777216 numbers"), "{text}");
    daemon.stop();
}

#[test]
fn an_ipc_consumer_changes_leased_memory_by_its_handle() {
    let standin = Standin::with(&[("DEVICES", "1"), ("BYTES", "2GiB")]);
    let (mut broker, mut consumer) =
        (Command::new(programs::gpuleased()), Command::new(program("ipc-consumer-under-test")));
    standin.apply(&mut broker);
    standin.apply(&mut consumer);
    broker.args(["--device", "cuda:0"]);
    consumes(Daemon::start_command(broker), consumer);
}

#[test]
fn an_ipc_consumer_changes_leased_memory_of_a_real_card() {
    if let Err(why) = Driver::load() {
        println!("skipped, for want of a GPU: {why}");
        return;
    }
    let daemon = Daemon::start(["--device", "cuda:0", "--capacity", "4GiB"]);
    consumes(daemon, Command::new(program("ipc-consumer-under-test")));
}
