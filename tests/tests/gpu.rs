//! What the broker promises of a card, by the card's own figures; on the stand-in as well, as far
//! as that means anything. Each prints what it measured.

mod hold;
mod scene;
mod storm;

use std::time::Instant;

use gpulease_proto::v1;
use gpulease_tests::ledger::{Ledger, memory};
use gpulease_tests::member::{Facts, Member};
use gpulease_words::{AskId, Bytes, gib, mib};

use self::scene::Scene;

#[test]
fn the_broker_alone_costs_the_card_at_most_8_mib() {
    for scene in Scene::all("what the broker alone costs") {
        let daemon = scene.daemon_of_all();
        let more = scene.used_more();
        println!("the broker alone costs the card {more}");
        assert!(more <= mib(8), "{more}");
        // Nor does it after it has lent and got back.
        let job = scene.stage.member(&daemon);
        for command in ["connect", "acquire a 1GiB", "take s a 1GiB", "free s", "release a"] {
            job.must(command);
        }
        job.kill();
        let ledger = Ledger::of(&daemon);
        ledger.wait_for_all_free();
        let more = scene.used_more();
        println!("after a job {more}");
        assert!(more <= mib(8), "{more}");
        daemon.stop();
    }
}

#[test]
fn two_jobs_whose_sum_exceeds_the_card_never_make_it_run_out() {
    for scene in Scene::all("two jobs that exceed the card") {
        let daemon = scene.daemon_of_all();
        let ledger = Ledger::of(&daemon);
        let capacity = Bytes::new(memory(&ledger.now()).capacity_bytes);
        let most = Bytes::new(capacity.get() * 3 / 5).round_down();
        let jobs = [scene.stage.member(&daemon), scene.stage.member(&daemon)];
        let (highest, looks) = scene.highest_during(|| {
            jobs.iter().for_each(|job| drop(job.must("connect")));
            for _ in 0..3 {
                take_turns(&ledger, &jobs, most);
            }
        });
        let books = memory(&ledger.now());
        println!(
            "two jobs of {most} each on {capacity}: at most {highest} of {} were used over {looks} looks, {} charged",
            Bytes::new(books.total_bytes),
            Bytes::new(books.peak_charged_bytes)
        );
        assert!(highest >= most, "they used the card");
        assert!(highest <= Bytes::new(books.total_bytes));
        assert!(books.peak_charged_bytes <= books.capacity_bytes);
        drop(jobs);
        ledger.wait_for_all_free();
        daemon.stop();
    }
}

/// The first has most of the card, the second waits for it and has its turn. A small part of what
/// each has is written and compared.
fn take_turns(ledger: &Ledger, [first, second]: &[Member; 2], most: Bytes) {
    let all = format!("{}B", most.get());
    first.must(&format!("acquire a {all}"));
    first.must(&format!("take s a {}B", most.saturating_sub(mib(16)).get()));
    first.must("take small a 16MiB");
    second.must(&format!("ask a {all}"));
    second.must("standing-in-line a");
    first.must("fill small a 1");
    first.must("check small a 1");
    let waiting = ledger.now().waiting;
    assert_eq!(waiting.len(), 1);
    for command in ["free s", "free small", "release a"] {
        first.must(command);
    }
    second.must("granted a");
    second.must(&format!("take s a {}B", most.saturating_sub(mib(16)).get()));
    second.must("take small a 16MiB");
    second.must("zero small a");
    for command in ["free small", "free s", "release a"] {
        second.must(command);
    }
}

#[test]
fn a_strangers_plain_allocation_shows_with_its_user_within_a_second() {
    for scene in Scene::all("a stranger's plain allocation") {
        let daemon = scene.daemon_of_all();
        let ledger = Ledger::of(&daemon);
        let capacity = memory(&ledger.now()).capacity_bytes;
        let stranger = scene.stranger();
        stranger.must("context 0");
        let start = Instant::now();
        stranger.must("alloc big 0 8GiB");
        let seen = ledger.wait("the stranger in the status", |state| {
            let device = state.devices.first()?;
            let found = device.strangers.iter().find(|s| s.pid == stranger.pid())?;
            (found.bytes >= gib(8).get()).then(|| (found.clone(), start.elapsed()))
        });
        let (v1::Stranger { user, command, bytes, .. }, after) = seen;
        println!("{command} of {user} shows with {} after {after:.1?}", Bytes::new(bytes));
        assert!(scene.is_in_time(after), "{after:?}");
        assert_eq!(command, "cuda-puppet");
        assert!(!user.is_empty());
        let off_book = ledger.wait("its bytes off the book", |state| {
            memory(state).off_book_bytes.filter(|bytes| *bytes >= gib(8).get())
        });
        let free = memory(&ledger.now()).free_bytes;
        println!("{} are off the book, {} are free", Bytes::new(off_book), Bytes::new(free));
        assert!(free + off_book <= capacity);
        // Not granted to anyone: neither at once nor by waiting, until it is gone.
        let job = scene.stage.member(&daemon);
        job.must("connect");
        let wish = Bytes::new(capacity - gib(4).get()).round_down();
        let why = job.refused(&format!("acquire a {}B now", wish.get()));
        assert!(why.contains("(wait_over)") || why.contains("(no_room)"), "{why}");
        println!("who asks for {wish} hears: {why}");
        job.must(&format!("ask a {}B", wish.get()));
        job.must("standing-in-line a");
        names_who_sits_there(&ledger, stranger.pid());
        stranger.must("free big");
        stranger.kill();
        job.must("granted a");
        job.must(&format!("take s a {}B", wish.get()));
        job.must("free s");
        job.must("release a");
        job.kill();
        ledger.wait_for_all_free();
        daemon.stop();
    }
}

/// Whoever asks why hears who has the room, and so does who reads the events.
fn names_who_sits_there(ledger: &Ledger, pid: u32) {
    let ask = ledger.wait("the ask in the line", |state| state.waiting.first().map(|ask| ask.id));
    let why = ledger.observer().why_ask(AskId::new(ask)).expect("it waits");
    let named = format!("process {pid} of ");
    let said = why.details.iter().find(|detail| detail.contains(&named));
    assert!(said.is_some_and(|said| said.contains("gpulease run")), "{why:#?}");
    let request = v1::EventsRequest { from_start: true, no_follow: true, after: 0 };
    let events = ledger.observer().events(request).expect("the daemon answers");
    let mut told = events.map(|event| event.expect("the daemon answers")).filter(|e| e.kind == "off_book");
    assert!(told.any(|event| event.message.contains(&format!("pid {pid} (cuda-puppet of user "))));
}

/// More jobs than there is room for: the card's own peak stays within what is leased.
#[test]
fn competitors_stay_within_the_capacity_by_the_cards_own_figure() {
    const JOBS: u64 = 8;
    for scene in Scene::all("competitors on a card") {
        // Room for every context, and for a fraction of what they want.
        let capacity = Bytes::new(mib(256).get() + JOBS * mib(640).get());
        let daemon = scene.stage.daemon(capacity);
        let ledger = Ledger::of(&daemon);
        let jobs: Vec<Member> = (0..JOBS).map(|_| scene.stage.member(&daemon)).collect();
        jobs.iter().for_each(|job| drop(job.must("connect")));
        let (highest, looks) = scene.highest_during(|| {
            for (seed, job) in jobs.iter().enumerate() {
                job.begin(&format!("compete 4 {} 128MiB", seed + 1));
            }
            for (seed, job) in jobs.iter().enumerate() {
                let said = job.answer().unwrap_or_else(|error| panic!("competitor {seed}: {error}"));
                assert!(Facts::of(&said).number("grants") > 0, "competitor {seed} got nothing: {said}");
            }
        });
        let books = memory(&ledger.now());
        let more = highest.saturating_sub(scene.used_before);
        println!(
            "{JOBS} competitors on {capacity}: at most {more} more were used over {looks} looks, {} charged",
            Bytes::new(books.peak_charged_bytes)
        );
        assert!(books.peak_charged_bytes <= capacity.get());
        // Beside the broker's own share and what each context takes on nobody's list.
        let beside = Bytes::new(mib(8).get() + JOBS * mib(6).get());
        assert!(more <= capacity.saturating_add(beside), "{more} of {capacity}");
        drop(jobs);
        ledger.wait_for_all_free();
        daemon.stop();
    }
}

/// Both kinds of handle: the descriptor (every other test), and the 64 bytes of CUDA IPC, which any
/// process opens that knows them; and a broker's death reaches neither.
#[test]
fn memory_of_both_kinds_of_handle_outlives_the_broker() {
    for scene in Scene::all("both kinds of handle") {
        let mut daemon = scene.stage.daemon(Bytes::new(mib(128).get() + 3 * mib(640).get()));
        let job = scene.stage.member(&daemon);
        for command in ["connect 2s", "acquire a 64MiB", "take s a 32MiB", "take t a 32MiB ipc"] {
            job.must(command);
        }
        job.must("fill s a 1");
        job.must("fill t a 2");
        let consumer = scene.stranger();
        consumer.must("context 0");
        consumer.must(&format!("open m 0 {}", job.must("ipc t")));
        let helpers = Ledger::of(&daemon).now().broker.expect("it says so").helpers;
        println!("the exporter: {helpers:?}");
        assert_eq!(helpers.len(), 1, "an exporter has the memory");
        daemon.kill();
        job.must("check s a 1");
        job.must("check t a 2");
        // Eight bytes of the pattern stay; the rest is the consumer's.
        consumer.must("fill m 0 0B 65 32MiB");
        assert_eq!(consumer.must("read m 0 0B 32MiB"), "65");
        let differs = job.refused("check t a 2");
        assert!(differs.contains("0x41 is there"), "{differs}");
        job.must("fill t a 3");
        assert_eq!(consumer.must("read m 0 0B 32MiB"), "mixed");
        consumer.kill();
        job.kill();
        daemon.start_again();
        let ledger = Ledger::of(&daemon);
        ledger.wait("the exporter of the dead broker gone", |state| {
            memory(state).off_book_bytes.filter(|bytes| *bytes < mib(32).get())
        });
        daemon.stop();
    }
}
