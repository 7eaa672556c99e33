//! What programs and the preload lean on of a driver, asked of the stand-in and of a card alike.

use super::lab::Card;

#[test]
fn the_stand_in_answers_as_a_driver_does() {
    for card in Card::all("the_stand_in_answers_as_a_driver_does") {
        let guest = card.bare("handle");
        for (trial, expected) in [
            ("names", "same, same, same, same, same, same, same, same, same, none 2, none 1"),
            ("broken-capture", "status 1, alloc 900, status 2, end 901, status 0, alloc 0"),
            ("relaxed-capture", "alloc 0, nodes 1, 1 before and 7 after"),
            ("pool", "64 of 64, then 0 of 0; 64 of 64, then 0 of 64; trimmed to 0"),
            ("contexts", "created 0, pointer 0, destroyed 0, pointer 1"),
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
