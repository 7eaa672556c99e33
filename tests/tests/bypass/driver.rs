//! What programs and the preload lean on of a driver, asked of the stand-in and of a card alike.

use gpulease_tests::puppet::Gpu;
use gpulease_tests::standin::Standin;

use super::lab::{Card, Lab};

#[test]
fn the_stand_in_answers_as_a_driver_does() {
    for card in Card::all("the_stand_in_answers_as_a_driver_does") {
        let guest = card.bare("handle");
        for (trial, expected) in [
            ("names", "same, same, same, same, same, same, same, same, same, none 2, none 1"),
            ("broken-capture", "status 1, alloc 900, status 2, end 901, status 0, alloc 0"),
            ("relaxed-capture", "alloc 0, nodes 1, 1 before and 7 after"),
            ("pool", "64 of 64, then 0 of 0; 64 of 64, then 0 of 64; trimmed to 0"),
            ("contexts", "pointer 0, destroyed 0, pointer 1"),
            ("shapes", "0 of 800 bytes are wrong"),
        ] {
            assert_eq!(guest.must(&format!("trial {trial}")), expected, "{trial} on {}", card.gpu);
        }
    }
}

/// A context that is reset gives back what was allocated in it, and goes on after the next retain.
#[test]
fn a_reset_gives_everything_back() {
    for card in Card::all("a_reset_gives_everything_back") {
        let guest = card.bare("address-2");
        let before = card.used();
        for way in ["alloc", "async", "array", "variable", "managed"] {
            guest.must(&format!("take {way} 64MiB"));
        }
        guest.must("reset");
        card.wait_until_used(before);
        guest.must("context");
        guest.must("take alloc 64MiB");
    }
}

/// nvshare#11, one release later: a driver that has a form of a function which came after the preload library. It would go around
/// the lease, or take other arguments than ours, so that a program in a lease does not get it.
#[test]
fn a_function_that_came_after_the_library_is_not_given_out() {
    let tomorrow = [("DEVICES", "1"), ("BYTES", "4GiB"), ("VERSION", "99010")];
    let lab = Lab::on(Card::of(Gpu::Standin(Standin::with(&tomorrow))), &[]);
    let bare = lab.card.bare("handle");
    assert_eq!(bare.must("trial tomorrow"), "same, another 0, a symbol, no symbol");
    let output = lab.run("64MiB", &["init", "context", "trial tomorrow", "take alloc 32MiB"]);
    let (said, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let answers: Vec<&str> = said.lines().collect();
    assert_eq!(answers.get(2), Some(&"ok same, none 2, no symbol, no symbol"), "{said}{words}");
    assert!(answers.get(3).is_some_and(|answer| answer.starts_with("ok")), "the rest works: {said}{words}");
    assert!(words.contains("a later cuMemAlloc than this version of gpulease knows"), "{words}");
}
