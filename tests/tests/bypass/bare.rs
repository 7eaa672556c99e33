//! Without a lease: every way takes memory, through every door. What counts and refuses is to be held against this.

use gpulease_words::{Bytes, mib};

use super::lab::{Card, DOORS, LAZY, WAYS, code};

#[test]
fn without_a_lease_every_way_takes_memory_of_the_card() {
    for card in Card::all("without_a_lease_every_way_takes_memory_of_the_card") {
        for door in DOORS {
            let guest = card.bare(door);
            // What comes with the first use of anything is no matter here.
            drop(guest.ask("launch 1"));
            let first = guest.must("take managed 64MiB");
            guest.must(&format!("give {first}"));
            for way in WAYS {
                let before = card.used();
                let number = guest.ask(&format!("take {way} 64MiB"));
                let number =
                    number.unwrap_or_else(|error| panic!("{way} through {door} on {}: {error}", card.gpu));
                let more = card.used().saturating_sub(before);
                let least = if card.takes_at_once(way) { mib(64) } else { Bytes::ZERO };
                let range = least..=mib(64 + 64 / 3 + 32);
                assert!(range.contains(&more), "{way} through {door} on {} took {more}", card.gpu);
                guest.must(&format!("check {number}"));
                guest.must(&format!("give {number}"));
                card.wait_until_used(before);
            }
        }
    }
}

/// A child of a fork has no standing with the driver, and the parent's goes on.
#[test]
fn a_forked_child_meets_the_drivers_own_error() {
    for card in Card::all("a_forked_child_meets_the_drivers_own_error") {
        let guest = card.bare("handle");
        let number = guest.must("take alloc 2MiB");
        let said = guest.must("fork 2MiB");
        assert!(said.starts_with("init=3 alloc=3 info=3 devices=3 "), "on {}: {said}", card.gpu);
        assert!(said.ends_with(" ended=0"), "{said}");
        guest.must(&format!("check {number}"));
    }
}

#[test]
fn more_than_the_card_has_is_out_of_memory_by_every_way() {
    for card in Card::all("more_than_the_card_has_is_out_of_memory_by_every_way") {
        let guest = card.bare("address-2");
        let all = Bytes::new(guest.must("total").trim_start_matches("total=").parse().expect("a number"));
        // Managed memory may be more than the card has: it moves.
        for way in WAYS.into_iter().filter(|way| card.takes_at_once(way)) {
            let size = all.get().next_multiple_of(16 << 20) + (16 << 20);
            let refused = code(guest.ask(&format!("take {way} {size}B")));
            // The assembler, and the shapes of arrays, have limits of their own.
            let own_limits = LAZY.contains(&way) || ["array", "array-3d", "mipmap"].contains(&way);
            let expected = if own_limits { refused.is_err() } else { refused == Err(2) };
            assert!(expected, "{way} on {}: {refused:?}", card.gpu);
        }
    }
}
