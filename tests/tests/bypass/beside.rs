//! Programs under the preload library that use the client library themselves.

use gpulease_tests::ledger::lease;
use gpulease_tests::puppet::Gpu;
use gpulease_tests::standin::Standin;

use super::lab::{Card, Lab};
use super::turns::{ROOM, TURNS};

fn lab() -> Lab {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    Lab::configured(card, &ROOM, TURNS)
}

/// The broker takes the word of one of them for the whole process: where both have memory, nothing is moved.
#[test]
fn who_has_memory_by_both_libraries_stays_where_it_is() {
    for steps in [["take alloc 32MiB", "library take 32MiB"], ["library take 32MiB", "take alloc 32MiB"]] {
        let lab = lab();
        let guest = lab.leased("300MiB", "address-2");
        let suspendable = || lease(&lab.ledger.now(), "guest").suspendable;
        guest.must(steps[0]);
        assert!(suspendable(), "one alone can be moved: {steps:?}");
        guest.must(steps[1]);
        assert!(!suspendable(), "{steps:?}");
        guest.must("library check");
    }
}

/// With memory by the client library alone, and none by the preload library, it takes turns as ever.
#[test]
fn who_has_memory_by_the_client_library_alone_takes_turns() {
    let lab = lab();
    let first = lab.leased("300MiB", "address-2");
    first.must("library take 128MiB");
    let second = lab.leased("300MiB", "handle");
    second.must("take alloc 64MiB");
    first.must("library check");
    // It is back once it has its bytes; the other's leaving counts once all of them are proven.
    lab.ledger.wait("both left once", |state| {
        let suspensions: u32 = state.leases.iter().map(|lease| lease.suspensions).sum();
        (suspensions >= 2).then_some(())
    });
}
