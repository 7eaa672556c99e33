//! Three jobs that want 60 % of the card each, run alone and then together, and one that is idle while another comes.
//!
//! Every job is an optimizer that updates all of its memory at each step, from a CUDA graph that was captured before it
//! had to leave for the first time. What it has at the end must be the same to the last bit however often that was.

mod hand_overs;
mod job;

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpulease_client::blocking::Observer;
use gpulease_words::{Bytes, gib, mib};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::daemon::{Daemon, PATIENCE};
use crate::programs;

pub(super) use job::run as job;

/// What is leased of the card, contexts included, so that the host can keep what is away.
const CAPACITY: Bytes = gib(24);
/// The same where one job is idle, whose copy alone the host has to keep.
const IDLE_CAPACITY: Bytes = gib(36);
const JOBS: usize = 3;
/// Contexts stay where they are, as far as they are estimated.
const CONTEXT: Bytes = mib(640);
/// How long a job works alone where nothing else is said.
const ALONE: Duration = Duration::from_secs(24);
/// What the idle job does in all.
const IDLE_STEPS: u32 = 20;
/// The fewest times that each has to make room, or the run says nothing about turns.
const TURNS: u32 = 3;

/// What a job says at its end.
#[derive(Clone, Debug)]
struct Report {
    steps: u32,
    sum: String,
    suspensions: u32,
    /// Its longest wait, and what it had been promised then.
    longest: Duration,
    promised: Option<Duration>,
    /// Waits that took longer than was promised.
    broken: u32,
    took: Duration,
}

/// Runs it; a job works so many seconds alone.
pub(super) fn run(seconds: Option<&str>) -> anyhow::Result<()> {
    let alone_for = seconds.map_or(Ok(ALONE), |text| text.parse().map(Duration::from_secs));
    let alone_for = alone_for.context("`rotation` takes the seconds that a job works alone")?;
    let each = sixty_percent(CAPACITY);
    touch_host(Bytes::new(each.get() * JOBS as u64))?;
    let daemon = broker(CAPACITY);
    println!("\n{JOBS} jobs of {each} each in {CAPACITY}: alone one after the other, then together");
    let start = |name: &str, seed, work| Running::start(&daemon, name, each, seed, work);
    let first = start("alone-0", 0, Work::For(alone_for))?.end()?;
    let steps = Work::Steps(first.steps);
    let mut alone = vec![first];
    for number in 1..JOBS {
        alone.push(start(&format!("alone-{number}"), number, steps)?.end()?);
    }
    let begin = Instant::now();
    let running: Vec<_> =
        (0..JOBS).map(|number| start(&format!("job-{number}"), number, steps)).collect::<Result<_, _>>()?;
    let together = thread::scope(|scope| {
        let ends: Vec<_> = running.into_iter().map(|job| scope.spawn(|| job.end())).collect();
        ends.into_iter()
            .map(|end| end.join().expect("a reader does not panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let wall = begin.elapsed();
    table(&alone, &together);
    hand_overs::print(&Observer::connect_to(daemon.socket())?, "job-")?;
    let sum: Duration = alone.iter().map(|job| job.took).sum();
    println!(
        "together {:.1} s, the sum of them alone {:.1} s: {:.3}",
        wall.as_secs_f64(),
        sum.as_secs_f64(),
        wall.as_secs_f64() / sum.as_secs_f64()
    );
    daemon.stop();
    idle()?;
    promises(&alone, &together)
}

fn sixty_percent(capacity: Bytes) -> Bytes {
    Bytes::new(capacity.get() / 5 * 3)
}

/// A virtual machine may get its memory only as it touches it, slowly: that is no part of what is measured.
fn touch_host(bytes: Bytes) -> anyhow::Result<()> {
    let (start, length) = (Instant::now(), usize::try_from(bytes.get())?);
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
    // SAFETY: a null hint lets the kernel choose a range that nothing else uses; nobody else sees it before it goes.
    unsafe {
        let touched = mmap_anonymous(null_mut(), length, access, flags)?;
        munmap(touched, length)?;
    }
    println!("host memory of {bytes} touched in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// A broker in whose capacity two jobs of 60 % don't fit, with quick turns: each lasts ten swaps at least.
fn broker(capacity: Bytes) -> Daemon {
    let mut command = Command::new(programs::gpuleased());
    command.args(["--device", "cuda:0", "--capacity", &format!("{}B", capacity.get())]);
    let arena = sixty_percent(capacity).get() * JOBS as u64;
    let pinned = CONTEXT.get() * JOBS as u64;
    Daemon::start_configured(
        command,
        &format!(
            "arena = \"{arena}B\"\npinned_max = \"{pinned}B\"\nswap_rate = \"30GB\"\n\
             [graces]\nmax_wait = \"5s\"\nmin_residency = \"4s\"\nidle_after = \"500ms\"\ndrain = \"5s\"\n"
        ),
    )
}

/// An idle job makes room at once, and its next step goes on with the same bytes as in a run without a pause.
fn idle() -> anyhow::Result<()> {
    let (daemon, each) = (broker(IDLE_CAPACITY), sixty_percent(IDLE_CAPACITY));
    let whole = Running::start(&daemon, "whole", each, 0, Work::Steps(IDLE_STEPS))?.end()?;
    let mut idle = Running::start(&daemon, "idle", each, 0, Work::Pausing(IDLE_STEPS))?;
    idle.wait_for("pausing")?;
    let start = Instant::now();
    let other = Running::start(&daemon, "other", each, 1, Work::Steps(1))?.end()?;
    println!(
        "\nan idle job of {each} made room: the other was there and done after {:.2} s, of which it waited {:.2} s",
        start.elapsed().as_secs_f64(),
        other.longest.as_secs_f64()
    );
    idle.go_on()?;
    let report = idle.end()?;
    println!("its bits are {} after {} suspensions", same(report.sum == whole.sum), report.suspensions);
    ensure!(report.sum == whole.sum, "the idle job's bytes changed");
    ensure!(report.suspensions >= 1, "the idle job was never suspended");
    daemon.stop();
    Ok(())
}

fn table(alone: &[Report], together: &[Report]) {
    println!(
        "{:>6} {:>8} {:>10} {:>12} {:>12} {:>14} {:>14} {:>8}",
        "job", "steps", "alone", "together", "suspended", "longest wait", "promised", "bits"
    );
    for (number, (alone, together)) in alone.iter().zip(together).enumerate() {
        println!(
            "{number:>6} {:>8} {:>8.1} s {:>10.1} s {:>12} {:>12.2} s {:>14} {:>8}",
            together.steps,
            alone.took.as_secs_f64(),
            together.took.as_secs_f64(),
            together.suspensions,
            together.longest.as_secs_f64(),
            together.promised.map_or("N/A".to_owned(), |time| format!("{:.2} s", time.as_secs_f64())),
            same(alone.sum == together.sum)
        );
    }
}

const fn same(is_so: bool) -> &'static str {
    if is_so { "equal" } else { "DIFFER" }
}

fn promises(alone: &[Report], together: &[Report]) -> anyhow::Result<()> {
    for (alone, together) in alone.iter().zip(together) {
        ensure!(alone.sum == together.sum, "a job's bytes changed on the way: {alone:?}, {together:?}");
        ensure!(together.broken == 0, "a wait was longer than promised: {together:?}");
        ensure!(together.suspensions >= TURNS, "a job left less than {TURNS} times: {together:?}");
    }
    Ok(())
}

/// How much a job does.
#[derive(Clone, Copy, Debug)]
enum Work {
    For(Duration),
    Steps(u32),
    /// So many steps, and half way it is idle until it is told to go on.
    Pausing(u32),
}

impl Work {
    fn words(self) -> [String; 2] {
        match self {
            Self::For(time) => ["for".into(), time.as_secs().to_string()],
            Self::Steps(steps) => ["steps".into(), steps.to_string()],
            Self::Pausing(steps) => ["pausing".into(), steps.to_string()],
        }
    }

    fn parse(word: &str, number: &str) -> anyhow::Result<Self> {
        Ok(match word {
            "for" => Self::For(Duration::from_secs(number.parse()?)),
            "steps" => Self::Steps(number.parse()?),
            "pausing" => Self::Pausing(number.parse()?),
            _ => bail!("a job works `for` a time, some `steps`, or `pausing`"),
        })
    }
}

/// A job's process.
struct Running {
    child: Child,
    says: BufReader<ChildStdout>,
    start: Instant,
}

impl Running {
    fn start(daemon: &Daemon, name: &str, bytes: Bytes, seed: usize, work: Work) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--rotation-job").arg(daemon.socket()).args([
            name,
            &bytes.get().to_string(),
            &seed.to_string(),
        ]);
        let mut child = command.args(work.words()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let says = BufReader::new(child.stdout.take().context("it is piped")?);
        Ok(Self { child, says, start: Instant::now() })
    }

    fn wait_for(&mut self, word: &str) -> anyhow::Result<()> {
        let said = self.line()?;
        ensure!(said == word, "the job said {said:?} and not {word:?}");
        Ok(())
    }

    fn go_on(&mut self) -> anyhow::Result<()> {
        Ok(self.child.stdin.take().context("it is piped")?.write_all(b"\n")?)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    fn end(mut self) -> anyhow::Result<Report> {
        let line = self.line()?;
        let took = self.start.elapsed();
        let status = self.child.wait()?;
        ensure!(status.success(), "a job ended with {status}; it said {line:?}");
        Report::parse(&line, took).with_context(|| format!("a job said {line:?}"))
    }
}

impl Report {
    fn parse(line: &str, took: Duration) -> anyhow::Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [steps, sum, suspensions, longest, promised, broken] = words[..] else {
            bail!("six words are due")
        };
        let promised = match promised {
            "none" => None,
            millis => Some(Duration::from_millis(millis.parse()?)),
        };
        Ok(Self {
            steps: steps.parse()?,
            sum: sum.to_owned(),
            suspensions: suspensions.parse()?,
            longest: Duration::from_millis(longest.parse()?),
            promised,
            broken: broken.parse()?,
            took,
        })
    }
}

/// How often this lease had to make room.
fn suspensions(observer: &Observer, lease: u64) -> anyhow::Result<u32> {
    let state = observer.status()?;
    let found = state.leases.iter().find(|found| found.id == lease);
    Ok(found.context("the broker knows the lease no more")?.suspensions)
}

/// A longest time that a benchmark waits for a broker that does nothing.
const STUCK: Duration = PATIENCE;
