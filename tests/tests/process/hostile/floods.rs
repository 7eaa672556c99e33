//! Too much of everything: one user's flood is his own trouble.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulease_proto::v1::observer_client::ObserverClient;
use gpulease_proto::v1::{self, acquire_update::Update};
use gpulease_tests::daemon::{Daemon, PATIENCE};
use gpulease_tests::ledger::Ledger;
use gpulease_tests::member::Stage;
use gpulease_tests::proc::Proc;
use gpulease_tests::programs::gpuleased;
use gpulease_tests::wire::{Wire, granted};
use gpulease_words::{Bytes, mib};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

use super::{NOBODY, Scene, session, wait_for};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// As many descriptors as this process may have.
fn raise_own_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not, the test sees fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn connections(daemon: &Daemon, count: usize) -> Vec<UnixStream> {
    let connect = |_| UnixStream::connect(daemon.socket()).expect("the kernel queues it");
    (0..count).map(connect).collect()
}

/// Whether the daemon hung up on it.
fn hung_up(connection: &mut UnixStream) -> bool {
    connection.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    matches!(connection.read(&mut [0; 64]), Ok(0))
        || matches!(connection.read(&mut [0; 64]), Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset)
}

/// A share of one processor that the daemon uses while an ask waits a second in vain.
fn busy_share(scene: &Scene) -> f64 {
    let daemon = Proc(scene.daemon.pid());
    let (before, start) = (daemon.cpu_time(), Instant::now());
    let why = scene.honest.refused("acquire w 16MiB wait=1s");
    assert!(why.contains("(wait_over)"), "{why}");
    (daemon.cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

#[test]
fn a_thousand_connections_of_one_user_delay_nobody() {
    raise_own_limit();
    let scene = Scene::new("");
    let start = Instant::now();
    scene.serves_the_honest();
    let alone = start.elapsed();
    let mut flood = connections(&scene.daemon, 1_000);
    for connection in flood.iter_mut().step_by(2) {
        connection.write_all(PREFACE).expect("it is let in");
    }
    let other = scene.member_of(NOBODY);
    let start = Instant::now();
    scene.serves_the_honest();
    println!("a lease and a segment: {alone:?} alone, {:?} beside 1,000 connections", start.elapsed());
    if let Some(other) = other {
        for command in ["connect", "acquire a 2MiB now", "take s a 2MiB", "free s", "release a"] {
            other.must(command);
        }
    }
    drop(flood);
    scene.ends_well();
}

/// With few descriptors a user has few connections, and the others have theirs.
#[test]
fn connections_of_one_user_have_a_bound() {
    let mut command = Command::new(gpuleased());
    command.args(["--device", "host:16MiB"]);
    let few = Rlimit { current: Some(300), maximum: Some(300) };
    // SAFETY: setrlimit is async-signal-safe.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, few)?)) };
    let daemon = Daemon::start_command(command);
    let ledger = Ledger::of(&daemon);
    let honest = Stage::Host.member(&daemon);
    honest.must("connect");
    let scene = Scene { daemon, ledger, honest };
    // Two fifths of 300 are for connections, a quarter of that for one user, who has three already.
    let mut flood = connections(&scene.daemon, 60);
    let turned_away = flood.iter_mut().rev().take(30).filter_map(|c| hung_up(c).then_some(())).count();
    assert_eq!(turned_away, 30, "the last thirty are beyond the bound");
    scene.honest.must("acquire a 2MiB now");
    scene.honest.must("release a");
    if let Some(other) = scene.member_of(NOBODY) {
        for command in ["connect", "acquire a 2MiB now", "take s a 2MiB", "free s", "release a"] {
            other.must(command);
        }
    }
    drop(flood);
    scene.ends_well();
}

/// FAULTS 12: the accept loop survives a shortage of descriptors without spinning, and clients
/// that are there already are served.
#[test]
fn without_descriptors_connections_are_turned_away_and_nothing_spins() {
    let scene = Scene::new("");
    let pid = i32::try_from(scene.daemon.pid()).ok().and_then(Pid::from_raw);
    scene.honest.must("acquire a 16MiB now");
    let whole = getrlimit(Resource::Nofile);
    let open = u64::try_from(Proc(scene.daemon.pid()).open_files().len()).expect("a few");
    let limit = |current| Rlimit { current, maximum: whole.maximum };
    prlimit(pid, Resource::Nofile, limit(Some(open))).expect("the daemon is ours");
    let mut flood = connections(&scene.daemon, 20);
    assert!(hung_up(&mut flood[0]), "the first that finds no place is told");
    let share = busy_share(&scene);
    println!("out of descriptors the daemon uses {:.1} % of a processor", share * 100.0);
    assert!(share < 0.15, "it spins: {share}");
    let why = scene.honest.refused("take s a 2MiB");
    assert!(why.contains("files open"), "{why}");
    prlimit(pid, Resource::Nofile, limit(whole.current)).expect("the daemon is ours");
    drop(flood);
    scene.honest.must("take s a 2MiB");
    scene.honest.must("free s");
    scene.honest.must("release a");
    let late = Stage::Host.member(&scene.daemon);
    late.must("connect");
    late.kill();
    scene.ends_well();
}

/// FAULTS 14: streams that nobody reads cost the daemon a bounded amount and nobody else anything.
#[test]
fn who_reads_nothing_is_not_waited_for() {
    let scene = Scene::new("");
    wait_for(async {
        let mut deaf = Vec::new();
        for _ in 0..50 {
            let wire = session(&scene.daemon).await;
            let mut observer = ObserverClient::new(wire.channel());
            let watch = observer.watch(v1::WatchRequest {}).await.expect("it begins").into_inner();
            let follow = v1::EventsRequest { from_start: true, ..Default::default() };
            let events = observer.events(follow).await.expect("it begins").into_inner();
            deaf.push((wire, watch, events));
        }
        let (before, start) = (Proc(scene.daemon.pid()).resident(), Instant::now());
        for _ in 0..200 {
            scene.honest.must("acquire a 2MiB now");
            scene.honest.must("release a");
        }
        let (after, took) = (Proc(scene.daemon.pid()).resident(), start.elapsed());
        println!("200 leases beside 100 unread streams: {took:?}; the daemon grew from {before} to {after}");
        assert!(after.get() < before.get() + mib(64).get(), "it keeps what nobody reads: {before} {after}");
        drop(deaf);
    });
    scene.ends_well();
}

/// Asks by the thousand, dropped as soon as they are put.
#[test]
fn streams_that_are_dropped_at_once_leave_nothing() {
    let scene = Scene::new("[graces]\nunattended = \"50ms\"");
    scene.honest.must("acquire a 16MiB now");
    wait_for(async {
        let wire = session(&scene.daemon).await;
        for name in 1..=2_000 {
            let call = wire.acquire(wire.ask(name, mib(2), mib(2)));
            // Half are dropped before they were sent, half before their answer.
            if name % 2 == 0 {
                drop(call);
            } else {
                let brief = tokio::time::timeout(Duration::from_micros(name % 500), call).await;
                drop(brief);
            }
        }
        scene.ledger.wait_for_waiting(0);
        wire.close().await.expect("the session is as it was");
    });
    scene.honest.must("release a");
    scene.ends_well();
}

/// FAULTS 15: one user's asks fill his own bound and not the line.
#[test]
fn asks_of_one_user_have_a_bound_and_delay_nobody() {
    let scene = Scene::new("[bounds]\nasks_per_user = 8\nsessions_per_user = 3");
    let Some(other) = scene.member_of(NOBODY) else { return };
    other.must("connect");
    scene.honest.must("acquire a 16MiB now");
    wait_for(async {
        let wire = session(&scene.daemon).await;
        let mut waiting = Vec::new();
        for name in 1..=20 {
            match wire.acquire(wire.ask(name, mib(2), mib(2))).await.expect("an answer") {
                (Update::Waiting(_), updates) => waiting.push(updates),
                (Update::Denied(denied), _) => {
                    assert_eq!(denied.reason, "too_many", "{}", denied.message);
                }
                (Update::Granted(granted), _) => panic!("there is no room: {granted:?}"),
            }
        }
        assert_eq!(waiting.len(), 8);
        let third = session(&scene.daemon).await;
        let mut fourth = Wire::connect(&scene.daemon.socket()).await.expect("it listens");
        let refused = fourth.open().await.expect_err("three sessions are the bound");
        let reason = gpulease_proto::refusal::reason(&refused).map(gpulease_words::Reason::word);
        assert_eq!(reason, Some("too_many"), "{refused}");
        // The other user's ask is behind one of the eight and before seven.
        other.must("ask b 14MiB");
        other.must("standing-in-line b");
        scene.honest.must("release a");
        other.must("granted b");
        other.must("release b");
        drop(waiting);
        for wire in [wire, third] {
            wire.close().await.expect("it is ours");
        }
    });
    other.kill();
    scene.ends_well();
}

/// A flood of tickets that nobody fetches: each keeps a descriptor open in the daemon.
#[test]
fn segments_that_nobody_fetches_have_a_bound() {
    let daemon = Stage::Host.daemon(mib(4_096));
    let (ledger, honest) = (Ledger::of(&daemon), Stage::Host.member(&daemon));
    honest.must("connect");
    let scene = Scene { daemon, ledger, honest };
    let flood = Stage::Host.member(&scene.daemon);
    for command in ["connect", "open", "ask a 4090MiB", "granted a"] {
        flood.must(&format!("wire {command}"));
    }
    let made = (0..2_000).take_while(|n| flood.ask(&format!("wire allocate s{n} a 2MiB")).is_ok()).count();
    let why = flood.refused("wire allocate more a 2MiB");
    assert!(why.contains("too_many") || why.contains("files open"), "{why}");
    println!("{made} segments, and then: {why}");
    let open = Proc(scene.daemon.pid()).memory_files();
    assert_eq!(open, Bytes::new(made as u64 * mib(2).get()));
    // One that is fetched, or given back, makes room for one.
    for command in ["claim s0", "acknowledge s0", "free s1", "allocate x a 2MiB"] {
        flood.must(&format!("wire {command}"));
    }
    flood.kill();
    scene.ends_well();
}

/// As many as were asked for at once were made: the bound was looked at before any of them had a ticket.
#[test]
fn segments_asked_for_at_once_have_the_same_bound() {
    let daemon = Stage::Host.daemon(mib(4_096));
    let (ledger, honest) = (Ledger::of(&daemon), Stage::Host.member(&daemon));
    honest.must("connect");
    let scene = Scene { daemon, ledger, honest };
    wait_for(async {
        let wire = Arc::new(session(&scene.daemon).await);
        let (first, mut updates) =
            wire.acquire(wire.ask(1, mib(4_090), mib(4_090))).await.expect("an answer");
        let lease = granted(first, &mut updates).await.expect("there is room").lease_id;
        let mut made = Vec::new();
        while made.len() < 1_000 {
            made.push(wire.allocate(lease, mib(2)).await.expect("within the bound"));
        }
        let mut asked = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let wire = wire.clone();
            asked.spawn(async move { wire.allocate(lease, mib(2)).await });
        }
        made.extend(asked.join_all().await.into_iter().flatten());
        assert_eq!(made.len(), 1_024);
        for segment in made {
            wire.free(lease, segment.segment_id).await.expect("it is ours");
        }
        wire.release(lease).await.expect("it is ours");
        wire.close().await.expect("it is ours");
    });
    scene.ends_well();
}
