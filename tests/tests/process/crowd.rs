//! Many at once: whole-card asks in a line, and competitors that never have more than there is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpulease_tests::ledger::{Ledger, memory};
use gpulease_tests::member::{Facts, Member, Stage};
use gpulease_tests::proc::Proc;
use gpulease_words::{Bytes, mib};

const CROWD: usize = 64;

/// Jobs that all asked for everything, in the order in which they stand in the line.
fn line(stage: &Stage, daemon: &gpulease_tests::daemon::Daemon, ledger: &Ledger, size: &str) -> Vec<Member> {
    let jobs: Vec<Member> = (0..CROWD).map(|_| stage.member(daemon)).collect();
    jobs.iter().for_each(|job| job.begin("connect"));
    jobs.iter().for_each(|job| drop(job.answer().expect("it connects")));
    jobs.iter().for_each(|job| job.begin(&format!("ask a {size}")));
    jobs.iter().for_each(|job| drop(job.answer().expect("it asks")));
    ledger.wait_for_waiting(CROWD - 1);
    let state = ledger.now();
    let granted = state.leases.iter().map(|lease| lease.pid);
    let mut waiting: Vec<_> = state.waiting.iter().map(|ask| (ask.position, ask.pid)).collect();
    waiting.sort_unstable();
    let order: Vec<u32> = granted.chain(waiting.into_iter().map(|(_, pid)| pid)).collect();
    let mut jobs: Vec<Member> = jobs;
    jobs.sort_by_key(|job| order.iter().position(|pid| *pid == job.pid()));
    jobs
}

/// Field case 15 (Project-HAMi/HAMi-core#170): two whole-card jobs ended on one card.
#[test]
fn of_64_whole_card_asks_one_is_granted_and_the_others_follow_in_order() {
    for stage in Stage::all("64 whole-card asks") {
        println!("on {stage}");
        let whole = mib(4);
        let daemon = stage.daemon(Bytes::new(whole.get() + stage.overhead().get()));
        let ledger = Ledger::of(&daemon);
        let mut jobs = line(&stage, &daemon, &ledger, "4MiB");
        let ids: Vec<u64> = {
            let state = ledger.now();
            assert_eq!((state.leases.len(), state.waiting.len()), (1, CROWD - 1));
            state.waiting.iter().map(|ask| ask.id).collect()
        };
        assert!(ids.is_sorted(), "those who came first are first: {ids:?}");
        let mut longest = Duration::ZERO;
        while !jobs.is_empty() {
            let job = jobs.remove(0);
            let start = Instant::now();
            job.must("granted a");
            longest = longest.max(start.elapsed());
            let state = ledger.now();
            assert_eq!((state.leases.len(), state.waiting.len()), (1, jobs.len()));
            assert_eq!(state.leases[0].pid, job.pid());
            for command in ["take s a 4MiB", "zero s a", "fill s a 3", "check s a 3", "free s", "release a"] {
                job.must(command);
            }
            // A context that stays would be in the next one's way.
            job.kill();
        }
        println!("the longest wait from one's end to the next one's grant: {longest:?}");
        ledger.wait_for_no_leak();
        daemon.stop();
    }
}

/// Field case 16 (Project-HAMi/HAMi-core#86): waiters spun for minutes on a lock whose owner had died.
#[test]
fn with_64_in_the_line_a_death_at_any_step_lets_the_next_in() {
    let stage = Stage::Host;
    let daemon = stage.daemon(mib(4));
    let ledger = Ledger::of(&daemon);
    let mut jobs = line(&stage, &daemon, &ledger, "4MiB");
    let steps =
        ["granted a", "take s a 4MiB", "zero s a", "fill s a 3", "free s", "take t a 2MiB", "enter a"];
    let (mut turn, mut longest, mut killed_at) = (0, Duration::ZERO, Instant::now());
    while !jobs.is_empty() {
        let job = jobs.remove(0);
        for (n, step) in steps.iter().take(1 + turn % steps.len()).enumerate() {
            job.must(step);
            if n == 0 && turn > 0 {
                longest = longest.max(killed_at.elapsed());
            }
        }
        if turn % 3 == 2 {
            // The one behind dies in the line as well.
            drop((!jobs.is_empty()).then(|| jobs.remove(0)));
        }
        killed_at = Instant::now();
        job.kill();
        turn += 1;
    }
    println!("{turn} deaths of holders; the longest time to the next one's grant: {longest:?}");
    assert!(longest < Duration::from_secs(10), "a grant after a death took {longest:?}");
    ledger.wait_for_no_leak();
    daemon.stop();
}

/// 32 jobs of all sizes: the device never has more than its capacity, by its own figure and by
/// what the kernel shows of the daemon, and everybody gets on.
#[test]
fn thirty_two_competitors_never_have_more_than_there_is() {
    let stage = Stage::Host;
    let capacity = mib(64);
    let daemon = stage.daemon(capacity);
    let ledger = Ledger::of(&daemon);
    let jobs: Vec<Member> = (0..32).map(|_| stage.member(&daemon)).collect();
    jobs.iter().for_each(|job| job.begin("connect"));
    jobs.iter().for_each(|job| drop(job.answer().expect("it connects")));
    let (over, samples, highest) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let seen = Proc(daemon.pid()).memory_files();
                highest.fetch_max(seen.get(), Ordering::SeqCst);
                over.fetch_or(seen > capacity, Ordering::SeqCst);
                samples.fetch_add(1, Ordering::SeqCst);
            }
        });
        for (seed, job) in jobs.iter().enumerate() {
            job.begin(&format!("compete 4 {} 32MiB", seed + 1));
        }
        for (seed, job) in jobs.iter().enumerate() {
            let said = job.answer().unwrap_or_else(|error| panic!("competitor {seed}: {error}"));
            let grants = Facts::of(&said).number("grants");
            assert!(grants > 0, "competitor {seed} got nothing: {said}");
        }
        done.store(true, Ordering::SeqCst);
    });
    let books = memory(&ledger.now());
    println!(
        "highest: {} charged, {} of {capacity} in the daemon's files over {} looks",
        Bytes::new(books.peak_charged_bytes),
        Bytes::new(highest.load(Ordering::SeqCst)),
        samples.load(Ordering::SeqCst),
    );
    assert!(!over.load(Ordering::SeqCst), "more than there is");
    assert!(books.peak_charged_bytes <= capacity.get());
    // They do compete: without a broker 32 jobs would want eight times as much.
    assert!(books.peak_charged_bytes > capacity.get() / 2, "they did not compete: {books:?}");
    drop(jobs);
    ledger.wait_for_no_leak();
    daemon.stop();
}
