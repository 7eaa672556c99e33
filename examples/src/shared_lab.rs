//! `shared-lab`: jobs that together want more than a device has, started at once as people of a lab would.
//!
//! Each job is a process of its own that knows nothing of the others: the broker decides who waits.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use gpulease_client::Bytes;
use gpulease_client::blocking::Observer;
use gpulease_client::proto::StatusReply;

use crate::train::{self, Event, Summary};

/// Who works in the lab, and which shares of the device they want: at first, and later if there is room.
const LAB: &[(&str, &str, &str)] =
    &[("ada", "30%", "60%"), ("bela", "45%", "45%"), ("chen", "45%", "45%"), ("dora", "20%", "35%")];
/// The first argument of a job's process, which is this same program.
const JOB: &str = "job";

/// Starts four training jobs that together want more than the broker's device has.
#[derive(Debug, Parser)]
#[command(name = "shared-lab", version)]
struct Arguments {
    /// Steps that each job trains
    #[arg(long, value_name = "STEPS", default_value_t = 1000)]
    steps: u64,
}

/// Runs `shared-lab` on the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    let mut rest = arguments.peekable();
    if rest.next_if(|first| first == JOB).is_some() {
        return train::main_with([program].into_iter().chain(rest));
    }
    match run(&Arguments::parse_from([program].into_iter().chain(rest))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shared-lab: {error:#}");
            ExitCode::from(train::exit_code(&error))
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let observer = Observer::connect()?;
    let (tell, told) = mpsc::channel();
    let mut jobs = Vec::new();
    for (seed, (name, memory, up_to)) in LAB.iter().enumerate() {
        let child = start(seed, [name, memory, up_to], arguments.steps)?;
        jobs.push(Job::follow(name, child, tell.clone())?);
    }
    drop(tell);
    let mut summaries = Vec::new();
    for (name, event) in told {
        println!("{name:<6} {}", event.to_string().replace('\n', "\n       "));
        if let Event::Finished(summary) = event {
            summaries.push(summary);
        }
    }
    let failed: Vec<&str> = jobs.into_iter().filter_map(Job::failed).collect();
    print_table(&summaries);
    ensure!(failed.is_empty(), "these jobs failed: {}", failed.join(", "));
    check_peak(&observer.status()?)
}

fn start(seed: usize, [name, memory, up_to]: [&str; 3], steps: u64) -> Result<Child> {
    let program = std::env::current_exe().context("this program's own path")?;
    let half = (steps / 2).max(1).to_string();
    Command::new(program)
        .args([JOB, "--json", "--name", name, "--memory", memory, "--up-to", up_to, "--grow-at", &half])
        .args(["--steps", &steps.to_string(), "--seed", &seed.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("the job of {name} can't be started"))
}

/// A job's process, and the thread that passes on what it tells.
struct Job {
    name: &'static str,
    child: Child,
    reader: thread::JoinHandle<()>,
}

impl Job {
    fn follow(
        name: &'static str,
        mut child: Child,
        tell: mpsc::Sender<(&'static str, Event)>,
    ) -> Result<Self> {
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str(&line) {
                    // The receiver lives until the last sender is gone.
                    let _ = tell.send((name, event));
                }
            }
        });
        Ok(Self { name, child, reader })
    }

    /// Waits for its end; its name where it failed.
    fn failed(mut self) -> Option<&'static str> {
        let read = self.reader.join();
        let ended = self.child.wait();
        (read.is_err() || !ended.is_ok_and(|status| status.success())).then_some(self.name)
    }
}

fn print_table(summaries: &[Summary]) {
    println!();
    println!("job        asked  held at most   waited   loss first     last   unseen named rightly");
    for job in summaries {
        println!(
            "{:<6} {:>9}  {:>12}  {:>5.1} s       {:>6.3}   {:>6.3}   {:>18.1} %",
            job.name,
            Bytes::new(job.asked_bytes).to_string(),
            Bytes::new(job.held_at_most_bytes).to_string(),
            job.waited_seconds,
            job.loss_first,
            job.loss_last,
            100.0 * job.accuracy
        );
    }
}

/// Never were more bytes in use than there are.
fn check_peak(status: &StatusReply) -> Result<()> {
    for device in &status.devices {
        let (Some(info), Some(memory)) = (&device.info, &device.memory) else {
            bail!("the broker lists a device without its name or memory");
        };
        let peak = Bytes::new(memory.peak_charged_bytes);
        let capacity = Bytes::new(memory.capacity_bytes);
        println!("{}: at most {peak} of {capacity} were leased at one time", info.name);
        ensure!(peak <= capacity, "{} was over-allocated", info.name);
    }
    Ok(())
}
