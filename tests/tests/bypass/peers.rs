//! Programs on several devices.

use std::process::Command;

use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::Ledger;
use gpulease_tests::programs;
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;

use super::lab::{Card, Lab};
use super::turns::{TURNS, wait_for_state};

/// Two devices, each with room for two contexts and for the memory of one job.
fn lab() -> Lab {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "2"), ("BYTES", "4GiB")])));
    let mut command = Command::new(programs::gpuleased());
    command.args(["--device", "cuda:0", "--device", "cuda:1", "--capacity", "1530MiB"]);
    command.envs(card.gpu.environment());
    let daemon = Daemon::start_configured(command, TURNS);
    let ledger = Ledger::of(&daemon);
    Lab { card, daemon, ledger }
}

/// Who is let in by `cuCtxEnablePeerAccess` may use what is there and what comes later, and again after a suspension.
#[test]
fn who_is_let_in_has_access_to_leased_memory_before_and_after_a_suspension() {
    let lab = lab();
    let first = lab.started_with(&["-m", "200MiB", "--gpus", "2", "-n", "guest"], "address-2");
    first.must("init");
    let said = first.must("trial peers");
    let at = said
        .strip_prefix("before [0, 0], enabled 0, after [3, 3, 3], at ")
        .unwrap_or_else(|| panic!("{said}"));
    let id = lab.ledger.now().leases[0].id;
    let second = lab.started_with(&["-m", "200MiB", "--gpus", "2", "-n", "other"], "handle");
    second.begin("init");
    wait_for_state(&lab, id, "suspended");
    second.answer().expect("it has its lease");
    // Its memory is back with the next launch.
    first.must("launch 1");
    assert_eq!(first.must(&format!("access {at}")), "access=3");
    let suspended: u32 = lab.ledger.now().leases.iter().map(|lease| lease.suspensions).sum();
    assert!(suspended >= 1, "nobody left");
}

/// What is taken of a device that is not current is on that device, and is given back after that device's work: here the driver
/// says that this went wrong, and the memory is free all the same.
#[test]
fn memory_of_another_device_is_of_that_device_and_waits_for_it() {
    let lab = lab();
    for guest in [
        Puppet::spawn("cuda-guest", lab.card.gpu.environment(), &[], |command| command.arg("handle")),
        lab.started_with(&["-m", "200MiB", "--gpus", "2", "-n", "guest"], "handle"),
    ] {
        guest.must("init");
        let said = guest.must("trial other-device");
        assert!(said.starts_with("pool on 1, plain on 1, "), "{said}");
    }
    let leased = lab.started_with(&["-m", "200MiB", "--gpus", "2", "-n", "guest"], "handle");
    leased.must("init");
    assert_eq!(leased.must("trial free-there"), "freed 0");
    lab.faults("cuCtxPushCurrent_v2 1 error 700");
    assert_eq!(leased.must("trial free-there"), "freed 700");
    lab.faults("");
    assert_eq!(leased.must("trial free-there"), "freed 0");
}
