//! Jobs of a broker that holds the card, beside an outsider who takes whatever he can get.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use gpulease_broker::HEADROOM;
use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::{Ledger, memory};
use gpulease_tests::member::{Facts, Member, Stage};
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_words::{Bytes, mib};

use super::hold::{is_whole, wait_for_hold};
use super::scene::Scene;

/// Takes what a card has, in pieces, until it is told to end; how much that was.
fn grab_until(done: &AtomicBool, outsider: &Puppet) -> Bytes {
    let (mut gain, mut number) = (Bytes::ZERO, 0);
    while !done.load(Ordering::SeqCst) {
        let bytes = if number % 2 == 0 { mib(64) } else { mib(2) };
        number += 1;
        if outsider.ask(&format!("alloc n{number} 0 {}B", bytes.get())).is_ok() {
            gain = gain.saturating_add(bytes);
        }
    }
    gain
}

/// A job that gives its memory back and keeps it mapped.
fn liar(scene: &Scene, daemon: &Daemon) -> Member {
    let liar = scene.stage.member(daemon);
    for command in [
        "connect",
        "open",
        "ask a 64MiB",
        "granted a",
        "allocate s a 64MiB",
        "claim s",
        "map s",
        "acknowledge s",
        "fill s 7",
        "let-go s",
    ] {
        liar.must(&format!("wire {command}"));
    }
    liar
}

/// Jobs come and go, one of them lies, and an outsider takes whatever he can get.
#[test]
fn a_storm_of_jobs_leaves_an_outsider_the_headroom() {
    let seed: u64 = std::env::var("GPULEASE_STORM_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    for scene in Scene::all("a storm with a hold") {
        println!("seed {seed}");
        let Some(outsider) = scene.stranger_of_another_user() else { return };
        let daemon = scene.holding_daemon();
        let ledger = Ledger::of(&daemon);
        wait_for_hold(&ledger, "the hold is whole", is_whole);
        let jobs = jobs(&scene, &daemon);
        let liar = liar(&scene, &daemon);
        // Until their contexts are there an outsider can take the room that the hold made for them.
        ledger.wait("the contexts are seen", |state| {
            let mut members = state.leases.iter().flat_map(|lease| &lease.members);
            members.all(|member| member.overhead_measured).then_some(())
        });
        wait_for_hold(&ledger, "the hold is whole beside them", is_whole);
        outsider.must("context 0");
        let (gain, moved) = rage(&scene, seed, &jobs, &liar, &outsider);
        // Beside what came back: contexts that were charged and turned out smaller.
        let most = [HEADROOM, moved, mib(4 * 128)].into_iter().sum();
        println!("an outsider got {gain} beside a headroom of {HEADROOM} while {moved} came back");
        assert!(gain <= most, "{gain}");
        shows_off_the_book(&scene, &ledger, &outsider, gain);
        outsider.kill();
        // The liar's is not credited, and nothing else is on its way any more.
        ledger.wait("what the liar keeps is all that is not proven back", |state| {
            let books = memory(state);
            (books.quarantined_bytes == mib(64).get() && books.draining_bytes == 0).then_some(())
        });
        liar.must("wire check s 7");
        liar.kill();
        drop(jobs);
        ledger.wait_for_all_free();
        wait_for_hold(&ledger, "the hold is whole again", is_whole);
        daemon.stop();
    }
}

/// Three that have a lease and a context.
fn jobs(scene: &Scene, daemon: &Daemon) -> Vec<Member> {
    let jobs: Vec<Member> = (0..3).map(|_| scene.stage.member(daemon)).collect();
    for command in ["connect", "acquire start 64MiB", "take first start 2MiB"] {
        jobs.iter().for_each(|job| drop(job.must(command)));
    }
    jobs
}

/// They compete, and the outsider with them: what he got, and what of theirs came back meanwhile.
fn rage(scene: &Scene, seed: u64, jobs: &[Member], liar: &Member, outsider: &Puppet) -> (Bytes, Bytes) {
    let done = AtomicBool::new(false);
    // The stand-in's memory is written and read by the processor.
    let most = match &scene.stage {
        Stage::Gpu(Gpu::Standin(_)) => "128MiB",
        Stage::Gpu(Gpu::Real(_)) | Stage::Host => "512MiB",
    };
    thread::scope(|scope| {
        let grabbing = scope.spawn(|| grab_until(&done, outsider));
        for (number, job) in (seed..).zip(jobs) {
            job.begin(&format!("compete 6 {number} {most}"));
        }
        liar.must("wire free s");
        let mut moved = Bytes::ZERO;
        for (number, job) in jobs.iter().enumerate() {
            // An allocation within a reserve that fails would end it.
            let said = job.answer().unwrap_or_else(|error| panic!("competitor {number}: {error}"));
            let facts = Facts::of(&said);
            assert!(facts.number("grants") > 0, "competitor {number} got nothing: {said}");
            moved = moved.saturating_add(Bytes::new(facts.number("bytes")));
        }
        done.store(true, Ordering::SeqCst);
        (grabbing.join().expect("the outsider lives"), moved)
    })
}

/// What he got is his in the state, and what of it is beyond the headroom is off the book.
fn shows_off_the_book(scene: &Scene, ledger: &Ledger, outsider: &Puppet, gain: Bytes) {
    let ended = Instant::now();
    let off_book = ledger.wait("what the outsider got shows as off the book", |state| {
        let of_him = state.devices.first()?.strangers.iter().find(|s| s.pid == outsider.pid())?;
        let off_book = Bytes::new(memory(state).off_book_bytes?);
        // The headroom is others' anyway, and so is the broker's own share with what cards round by.
        let within = [off_book, HEADROOM, mib(64)].into_iter().sum::<Bytes>();
        (of_him.bytes >= gain.get() && of_him.bytes <= within.get()).then_some(off_book)
    });
    let after = ended.elapsed();
    println!("{off_book} are off the book {after:.1?} after the last of it");
    assert!(scene.is_in_time(after), "{after:?}");
}
