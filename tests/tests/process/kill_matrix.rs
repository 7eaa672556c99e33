//! A job that ends, or stands still, after any step of a lease's life: the next in the line gets
//! exactly its bytes once they are proven back, and nothing is left over.

use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::Ledger;
use gpulease_tests::member::{Member, Stage};
use gpulease_words::{Bytes, mib};
use rustix::process::Signal;

/// What the job has, which is all that there is beside what a context may cost.
const WHOLE: Bytes = mib(4);
/// A command, and what is so after it.
type Step = (&'static str, &'static str);

/// The life of a lease, up to the point where honest and lying jobs part.
const LIFE: &[Step] = &[
    ("wire connect", "it connected"),
    ("wire open", "its session was open"),
    (ASK, "its ask waited"),
    (GRANTED, "its lease was granted"),
    ("wire allocate s a 4MiB", "its ticket was not claimed"),
    ("wire claim s", "it had the descriptors and no mapping"),
    ("wire map s", "its mapping was not acknowledged"),
    ("wire acknowledge s", "its mapping was acknowledged"),
    ("wire fill s 77", "it had written"),
];
const ASK: &str = "wire ask a 4MiB";
const GRANTED: &str = "wire granted a";

/// What an honest job does next.
const HONEST: &[Step] = &[
    ("wire let-go s", "it had a mapping and no descriptors"),
    ("wire unmap s", "it had unmapped and not freed"),
    ("wire free s", "it had freed"),
    ("wire release a", "it had released"),
    ("wire close", "it had closed its session"),
];

/// What a job does that gives back what it keeps.
const LYING: &[Step] = &[
    ("wire free s", "it had freed what it kept mapped"),
    ("wire release a", "it had released what it kept mapped"),
    ("wire close", "it had closed its session and kept the mapping"),
    ("wire let-go s", "it had released, kept the mapping and closed the descriptors"),
    ("wire unmap s", "it had let go at last"),
];

/// What happens to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// SIGKILL.
    Killed,
    /// It ends without a word.
    Exited,
    /// SIGSTOP, and SIGCONT later.
    Stopped,
}

/// A job after its first `steps` of a script.
#[derive(Clone, Copy, Debug)]
struct Cell {
    steps: usize,
    lying: bool,
    fault: Fault,
}

impl Cell {
    fn all(faults: &[Fault]) -> Vec<Self> {
        let honest = 1..=LIFE.len() + HONEST.len();
        let lying = LIFE.len() + 1..=LIFE.len() + LYING.len();
        let points = honest.map(|steps| (steps, false)).chain(lying.map(|steps| (steps, true)));
        let cells = points.flat_map(|(steps, lying)| faults.iter().map(move |fault| (steps, lying, *fault)));
        cells.map(|(steps, lying, fault)| Self { steps, lying, fault }).collect()
    }

    fn script(self) -> Vec<Step> {
        [LIFE, if self.lying { LYING } else { HONEST }].concat()
    }

    fn story(self) -> String {
        format!("{:?} after {}", self.fault, self.script()[self.steps - 1].1)
    }
}

/// Everybody but the victim, the same for all cells.
struct Scene {
    stage: Stage,
    daemon: Daemon,
    ledger: Ledger,
    /// Has the memory until the victim's turn.
    before: Member,
    /// Has its turn after the victim.
    next: Member,
}

impl Scene {
    fn on(stage: Stage) -> Self {
        let daemon = stage.daemon(Bytes::new(WHOLE.get() + stage.overhead().get()));
        let ledger = Ledger::of(&daemon);
        let (before, next) = (stage.member(&daemon), stage.member(&daemon));
        for member in [&before, &next] {
            member.must("connect");
        }
        // The connections that two sessions keep are not leaks.
        for member in [&before, &next] {
            member.must("acquire a 4MiB");
            member.must("release a");
        }
        ledger.wait_for_all_free();
        let ledger = Ledger::of(&daemon);
        Self { stage, daemon, ledger, before, next }
    }

    fn play(&self, cell: Cell) {
        println!("on {}: {}", self.stage, cell.story());
        let (script, victim) = (cell.script(), self.stage.member(&self.daemon));
        self.before.must("acquire a 4MiB");
        let (done, rest) = script.split_at(cell.steps);
        done.iter().for_each(|step| self.step(&victim, *step));
        if !done.contains(&LIFE[2]) {
            self.queue_up();
        }
        let asked = done.contains(&LIFE[2]);
        match cell.fault {
            Fault::Killed => victim.kill(),
            Fault::Exited => {
                victim.begin("exit");
                victim.wait();
            }
            Fault::Stopped => {
                victim.stop();
                self.nobody_else_has_it(cell);
                victim.signal(Signal::CONT);
                // One that had not asked goes behind the next, who asked meanwhile: it just goes.
                rest.iter().filter(|_| asked).for_each(|step| self.step(&victim, *step));
                victim.kill();
            }
        }
        let took_over = done.contains(&LIFE[3]) || asked && cell.fault == Fault::Stopped;
        if !took_over {
            self.before.must("release a");
        }
        self.finish();
    }

    fn step(&self, victim: &Member, (command, _): Step) {
        if command == GRANTED {
            self.before.must("release a");
        }
        victim.must(command);
        if command == ASK {
            assert!(victim.must("wire standing a").starts_with("waiting"), "the line is for all");
            self.queue_up();
        }
    }

    fn queue_up(&self) {
        self.next.must("ask b 4MiB");
        self.next.must("standing-in-line b");
    }

    /// While the victim stands still with the memory, the next waits.
    fn nobody_else_has_it(&self, cell: Cell) {
        let state = self.ledger.now();
        let gone = cell.script()[..cell.steps].iter().any(|(command, _)| {
            (*command == "wire free s" && !cell.lying) || *command == "wire unmap s" && cell.lying
        });
        if !gone {
            let names: Vec<&str> = state.waiting.iter().map(|ask| ask.name.as_str()).collect();
            assert!(names.contains(&"b"), "the next has what another holds: {state:#?}");
        }
    }

    /// The next has its turn, finds nothing of the victim's, and leaves the place as it was.
    fn finish(&self) {
        self.next.must("granted b");
        self.next.must("take s b 4MiB");
        self.next.must("zero s b");
        self.next.must("fill s b 5");
        self.next.must("check s b 5");
        self.next.must("free s");
        self.next.must("release b");
        self.ledger.wait_for_no_leak();
        let log = self.daemon.log();
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    }
}

fn play_all(stage: Stage, faults: &[Fault]) {
    let scene = Scene::on(stage);
    Cell::all(faults).into_iter().for_each(|cell| scene.play(cell));
    let Scene { daemon, before, next, .. } = scene;
    drop((before, next));
    daemon.stop();
}

#[test]
fn the_next_is_served_after_a_death_at_any_step_on_host_memory() {
    play_all(Stage::Host, &[Fault::Killed, Fault::Exited]);
}

#[test]
fn the_next_is_served_after_a_standstill_at_any_step_on_host_memory() {
    play_all(Stage::Host, &[Fault::Stopped]);
}

#[test]
fn the_next_is_served_after_a_death_at_any_step_on_a_gpu() {
    for stage in Stage::all("death at any step").into_iter().skip(1) {
        play_all(stage, &[Fault::Killed]);
    }
}
