//! When something fails: the driver under the preload, the broker behind it.

use gpulease_tests::ledger::lease;
use gpulease_tests::puppet::Gpu;
use gpulease_tests::standin::Standin;
use gpulease_words::mib;

use super::lab::{Card, Lab, code};

fn on_standin() -> Lab {
    Lab::on(Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")]))), &[])
}

/// An allocation that fails half way is refused, and leaves nothing of it in the lease.
#[test]
fn a_failure_of_the_driver_leaves_nothing_half_taken() {
    let lab = on_standin();
    let guest = lab.leased("256MiB", "address-2");
    // The first fails in the broker, after it has said that the memory is there.
    for call in [
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
    ] {
        for number in [2, 999] {
            lab.faults(&format!("{call} 1 error {number}"));
            assert!(code(guest.ask("take alloc 192MiB")).is_err(), "{call} fails with {number}");
            lab.faults("");
            let taken = guest.must("take alloc 192MiB");
            assert_eq!(lease(&lab.ledger.now(), "guest").held_bytes, mib(192).get(), "{call} {number}");
            guest.must(&format!("give {taken}"));
        }
    }
}

/// Where one call gives up several mappings and one of them fails, that one is still there, and the others have gone.
#[test]
fn mappings_that_are_given_up_together_do_not_fall_with_one_that_fails() {
    let lab = on_standin();
    let guest = lab.leased("256MiB", "address-2");
    // What leaves a place and has a handle gets addresses of its own first, and is open there.
    for call in ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        let pair = guest.must("take create-pair 64MiB");
        lab.faults(&format!("{call} 1 error 999"));
        assert_eq!(guest.ask(&format!("give {pair}")), Err("call=cuMemUnmap code=1".to_owned()), "{call}");
        lab.faults("");
        lab.ledger
            .wait("all of it is given back", |state| (lease(state, "guest").held_bytes == 0).then_some(()));
    }
    guest.must("take alloc 192MiB");
}

/// HAMi-core#248: clients that could not register went on without their limit. Here they get nothing.
#[test]
fn field_17_without_a_broker_there_is_no_memory() {
    let mut lab = on_standin();
    let guest = lab.started("256MiB", "address-2");
    guest.must("pid");
    lab.daemon.kill();
    let init = code(guest.ask("init"));
    assert!(init.is_err(), "it starts without its lease");
    assert!(code(guest.ask("context").and_then(|_| guest.ask("take alloc 2MiB"))).is_err());
}

/// What a program has when the broker dies it keeps; it gets no more.
#[test]
fn a_broker_that_dies_takes_no_memory_along_and_gives_none() {
    let mut lab = on_standin();
    let guest = lab.leased("256MiB", "handle");
    let number = guest.must("take alloc 64MiB");
    lab.daemon.kill();
    guest.must(&format!("check {number}"));
    let used = lab.card.used();
    assert!(code(guest.ask("take alloc 128MiB")).is_err());
    assert!(lab.card.used() <= used, "memory is taken that nobody counts");
    guest.must(&format!("check {number}"));
}

/// Threads of a program don't meet in each other's memory, and nothing of it is left in the lease.
#[test]
fn threads_that_allocate_at_once_share_no_byte() {
    for lab in Lab::all("threads_that_allocate_at_once_share_no_byte") {
        lab.card.bare("handle").must("crowd 4 100");
        let guest = lab.leased("256MiB", "address-2");
        guest.must("crowd 8 400");
        let held = lease(&lab.ledger.now(), "guest").held_bytes;
        assert!(held <= mib(64).get(), "{held} bytes are held for nothing");
        guest.must("take alloc 128MiB");
    }
}
