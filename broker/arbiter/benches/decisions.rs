//! How many decisions a second the arbiter makes, and how their cost grows with what there is.
//!
//! A thousand users in two groups, each with a budget; 1, 1,000 and 100,000 leases or waiters, each
//! of a process of its own with a context to be charged. Every cycle leaves as many as it found.
//! One decision is one `handle` with its effects drained.
//!
//! `cargo bench -p gpulease-arbiter --bench decisions`

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use criterion::measurement::{Measurement, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gpulease_arbiter::{
    Arbiter, Authority, Budget, Budgets, DeviceSpec, DeviceWish, Effect, Event, Guard, Patience, Peer,
    Pinning, Policy, RequestId, SegmentKind, Terms, Time,
};
use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid, gib, mib};

const SIZES: [u64; 3] = [1, 1_000, 100_000];
const USERS: u64 = 1_000;
/// Leases of 1 GiB that the contended device holds at one time.
const SEATS: u64 = 64;
/// What a process's context takes.
const CONTEXT: Bytes = mib(512);
const DEVICE: DeviceId = DeviceId::new(0);

/// A process with its session, by number from 0; its user is the number modulo [`USERS`].
type Client = u64;

struct World {
    arbiter: Arbiter,
    now: Time,
    last: u64,
    clients: u64,
    /// Who holds what, the oldest first.
    held: VecDeque<(LeaseId, Client)>,
    /// Who waits under which request.
    asked: BTreeMap<RequestId, Client>,
}

/// What operators say of a thousand users.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// Nothing.
    None,
    /// Limits and weights.
    Limits,
    /// Those, a guarantee for each, an arena, and a bound on what is pinned.
    Guarantees,
}

impl World {
    fn new(capacity: Bytes, user_limit: impl Fn(u64) -> Option<Bytes>) -> Self {
        Self::under(Rules::Limits, capacity, user_limit)
    }

    fn under(rules: Rules, capacity: Bytes, user_limit: impl Fn(u64) -> Option<Bytes>) -> Self {
        let device = DeviceSpec { id: DEVICE, capacity, overhead_estimate: CONTEXT };
        let user = |n: u64| {
            let weight = NonZeroU32::MIN.saturating_add(number(n % 3));
            let guarantee = if rules == Rules::Guarantees { mib(32) } else { Bytes::ZERO };
            (Uid::new(number(n)), Budget { limit: user_limit(n), weight, guarantee, ..Budget::default() })
        };
        let staff =
            Budget { weight: NonZeroU32::MIN.saturating_add(2), limit: Some(capacity), ..Budget::default() };
        let budgets = Budgets {
            groups: BTreeMap::from([("staff".to_owned(), staff), ("students".to_owned(), Budget::default())]),
            users: (0..USERS).map(user).collect(),
            ..Budgets::default()
        };
        let budgets = if rules == Rules::None { Budgets::default() } else { budgets };
        let policy = Policy { sessions_max: u32::MAX, ..Policy::default() };
        let policy = match rules {
            Rules::None | Rules::Limits => policy,
            Rules::Guarantees => Policy { arena: gib(1_024), pinned_max: Some(gib(40)), ..policy },
        };
        let arbiter = Arbiter::new(policy, budgets, &[device]);
        Self { arbiter, now: Time::START, last: 0, clients: 0, held: VecDeque::new(), asked: BTreeMap::new() }
    }

    fn client(&mut self) -> Client {
        let client = self.clients;
        self.clients += 1;
        let user = client % USERS;
        let peer = Peer {
            process: ProcessId::new(client + 1),
            pid: Pid::new(number(client + 1)),
            uid: Uid::new(number(user)),
            group: Some(if user.is_multiple_of(4) { "staff" } else { "students" }.to_owned()),
            program: "bench".to_owned(),
        };
        let request = self.request();
        self.tell(Event::Open { request, peer });
        client
    }

    fn request(&mut self) -> RequestId {
        self.last += 1;
        RequestId(self.last)
    }

    /// One decision.
    fn tell(&mut self, event: Event) -> Option<SegmentId> {
        self.arbiter.handle(self.now, event);
        self.drain()
    }

    fn drain(&mut self) -> Option<SegmentId> {
        let mut made = None;
        while let Some(effect) = self.arbiter.poll_effect() {
            match effect {
                Effect::Granted { request: Some(request), lease } => {
                    let client = self.asked.remove(&request).expect("it was asked for");
                    self.held.push_back((lease, client));
                }
                Effect::Create { segment, .. } | Effect::Reclaim { segment, .. } => made = Some(segment),
                Effect::Denied { denial, .. } => panic!("{denial}"),
                other => drop(black_box(other)),
            }
        }
        made
    }

    fn acquire(&mut self, client: Client, reserve: Bytes) {
        let request = self.request();
        self.asked.insert(request, client);
        let terms = Terms {
            name: format!("job{}", client / USERS % 10),
            reserve,
            limit: gib(4),
            devices: DeviceWish::Any(NonZeroU32::MIN),
            patience: Patience::Endless,
            pinning: Pinning::Movable,
            guest: None,
        };
        let session = SessionId::new(client + 1);
        self.tell(Event::Acquire { request, session, ask_name: request.0, terms });
    }

    /// Releases the lease that was granted first; says whose it was.
    fn release(&mut self) -> Client {
        let (lease, client) = self.held.pop_front().expect("there is always one");
        let request = self.request();
        let authority = Authority::Session(SessionId::new(client + 1));
        self.tell(Event::Release { request, authority, lease });
        client
    }

    /// A segment above the reserve comes and goes: allocate, created, free, freed.
    fn grow_and_shrink(&mut self) {
        let (lease, client) = self.held.pop_front().expect("there is always one");
        self.held.push_back((lease, client));
        let session = SessionId::new(client + 1);
        let (allocate, free) = (self.request(), self.request());
        let made = self.tell(Event::Allocate {
            request: allocate,
            session,
            lease,
            device: DEVICE,
            bytes: mib(64),
            kind: SegmentKind::Descriptor,
            patience: Patience::None,
            guard: Guard::Outside,
        });
        let segment = made.expect("there is room");
        self.tell(Event::Created { segment });
        self.tell(Event::Free { request: free, session, lease, segment });
        self.tell(Event::Freed { segment });
    }

    /// `n` leases on a device that has room for more.
    fn with_leases(n: u64) -> Self {
        let mut world = Self::new(gib(1 << 20), |_| Some(gib(4_096)));
        for _ in 0..n {
            let client = world.client();
            world.acquire(client, mib(2));
        }
        world
    }

    /// A full device and `n` asks in the line; one in five wants two seats, and so is passed over
    /// while only one is empty. Each third user has a budget of one large or two small seats.
    fn with_waiters(n: u64) -> Self {
        Self::waiters_under(Rules::Limits, n)
    }

    fn waiters_under(rules: Rules, n: u64) -> Self {
        let seat = gib(1).checked_add(CONTEXT).expect("small");
        let capacity = seat.checked_mul(SEATS).expect("small");
        let mut world = Self::under(rules, capacity, |user| (user % 3 == 0).then(|| gib(3)));
        for i in 0..SEATS + n {
            let client = world.client();
            world.acquire(client, gib(1 + u64::from(i >= SEATS && i % 5 == 4)));
        }
        assert_eq!(world.asked.len() as u64, n, "so many wait");
        world
    }

    /// As before, but all of them have waited so long that they are barriers.
    fn with_barriers(n: u64) -> Self {
        let mut world = Self::with_waiters(n);
        world.now = Time::after_start(Duration::from_secs(3_600));
        while world.arbiter.poll_timeout().is_some_and(|(at, _)| at <= world.now) {
            world.arbiter.handle_timeout(world.now);
            world.drain();
        }
        world
    }
}

fn number(n: u64) -> u32 {
    u32::try_from(n).expect("a small number")
}

/// What a cycle does, and how many decisions that is.
type Cycle = (&'static str, u64, fn(u64) -> World, fn(&mut World));

const CYCLES: [Cycle; 4] = [
    ("grant and release beside leases", 2, World::with_leases, |world| {
        let client = world.release();
        world.acquire(client, mib(2));
    }),
    ("segment beside leases", 4, World::with_leases, World::grow_and_shrink),
    ("release to the next of the waiters", 2, World::with_waiters, |world| {
        let client = world.release();
        world.acquire(client, gib(1));
    }),
    ("release to the next of the barriers", 2, World::with_barriers, |world| {
        let client = world.release();
        world.acquire(client, gib(1));
    }),
];

fn decisions(c: &mut Criterion) {
    for (name, decisions, make, cycle) in CYCLES {
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Elements(decisions));
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
        for n in SIZES {
            // Made when first needed: a filter skips it, and criterion calls the closure many times.
            let mut world = None;
            group.bench_function(BenchmarkId::from_parameter(n), |b| {
                let world = world.get_or_insert_with(|| make(n));
                b.iter(|| cycle(world));
            });
        }
        group.finish();
    }
}

fn next_wake_up(c: &mut Criterion) {
    let mut group = c.benchmark_group("next wake-up beside waiters");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(500));
    for n in SIZES {
        let mut world = None;
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            let world = world.get_or_insert_with(|| World::with_waiters(n));
            b.iter(|| black_box(world.arbiter.poll_timeout()));
        });
    }
    group.finish();
}

/// What budgets of a thousand users cost beside 100,000 waiters. The worlds take turns of a few cycles, and medians
/// count: what else the machine does hits some turns, and any of the worlds.
fn cost_of_budgets(_: &mut Criterion) {
    const TURNS: u32 = 400;
    const CYCLES: u32 = 25;
    let kinds = [("none", Rules::None), ("limits", Rules::Limits), ("guarantees", Rules::Guarantees)];
    let mut worlds = kinds.map(|(name, rules)| (name, World::waiters_under(rules, 100_000), Vec::new()));
    for turn in 0..=TURNS {
        for (_, world, spent) in &mut worlds {
            let start = WallTime.start();
            for _ in 0..CYCLES {
                let client = world.release();
                world.acquire(client, gib(1));
            }
            let took = WallTime.end(start);
            // The first turn warms up.
            if turn > 0 {
                spent.push(took);
            }
        }
    }
    let medians = worlds.map(|(name, _, mut spent)| {
        spent.sort_unstable();
        (name, spent[spent.len() / 2])
    });
    let base = medians[0].1;
    for (name, spent) in &medians {
        let ratio = spent.as_secs_f64() / base.as_secs_f64();
        println!(
            "release to the next of 100000 waiters, budgets: {name}: {:?}, ratio {ratio:.2}",
            *spent / CYCLES
        );
    }
}

/// Not a decision: made on demand, a few times a second, its cost grows with all there is.
fn snapshot(c: &mut Criterion) {
    let mut group = c.benchmark_group("snapshot beside waiters");
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    for n in SIZES {
        let mut world = None;
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            let world = world.get_or_insert_with(|| World::with_waiters(n));
            b.iter(|| black_box(world.arbiter.snapshot(world.now)));
        });
    }
    group.finish();
}

criterion_group!(benches, cost_of_budgets, decisions, next_wake_up, snapshot);
criterion_main!(benches);
