//! The client library against a real daemon, on host memory and on a GPU.
#![expect(clippy::unwrap_used, reason = "a test, helpers included")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpulease_client::proto::{EventsRequest, StatusReply};
use gpulease_client::{
    AskError, Bytes, Client, DeviceId, DeviceKind, Error, Lease, Observer, Operator, Options, Reason,
    Standing, blocking, gib, mib,
};
use gpulease_tests::daemon::{Daemon, PATIENCE};
use gpulease_tests::programs;
use gpulease_tests::puppet::{Gpu, Puppet};
use rustix::process::Signal;
use tokio::sync::Mutex;

/// Guards are counted per process, and tests share one: who enters holds this.
static GUARDS: Mutex<()> = Mutex::const_new(());

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// Waits until the daemon's state is so.
async fn until(daemon: &Daemon, what: &str, is_so: impl Fn(&StatusReply) -> bool) -> StatusReply {
    let observer = Observer::connect_to(daemon.socket()).await.unwrap();
    let mut states = observer.watch().await.unwrap();
    let mut last = None;
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            let state = states.next().await.unwrap().expect("the watch goes on");
            if is_so(&state) {
                return state;
            }
            last = Some(state);
        }
    });
    found.await.unwrap_or_else(|_| panic!("never happened: {what}: {last:#?}\n{}", daemon.log()))
}

fn is_idle(state: &StatusReply) -> bool {
    let memory = state.devices[0].memory.as_ref().unwrap();
    state.leases.is_empty() && state.waiting.is_empty() && memory.free_bytes == memory.capacity_bytes
}

/// The overhead that the broker sets aside for a member's context, here none: host memory has no contexts.
async fn whole(client: &Client) -> Lease {
    client.lease(client.devices()[0].capacity).name("whole").acquire().await.unwrap()
}

#[tokio::test]
async fn memory_is_leased_used_and_given_back() {
    let _guards = GUARDS.lock().await;
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let device = &client.devices()[0];
    assert_eq!((device.kind, device.capacity), (DeviceKind::Host, mib(64)));
    let lease = client.lease(mib(8)).up_to(mib(32)).name("train").acquire().await.unwrap();
    assert_eq!((lease.reserve(), lease.limit(), lease.devices()), (mib(8), mib(32), &[DeviceId::new(0)][..]));
    let mut segments = Vec::new();
    for size in [1, 4, 11] {
        segments.push(soon("memory", lease.allocate(mib(size))).await.unwrap());
    }
    let sizes: Vec<Bytes> = segments.iter().map(|segment| segment.bytes()).collect();
    assert_eq!(sizes, [mib(2), mib(4), mib(12)]);
    {
        let resident = lease.enter().await.unwrap();
        for (number, segment) in (1_u64..).zip(&mut segments) {
            let words = segment.as_mut_slice::<u64>(&resident).unwrap();
            assert!(words.iter().all(|word| *word == 0), "nobody's bytes are in it");
            words.fill(number);
        }
        for (number, segment) in (1_u64..).zip(&segments) {
            assert!(segment.as_slice::<u64>(&resident).unwrap().iter().all(|word| *word == number));
        }
    }
    let state = until(&daemon, "it is booked", |state| state.leases.iter().any(|lease| lease.used)).await;
    assert_eq!((state.leases[0].held_bytes, state.leases[0].segments), (18 << 20, 3));
    soon("the free", segments.pop().unwrap().free()).await.unwrap();
    drop(segments);
    until(&daemon, "all is freed", |state| state.leases[0].held_bytes == 0).await;
    assert_eq!(soon("the release", lease.release()).await.unwrap(), Bytes::ZERO);
    until(&daemon, "all is free", is_idle).await;
    drop(client);
    daemon.stop();
}

/// What is dropped is told in the background. An ask overtook that, and was refused for what this very process had just
/// given back.
#[tokio::test]
async fn what_was_dropped_is_back_before_the_next_ask_is_put() {
    let daemon = Daemon::on_host("8MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    for _ in 0..50 {
        drop(lease.allocate(mib(8)).await.unwrap());
    }
    drop(lease);
    until(&daemon, "all is free", is_idle).await;
    for _ in 0..50 {
        drop(client.lease(mib(8)).no_wait().acquire().await.unwrap());
    }
    for steps in 0..50 {
        let ask = client.lease(mib(8)).acquire();
        let given_up = async {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            lease = ask => drop(lease.unwrap()),
            () = given_up => {}
        }
        drop(client.lease(mib(8)).no_wait().acquire().await.unwrap());
    }
    until(&daemon, "all is free", is_idle).await;
    daemon.stop();
}

#[tokio::test]
async fn an_ask_waits_with_its_reasons_and_is_granted_when_there_is_room() {
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let holder = whole(&client).await;
    let (tell, told) = std::sync::mpsc::channel();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move {
            let tell = move |waiting: &gpulease_client::Waiting| {
                // The test looks at the first only.
                let _ = tell.send(waiting.clone());
            };
            client.lease(mib(10)).name("next").on_waiting(tell).acquire().await
        }
    });
    until(&daemon, "it waits", |state| state.waiting.len() == 1).await;
    let update = tokio::task::spawn_blocking(move || told.recv_timeout(PATIENCE)).await.unwrap().unwrap();
    assert_eq!((update.position, update.short_by, update.reason), (1, mib(10), Some(Reason::NoRoom)));
    assert_eq!(update.holders.iter().map(|holder| holder.lease).collect::<Vec<_>>(), [holder.id()]);
    assert_eq!(update.holders[0].bytes, mib(64));
    let observer = client.observe().await.unwrap();
    let why = observer.why_ask(update.ask).await.unwrap();
    assert!(!why.summary.is_empty() && !why.details.is_empty());
    drop(holder);
    let lease = soon("the grant", waiting).await.unwrap().unwrap();
    assert_eq!(lease.name(), "next");
    drop(lease);
    until(&daemon, "all is free", is_idle).await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_a_sentence() {
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let denied = async |ask: gpulease_client::LeaseBuilder<'_>| {
        let error = soon("an answer", ask.acquire()).await.unwrap_err();
        error.denied().unwrap_or_else(|| panic!("{error}")).clone()
    };
    assert_eq!(denied(client.lease(mib(65))).await.reason, Reason::TooLarge);
    assert_eq!(denied(client.lease(Bytes::MAX)).await.reason, Reason::TooLarge);
    assert_eq!(denied(client.lease(mib(4)).up_to(mib(2))).await.reason, Reason::Malformed);
    assert_eq!(denied(client.lease(mib(4)).gpus(2)).await.reason, Reason::TooLarge);
    assert_eq!(
        denied(client.lease(mib(4)).on_devices([DeviceId::new(7)])).await.reason,
        Reason::NoSuchDevice
    );
    assert_eq!(denied(client.lease(mib(4)).on_devices([])).await.reason, Reason::Malformed);
    let _holder = whole(&client).await;
    let refused = denied(client.lease(mib(2)).no_wait()).await;
    assert!(refused.message.contains("2 MiB"), "{refused}");
    let refused = denied(client.lease(mib(2)).wait_at_most(Duration::from_millis(20))).await;
    assert_eq!(refused.reason, Reason::WaitOver, "{refused}");
}

#[tokio::test]
async fn growth_waits_for_room_but_not_inside_a_guard() {
    let _guards = GUARDS.lock().await;
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let lease = Arc::new(client.lease(mib(8)).up_to(mib(32)).acquire().await.unwrap());
    let other = client.lease(mib(56)).acquire().await.unwrap();
    let _within = lease.allocate(mib(8)).await.unwrap();
    let refused = lease.allocation(mib(2)).no_wait().allocate().await.unwrap_err();
    assert_eq!(refused.denied().unwrap().reason, Reason::NoRoom, "{refused}");
    let refused = lease.allocate(mib(26)).await.unwrap_err();
    assert_eq!(refused.denied().unwrap().reason, Reason::BeyondLease, "{refused}");
    {
        let _resident = lease.enter().await.unwrap();
        let refused = soon("a refusal", lease.allocate(mib(2))).await.unwrap_err();
        assert_eq!(refused.denied().unwrap().reason, Reason::WouldDeadlock, "{refused}");
    }
    let growth = tokio::spawn({
        let lease = Arc::clone(&lease);
        async move { lease.allocate(mib(24)).await }
    });
    until(&daemon, "growth waits", |state| state.waiting.len() == 1).await;
    drop(other);
    assert_eq!(soon("growth", growth).await.unwrap().unwrap().bytes(), mib(24));
}

/// Polls a future so often, 200 us apart, and drops it.
async fn dropped_after<F: Future>(steps: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..steps {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return Some(output),
            std::task::Poll::Pending => tokio::time::sleep(Duration::from_micros(200)).await,
        }
    }
    None
}

#[tokio::test]
async fn asks_given_up_at_any_step_leave_nothing_behind() {
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let (mut steps, mut granted) = (0, false);
    while !granted {
        granted = dropped_after(steps, client.lease(mib(64)).acquire()).await.is_some();
        until(&daemon, "all is free", is_idle).await;
        steps += 1;
    }
    let lease = client.lease(mib(8)).up_to(mib(16)).acquire().await.unwrap();
    let (mut steps, mut taken) = (0, false);
    while !taken {
        taken = dropped_after(steps, lease.allocate(mib(16))).await.is_some();
        until(&daemon, "all is freed", |state| {
            let lease = &state.leases[0];
            lease.held_bytes == 0 && lease.draining_bytes == 0 && state.waiting.is_empty()
        })
        .await;
        steps += 1;
    }
    let _holder = client.lease(mib(56)).acquire().await.unwrap();
    for steps in 0..12 {
        assert!(dropped_after(steps, client.lease(mib(64)).acquire()).await.is_none());
        assert!(dropped_after(steps, lease.allocate(mib(16))).await.is_none());
        until(&daemon, "nobody waits", |state| state.waiting.is_empty()).await;
    }
    assert!(client.take_kept_errors().is_empty());
    daemon.stop();
}

#[tokio::test]
async fn many_whole_card_asks_take_turns_and_never_hold_up_a_release() {
    const ASKS: usize = 64;
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let first = whole(&client).await;
    let holding = Arc::new(AtomicUsize::new(1));
    let asks: Vec<_> = (0..ASKS)
        .map(|_| {
            let (client, holding) = (client.clone(), Arc::clone(&holding));
            tokio::spawn(async move {
                let lease = whole(&client).await;
                assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0, "one at a time has the card");
                holding.fetch_sub(1, Ordering::SeqCst);
                lease.release().await.unwrap();
            })
        })
        .collect();
    until(&daemon, "all of them wait", |state| state.waiting.len() == ASKS).await;
    holding.fetch_sub(1, Ordering::SeqCst);
    soon("the release", first.release()).await.unwrap();
    for ask in asks {
        soon("its turn", ask).await.unwrap();
    }
    until(&daemon, "all is free", is_idle).await;
    daemon.stop();
}

#[tokio::test]
async fn a_member_takes_memory_of_its_own_and_outlives_no_release() {
    let daemon = Daemon::on_host("64MiB");
    let owner = Client::connect_to(daemon.socket()).await.unwrap();
    let member = Client::connect_to(daemon.socket()).await.unwrap();
    let lease = owner.lease(mib(8)).up_to(mib(16)).name("shared").acquire().await.unwrap();
    let joined = member.join(lease.id(), lease.token()).await.unwrap();
    assert_eq!((joined.name(), joined.limit()), ("shared", mib(16)));
    let segment = joined.allocate(mib(4)).await.unwrap();
    let wrong = member.join(lease.id(), gpulease_client::Token::new([0; 16])).await.unwrap_err();
    assert_eq!(wrong.denied().unwrap().reason, Reason::NoSuchLease);
    assert_eq!(lease.release().await.unwrap(), mib(4), "what a member has mapped drains");
    let refused = joined.allocate(mib(2)).await.unwrap_err();
    let reason = refused.denied().unwrap().reason;
    assert!(matches!(reason, Reason::Ending | Reason::NoSuchLease), "{refused}");
    drop(segment);
    until(&daemon, "all is free", is_idle).await;
}

#[tokio::test]
async fn operators_recall_and_end_and_everybody_may_look() {
    let daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let operator = Operator::connect_to(daemon.admin_socket()).await.unwrap();
    let observer = client.observe().await.unwrap();
    let mut events = observer.events(EventsRequest { from_start: true, ..Default::default() }).await.unwrap();
    let lease = client.lease(mib(4)).up_to(mib(16)).name("big").acquire().await.unwrap();
    let _segment = lease.allocate(mib(10)).await.unwrap();
    let mut pressure = lease.pressure();
    assert_eq!(operator.recall(lease.id(), None, Duration::from_secs(5)).await.unwrap(), mib(6));
    let recall = soon("the recall", pressure.next()).await.unwrap();
    assert_eq!((recall.bytes, recall.device), (mib(6), DeviceId::new(0)));
    assert!(recall.deadline > Instant::now());
    let why = observer.why_lease(lease.id()).await.unwrap();
    assert!(!why.summary.is_empty());
    let wanted = lease.id();
    soon("the grant among the events", async {
        while let Some(event) = events.next().await.unwrap() {
            if event.kind == "granted" && event.lease_id == Some(wanted.get()) {
                return;
            }
        }
        panic!("the events ended");
    })
    .await;
    assert_eq!(operator.end(lease.id()).await.unwrap(), mib(10));
    assert_eq!(soon("the end", pressure.next()).await, None);
    assert!(matches!(lease.standing(), Standing::Ended { .. }), "{:?}", lease.standing());
    let error = Operator::connect_to(daemon.socket()).await.unwrap().end(wanted).await.unwrap_err();
    assert!(matches!(error, AskError::Failed(Error::NotABroker { .. })), "{error}");
    let error = Client::connect_to(daemon.admin_socket()).await.unwrap_err();
    assert!(error.to_string().contains("admin.sock"), "{error}");
}

#[tokio::test]
async fn a_restarted_broker_has_forgotten_us_and_we_go_on() {
    let _guards = GUARDS.lock().await;
    let mut daemon = Daemon::on_host("64MiB");
    let client = Client::connect_to(daemon.socket()).await.unwrap();
    let lease = client.lease(mib(8)).acquire().await.unwrap();
    let mut segment = lease.allocate(mib(2)).await.unwrap();
    let mut pressure = lease.pressure();
    daemon.signal(Signal::KILL);
    daemon.wait();
    segment.as_mut_slice::<u8>(&lease.enter().await.unwrap()).unwrap().fill(1);
    let mut again = std::process::Command::new(programs::gpuleased());
    again.args(["--device", "host:64MiB", "--socket"]).arg(daemon.socket());
    let mut again = again.stderr(std::process::Stdio::null()).spawn().unwrap();
    assert_eq!(soon("the loss", pressure.next()).await, None);
    assert_eq!(lease.standing(), Standing::Lost);
    let error = lease.allocate(mib(2)).await.unwrap_err();
    assert!(matches!(error, AskError::Failed(Error::Lost { .. })), "{error}");
    let fresh = soon("a new lease", client.lease(mib(8)).acquire()).await.unwrap();
    drop(soon("memory", fresh.allocate(mib(8))).await.unwrap());
    drop((segment, lease));
    soon("the release", fresh.release()).await.unwrap();
    again.kill().unwrap();
    again.wait().unwrap();
    let options = Options::default().socket(daemon.socket());
    assert!(matches!(Client::connect_with(options).await, Err(Error::NoBroker { .. })));
}

#[test]
fn a_blocking_caller_leases_uses_and_frees() {
    let _guards = GUARDS.blocking_lock();
    let daemon = Daemon::on_host("1GiB");
    let client = blocking::Client::connect_to(daemon.socket()).unwrap();
    let lease = client.lease(mib(512)).up_to(gib(1)).acquire().unwrap();
    let mut segment = lease.allocate(mib(600)).unwrap();
    {
        let resident = lease.enter().unwrap();
        let bytes = segment.as_mut_slice::<u8>(&resident).unwrap();
        let last = bytes.len() - 1;
        (bytes[0], bytes[last]) = (1, 2);
    }
    segment.free().unwrap();
    lease.release().unwrap();
    let observer = client.observe().unwrap();
    assert_eq!(observer.status().unwrap().leases.len(), 0);
    daemon.stop();
}

#[tokio::test]
async fn memory_of_a_gpu_is_leased_seen_through_cudarc_and_comes_back_from_the_dead() {
    for gpu in Gpu::all("memory_of_a_gpu_is_leased_seen_through_cudarc_and_comes_back_from_the_dead") {
        println!("on {gpu}");
        let mut broker = std::process::Command::new(programs::gpuleased());
        broker.args(["--device", "cuda:0", "--capacity", "4GiB"]).envs(gpu.environment());
        let daemon = Daemon::start_command(broker);
        let (socket, tenant) = (daemon.socket(), Puppet::start(&gpu));
        tenant.must(&format!("lease {} 64MiB 256MiB", socket.display()));
        for size in ["64MiB", "31MiB", "100MiB"] {
            tenant.must(&format!("allocate {size}"));
        }
        tenant.must("touch");
        assert_eq!(tenant.ask("allocate 100MiB").unwrap_err().split(' ').next(), Some("refused:"));
        let held = |bytes: u64| move |state: &StatusReply| state.leases.iter().any(|l| l.held_bytes == bytes);
        until(&daemon, "it is booked", held(196 << 20)).await;
        tenant.must("free-all");
        assert_eq!(tenant.must("kept"), " more=0");
        until(&daemon, "it is freed", held(0)).await;
        tenant.must("allocate 200MiB");
        tenant.must("touch");
        until(&daemon, "it is booked", held(200 << 20)).await;
        tenant.kill();
        let is_back = |state: &StatusReply| {
            let memory = state.devices[0].memory.as_ref().unwrap();
            state.leases.is_empty()
                && memory.held_bytes + memory.draining_bytes + memory.quarantined_bytes == 0
        };
        until(&daemon, "the dead one's bytes are back", is_back).await;
        daemon.stop();
    }
}
