//! Suspension from end to end: the daemon, the client library, and the memory itself.
#![expect(clippy::unwrap_used, reason = "a test, helpers included")]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpulease_client::proto::{EventsRequest, LeaseStatus, StatusReply};
use gpulease_client::{Client, Lease, LeaseId, Observer, Presence, Segment, blocking, mib};
use gpulease_tests::daemon::{Daemon, PATIENCE};
use gpulease_tests::programs;
use gpulease_tests::puppet::{Gpu, Puppet};
use tokio::sync::Mutex;

/// Guards are counted per process, and tests share one: who allocates or enters holds this.
static GUARDS: Mutex<()> = Mutex::const_new(());

/// Residency and idleness that a test can wait for.
const SOON: &str =
    "[graces]\nmin_residency = \"300ms\"\nidle_after = \"100ms\"\nmax_wait = \"1s\"\ndrain = \"2s\"\n";

fn on_host() -> Daemon {
    let mut command = Command::new(programs::gpuleased());
    command.args(["--device", "host:64MiB"]);
    Daemon::start_configured(command, &format!("arena = \"256MiB\"\n{SOON}"))
}

async fn soon<F: Future>(daemon: &Daemon, what: &str, future: F) -> F::Output {
    let found = tokio::time::timeout(PATIENCE, future).await;
    found.unwrap_or_else(|_| panic!("never happened: {what}\n{}", daemon.log()))
}

/// Waits until the daemon's state is so.
async fn until(daemon: &Daemon, what: &str, is_so: impl Fn(&StatusReply) -> bool) -> StatusReply {
    let observer = Observer::connect_to(daemon.socket()).await.unwrap();
    let mut states = observer.watch().await.unwrap();
    let found = soon(daemon, what, async {
        loop {
            let state = states.next().await.unwrap().expect("the watch goes on");
            if is_so(&state) {
                return state;
            }
        }
    });
    found.await
}

fn lease(state: &StatusReply, id: LeaseId) -> Option<&LeaseStatus> {
    state.leases.iter().find(|lease| lease.id == id.get())
}

/// A lease of 40 of the 64 MiB, full of this number.
async fn full(client: &Client, name: &str, number: u64) -> (Lease, Vec<Segment>) {
    let lease = client.lease(mib(40)).name(name).acquire().await.unwrap();
    let mut segments = vec![lease.allocate(mib(36)).await.unwrap(), lease.allocate(mib(4)).await.unwrap()];
    let resident = lease.enter().await.unwrap();
    for segment in &mut segments {
        segment.as_mut_slice::<u64>(&resident).unwrap().fill(number);
    }
    drop(resident);
    (lease, segments)
}

/// Enters within the test's patience and looks at every word; says where the first segment begins.
async fn check(lease: &Lease, segments: &[Segment], number: u64) -> usize {
    let resident = lease.entry().wait_at_most(PATIENCE).enter().await.unwrap();
    for segment in segments {
        assert!(segment.as_slice::<u64>(&resident).unwrap().iter().all(|word| *word == number));
    }
    segments[0].as_slice::<u64>(&resident).unwrap().as_ptr().addr()
}

#[tokio::test]
async fn an_idle_lease_makes_room_and_goes_on_where_it_was() {
    let _guards = GUARDS.lock().await;
    let daemon = on_host();
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let (idle, segments) = full(&client, "idle", 7).await;
    let address = check(&idle, &segments, 7).await;
    let other = client.lease(mib(40)).name("busy").acquire();
    let other = soon(&daemon, "room is made", other).await.unwrap();
    assert_eq!(idle.presence(), Presence::Away);
    let state = until(&daemon, "it is away", |state| {
        lease(state, idle.id()).is_some_and(|idle| idle.state == "suspended")
    });
    let state = state.await;
    let (away, arena) = (lease(&state, idle.id()).unwrap(), state.broker.as_ref().unwrap().arena.clone());
    assert_eq!((away.away_bytes, away.held_bytes, away.suspensions), (40 << 20, 0, 1));
    assert_eq!(arena.unwrap().filled_bytes, 40 << 20);
    let taken = other.allocate(mib(40)).await.unwrap();
    let going = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drop((taken, other));
    });
    assert_eq!(check(&idle, &segments, 7).await, address);
    going.await.unwrap();
    drop((segments, idle));
    let is_free = |state: &StatusReply| {
        let arena = state.broker.as_ref().unwrap().arena.clone().unwrap();
        state.leases.is_empty() && arena.free_bytes == arena.capacity_bytes
    };
    until(&daemon, "all is free", is_free).await;
    assert!(client.take_kept_errors().is_empty());
    drop(client);
    daemon.stop();
}

/// What a job of the rotation does at each step: every word counts on. No job ends before each of the `jobs` had to make
/// room once, however fast their steps are.
fn work(
    client: &blocking::Client,
    name: &str,
    number: u64,
    moved: &AtomicUsize,
    jobs: usize,
) -> (LeaseId, Duration) {
    let lease = client.lease(mib(38)).name(name).acquire().unwrap();
    let mut segment = lease.allocate(mib(38)).unwrap();
    segment.as_mut_slice::<u64>(&lease.enter().unwrap()).unwrap().fill(number);
    let observer = client.observe().unwrap();
    let (mut longest, mut step, mut was_moved, begin) = (Duration::ZERO, 0, false, Instant::now());
    while moved.load(Ordering::SeqCst) < jobs {
        assert!(begin.elapsed() < PATIENCE, "{name} at step {step}: not all of them had to make room");
        let start = Instant::now();
        let resident = lease.entry().wait_at_most(PATIENCE).enter().unwrap();
        longest = longest.max(start.elapsed());
        let words = segment.as_mut_slice::<u64>(&resident).unwrap();
        assert!(words.iter().all(|word| *word == number + step), "{name} at step {step}");
        words.iter_mut().for_each(|word| *word += 1);
        step += 1;
        drop(resident);
        let state = observer.status().unwrap();
        let suspensions = state.leases.iter().find(|found| found.id == lease.id().get()).unwrap().suspensions;
        if suspensions > 0 && !std::mem::replace(&mut was_moved, true) {
            moved.fetch_add(1, Ordering::SeqCst);
        }
    }
    (lease.id(), longest)
}

#[test]
fn three_jobs_that_want_sixty_percent_each_take_turns_and_finish() {
    let _guards = GUARDS.blocking_lock();
    let daemon = on_host();
    let client = blocking::Client::connect_to(daemon.socket()).unwrap();
    let moved = &AtomicUsize::new(0);
    let longest = thread::scope(|scope| {
        let jobs: Vec<_> = (1..=3_u64)
            .map(|number| {
                let client = client.clone();
                scope.spawn(move || work(&client, &format!("job-{number}"), number * 1000, moved, 3))
            })
            .collect();
        jobs.into_iter().map(|job| job.join().unwrap()).collect::<Vec<_>>()
    });
    let mut suspended = vec![0; longest.len()];
    let remembered = EventsRequest { from_start: true, no_follow: true, ..Default::default() };
    for event in client.observe().unwrap().events(remembered).unwrap() {
        let event = event.unwrap();
        if event.kind == "suspended" {
            let job = longest.iter().position(|(lease, _)| event.lease_id == Some(lease.get())).unwrap();
            suspended[job] += 1;
        }
    }
    println!(
        "suspended {suspended:?} times; longest waits {:?}",
        longest.iter().map(|(_, l)| l).collect::<Vec<_>>()
    );
    assert!(
        suspended.iter().all(|times| *times >= 1),
        "each had to make room: {suspended:?}\n{}",
        daemon.log()
    );
    drop(client);
    daemon.stop();
}

#[tokio::test]
async fn who_never_lets_go_stays_and_is_told_apart_in_the_events() {
    let _guards = GUARDS.lock().await;
    let daemon = on_host();
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let (holder, segments) = full(&client, "holder", 3).await;
    let resident = holder.enter().await.unwrap();
    let asking = tokio::spawn({
        let client = client.clone();
        async move { client.lease(mib(40)).name("next").acquire().await.unwrap() }
    });
    let observer = client.observe().await.unwrap();
    let mut events = observer.events(EventsRequest { from_start: true, ..Default::default() }).await.unwrap();
    let cancelled = soon(&daemon, "the suspension is cancelled", async {
        loop {
            let event = events.next().await.unwrap().expect("the events go on");
            if event.kind == "suspend_cancelled" {
                return event;
            }
        }
    });
    let cancelled = cancelled.await;
    assert!(cancelled.message.contains("did not drain in time"), "{}", cancelled.message);
    assert!(segments[0].as_slice::<u64>(&resident).unwrap().iter().all(|word| *word == 3));
    drop(resident);
    check(&holder, &segments, 3).await;
    assert!(!asking.is_finished());
    drop((segments, holder));
    drop(soon(&daemon, "its turn", asking).await.unwrap());
    drop((events, observer, client));
    daemon.stop();
}

#[test]
fn memory_of_a_gpu_leaves_for_another_process_and_comes_back_to_the_same_addresses() {
    let name = "memory_of_a_gpu_leaves_for_another_process_and_comes_back_to_the_same_addresses";
    for gpu in Gpu::all(name) {
        println!("on {gpu}");
        let mut broker = Command::new(programs::gpuleased());
        // Two contexts (640 MiB each, and some 523 when measured), which stay, and one of the leases, but not both.
        broker.args(["--device", "cuda:0", "--capacity", "1630MiB"]).envs(gpu.environment());
        let daemon =
            Daemon::start_configured(broker, &format!("arena = \"1GiB\"\npinned_max = \"1280MiB\"\n{SOON}"));
        let (idle, other) = (Puppet::start(&gpu), Puppet::start(&gpu));
        let lease = format!("lease {} 300MiB 300MiB", daemon.socket().display());
        idle.must(&lease);
        for size in ["64MiB", "200MiB", "36MiB"] {
            idle.must(&format!("allocate {size}"));
        }
        let addresses = idle.must("fill 5");
        for round in 0..2 {
            println!("round {round}");
            // Granted only when the other has left.
            other.must(&lease);
            other.must("allocate 300MiB");
            other.must("fill 9");
            thread::scope(|scope| {
                let checking = scope.spawn(|| idle.must("check 5"));
                other.must("check 9");
                other.must("free-all");
                other.must("release-lease");
                assert_eq!(checking.join().unwrap(), addresses);
            });
        }
        idle.must("touch");
        assert_eq!(idle.must("kept"), " more=0");
        idle.kill();
        drop(other);
        daemon.stop();
    }
}
