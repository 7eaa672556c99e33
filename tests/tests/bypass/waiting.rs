//! `run --wait-for-memory`: allocations above what is set aside wait in line.

use std::time::{Duration, Instant};

use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;

use super::lab::{Card, Lab};

/// Room for two contexts, for what the waiting job has set aside, for all of the holder, and for some of what is waited for.
const ROOM: [&str; 2] = ["--capacity", "2400MiB"];
const HOLDER: &str = "768MiB";
const WAITER: &str = "64MiB..1GiB";
const LARGE: &str = "take alloc 768MiB";

/// The broker, and who has the memory.
fn stage() -> (Lab, Puppet) {
    let card = Card::of(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "4GiB")])));
    let lab = Lab::on(card, &ROOM);
    let holder = lab.leased(HOLDER, "handle");
    (lab, holder)
}

fn waiter(lab: &Lab, wait: &str) -> Puppet {
    let waiter = lab.started_with(&["-m", WAITER, "-n", "waiter", "--wait-for-memory", wait], "address-2");
    waiter.must("init");
    waiter.must("context");
    waiter
}

#[test]
fn an_allocation_waits_in_line_and_gets_what_another_leaves() {
    let (lab, holder) = stage();
    let waiter = waiter(&lab, "10m");
    waiter.must("take alloc 32MiB");
    waiter.begin(LARGE);
    lab.ledger.wait_for_waiting(1);
    drop(holder);
    let number = waiter.answer().expect("the memory of who has gone");
    waiter.must(&format!("check {number}"));
    waiter.must("launch 10");
}

/// Without the option it is refused at once, which the waiting one is after its time, with the reason on standard error.
#[test]
fn a_wait_that_is_over_is_out_of_memory_and_says_why() {
    let (lab, _holder) = stage();
    let steps = ["init", "context", LARGE, "take alloc 32MiB"];
    for (wait, word) in [(None, "(no_room)"), (Some("400ms"), "(wait_over)")] {
        let mut options = vec!["-m", WAITER];
        options.extend(wait.iter().flat_map(|wait| ["--wait-for-memory", *wait]));
        let start = Instant::now();
        let output = lab.run_with(&options, &steps);
        let (said, words) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said} {words}");
        let answers: Vec<&str> = said.lines().collect();
        assert_eq!(answers.len(), steps.len(), "{said}");
        assert!(answers[2].contains("code=2"), "{said}");
        assert!(answers[3].starts_with("ok"), "what is set aside is there: {said}");
        assert!(words.contains("no memory for 768 MiB in lease"), "{words}");
        assert!(words.contains(word), "{word}: {words}");
        assert!(wait.is_none() || start.elapsed() >= Duration::from_millis(400), "it waited");
    }
}

/// A graph that is recorded can't be waited for.
#[test]
fn nobody_waits_while_a_stream_records() {
    let (lab, holder) = stage();
    let waiter = waiter(&lab, "10m");
    // An answer takes at most a minute.
    assert_eq!(waiter.must("trial large-in-capture"), "alloc=2");
    waiter.begin(LARGE);
    lab.ledger.wait_for_waiting(1);
    drop(holder);
    waiter.answer().expect("the same without a recording waits");
}
