//! The daemon goes away, by a crash or in good order, and comes back: no job is harmed by it.

use std::process::{Command, Stdio};

use gpulease_tests::daemon::{Daemon, PATIENCE, wait_for};
use gpulease_tests::ledger::{Ledger, memory};
use gpulease_tests::member::{Member, Stage};
use gpulease_tests::programs::gpuleased;
use gpulease_words::{Bytes, mib};
use rustix::process::Signal;

const JOBS: usize = 8;

/// How a daemon ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// SIGKILL.
    Crash,
    /// SIGTERM.
    GoodOrder,
}

fn end(daemon: &mut Daemon, how: End) {
    match how {
        End::Crash => daemon.kill(),
        End::GoodOrder => daemon.terminate(),
    }
}

/// Jobs with a lease each, mapped and written.
fn training(stage: &Stage, daemon: &Daemon) -> Vec<Member> {
    let job = |n: usize| {
        let job = stage.member(daemon);
        for command in ["connect 20s", "acquire a 8MiB", "take s a 4MiB"] {
            job.must(command);
        }
        job.must(&format!("fill s a {n}"));
        job
    };
    (0..JOBS).map(job).collect()
}

/// Room for every job's lease and context, before the end and after it.
fn room(stage: &Stage) -> Bytes {
    Bytes::new(JOBS as u64 * (mib(16).get() + stage.overhead().get()))
}

/// Field case 46 (vllm-project/vllm#6025): the owner exited and its consumers froze.
#[test]
fn jobs_go_on_when_the_broker_ends_and_find_the_next_one() {
    for stage in Stage::all("the broker ends under 8 jobs") {
        for how in [End::Crash, End::GoodOrder] {
            println!("on {stage}: {how:?}");
            let mut daemon = stage.daemon(room(&stage));
            let jobs = training(&stage, &daemon);
            end(&mut daemon, how);
            for (n, job) in jobs.iter().enumerate() {
                job.must(&format!("check s a {n}"));
                job.must(&format!("fill s a {}", n + 100));
            }
            daemon.start_again();
            for (n, job) in jobs.iter().enumerate() {
                // An ask finds the new broker, and with it the session is one of the new broker's.
                job.must("acquire b 2MiB wait=20s");
                assert_eq!(job.must("standing a"), "Lost");
                let why = job.refused("take t a 2MiB");
                assert!(why.contains("the broker was restarted and does not know lease"), "{why}");
                job.must("take t b 2MiB");
                job.must("zero t b");
                job.must(&format!("check s a {}", n + 100));
                job.must("free t");
                job.must("release b");
            }
            let state = memory(&daemon_state(&daemon));
            assert_eq!(state.held_bytes + state.set_aside_bytes, 0, "{state:?}");
            for job in jobs {
                job.must("drop s");
                job.must("forget a");
                assert_eq!(job.must("kept"), "", "what is gone is owed to nobody");
                job.kill();
            }
            daemon.stop();
        }
    }
}

fn daemon_state(daemon: &Daemon) -> gpulease_proto::v1::StatusReply {
    Ledger::of(daemon).now()
}

/// What jobs kept over a restart is off the new broker's book, and not granted again.
#[test]
fn a_new_broker_grants_nothing_that_former_jobs_still_have() {
    for stage in Stage::all("what is left of former jobs") {
        if matches!(stage, Stage::Host) {
            // Memory files of a former broker are no part of what a new one hands out.
            continue;
        }
        println!("on {stage}");
        let mut daemon = Daemon::start_configured(whole_device(&stage), "");
        let whole = memory(&daemon_state(&daemon)).capacity_bytes;
        let job = stage.member(&daemon);
        job.must("connect 20s");
        // Half of what there is; a context fits beside it.
        let half = Bytes::new(whole / 2).round_down();
        job.must(&format!("acquire a {}B", half.get()));
        job.must(&format!("take s a {}B", half.get()));
        daemon.kill();
        daemon.start_again();
        let ledger = Ledger::of(&daemon);
        // Once the job has a session again, as much as a context is estimated at passes for its context.
        let at_least = half.saturating_sub(mib(640));
        let off_book = ledger.wait("the former job's memory off the book", |state| {
            memory(state).off_book_bytes.filter(|bytes| *bytes >= at_least.get())
        });
        println!("{} of {} are off the book", Bytes::new(off_book), Bytes::new(whole));
        let next = stage.member(&daemon);
        next.must("connect");
        let why = next.refused(&format!("acquire b {}B now", half.get()));
        assert!(why.contains("no_room") || why.contains("wait_over"), "{why}");
        next.must(&format!("ask b {}B", half.get()));
        next.must("standing-in-line b");
        job.kill();
        next.must("granted b");
        next.must(&format!("take s b {}B", half.get()));
        next.must("free s");
        next.must("release b");
        next.kill();
        daemon.stop();
    }
}

fn whole_device(stage: &Stage) -> Command {
    let mut command = Command::new(gpuleased());
    command.args(["--device", "cuda:0"]).envs(stage.environment());
    command
}

/// The broker ends after any step of a lease's life: nothing hangs, what is mapped stays, and the
/// next broker serves the same process.
#[test]
fn the_broker_ends_at_any_step() {
    let steps = [
        "connect",
        "open",
        "ask a 4MiB",
        "granted a",
        "allocate s a 4MiB",
        "claim s",
        "map s",
        "acknowledge s",
        "fill s 7",
        "let-go s",
        "unmap s",
        "free s",
        "release a",
        "close",
    ];
    for how in [End::Crash, End::GoodOrder] {
        let mut daemon = Stage::Host.daemon(mib(4));
        for count in 1..=steps.len() {
            println!("{how:?} after {}", steps[count - 1]);
            let job = Stage::Host.member(&daemon);
            let (done, rest) = steps.split_at(count);
            done.iter().for_each(|step| drop(job.must(&format!("wire {step}"))));
            end(&mut daemon, how);
            let mapped = done.contains(&"map s") && !done.contains(&"unmap s");
            if mapped {
                job.must("wire fill s 9");
                job.must("wire check s 9");
            }
            daemon.start_again();
            // Everything that was under way fails, at once and with a sentence, or is the job's own affair.
            for step in rest.iter().filter(|step| !["connect", "open"].contains(step)) {
                if let Err(why) = job.ask(&format!("wire {step}")) {
                    assert!(!why.is_empty());
                }
            }
            for step in
                ["connect", "open", "ask again 4MiB", "granted again", "allocate t again 4MiB", "claim t"]
            {
                job.must(&format!("wire {step}"));
            }
            for step in ["map t", "acknowledge t", "zero t", "unmap t", "let-go t", "free t", "release again"]
            {
                job.must(&format!("wire {step}"));
            }
            job.must("wire close");
            job.kill();
            Ledger::of(&daemon).wait_for_all_free();
        }
        daemon.stop();
    }
}

/// An ask that waits is put again to the next broker.
#[test]
fn an_ask_outlives_the_broker() {
    for how in [End::Crash, End::GoodOrder] {
        let mut daemon = Stage::Host.daemon(mib(4));
        let (holder, waiter) = (Stage::Host.member(&daemon), Stage::Host.member(&daemon));
        holder.must("connect 20s");
        waiter.must("connect 20s");
        holder.must("acquire a 4MiB");
        waiter.must("ask b 4MiB");
        waiter.must("standing-in-line b");
        end(&mut daemon, how);
        daemon.start_again();
        waiter.must("granted b");
        waiter.must("release b");
        for member in [holder, waiter] {
            member.must("end");
            member.kill();
        }
        daemon.stop();
    }
}

/// FAULTS 8: a broker that hangs. What had been given up meanwhile was still there for a moment when the broker went
/// on, and the next allocation was refused as beyond the lease.
#[test]
fn a_stopped_broker_is_waited_for_with_a_deadline() {
    let daemon = Stage::Host.daemon(mib(8));
    let ledger = Ledger::of(&daemon);
    let job = Stage::Host.member(&daemon);
    for command in ["connect 1s", "acquire a 4MiB", "take s a 2MiB", "fill s a 1"] {
        job.must(command);
    }
    daemon.freeze();
    job.must("check s a 1");
    job.must("fill s a 2");
    let why = job.refused("take t a 2MiB now");
    assert!(why.contains("did not answer") && why.contains("within 1"), "{why}");
    let why = job.refused("acquire b 2MiB now");
    assert!(why.contains("did not answer"), "{why}");
    daemon.signal(Signal::CONT);
    // The broker now carries out what was asked of it meanwhile. The client gives that back before it asks again: the
    // lease has no room for both.
    job.must("take t a 2MiB");
    job.must("check s a 2");
    for command in ["free t", "free s", "release a"] {
        job.must(command);
    }
    job.kill();
    ledger.wait_for_all_free();
    daemon.stop();
}

#[test]
fn a_second_broker_in_the_same_place_is_refused_with_the_pid_of_the_first() {
    let daemon = Stage::Host.daemon(mib(8));
    let mut command = Command::new(gpuleased());
    command.args(["--device", "host:8MiB", "--socket"]).arg(daemon.socket());
    let mut second = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let status = wait_for(&mut second, PATIENCE).expect("it ends by itself");
    let said = std::io::read_to_string(second.stderr.take().expect("it is piped")).expect("text");
    assert!(!status.success(), "{said}");
    assert!(said.contains(&daemon.pid().to_string()), "{said}");
    let job = Stage::Host.member(&daemon);
    job.must("connect");
    job.kill();
    daemon.stop();
}
