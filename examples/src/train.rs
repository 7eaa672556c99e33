//! A training job as a user would write it: gets a lease, fills it with data, trains, grows while there is room,
//! gives back what the broker asks for, and says how it went.

mod command;
mod options;
mod report;

use std::time::Instant;

use anyhow::Result;
use gpulease_client::Bytes;

pub use command::{exit_code, main, main_with};
pub use options::{BareDevice, Options};
pub use report::{Event, Summary};

use crate::memory::{Growth, Memory};
use crate::trainer::{Filling, Trainer};

/// A growth comes in so many segments, so that a part of it is had where all of it is not.
const GROWTH_PIECES: u64 = 4;

/// Trains as told. `report` hears of each step of the way, the summary that is returned included.
///
/// # Errors
/// The broker refuses, or something fails; the message says what to do.
pub fn run(options: &Options, report: &mut (dyn FnMut(&Event) + Send)) -> Result<Summary> {
    let standing = options.obtain(report)?;
    report(&Event::Granted {
        lease: standing.lease,
        device: standing.device.clone(),
        asked_bytes: standing.asked.get(),
        limit_bytes: standing.limit.get(),
        waited_seconds: standing.waited.as_secs_f64(),
    });
    let mut job = Job {
        options,
        report,
        trainer: Trainer::new(options.seed),
        memory: standing.memory,
        held_at_most: Bytes::ZERO,
    };
    let start = Instant::now();
    job.begin(standing.asked)?;
    let (loss_first, loss_last) = job.train(standing.limit)?;
    let summary = Summary {
        name: options.name.clone(),
        device: standing.device,
        asked_bytes: standing.asked.get(),
        limit_bytes: standing.limit.get(),
        held_at_most_bytes: job.held_at_most.get(),
        waited_seconds: standing.waited.as_secs_f64(),
        seconds: start.elapsed().as_secs_f64(),
        steps: job.trainer.steps(),
        samples: job.trainer.samples(),
        loss_first,
        loss_last,
        accuracy: job.memory.work(job.trainer.test())?,
        fingerprint: format!("{:016x}", job.memory.work(job.trainer.fingerprint())?),
    };
    let Job { memory, report, .. } = job;
    memory.release()?;
    report(&Event::Finished(summary.clone()));
    Ok(summary)
}

struct Job<'a> {
    options: &'a Options,
    report: &'a mut (dyn FnMut(&Event) + Send),
    trainer: Trainer,
    memory: Memory,
    held_at_most: Bytes,
}

impl Job<'_> {
    /// Takes the memory that is set aside and fills it.
    fn begin(&mut self, asked: Bytes) -> Result<()> {
        match self.memory.grow(asked)? {
            Growth::Granted => {}
            Growth::Refused(denied) => anyhow::bail!("refused: {denied}"),
        }
        self.memory.work(self.trainer.prepare())?;
        self.fill()
    }

    fn fill(&mut self) -> Result<()> {
        let start = Instant::now();
        self.fill_up()?;
        let held = self.memory.held();
        self.held_at_most = self.held_at_most.max(held);
        (self.report)(&Event::Filled {
            held_bytes: held.get(),
            samples: self.trainer.samples(),
            seconds: start.elapsed().as_secs_f64(),
        });
        Ok(())
    }

    /// Trains all steps; returns the loss of the first and of the last report's.
    fn train(&mut self, limit: Bytes) -> Result<(f64, f64)> {
        let first = self.some_steps(1)?;
        let mut last = first;
        while self.trainer.steps() < self.options.steps {
            if self.options.grow_at == Some(self.trainer.steps()) {
                self.grow(limit)?;
            }
            self.make_room()?;
            last = self.some_steps(self.until_next_stop())?;
        }
        Ok((first, last))
    }

    fn some_steps(&mut self, steps: u64) -> Result<f64> {
        let loss = self.memory.work(self.trainer.train(steps))?;
        (self.report)(&Event::Trained { step: self.trainer.steps(), steps: self.options.steps, loss });
        Ok(loss)
    }

    /// Steps until the next report, the growth or the end.
    fn until_next_stop(&self) -> u64 {
        let done = self.trainer.steps();
        let report = (done / self.options.report_every + 1) * self.options.report_every;
        let growth = self.options.grow_at.filter(|at| *at > done).unwrap_or(u64::MAX);
        report.min(growth).min(self.options.steps) - done
    }

    /// Grows the data set up to `limit`, as far as there is room.
    fn grow(&mut self, limit: Bytes) -> Result<()> {
        let more = limit.saturating_sub(self.memory.held());
        let piece = Bytes::new(more.get().div_ceil(GROWTH_PIECES)).round_up().unwrap_or(more);
        let mut missing = more;
        let before = self.memory.held();
        while !missing.is_zero() {
            let by = piece.min(missing);
            if let Growth::Refused(denied) = self.memory.grow(by)? {
                let (reason, message) = (denied.reason.to_string(), denied.message);
                (self.report)(&Event::NotGrown { by_bytes: by.get(), reason, message });
                break;
            }
            missing = missing.saturating_sub(by);
            (self.report)(&Event::Grown { by_bytes: by.get(), held_bytes: self.memory.held().get() });
        }
        if self.memory.held() > before { self.fill() } else { Ok(()) }
    }

    /// Gives back what the broker has asked for, so that it need not suspend the job.
    fn make_room(&mut self) -> Result<()> {
        let wanted = self.memory.wanted_back();
        if wanted.is_zero() {
            return Ok(());
        }
        let back = self.memory.give_back(wanted)?;
        (self.report)(&Event::GaveBack { bytes: back.get(), held_bytes: self.memory.held().get() });
        // Nothing is left to fill, but the data set is smaller now.
        self.fill_up()
    }

    fn fill_up(&mut self) -> Result<()> {
        while self.memory.work(self.trainer.fill())? == Filling::Begun {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::{Size, mib};

    /// A run without a broker, and what it told.
    fn bare(options: Options) -> (Summary, Vec<Event>) {
        let mut told = Vec::new();
        let options = Options { bare: Some(BareDevice::Host), ..options };
        let summary =
            run(&options, &mut |event: &Event| told.push(event.clone())).expect("the host suffices");
        (summary, told)
    }

    fn losses(told: &[Event]) -> Vec<(u64, f64)> {
        let loss = |event: &Event| match event {
            Event::Trained { step, loss, .. } => Some((*step, *loss)),
            _ => None,
        };
        told.iter().filter_map(loss).collect()
    }

    #[test]
    fn a_run_reports_falling_losses_and_what_it_held() {
        let options = Options {
            memory: Some(Size::Amount(mib(4))),
            up_to: Some(Size::Amount(mib(13))),
            grow_at: Some(50),
            steps: 300,
            report_every: 40,
            ..Options::default()
        };
        let (summary, told) = bare(options.clone());
        let losses = losses(&told);
        let steps: Vec<u64> = losses.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [1, 40, 50, 80, 120, 160, 200, 240, 280, 300]);
        assert_eq!((summary.loss_first, summary.loss_last), (losses[0].1, losses[9].1));
        assert!(summary.loss_last < summary.loss_first / 4.0 && summary.accuracy > 0.85, "{summary:?}");

        // 13 MiB come in whole steps of 2 MiB.
        assert_eq!((summary.asked_bytes, summary.limit_bytes), (mib(4).get(), mib(14).get()));
        assert_eq!(summary.held_at_most_bytes, mib(14).get());
        let grown = told.iter().filter(|event| matches!(event, Event::Grown { .. })).count();
        assert_eq!(grown, 3, "4, 4 and 2 MiB: {told:?}");
        assert_eq!(told.last(), Some(&Event::Finished(summary.clone())));

        let (again, _) = bare(options);
        assert_eq!(Summary { seconds: summary.seconds, ..again }, summary);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_in_words() {
        let fails = |memory: &str, up_to: Option<&str>| {
            let size = |text: &str| text.parse().expect("a size");
            let (memory, up_to) = (Some(size(memory)), up_to.map(size));
            let options = Options { memory, up_to, bare: Some(BareDevice::Host), ..Options::default() };
            run(&options, &mut |_| {}).expect_err("no such run").to_string()
        };
        assert!(fails("50%", None).contains("no whole"));
        assert!(fails("4MiB", Some("2MiB")).contains("--up-to 2 MiB is less than --memory 4 MiB"));
        assert!(fails("18446744073709551615B", None).contains("64 bits"));
        assert!(fails("0B", None).contains("ask for more memory"));
    }
}
