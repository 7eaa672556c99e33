//! What a broker that keeps what is not leased leaves to others.

use std::time::Instant;

use gpulease_proto::v1;
use gpulease_tests::ledger::{Ledger, memory};
use gpulease_words::{Bytes, gib, mib};

use super::scene::Scene;

/// The hold as the state shows it.
pub(super) fn wait_for_hold(
    ledger: &Ledger,
    what: &str,
    wanted: impl Fn(Bytes, &v1::DeviceMemory) -> bool,
) -> Bytes {
    ledger.wait(what, |state| {
        let books = memory(state);
        books.hold_bytes.map(Bytes::new).filter(|held| wanted(*held, &books))
    })
}

/// All that is free or set aside by the books, but for what the card's own figure trembles by.
pub(super) fn is_whole(held: Bytes, books: &v1::DeviceMemory) -> bool {
    let wanted = Bytes::new(books.free_bytes + books.set_aside_bytes).saturating_sub(mib(32));
    held >= wanted
}

#[test]
fn with_a_hold_nobody_allocates_around_the_broker() {
    for scene in Scene::all("a hold") {
        let start = Instant::now();
        let daemon = scene.holding_daemon();
        let ledger = Ledger::of(&daemon);
        let held = wait_for_hold(&ledger, "the hold is whole", is_whole);
        println!("{held} are held {:.1?} after the start", start.elapsed());
        let stranger = scene.stranger();
        stranger.must("context 0");
        let why = stranger.ask("alloc big 0 1GiB").expect_err("it is held");
        assert!(why.contains("OUT_OF_MEMORY"), "{why}");
        stranger.kill();
        // A job gets what it was promised, its context too, and it is held again afterwards.
        let job = scene.stage.member(&daemon);
        for command in [
            "connect",
            "acquire a 4GiB",
            "take s a 3GiB",
            "take t a 1GiB",
            "zero t a",
            "fill t a 3",
            "check t a 3",
        ] {
            job.must(command);
        }
        for command in ["free s", "free t", "release a"] {
            job.must(command);
        }
        job.kill();
        ledger.wait_for_all_free();
        wait_for_hold(&ledger, "the hold is whole again", |now, books| {
            now >= held.saturating_sub(mib(32)) && is_whole(now, books)
        });
        daemon.stop();
        let more = scene.used_more();
        assert!(more <= mib(8), "stopping gives all back, and {more} are used");
    }
}

#[test]
fn a_holding_broker_that_starts_and_stops_on_a_card_in_use_harms_nobody() {
    for scene in Scene::all("a hold on a card in use") {
        let other = scene.stranger();
        other.must("context 0");
        other.must("alloc mine 0 6GiB");
        other.must("fill mine 0 0B 77 64MiB");
        other.must("alloc kept 0 64MiB");
        other.must("fill kept 0 0B 78 64MiB");
        let used = scene.used_more();
        let daemon = scene.holding_daemon();
        let ledger = Ledger::of(&daemon);
        let held = wait_for_hold(&ledger, "the hold is there", |held, _| !held.is_zero());
        other.must("alloc little 0 256MiB");
        other.must("free little");
        assert_eq!(other.must("read mine 0 0B 64MiB"), "77");
        other.must("free mine");
        let grown = wait_for_hold(&ledger, "the hold grows", |now, _| now >= held.saturating_add(gib(5)));
        println!("{held} were held beside a stranger's 6 GiB, and {grown} without");
        daemon.stop();
        other.must("alloc mine 0 6GiB");
        assert_eq!(other.must("read kept 0 0B 64MiB"), "78");
        let now = scene.used_more();
        assert!(
            now <= used.saturating_add(mib(8)),
            "stopping gives all back, and {now} are used, not {used}"
        );
    }
}
