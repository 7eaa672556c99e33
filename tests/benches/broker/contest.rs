//! The broker beside a server that decides nothing.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use criterion::Criterion;
use gpulease_client::{Client, Lease};
use gpulease_proto::handover::Ticket;
use gpulease_proto::v1::{self, allocated::Handle};
use gpulease_tests::bare_echo::SIZE;
use gpulease_tests::daemon::Daemon;
use gpulease_tests::mapped::Mapped;
use gpulease_tests::programs::program;
use gpulease_tests::wire::{HandOver, Wire, granted};
use gpulease_words::{Bytes, gib};
use tokio::runtime::{Builder, Runtime};

/// Turns of each contestant.
pub(crate) const ROUNDS: usize = 1_001;
const ROOM: Bytes = gib(1);

/// A server that decides nothing, killed when dropped.
struct Echo {
    child: Child,
    folder: tempfile::TempDir,
}

impl Echo {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(program("bare-echo"));
        let mut child =
            command.arg(folder.path()).stdout(Stdio::piped()).spawn().expect("the echo can be started");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines().next();
        assert!(said.is_some_and(|line| line.is_ok_and(|line| line == "ready")), "the echo is not ready");
        Self { child, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("gpulease.sock")
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection with a runtime of one thread to itself, as the library has it: one that another contestant keeps
/// warm would be quicker.
struct Bare {
    runtime: Runtime,
    wire: Wire,
}

impl Bare {
    fn connect(socket: &Path) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a process gets threads");
        let wire = runtime.block_on(Wire::connect(socket)).expect("the server is ready");
        Self { runtime, wire }
    }
}

/// Everybody who takes part.
struct Ring {
    /// The library needs none; this has no thread.
    runtime: Runtime,
    client: Client,
    lease: Lease,
    bare: Bare,
    bare_lease: u64,
    echo: Bare,
    names: u64,
    _servers: (Daemon, Echo),
}

/// Medians of one call.
pub(crate) struct Ratio {
    call: &'static str,
    library: Duration,
    bare: Duration,
    echo: Duration,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |time: Duration| time.as_secs_f64() / self.echo.as_secs_f64();
        write!(
            f,
            "{:20} library {:>9.1?} ({:.2} x echo), bare client {:>9.1?} ({:.2} x echo), echo {:>9.1?}",
            self.call,
            self.library,
            times(self.library),
            self.bare,
            times(self.bare),
            self.echo
        )
    }
}

/// Criterion's view of each contestant, and the ratios of rounds in turns.
pub(crate) fn run(criterion: &mut Criterion) -> Vec<Ratio> {
    let mut ring = Ring::new();
    let mut group = criterion.benchmark_group("acquire to granted");
    group.bench_function("library", |b| b.iter_custom(|n| (0..n).map(|_| ring.library_acquires()).sum()));
    group.bench_function("bare client", |b| b.iter_custom(|n| (0..n).map(|_| ring.bare_acquires()).sum()));
    group.bench_function("echo", |b| b.iter_custom(|n| (0..n).map(|_| ring.echo_acquires()).sum()));
    group.finish();
    let mut group = criterion.benchmark_group("allocate to mapped");
    group.bench_function("library", |b| b.iter_custom(|n| (0..n).map(|_| ring.library_allocates()).sum()));
    group.bench_function("bare client", |b| b.iter_custom(|n| (0..n).map(|_| ring.bare_allocates()).sum()));
    group.bench_function("echo", |b| b.iter_custom(|n| (0..n).map(|_| ring.echo_allocates()).sum()));
    group.finish();
    let acquire = ring.in_turns(Ring::library_acquires, Ring::bare_acquires, Ring::echo_acquires);
    let allocate = ring.in_turns(Ring::library_allocates, Ring::bare_allocates, Ring::echo_allocates);
    [("acquire to granted", acquire), ("allocate to mapped", allocate)]
        .map(|(call, [library, bare, echo])| Ratio { call, library, bare, echo })
        .into()
}

impl Ring {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().build().expect("it takes nothing");
        let (daemon, server) = (Daemon::on_host("4GiB"), Echo::start());
        let (client, lease) = runtime.block_on(async {
            let client = Client::connect_to(daemon.socket()).await.expect("the daemon is ready");
            let lease = client.lease(ROOM).acquire().await.expect("there is room");
            (client, lease)
        });
        let (mut bare, echo) = (Bare::connect(&daemon.socket()), Bare::connect(&server.socket()));
        let bare_lease = bare.runtime.block_on(async {
            bare.wire.open().await.expect("everybody may");
            let ask = bare.wire.acquire(bare.wire.ask(u64::MAX, ROOM, ROOM)).await.expect("there is room");
            let (first, mut updates) = ask;
            granted(first, &mut updates).await.expect("there is room").lease_id
        });
        Self { runtime, client, lease, bare, bare_lease, echo, names: 0, _servers: (daemon, server) }
    }

    fn library_acquires(&mut self) -> Duration {
        self.runtime.block_on(async {
            let start = Instant::now();
            let lease = self.client.lease(SIZE).acquire().await.expect("there is room");
            let took = start.elapsed();
            lease.release().await.expect("it is ours");
            took
        })
    }

    fn bare_acquires(&mut self) -> Duration {
        self.names += 1;
        let name = self.names;
        self.bare.runtime.block_on(async {
            let start = Instant::now();
            let lease = acquire(&self.bare.wire, name).await;
            let took = start.elapsed();
            self.bare.wire.release(lease).await.expect("it is ours");
            took
        })
    }

    fn echo_acquires(&mut self) -> Duration {
        self.names += 1;
        let name = self.names;
        self.echo.runtime.block_on(async {
            let start = Instant::now();
            acquire(&self.echo.wire, name).await;
            start.elapsed()
        })
    }

    fn library_allocates(&mut self) -> Duration {
        self.runtime.block_on(async {
            let start = Instant::now();
            let segment = self.lease.allocate(SIZE).await.expect("it is within the reserve");
            let took = start.elapsed();
            segment.free().await.expect("it is ours");
            took
        })
    }

    fn bare_allocates(&mut self) -> Duration {
        self.bare.runtime.block_on(async {
            let start = Instant::now();
            let (segment, mapped) = allocate(&self.bare.wire, self.bare_lease).await;
            let took = start.elapsed();
            drop(mapped);
            self.bare.wire.free(self.bare_lease, segment).await.expect("it is ours");
            took
        })
    }

    fn echo_allocates(&mut self) -> Duration {
        self.echo.runtime.block_on(async {
            let start = Instant::now();
            let mapped = allocate(&self.echo.wire, 1).await;
            let took = start.elapsed();
            drop(mapped);
            took
        })
    }

    /// Medians of three contestants that take turns, so that a drift of the machine hits all alike.
    fn in_turns(
        &mut self,
        a: fn(&mut Self) -> Duration,
        b: fn(&mut Self) -> Duration,
        c: fn(&mut Self) -> Duration,
    ) -> [Duration; 3] {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (times, contestant) in times.iter_mut().zip([a, b, c]) {
                times.push(contestant(self));
            }
        }
        times.map(median)
    }
}

/// The middle of an odd number of times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

async fn acquire(wire: &Wire, name: u64) -> u64 {
    let (first, mut updates) = wire.acquire(wire.ask(name, SIZE, SIZE)).await.expect("there is room");
    granted(first, &mut updates).await.expect("there is room").lease_id
}

/// The call, the claim, the mapping and the acknowledgement.
async fn allocate(wire: &Wire, lease: u64) -> (u64, Mapped) {
    let v1::Allocated { segment_id, handle, .. } = wire.allocate(lease, SIZE).await.expect("there is room");
    let Some(Handle::Ticket(ticket)) = handle else { panic!("host memory comes by a ticket") };
    let ticket = Ticket::try_from(ticket.as_ref()).expect("16 bytes");
    let hand_over = HandOver::connect(&wire.handoff()).expect("the socket is everybody's");
    let mapped = Mapped::host(&hand_over.claim(ticket).expect("it is ours")).expect("it can be mapped");
    hand_over.acknowledge(ticket).expect("it is ours");
    (segment_id, mapped)
}
