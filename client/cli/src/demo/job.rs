//! A job of the demo: trains in the lease it was put into, and does what the director says.
//!
//! It reads commands from standard input, a line each, and tells its events on standard output, a
//! document a line. The end of its input is the end of the demo.

use std::io::{BufRead as _, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use gpulease_client::blocking::Client;
use gpulease_client::{Bytes, Lease};
use gpulease_examples::memory::{Growth, Memory, Role};
use gpulease_examples::train::Event;
use gpulease_examples::trainer::{Filling, Trainer};

use serde::Serialize;

use super::Command;
use crate::arguments::DemoJobArguments;
use crate::exit::{Exit, Failure, Outcome};

/// Steps between two reports.
const WINDOW: u64 = 20;

/// How long a job listens to the director between two windows: jobs of a demo share few cores.
const PAUSE: Duration = Duration::from_millis(40);

/// Runs the job. Its failures are told as events, too.
pub(crate) fn job(arguments: &DemoJobArguments) -> Outcome {
    match train(arguments) {
        Ok(exit) => Ok(exit),
        Err(error) => {
            let message = format!("{error:#}");
            say(&Event::Failed { reason: None, message: message.clone() });
            Err(Failure::new(Exit::Failed, message))
        }
    }
}

fn train(arguments: &DemoJobArguments) -> anyhow::Result<Exit> {
    let commands = listen();
    say(&Started { event: "started", pid: std::process::id() });
    let lease = Client::join_from_env()?;
    let (reserve, limit) = (lease.reserve(), lease.limit());
    let device = device_name(lease.face());
    let mut job = Job { memory: Memory::leased(lease, Role::Member)?, trainer: Trainer::new(arguments.seed) };
    job.begin(reserve)?;
    let start = Instant::now();
    let first = job.window(1)?;
    let mut last = first;
    loop {
        match commands.recv_timeout(PAUSE) {
            Ok(Command::Grow) => job.grow(limit)?,
            Ok(Command::Finish) => break,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(Exit::Failed),
        }
        last = job.window(WINDOW)?;
    }
    let summary = gpulease_examples::train::Summary {
        name: arguments.name.clone(),
        device,
        asked_bytes: reserve.get(),
        limit_bytes: limit.get(),
        held_at_most_bytes: job.memory.held().get(),
        waited_seconds: 0.0,
        seconds: start.elapsed().as_secs_f64(),
        steps: job.trainer.steps(),
        samples: job.trainer.samples(),
        loss_first: first,
        loss_last: last,
        accuracy: job.memory.work(job.trainer.test())?,
        fingerprint: format!("{:016x}", job.memory.work(job.trainer.fingerprint())?),
    };
    job.memory.release()?;
    say(&Event::Finished(summary));
    Ok(Exit::Done)
}

fn device_name(lease: &Lease) -> String {
    let client = lease.client();
    let first = client.devices().iter().find(|device| lease.devices().first() == Some(&device.id));
    first.map_or_else(|| "N/A".to_owned(), |device| device.name.clone())
}

/// Commands as they come; the channel closes with the input.
fn listen() -> mpsc::Receiver<Command> {
    let (tell, commands) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Some(command) = Command::from_word(&line) else { continue };
            if tell.send(command).is_err() {
                break;
            }
        }
    });
    commands
}

/// The first thing that a job tells.
#[derive(Serialize)]
struct Started {
    event: &'static str,
    pid: u32,
}

/// Tells the director; where he is gone, the end of the input ends the job.
fn say(document: &impl Serialize) {
    let line = serde_json::to_string(document).expect("our documents have only text keys");
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

struct Job {
    memory: Memory,
    trainer: Trainer,
}

impl Job {
    /// Takes what is set aside and fills it.
    fn begin(&mut self, reserve: Bytes) -> anyhow::Result<()> {
        if let Growth::Refused(denied) = self.memory.grow(reserve)? {
            anyhow::bail!("the broker refused memory that is set aside: {denied}");
        }
        self.memory.work(self.trainer.prepare())?;
        self.fill()
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.memory.work(self.trainer.fill())? == Filling::Begun {}
        say(&Event::Filled {
            held_bytes: self.memory.held().get(),
            samples: self.trainer.samples(),
            seconds: start.elapsed().as_secs_f64(),
        });
        Ok(())
    }

    fn window(&mut self, steps: u64) -> anyhow::Result<f64> {
        let loss = self.memory.work(self.trainer.train(steps))?;
        say(&Event::Trained { step: self.trainer.steps(), steps: self.trainer.steps(), loss });
        Ok(loss)
    }

    /// Grows up to the limit, and then asks for as much again, which must be refused.
    fn grow(&mut self, limit: Bytes) -> anyhow::Result<()> {
        let more = limit.saturating_sub(self.memory.held());
        for by in [more, more] {
            match self.memory.grow(by)? {
                Growth::Granted => {
                    say(&Event::Grown { by_bytes: by.get(), held_bytes: self.memory.held().get() });
                }
                Growth::Refused(denied) => {
                    let (reason, message) = (denied.reason.to_string(), denied.message);
                    say(&Event::NotGrown { by_bytes: by.get(), reason, message });
                }
            }
        }
        self.fill()
    }
}
