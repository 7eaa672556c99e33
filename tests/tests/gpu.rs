//! What the broker promises of a card, by the card's own figures; on the stand-in as well, as far
//! as that means anything. Each prints what it measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpulease_proto::v1;
use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::{Ledger, memory};
use gpulease_tests::member::{Facts, Member, Stage};
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;
use gpulease_words::{AskId, Bytes, gib, mib};

/// A user that is on every system and has no rights.
const NOBODY: u32 = 65_534;

/// A card, who looks at it by NVML alone, and what was used before anything was started.
struct Scene {
    stage: Stage,
    watcher: Puppet,
    used_before: Bytes,
}

impl Scene {
    /// On a stand-in of one device of 16 GiB and on a real card.
    fn all(test: &str) -> Vec<Self> {
        Gpu::all(test)
            .into_iter()
            .map(|gpu| match gpu {
                Gpu::Standin(_) => {
                    Self::on(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "16GiB")])))
                }
                Gpu::Real(turn) => Self::on(Gpu::Real(turn)),
            })
            .collect()
    }

    fn on(gpu: Gpu) -> Self {
        let watcher = Puppet::start(&gpu);
        let used_before = used(&watcher);
        println!("on {gpu}: {used_before} are used before");
        Self { stage: Stage::Gpu(gpu), watcher, used_before }
    }

    /// A daemon that leases all of the card.
    fn daemon_of_all(&self) -> Daemon {
        let mut command = std::process::Command::new(gpulease_tests::programs::gpuleased());
        command.args(["--device", "cuda:0"]).envs(self.stage.environment());
        Daemon::start_command(command)
    }

    /// One that leases all of the card but the headroom and keeps what is not leased.
    fn holding_daemon(&self) -> Daemon {
        let mut command = std::process::Command::new(gpulease_tests::programs::gpuleased());
        command.args(["--device", "cuda:0", "--hold", "all"]).envs(self.stage.environment());
        Daemon::start_command(command)
    }

    /// What is used beyond what was before; none where others let go meanwhile.
    fn used_more(&self) -> Bytes {
        used(&self.watcher).saturating_sub(self.used_before)
    }

    /// A process that uses the card and has no lease.
    fn stranger(&self) -> Puppet {
        match &self.stage {
            Stage::Gpu(gpu) => Puppet::start(gpu),
            Stage::Host => unreachable!("these tests have a card"),
        }
    }

    /// One of another user than the jobs; `None`, and a line, where this test may not start any.
    fn stranger_of_another_user(&self) -> Option<Puppet> {
        use std::os::unix::process::CommandExt as _;
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can start a process of another user");
            return None;
        }
        match &self.stage {
            Stage::Gpu(gpu) => Some(Puppet::start_with(gpu, |command| command.uid(NOBODY).gid(NOBODY))),
            Stage::Host => unreachable!("these tests have a card"),
        }
    }

    /// Looks at the card again and again while something happens; the most that was used.
    fn highest_during(&self, what: impl FnOnce()) -> (Bytes, u32) {
        let done = AtomicBool::new(false);
        let mut found = (Bytes::ZERO, 0);
        thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let (mut highest, mut looks) = (Bytes::ZERO, 0);
                while !done.load(Ordering::SeqCst) {
                    highest = highest.max(used(&self.watcher));
                    looks += 1;
                }
                (highest, looks)
            });
            what();
            done.store(true, Ordering::SeqCst);
            found = looking.join().expect("NVML answers");
        });
        found
    }
}

fn used(watcher: &Puppet) -> Bytes {
    Bytes::new(watcher.nvml(0)["used"])
}

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
        assert!(after < Duration::from_millis(1_500), "{after:?}");
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

/// The hold as the state shows it.
fn wait_for_hold(ledger: &Ledger, what: &str, wanted: impl Fn(Bytes, &v1::DeviceMemory) -> bool) -> Bytes {
    ledger.wait(what, |state| {
        let books = memory(state);
        books.hold_bytes.map(Bytes::new).filter(|held| wanted(*held, &books))
    })
}

/// All that is free or set aside by the books, but for what the card's own figure trembles by.
fn is_whole(held: Bytes, books: &v1::DeviceMemory) -> bool {
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
    const HEADROOM: Bytes = gpulease_broker::HEADROOM;
    let seed: u64 = std::env::var("GPULEASE_STORM_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    for scene in Scene::all("a storm with a hold") {
        println!("seed {seed}");
        let Some(outsider) = scene.stranger_of_another_user() else { return };
        let daemon = scene.holding_daemon();
        let ledger = Ledger::of(&daemon);
        wait_for_hold(&ledger, "the hold is whole", is_whole);
        let jobs: Vec<Member> = (0..3).map(|_| scene.stage.member(&daemon)).collect();
        jobs.iter().for_each(|job| drop(job.must("connect")));
        for command in ["acquire start 64MiB", "take first start 2MiB"] {
            jobs.iter().for_each(|job| drop(job.must(command)));
        }
        let liar = liar(&scene, &daemon);
        // Until their contexts are there an outsider can take the room that the hold made for them.
        ledger.wait("the contexts are seen", |state| {
            let mut members = state.leases.iter().flat_map(|lease| &lease.members);
            members.all(|member| member.overhead_measured).then_some(())
        });
        wait_for_hold(&ledger, "the hold is whole beside them", is_whole);
        outsider.must("context 0");
        let done = AtomicBool::new(false);
        // The stand-in's memory is written and read by the processor.
        let most = match &scene.stage {
            Stage::Gpu(Gpu::Standin(_)) => "128MiB",
            Stage::Gpu(Gpu::Real(_)) | Stage::Host => "512MiB",
        };
        let (gain, moved) = thread::scope(|scope| {
            let grabbing = scope.spawn(|| grab_until(&done, &outsider));
            for (number, job) in (seed..).zip(&jobs) {
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
        });
        let ended = Instant::now();
        // Beside what came back: contexts that were charged and turned out smaller.
        let most = [HEADROOM, moved, mib(4 * 128)].into_iter().sum();
        println!("an outsider got {gain} beside a headroom of {HEADROOM} while {moved} came back");
        assert!(gain <= most, "{gain}");
        let off_book = ledger.wait("what the outsider got shows as off the book", |state| {
            let of_him = state.devices.first()?.strangers.iter().find(|s| s.pid == outsider.pid())?;
            let off_book = Bytes::new(memory(state).off_book_bytes?);
            // The headroom is others' anyway, and so is the broker's own share with what cards round by.
            let within = [off_book, HEADROOM, mib(64)].into_iter().sum::<Bytes>();
            (of_him.bytes >= gain.get() && of_him.bytes <= within.get()).then_some(off_book)
        });
        let after = ended.elapsed();
        println!("{off_book} are off the book {after:.1?} after the last of it");
        assert!(after < Duration::from_millis(1_500), "{after:?}");
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
