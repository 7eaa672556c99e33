//! Memory that is freed while a stream records: nobody can wait for the device then, so that it is given back later.

use std::time::Duration;

use gpulease_client::LeaseId;
use gpulease_client::blocking::Operator;
use gpulease_tests::ledger::lease;
use gpulease_tests::puppet::Gpu;
use gpulease_tests::standin::Standin;
use gpulease_words::mib;

use super::lab::{Card, Lab};

/// Memory that is wanted back goes, once no stream records, without the program asking for any.
#[test]
fn what_was_freed_during_a_recording_goes_when_it_is_wanted() {
    let lab = on_standin();
    let guest = lab.started_with(&["-m", "64MiB..512MiB", "-n", "guest"], "address-2");
    guest.must("init");
    guest.must("context");
    guest.must("trial free-in-capture");
    let state = lab.ledger.now();
    assert_eq!(lease(&state, "guest").held_bytes, mib(256).get(), "nobody wants it yet");
    let operator = Operator::connect_to(lab.daemon.admin_socket()).expect("the broker listens");
    let id = LeaseId::new(lease(&state, "guest").id);
    operator.recall(id, None, Duration::from_secs(60)).expect("there is more than what is set aside");
    wait_for_nothing_held(&lab, "it is given back");
}

/// Nobody can end a recording whose context is gone, and what is freed afterwards does not wait for its end.
#[test]
fn a_recording_ends_with_its_context() {
    for ending in ["destroy-in-capture", "reset-in-capture"] {
        let lab = on_standin();
        let guest = lab.leased("256MiB", "address-2");
        guest.must(&format!("trial {ending}"));
        let number = guest.must("take alloc 64MiB");
        guest.must(&format!("give {number}"));
        wait_for_nothing_held(&lab, ending);
    }
}

fn on_standin() -> Lab {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    Lab::on(card, &[])
}

fn wait_for_nothing_held(lab: &Lab, when: &str) {
    lab.ledger.wait(when, |state| (lease(state, "guest").held_bytes == 0).then_some(()));
}
