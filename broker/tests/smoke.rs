//! The daemon from outside: raw requests over its sockets, in this process and as a process of its own.

mod raw;

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gpulease_broker::{Daemon, DeviceChoice, Running, Settings, StartError, Unplaced};
use gpulease_proto::handover::{Reply, Request, Ticket};
use gpulease_proto::v1;
use gpulease_proto::v1::acquire_update::Update;
use gpulease_words::{Bytes, mib};
use raw::{Client, Handoff, Mapping};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("gpulease-smoke").tempdir().expect("a folder")
}

fn settings(directory: &Path) -> Settings {
    Settings {
        socket: Some(directory.join("gpulease.sock")),
        devices: vec![DeviceChoice::Host(mib(64))],
        ..Settings::default()
    }
}

fn daemon(directory: &Path) -> Running {
    Daemon::start(settings(directory)).expect("a daemon")
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_from_its_ask_to_its_end() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    let lease = client.acquire(1, mib(32), mib(48)).await;
    assert_eq!((lease.reserve_bytes, lease.device_indices.as_slice()), (mib(32).get(), &[0][..]));
    let (segment, ticket) = client.allocate(&lease, mib(8)).await;

    let mut handoff = Handoff::connect(directory.path());
    let (reply, descriptors) = handoff.ask(&Request::Claim(ticket));
    assert_eq!(reply, Reply::Segment(vec![mib(8)]));
    let again = handoff.ask(&Request::Claim(ticket));
    assert_eq!(again.1.len(), 1, "a claim repeats until it is acknowledged");
    drop(again);
    assert_eq!(handoff.ask(&Request::Acknowledge(ticket)).0, Reply::Done);
    assert!(matches!(handoff.ask(&Request::Claim(ticket)).0, Reply::Refused(_)));
    let mapping = Mapping::new(descriptors.into_iter().next().expect("one chunk"), mib(8));
    mapping.write_and_read();

    let memory = client.memory().await;
    assert_eq!((memory.held_bytes, memory.set_aside_bytes), (mib(8).get(), mib(24).get()));
    assert_eq!(memory.device_used_bytes, Some(mib(8).get()));
    drop(mapping);
    client.free(&lease, segment).await;
    within(client.until_memory(|m| m.held_bytes + m.draining_bytes == 0)).await;
    client.release(&lease).await;
    within(client.until_memory(|m| m.free_bytes == m.capacity_bytes)).await;
    assert_eq!(client.memory().await.device_used_bytes, Some(0));
    running.stop();
    assert!(!directory.path().join("gpulease.sock").exists());
    assert!(!directory.path().join("admin.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_waits_and_is_told_why() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    let first = client.acquire(1, mib(48), mib(48)).await;
    let mut waiting = client.ask(2, mib(32), mib(32)).await;
    let update = within(waiting.message()).await.expect("a stream").expect("an update").update;
    let Some(Update::Waiting(told)) = update else { panic!("{update:?}") };
    assert_eq!((told.position, told.short_by_bytes, told.reason.as_str()), (1, mib(16).get(), "no_room"));
    assert_eq!(told.holders.first().map(|holder| holder.bytes), Some(mib(48).get()));
    assert!(told.message.contains("16 MiB"), "{}", told.message);
    let why = client.why(v1::why_request::Subject::AskId(told.ask_id)).await;
    assert!(why.summary.contains("number 1") && why.details.len() >= 3, "{why:?}");
    client.release(&first).await;
    let granted = loop {
        match within(waiting.message()).await.expect("a stream").expect("an update").update {
            Some(Update::Waiting(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(granted, Some(Update::Granted(_))), "{granted:?}");
    assert!(within(waiting.message()).await.expect("a good end").is_none());
    let kinds: Vec<_> = client.events().await.into_iter().map(|event| event.kind).collect();
    for kind in ["opened", "granted", "waiting", "released"] {
        assert!(kinds.iter().any(|k| k == kind), "{kind} is in {kinds:?}");
    }
    running.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_still_mapped_is_not_granted_again() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    let lease = client.acquire(1, mib(64), mib(64)).await;
    let (segment, ticket) = client.allocate(&lease, mib(64)).await;
    let mut handoff = Handoff::connect(directory.path());
    let (_, descriptors) = handoff.ask(&Request::Claim(ticket));
    handoff.ask(&Request::Acknowledge(ticket));
    let mapping = Mapping::new(descriptors.into_iter().next().expect("one chunk"), mib(64));
    client.free(&lease, segment).await;
    client.release(&lease).await;
    within(client.until_memory(|m| m.quarantined_bytes == mib(64).get())).await;
    let refused = client.refused(2, mib(2)).await;
    assert_eq!(refused.reason, "no_room", "{refused:?}");
    mapping.write_and_read();
    drop(mapping);
    within(client.until_memory(|m| m.free_bytes == mib(64).get())).await;
    client.acquire(3, mib(64), mib(64)).await;
    running.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_with_a_sentence() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    for (bytes, reason) in [(Bytes::ZERO, "malformed"), (Bytes::MAX, "too_large"), (mib(66), "too_large")] {
        let refused = client.refused(1, bytes).await;
        assert_eq!(refused.reason, reason, "{refused:?}");
        assert!(refused.message.len() > 20, "{refused:?}");
    }
    let own = client.session.clone();
    client.session.as_mut().expect("open").secret = vec![0; 16].into();
    assert_eq!(client.refused(1, mib(2)).await.reason, "no_such_session");
    client.session = None;
    assert_eq!(client.refused(1, mib(2)).await.reason, "no_such_session");
    client.session = own;
    let status = client.close_with_wrong_secret().await;
    assert_eq!(gpulease_proto::refusal::reason(&status).map(|r| r.word()), Some("no_such_session"));

    let mut handoff = Handoff::connect(directory.path());
    assert!(matches!(handoff.ask(&Request::Claim(Ticket::new([7; 16]))).0, Reply::Refused(_)));
    for hostile in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"G", b"GPL1", b"GPL1\x09", &[0xff; 4_000]] {
        let mut handoff = Handoff::connect(directory.path());
        assert!(matches!(handoff.ask_bytes(hostile).0, Reply::Refused(_)), "{hostile:?}");
    }
    client.acquire(9, mib(2), mib(2)).await;
    running.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_taken_up_again_by_its_own_process_with_its_secret() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    let lease = client.acquire(1, mib(8), mib(8)).await;
    let rejoin = |session| v1::OpenRequest { rejoin: session, ..Default::default() };
    let wrong = v1::SessionRef { secret: vec![1; 16].into(), ..client.session.clone().expect("open") };
    let refused = client.jobs.open(rejoin(Some(wrong))).await.expect_err("a wrong secret");
    assert_eq!(gpulease_proto::refusal::reason(&refused).map(|r| r.word()), Some("no_such_session"));

    let mut first = client.stream.take().expect("open");
    let mut second = client.jobs.open(rejoin(client.session.clone())).await.expect("its own").into_inner();
    let replaced = within(first.message()).await.expect_err("the older stream ends");
    assert_eq!(replaced.code(), tonic::Code::Aborted);
    let again = within(second.message()).await.expect("a stream").expect("a message");
    let Some(v1::session_message::Message::Opened(opened)) = again.message else { panic!("{again:?}") };
    assert_eq!(opened.session, client.session);
    drop(second);
    within(client.until_leases(|leases| leases[0].adrift)).await;
    client.stream =
        Some(client.jobs.open(rejoin(client.session.clone())).await.expect("its own").into_inner());
    within(client.until_leases(|leases| !leases[0].adrift)).await;

    let same = client.acquire(1, mib(8), mib(8)).await;
    assert_eq!(
        (same.lease_id, &same.token),
        (lease.lease_id, &lease.token),
        "the same ask is the same lease"
    );
    let close = v1::CloseRequest { session: client.session.clone() };
    client.jobs.close(close).await.expect("closed");
    let mut last = client.stream.take().expect("open");
    while within(last.message()).await.expect("a good end").is_some() {}
    within(client.until_memory(|m| m.free_bytes == m.capacity_bytes)).await;
    running.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_admits_and_a_wrong_one_is_no_lease() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut owner = Client::connect(running.socket()).await;
    owner.open().await;
    let lease = owner.acquire(1, mib(8), mib(8)).await;
    let mut other = Client::connect(running.socket()).await;
    other.open().await;
    for (lease_id, token) in
        [(lease.lease_id, vec![0; 16]), (lease.lease_id, vec![]), (99, lease.token.to_vec())]
    {
        let request = v1::JoinRequest { session: other.session.clone(), lease_id, token: token.into() };
        let reply = other.jobs.join(request).await.expect("an answer").into_inner();
        let Some(v1::join_reply::Outcome::Denied(denied)) = reply.outcome else { panic!("{reply:?}") };
        assert_eq!(denied.reason, "no_such_lease");
    }
    let token = lease.token.clone();
    let request = v1::JoinRequest { session: other.session.clone(), lease_id: lease.lease_id, token };
    let reply = other.jobs.join(request).await.expect("an answer").into_inner();
    assert!(matches!(reply.outcome, Some(v1::join_reply::Outcome::Lease(_))), "{reply:?}");
    running.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_given_up_goes_back() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    let lease = client.acquire(1, mib(32), mib(48)).await;
    let ask = |bytes: Bytes, ask_name| v1::AllocateRequest {
        session: client.session.clone(),
        lease_id: lease.lease_id,
        bytes: bytes.get(),
        ask_name,
        wait: Some(v1::WaitPolicy { policy: Some(v1::wait_policy::Policy::Forever(true)) }),
        ..Default::default()
    };
    let (known, unknown, taken) = (ask(mib(8), 2), ask(mib(4), 3), ask(mib(4), 1));
    let withdraw = |ask_name| v1::WithdrawRequest { session: client.session.clone(), ask_name };
    let withdrawals = [withdraw(2), withdraw(3), withdraw(77)];
    // A name that a lease has is not an allocation's.
    let reply = client.jobs.allocate(taken).await.expect("an answer").into_inner();
    assert!(matches!(reply.outcome, Some(v1::allocate_reply::Outcome::Denied(d)) if d.reason == "malformed"));
    for request in [known, unknown] {
        client.jobs.allocate(request).await.expect("an answer");
    }
    assert_eq!(client.memory().await.held_bytes, mib(12).get());
    for request in withdrawals {
        client.jobs.withdraw(request).await.expect("an answer");
    }
    within(client.until_memory(|m| m.held_bytes + m.draining_bytes == 0)).await;

    // One that waits for what another lease has, and whose caller goes away.
    let mut other = Client::connect(running.socket()).await;
    other.open().await;
    other.acquire(1, mib(32), mib(32)).await;
    let growth = ask_forever(&client, &lease, mib(40));
    let mut jobs = client.jobs.clone();
    let waiting = tokio::spawn(async move { jobs.allocate(growth).await });
    within(client.until_waiting(1)).await;
    waiting.abort();
    within(client.until_waiting(0)).await;
    running.stop();
}

fn ask_forever(client: &Client, lease: &v1::Granted, bytes: Bytes) -> v1::AllocateRequest {
    v1::AllocateRequest {
        session: client.session.clone(),
        lease_id: lease.lease_id,
        bytes: bytes.get(),
        wait: Some(v1::WaitPolicy { policy: Some(v1::wait_policy::Policy::Forever(true)) }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_told_that_the_broker_stops() {
    let directory = directory();
    let running = daemon(directory.path());
    let mut client = Client::connect(running.socket()).await;
    client.open().await;
    client.acquire(1, mib(64), mib(64)).await;
    let mut asked = client.ask(2, mib(8), mib(8)).await;
    within(asked.message()).await.expect("it waits");
    let mut states = client.observer.watch(v1::WatchRequest {}).await.expect("an answer").into_inner();
    within(states.message()).await.expect("a state");
    let mut events =
        client.observer.events(v1::EventsRequest::default()).await.expect("an answer").into_inner();
    let stopping = tokio::task::spawn_blocking(|| running.stop());
    let told = loop {
        match within(asked.message()).await.expect("a stream").expect("an update").update {
            Some(Update::Waiting(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(told, Some(Update::Denied(denied)) if denied.reason == "stopping"));
    let mut session = client.stream.take().expect("open");
    for status in [
        within(session.message()).await.expect_err("the session's stream ends"),
        within(states.message()).await.expect_err("the states end"),
        within(events.message()).await.expect_err("the events end"),
    ] {
        assert_eq!(gpulease_proto::refusal::reason(&status).map(|r| r.word()), Some("stopping"), "{status}");
    }
    within(stopping).await.expect("stopped");
}

#[test]
fn a_place_that_is_not_safe_is_refused() {
    let directory = directory();
    let (real, link, open) =
        (directory.path().join("real"), directory.path().join("link"), directory.path().join("open"));
    std::fs::create_dir(&real).expect("a folder");
    symlink(&real, &link).expect("a link");
    std::fs::create_dir(&open).expect("a folder");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("a mode");
    for (place, word) in [(&link, "symbolic link"), (&open, "others may write")] {
        let refused = Daemon::start(settings(place)).expect_err("unsafe").to_string();
        assert!(refused.contains(word), "{refused}");
    }
    std::fs::write(real.join("gpulease.sock"), "a file").expect("written");
    let refused = Daemon::start(settings(&real)).expect_err("a file is there").to_string();
    assert!(refused.contains("no socket"), "{refused}");
    assert!(real.join("gpulease.sock").exists(), "it was not removed");
}

#[test]
fn a_second_daemon_is_refused_with_the_firsts_pid() {
    let directory = directory();
    let running = daemon(directory.path());
    let refused = Daemon::start(settings(directory.path())).expect_err("one is there");
    let own = std::process::id();
    assert!(
        matches!(&refused, StartError::Place(Unplaced::Running { pid: Some(pid), .. }) if pid.get() == own),
        "{refused}"
    );
    running.stop();
    daemon(directory.path()).stop();
}

/// A daemon as a process.
struct Process {
    child: Child,
    log: Receiver<String>,
}

impl Process {
    fn start(directory: &Path, shell: &str) -> Self {
        let mut command = Command::new("sh");
        let line = format!("{shell} exec {} --device host:64MiB", env!("CARGO_BIN_EXE_gpuleased"));
        command.args(["-c", &line]).env("GPULEASE_SOCKET", directory.join("gpulease.sock"));
        let mut child = command.stderr(Stdio::piped()).spawn().expect("a shell");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (said, log) = channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
        let process = Self { child, log };
        process.until_said("ready");
        process
    }

    fn until_said(&self, word: &str) {
        while !self.log.recv_timeout(PATIENCE).expect("it says so").contains(word) {}
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("it runs").count()
    }

    fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let fields: Vec<_> = stat.rsplit_once(')').expect("a command").1.split_whitespace().collect();
        fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A daemon that has room for a few connections only.
fn cramped(directory: &Path) -> Process {
    let roomy = self::directory();
    let usual = Process::start(roomy.path(), "").descriptors();
    Process::start(directory, &format!("ulimit -n {};", usual + 10))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shortage_of_descriptors_is_survived() {
    let directory = directory();
    let process = cramped(directory.path());
    let socket = directory.path().join("gpulease.sock");
    let mut early = Client::connect(&socket).await;
    early.open().await;
    let flood: Vec<OwnedFd> = (0..100).filter_map(|_| raw::connect_stream(&socket)).collect();
    process.until_said("no descriptor is left");
    early.acquire(1, mib(2), mib(2)).await;
    drop(flood);
    let mut late = within(async {
        loop {
            let mut client = Client::connect(&socket).await;
            if client.try_open().await {
                return client;
            }
        }
    })
    .await;
    late.acquire(1, mib(2), mib(2)).await;
}

#[test]
fn a_shortage_of_descriptors_does_not_keep_it_busy() {
    let directory = directory();
    let process = cramped(directory.path());
    let socket = directory.path().join("gpulease.sock");
    let _flood: Vec<OwnedFd> = (0..100).filter_map(|_| raw::connect_stream(&socket)).collect();
    process.until_said("no descriptor is left");
    let before = process.cpu_ticks();
    // Those that are turned away come back at once, for a second.
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        drop(raw::connect_stream(&socket));
    }
    let spent = process.cpu_ticks() - before;
    assert!(spent <= 10, "{spent} ticks of 10 ms in a second of shortage");
}

#[test]
fn a_signal_ends_it_in_good_order() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let directory = directory();
        let mut process = Process::start(directory.path(), "");
        let pid = rustix::process::Pid::from_child(&process.child);
        rustix::process::kill_process(pid, signal).expect("sent");
        assert!(process.child.wait().expect("ended").success());
        assert!(!directory.path().join("gpulease.sock").exists());
    }
}

#[test]
fn a_dead_daemons_sockets_are_replaced() {
    let directory = directory();
    let mut process = Process::start(directory.path(), "");
    process.child.kill().expect("killed");
    process.child.wait().expect("reaped");
    assert!(directory.path().join("gpulease.sock").exists(), "it had no time to remove it");
    daemon(directory.path()).stop();
}

#[test]
fn wrong_settings_end_it_with_the_right_code_and_a_sentence() {
    let directory = directory();
    let (good, bad) = (directory.path().join("good.toml"), directory.path().join("bad.toml"));
    std::fs::write(&good, "devices = [\"host:64MiB\"]\n[user.\"*\"]\nlimit = \"50%\"\n").expect("written");
    std::fs::write(&bad, "devices = [\"host:64MiB\"]\n[user.\"*\"]\nlimt = \"1GiB\"\n").expect("written");
    let socket = directory.path().join("place/gpulease.sock");
    let run = |arguments: &[&str]| {
        // Where it would serve, that is the failure, and has to end.
        let mut command = Command::new("timeout");
        command.args(["20", env!("CARGO_BIN_EXE_gpuleased")]).args(arguments);
        let output = command.env("GPULEASE_SOCKET", &socket).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    };
    let (good, bad) = (good.to_str().expect("text"), bad.to_str().expect("text"));
    for (arguments, code, words) in [
        (&["--config", good, "--check"] as &[_], 0, &["64 MiB", "limit 32 MiB", "hold: none"] as &[_]),
        (&["--config", bad], 78, &["bad.toml", "line 3", "limt"]),
        (&["--config", "/nowhere.toml"], 78, &["/nowhere.toml", "cannot be read"]),
        (&["--config", good, "--capacity", "66MiB"], 78, &["66 MiB", "64 MiB"]),
        (&["--device", "host:4000TiB"], 78, &["the host has"]),
        (&["--config", good, "--log", "nonsense=="], 78, &["is no level", "write error, warn"]),
        (&["--device", "gpu"], 2, &["is no device"]),
        (&["--hold", "some"], 2, &["--hold"]),
    ] {
        let (got, text) = run(arguments);
        assert_eq!(got, Some(code), "{arguments:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{arguments:?}: {text}");
    }
    assert!(!directory.path().join("place").exists(), "nothing was made");
}
