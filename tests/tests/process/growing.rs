//! Growth of real processes at the limit of their lease.

use std::time::{Duration, Instant};

use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::{Ledger, lease};
use gpulease_tests::member::{Member, Stage};
use gpulease_words::mib;

/// The host device tells after so long that it can't prove memory free; slower, a machine is too busy for this test.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);
/// So often a machine may be too busy.
const TRIES: u32 = 5;

/// A lease of 4 MiB up to 8, which holds all of that: 4 within its reserve and 4 above it.
fn at_its_limit(daemon: &Daemon) -> Member {
    let job = Stage::Host.member(daemon);
    for command in ["connect", "open", "ask a 4MiB 8MiB", "granted a", "allocate r a 4MiB"] {
        job.must(&format!("wire {command}"));
    }
    job
}

/// A job that freed memory at its limit and asked for as much at once was refused: what was still on its way back counted
/// as held. Here a descriptor that somebody else has keeps it on its way.
#[test]
fn what_is_on_its_way_back_is_waited_for_at_the_limit() {
    let daemon = Stage::Host.daemon(mib(64));
    let (ledger, job) = (Ledger::of(&daemon), at_its_limit(&daemon));
    for _ in 0..TRIES {
        for command in ["allocate s a 4MiB", "claim s", "map s", "acknowledge s"] {
            job.must(&format!("wire {command}"));
        }
        let descriptor = job.take("wire lend s").expect("it has one");
        for command in ["unmap s", "let-go s"] {
            job.must(&format!("wire {command}"));
        }
        let start = Instant::now();
        job.must("wire free s");
        job.begin("wire allocate t a 4MiB");
        ledger.wait("it waits", |state| {
            let waiting = state
                .waiting
                .iter()
                .any(|ask| ask.reason == "draining" && ask.short_by_bytes == mib(4).get());
            (waiting || start.elapsed() > OVERDUE_AFTER).then_some(())
        });
        drop(descriptor);
        match job.answer() {
            Ok(_) => {
                assert_eq!(lease(&ledger.now(), "wire-1").held_bytes, mib(8).get());
                return daemon.stop();
            }
            Err(why) => assert!(start.elapsed() > OVERDUE_AFTER, "{why}"),
        }
        ledger.wait("it is back", |state| (lease(state, "wire-1").held_bytes == mib(4).get()).then_some(()));
        ledger.wait("nothing drains", |state| {
            let memory = gpulease_tests::ledger::memory(state);
            (memory.draining_bytes == 0 && memory.quarantined_bytes == 0).then_some(())
        });
    }
    panic!("the machine is too busy for this test");
}

/// What stays mapped is held, whatever the broker was told.
#[test]
fn what_does_not_come_back_is_refused_at_the_limit() {
    let daemon = Stage::Host.daemon(mib(64));
    let job = at_its_limit(&daemon);
    for command in ["allocate s a 4MiB", "claim s", "map s", "acknowledge s", "free s"] {
        job.must(&format!("wire {command}"));
    }
    let why = job.refused("wire allocate t a 4MiB");
    assert!(why.contains("beyond_lease") && why.contains("it holds 8 MiB"), "{why}");
    job.kill();
    daemon.stop();
}
