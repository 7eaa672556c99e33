//! Leases that make room for others and come back: with jobs that hold on, stand still, die at any step, or find
//! no host memory.

mod guarantee;
mod several;

use std::time::Instant;

use gpulease_client::blocking::Observer;
use gpulease_proto::v1;
use gpulease_tests::daemon::{Daemon, PATIENCE};
use gpulease_tests::ledger::{Ledger, lease};
use gpulease_tests::member::{Member, Stage};
use gpulease_tests::puppet::Gpu;
use gpulease_tests::standin::Standin;
use gpulease_words::{Bytes, mib};
use rustix::process::Signal;

/// What is leased of the device beside contexts, in the scene's units; a job takes three quarters.
const WHOLE: u64 = 16;

/// Short waits, so that a turn takes a fraction of a second.
const QUICK: &str = "\
[graces]
max_wait = \"300ms\"
min_residency = \"200ms\"
idle_after = \"100ms\"
recall = \"1s\"
drain = \"2s\"
";

struct Scene {
    stage: Stage,
    /// What these tests call a MiB. On a real card contexts take less than is set aside for them: measuring them
    /// frees room that must not be worth a turn.
    unit: Bytes,
    daemon: Daemon,
    ledger: Ledger,
}

impl Scene {
    /// Jobs that come to compete may be so many at one time.
    fn on(stage: Stage, jobs: u64, arena: &str) -> Self {
        Self::with(stage, jobs, arena, "")
    }

    fn with(stage: Stage, jobs: u64, arena: &str, budgets: &str) -> Self {
        Self::configured(stage, jobs, arena, Pinned::Contexts(jobs), |_| format!("{QUICK}{budgets}"))
    }

    fn configured(
        stage: Stage,
        jobs: u64,
        arena: &str,
        pinned: Pinned,
        rest: impl Fn(Bytes) -> String,
    ) -> Self {
        println!("on {stage}");
        let unit = unit(&stage);
        // Contexts stay where they are, whatever moves.
        let context = stage.overhead().get();
        let stays = match pinned {
            Pinned::Contexts(of) => of * context,
            Pinned::Segments(units) => jobs * context + units * unit.get(),
        };
        let pinned = if context > 0 { format!("pinned_max = \"{stays}B\"\n") } else { String::new() };
        let capacity = Bytes::new(WHOLE * unit.get() + jobs * context);
        let rest = rest(unit);
        let arena = scaled(arena, unit);
        let daemon = stage.daemon_with(capacity, &format!("arena = \"{arena}\"\n{pinned}{rest}"));
        let ledger = Ledger::of(&daemon);
        Self { stage, unit, daemon, ledger }
    }

    /// On host memory, on a stand-in whose contexts cost just what is set aside for them, and on a real card, each
    /// when its turn comes.
    fn all(jobs: u64, arena: &str) -> impl Iterator<Item = Self> {
        Self::all_with(jobs, arena, Pinned::Contexts(jobs))
    }

    fn all_with(jobs: u64, arena: &str, pinned: Pinned) -> impl Iterator<Item = Self> {
        stages().map(move |stage| Self::configured(stage, jobs, arena, pinned, |_| QUICK.to_owned()))
    }

    /// A command with its sizes in the scene's units.
    fn sized(&self, command: &str) -> String {
        scaled(command, self.unit)
    }

    fn size(&self, units: u64) -> u64 {
        units * self.unit.get()
    }

    fn job(&self) -> Member {
        let job = self.stage.member(&self.daemon);
        job.must("connect");
        job
    }

    /// A job with a filled segment of 12 MiB in a lease of this name.
    fn holder(&self, name: &str) -> Member {
        let job = self.job();
        job.must(&self.sized(&format!("acquire {name} 12MiB wait=30s")));
        job.must(&self.sized(&format!("take s {name} 12MiB")));
        job.must(&format!("fill s {name} 7"));
        job
    }

    fn wait_for_state(&self, name: &str, state: &str) {
        self.ledger.wait(&format!("{name} is {state}"), |status| {
            status.leases.iter().any(|lease| lease.name == name && lease.state == state).then_some(())
        });
    }

    fn wait_for_event(&self, kind: &str) -> v1::EventMessage {
        self.ledger.wait(&format!("an event {kind}"), |_| {
            remembered(self.ledger.observer()).into_iter().find(|event| event.kind == kind)
        })
    }

    fn arena(&self) -> v1::ArenaStatus {
        self.ledger.now().broker.and_then(|broker| broker.arena).expect("there is an arena")
    }

    /// Everything was given back, host memory too.
    fn ends(self) {
        self.ledger.wait_for_all_free();
        self.ledger.wait("the arena is empty", |status| {
            let arena = status.broker.as_ref().and_then(|broker| broker.arena.clone())?;
            let empty = arena.free_bytes == arena.capacity_bytes;
            (empty && arena.draining_bytes == 0 && arena.touched_bytes == 0).then_some(())
        });
        self.ledger.wait_for_no_leak();
        self.daemon.stop();
    }
}

/// What may be pinned of the device.
#[derive(Clone, Copy)]
enum Pinned {
    /// The contexts of so many jobs.
    Contexts(u64),
    /// Those of all jobs, and so many units beside.
    Segments(u64),
}

/// What a test calls a MiB on this device.
fn unit(stage: &Stage) -> Bytes {
    if matches!(stage, Stage::Gpu(Gpu::Real(_))) { mib(128) } else { mib(1) }
}

/// Host memory, a stand-in whose contexts cost just what is set aside for them, and a real card, each when its turn
/// comes.
fn stages() -> impl Iterator<Item = Stage> {
    let card = Standin::with(&[("DEVICES", "1"), ("CONTEXT", "635MiB")]);
    let test = std::thread::current().name().unwrap_or("a suspension").to_owned();
    let real = std::iter::once_with(move || Gpu::real(&test)).flatten();
    [Stage::Host, Stage::Gpu(Gpu::Standin(card))].into_iter().chain(real.map(Stage::Gpu))
}

/// Words in which `12MiB` means that many units.
fn scaled(words: &str, unit: Bytes) -> String {
    let word = |word: &str| {
        let Some(number) = word.strip_suffix("MiB") else {
            return word.to_owned();
        };
        let start = number.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
        let units: u64 = number[start..].parse().expect("a whole number of units");
        format!("{}{}B", &number[..start], units * unit.get())
    };
    words.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn remembered(observer: &Observer) -> Vec<v1::EventMessage> {
    let request = v1::EventsRequest { from_start: true, no_follow: true, after: 0 };
    let events = observer.events(request).expect("the daemon answers");
    events.map(|event| event.expect("the daemon answers")).collect()
}

#[test]
fn two_jobs_that_do_not_fit_together_take_turns_and_keep_their_bytes() {
    for scene in Scene::all(2, "64MiB") {
        let one = scene.holder("one");
        let other = scene.job();
        other.must(&scene.sized("acquire other 12MiB wait=30s"));
        scene.wait_for_state("one", "suspended");
        let away = lease(&scene.ledger.now(), "one").clone();
        assert_eq!((away.away_bytes, away.held_bytes, away.suspensions), (scene.size(12), 0, 1));
        assert_eq!(scene.arena().filled_bytes, scene.size(12));
        other.must(&scene.sized("take t other 12MiB"));
        other.must("fill t other 9");
        for _ in 0..2 {
            one.must("check s one 7");
            other.must("check t other 9");
        }
        for kind in ["suspending", "suspended", "resuming", "resumed"] {
            scene.wait_for_event(kind);
        }
        other.must("end");
        one.must("check s one 7");
        one.must("end");
        scene.ends();
    }
}

/// A job that never leaves its guard keeps its memory, and the other hears why it waits.
#[test]
fn a_job_that_holds_on_is_not_suspended() {
    for scene in Scene::all(2, "64MiB") {
        let one = scene.holder("one");
        one.must("enter one");
        let other = scene.job();
        other.must(&scene.sized("ask other 12MiB wait=60s"));
        let cancelled = scene.wait_for_event("suspend_cancelled");
        assert!(cancelled.message.contains("did not drain"), "{}", cancelled.message);
        scene.wait_for_state("one", "active");
        let ask = scene.ledger.wait("the other waits", |status| status.waiting.first().map(|ask| ask.id));
        let why = scene.ledger.observer().why_ask(gpulease_words::AskId::new(ask)).expect("it waits");
        assert!(why.details.iter().any(|detail| detail.contains("one")), "{why:?}");
        one.must("leave one");
        one.must("end");
        other.must("granted other");
        other.must("end");
        scene.ends();
    }
}

#[test]
fn a_stopped_job_is_left_alone_and_goes_on() {
    for scene in Scene::all(2, "64MiB") {
        let one = scene.holder("one");
        one.stop();
        let other = scene.job();
        let why = other.refused(&scene.sized("acquire other 12MiB wait=4s"));
        assert!(why.contains("(wait_over)"), "{why}");
        // It was asked, and did not answer.
        let cancelled = scene.wait_for_event("suspend_cancelled");
        assert!(cancelled.message.contains("did not drain"), "{}", cancelled.message);
        assert_eq!(lease(&scene.ledger.now(), "one").held_bytes, scene.size(12));
        one.signal(Signal::CONT);
        one.must("check s one 7");
        one.must("end");
        other.must(&scene.sized("acquire other 12MiB wait=30s"));
        other.must("end");
        scene.ends();
    }
}

#[test]
fn a_suspended_job_that_dies_leaves_nothing_and_one_that_waits_leaves_the_line() {
    for scene in Scene::all(2, "64MiB") {
        let one = scene.holder("one");
        let other = scene.job();
        other.must(&scene.sized("acquire other 12MiB wait=30s"));
        scene.wait_for_state("one", "suspended");
        one.kill();
        scene.ledger.wait("one is gone", |status| (status.leases.len() == 1).then_some(()));
        assert_eq!(scene.arena().filled_bytes, 0);
        other.must(&scene.sized("take t other 12MiB"));
        other.must("end");
        scene.ends();
    }
}

/// Whoever holds on while a lease is away keeps it away, and no longer.
#[test]
fn a_suspended_lease_waits_for_whoever_uses_the_device() {
    for scene in Scene::all(2, "64MiB") {
        let one = scene.holder("one");
        let other = scene.job();
        other.must(&scene.sized("acquire other 12MiB wait=30s"));
        other.must(&scene.sized("take t other 12MiB wait=30s"));
        other.must("enter other");
        scene.wait_for_state("one", "suspended");
        std::thread::scope(|scope| {
            let back = scope.spawn(|| one.must("check s one 7"));
            let ask = scene.ledger.wait("one wants its memory", |status| {
                status.waiting.iter().find(|ask| ask.resume).map(|ask| (ask.lease_id, ask.reserve_bytes))
            });
            assert_eq!(ask, (Some(lease(&scene.ledger.now(), "one").id), scene.size(12)));
            scene.wait_for_event("suspend_cancelled");
            other.must("leave other");
            other.must("end");
            back.join().expect("it has its bytes");
        });
        one.must("end");
        scene.ends();
    }
}

/// Where there is no host memory for its copy a lease stays where it is, and where too much stays already it waits
/// though the device has room.
#[test]
fn a_full_arena_suspends_nobody() {
    for scene in Scene::all_with(3, "8MiB", Pinned::Segments(4)) {
        let one = scene.job();
        one.must(&scene.sized("acquire one 6MiB wait=20s"));
        one.must(&scene.sized("take s one 6MiB"));
        one.must("fill s one 3");
        let two = scene.job();
        two.must(&scene.sized("acquire two 4MiB wait=20s"));
        two.must(&scene.sized("take t two 4MiB"));
        two.must("fill t two 5");
        let status = scene.ledger.now();
        assert!(lease(&status, "one").suspendable && !lease(&status, "two").suspendable);
        let three = scene.job();
        three.must(&scene.sized("ask three 6MiB wait=60s"));
        let reason =
            scene.ledger.wait("three waits", |status| status.waiting.first().map(|ask| ask.reason.clone()));
        assert!(["arena_full", "pinned_full"].contains(&reason.as_str()), "{reason}");
        one.must("check s one 3");
        two.must("check t two 5");
        let why = remembered(scene.ledger.observer());
        assert!(!why.iter().any(|event| event.kind == "suspending"), "{why:?}");
        one.must("free s");
        one.must("release one");
        three.must("granted three");
        assert!(lease(&scene.ledger.now(), "three").suspendable);
        [one, two, three].iter().for_each(|job| drop(job.must("end")));
        scene.ends();
    }
}

/// Policy may end a holder that lets the deadline pass; by default it does not.
#[test]
fn a_job_that_holds_on_is_ended_where_policy_says_so() {
    let policy = "[user.\"*\"]\non_overdue = \"terminate 300ms\"\n";
    let scene = Scene::with(Stage::Host, 2, "64MiB", policy);
    let one = scene.holder("one");
    one.must("enter one");
    let other = scene.job();
    other.must(&scene.sized("acquire other 12MiB wait=60s"));
    let ended = scene.wait_for_event("terminated");
    assert!(ended.message.contains("one"), "{}", ended.message);
    assert!(!one.wait().success(), "a signal ended it");
    other.must("end");
    scene.ends();
}

/// One that does not end at SIGTERM is killed when its grace is over.
#[test]
fn a_stopped_job_is_killed_after_its_grace_where_policy_says_so() {
    let policy = "[user.\"*\"]\non_overdue = \"terminate 1s\"\n";
    let scene = Scene::with(Stage::Host, 2, "64MiB", policy);
    let one = scene.holder("one");
    one.stop();
    let other = scene.job();
    other.must(&scene.sized("ask other 12MiB wait=60s"));
    scene.wait_for_event("terminated");
    let told = Instant::now();
    let end = one.wait();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&end), Some(9), "{end}");
    println!("killed {:?} after SIGTERM was seen in the events", told.elapsed());
    other.must("granted other");
    other.must("end");
    scene.ends();
}

/// How often each lease has made room.
fn suspensions(scene: &Scene) -> Vec<u32> {
    scene.ledger.now().leases.iter().map(|lease| lease.suspensions).collect()
}

/// Three jobs that want three quarters each, all at once.
#[test]
fn three_jobs_that_exceed_the_device_all_come_through_with_their_bytes() {
    for scene in Scene::all(3, "64MiB") {
        let jobs: Vec<_> = (0..3).map(|_| scene.job()).collect();
        let (begin, books) = (Instant::now(), &scene);
        std::thread::scope(|scope| {
            for (seed, job) in (1..).zip(&jobs) {
                scope.spawn(move || {
                    let name = format!("job-{seed}");
                    job.must(&books.sized(&format!("acquire {name} 12MiB wait=60s")));
                    job.must(&books.sized(&format!("take s {name} 12MiB wait=60s")));
                    job.must(&format!("fill s {name} {seed}"));
                    // However fast the machine is: until turns were taken.
                    while suspensions(books).iter().sum::<u32>() < 3 {
                        assert!(begin.elapsed() < PATIENCE, "nobody made room any more");
                        job.must(&format!("check s {name} {seed}"));
                        job.must(&format!("fill s {name} {seed}"));
                    }
                    job.must(&format!("check s {name} {seed}"));
                });
            }
        });
        println!("suspensions {:?}", suspensions(&scene));
        jobs.iter().for_each(|job| drop(job.must("end")));
        scene.ends();
    }
}

/// A command of the raw job, and what is so after it.
type Step = (&'static str, &'static str);

/// A lease's way out and back, step by step.
const WAY: &[Step] = &[
    ("wire told suspend", "it was asked to leave"),
    ("wire report a drained", "it had drained"),
    ("wire told swap-out", "it was told to copy"),
    ("wire unmap s", "it had unmapped"),
    ("wire let-go s", "it had no descriptors"),
    ("wire report a swapped-out s", "it had said that it is out"),
    ("wire resume a", "it wanted its memory back"),
    ("wire back s", "its segment was there again"),
    ("wire claim s", "it had the descriptors again"),
    ("wire map s", "it had mapped it again"),
    ("wire acknowledge s", "it had acknowledged it"),
    ("wire report a restored s", "it had said that it is filled"),
    ("wire resumed a", "it was back"),
];

/// A raw job that has 12 MiB mapped, and another that wants as much and gives it back after a moment.
struct Departure {
    job: Member,
    other: Member,
}

impl Departure {
    fn of(scene: &Scene) -> Self {
        let (job, other) = (scene.stage.member(&scene.daemon), scene.job());
        for command in
            ["connect", "open", "ask a 12MiB", "granted a", "allocate s a 12MiB", "claim s", "map s"]
        {
            job.must(&scene.sized(&format!("wire {command}")));
        }
        for command in ["acknowledge s", "fill s 7"] {
            job.must(&format!("wire {command}"));
        }
        other.must(&scene.sized("ask b 12MiB wait=60s"));
        Self { job, other }
    }

    fn walk(&self, steps: &[Step]) {
        for (command, _) in steps {
            if *command == "wire back s" {
                self.other.must("granted b");
                self.other.must("release b");
            }
            self.job.must(command);
        }
    }
}

#[test]
fn a_job_may_die_at_any_step_of_its_way_out_and_back() {
    for (steps, scene) in (1..=WAY.len()).flat_map(|steps| Scene::all(2, "64MiB").map(move |on| (steps, on)))
    {
        let (done, _) = WAY.split_at(steps);
        println!("killed when {}", done[steps - 1].1);
        let way = Departure::of(&scene);
        way.walk(done);
        way.job.kill();
        if !done.iter().any(|(command, _)| *command == "wire back s") {
            way.other.must("granted b");
            way.other.must(&scene.sized("take t b 12MiB"));
            way.other.must("zero t b");
        }
        way.other.must("end");
        scene.ends();
    }
}

/// Whose stream broke on the way hears over the next one how it stands, and goes on from there.
#[test]
fn a_stream_may_break_at_any_step_of_the_way() {
    for steps in 1..WAY.len() {
        let scene = Scene::on(Stage::Host, 2, "64MiB");
        let (done, left) = WAY.split_at(steps);
        println!("its stream broke when {}", done[steps - 1].1);
        let way = Departure::of(&scene);
        way.walk(done);
        let who = way.job.must("wire who");
        way.job.must("wire hang-up");
        way.job.must(&format!("wire rejoin {who}"));
        // What was to be done is said once more.
        match done[steps - 1].0 {
            "wire told suspend" => way.job.must("wire told suspend"),
            "wire told swap-out" | "wire unmap s" | "wire let-go s" => way.job.must("wire told swap-out"),
            "wire back s" | "wire claim s" | "wire map s" => way.job.must("wire back s"),
            _ => String::new(),
        };
        way.walk(left);
        way.job.must("wire zero s");
        way.job.must("wire close");
        way.job.kill();
        way.other.must("end");
        scene.ends();
    }
}

/// A segment that is away is given back like any other.
#[test]
fn what_is_away_can_be_freed_and_released() {
    for scene in Scene::all(2, "64MiB") {
        let one = scene.holder("one");
        let other = scene.job();
        other.must(&scene.sized("acquire other 12MiB wait=30s"));
        scene.wait_for_state("one", "suspended");
        one.must("free s");
        scene.ledger.wait("the copy is gone", |status| (lease(status, "one").away_bytes == 0).then_some(()));
        one.must("release one");
        other.must(&scene.sized("take t other 12MiB"));
        other.must("end");
        one.must("end");
        scene.ends();
    }
}
