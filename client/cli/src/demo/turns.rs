//! The last act: three jobs that want 60 % of a device each, on a broker that swaps out who has had his turn.

use std::time::Instant;

use gpulease_words::{Bytes, gib};

use super::Command;
use super::acts::{HALF, LOOK_EVERY};
use super::cast::{LEAST_PART, Part};
use super::director::{ACT_WAIT, Director, Stop};
use super::promise::Promise;
use super::record::{End, Record};
use super::set::{Set, free_of_host};
use crate::exit::Failure;

/// The jobs.
const JOBS: [&str; 3] = ["hugo", "ida", "jan"];

/// The most that one of them has: enough to see it, and quick to fill and to copy.
const MOST_ON_HOST: Bytes = gib(1);
const MOST_ON_A_CARD: Bytes = gib(3);

/// Their copies in host memory take at most one part in so many of what is free, all together.
const COPIES: u64 = 4;

/// How the act is set.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// The first device, and how much of it.
    pub(super) set: Set,
    part: Bytes,
}

impl Turns {
    /// On the first device of the demo.
    ///
    /// # Errors
    /// A sentence, where there is too little memory for it.
    pub(super) fn on(set: &Set) -> Result<Self, String> {
        let processes = set.overhead.get() * JOBS.len() as u64;
        let most = if set.overhead.is_zero() { MOST_ON_HOST } else { MOST_ON_A_CARD };
        let on_device = Bytes::new(set.capacity.get().saturating_sub(processes) / 5 * 3);
        let on_host = Bytes::new(free_of_host().get() / COPIES / JOBS.len() as u64);
        let part = on_device.min(on_host).min(most).round_down();
        if part < LEAST_PART {
            return Err(format!(
                "three jobs that take turns need {LEAST_PART} each on the device and in host memory, and {on_device} \
                 and {on_host} can be had"
            ));
        }
        let whole = Bytes::new(part.get() / 3 * 5 + processes).round_up().unwrap_or(set.capacity);
        let devices = set.devices.iter().take(1).cloned().collect();
        let words = format!("{whole} of the first device, with room for copies of {} jobs", JOBS.len());
        Ok(Self { set: Set { devices, capacity: whole, words, ..set.clone() }, part })
    }

    /// What the broker of this act is told: room for their copies, and short turns.
    pub(super) fn configuration(&self) -> String {
        let jobs = JOBS.len() as u64;
        let pinned = match self.set.overhead.get() * jobs {
            0 => String::new(),
            contexts => format!("pinned_max = \"{contexts}B\"\n"),
        };
        format!(
            "# Copies of all jobs fit; turns are short, so that there are some to see, and long\n# enough to learn in beside much other work.\narena = \"{}B\"\n{pinned}\
             [graces]\nmax_wait = \"500ms\"\nmin_residency = \"2s\"\nidle_after = \"5s\"\ndrain = \"10s\"\n",
            self.part.get() * jobs
        )
    }
}

impl Director<'_> {
    /// Plays the act and notes what was shown.
    ///
    /// # Errors
    /// Where it was given up.
    pub(super) async fn play_turns(&mut self, turns: &Turns) -> Result<(), Failure> {
        let shown = self.take_turns(turns).await;
        let goes_on = shown.is_ok();
        self.note(Promise::TakesTurns, shown)?;
        if goes_on {
            let back = self.see_everything_back().await;
            self.note(Promise::GivenBack, back)?;
        }
        Ok(())
    }

    /// Starts them, lets each make room once and learn, and lets all finish.
    async fn take_turns(&mut self, turns: &Turns) -> Result<String, Stop> {
        let part = Part { reserve: turns.part, limit: turns.part };
        let whole = turns.set.capacity;
        for name in JOBS {
            self.narrator.tell(name, &format!("asks for {} of {whole}", part.reserve))?;
            self.start(name, part, 0)?;
        }
        let times = self.until_each_made_room().await?;
        let learned = |records: &[Record]| records.iter().all(|r| r.has_fallen_to(HALF));
        self.until("each has learned in its turns", learned).await?;
        for name in JOBS {
            if let Some(actor) = self.actors.get_mut(name) {
                actor.order(Command::Finish).await;
            }
        }
        self.until("all three have ended", |records| records.iter().all(|r| r.end.is_some())).await?;
        let failed: Vec<&Record> =
            self.records.iter().filter(|record| record.end != Some(End::Finished)).collect();
        if !failed.is_empty() {
            return Err(Stop::Missed(format!("some did not finish: {failed:?}")));
        }
        let wanted = Bytes::new(turns.part.get() * JOBS.len() as u64);
        let times: Vec<String> = JOBS.iter().zip(times).map(|(name, n)| format!("{name} {n}")).collect();
        Ok(format!(
            "they wanted {wanted} of {whole}, made room for each other ({} times) and learned before they ended",
            times.join(", ")
        ))
    }

    /// Waits until each has been swapped out at least once; says how often that was.
    async fn until_each_made_room(&mut self) -> Result<[u32; 3], Stop> {
        let (mut until, mut seen) = (Instant::now() + ACT_WAIT, [0; 3]);
        while seen.contains(&0) {
            let steps = self.steps();
            self.attend(LOOK_EVERY).await?;
            if self.steps() > steps {
                until = Instant::now() + ACT_WAIT;
            }
            let state = self.stage.observer().status().await?;
            for (name, seen) in JOBS.into_iter().zip(&mut seen) {
                let lease = state.leases.iter().find(|lease| lease.name == name);
                let now = lease.map_or(*seen, |lease| lease.suspensions);
                self.holds(name, lease.map_or(0, |lease| lease.held_bytes));
                if now > *seen {
                    until = Instant::now() + ACT_WAIT;
                    *seen = now;
                    self.narrator
                        .tell(name, "has made room: its memory is in host memory until its next turn")?;
                }
            }
            if let Some(ended) = self.records.iter().find(|record| record.end.is_some()) {
                return Err(Stop::Missed(format!("{} ended before its time: {:?}", ended.name, ended.end)));
            }
            if Instant::now() > until {
                return Err(Stop::Missed(format!(
                    "for {} s nobody took a step or made room, and not each had made room: {seen:?}",
                    ACT_WAIT.as_secs()
                )));
            }
        }
        Ok(seen)
    }

    /// Of all jobs together.
    fn steps(&self) -> u64 {
        self.records.iter().map(|record| record.steps).sum()
    }

    /// A job that is swapped out while it fills its memory has told nothing of it yet.
    fn holds(&mut self, name: &str, bytes: u64) {
        if let Some(record) = self.records.iter_mut().find(|record| record.name == name) {
            record.held_at_most_bytes = record.held_at_most_bytes.max(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpulease_words::mib;

    use super::*;

    fn set(capacity: Bytes, overhead: Bytes) -> Set {
        Set { devices: vec!["cuda:0".into(), "cuda:1".into()], capacity, overhead, words: String::new() }
    }

    #[test]
    fn one_fits_and_two_do_not() {
        // A context may turn out to be that much smaller than what is set aside for it.
        for (capacity, overhead, less) in [(mib(64), mib(0), 0), (gib(8), mib(0), 0), (gib(8), mib(640), 130)]
        {
            let turns = Turns::on(&set(capacity, overhead)).expect("there is room");
            let contexts = mib(3 * (overhead.get() / mib(1).get()).saturating_sub(less));
            let room = turns.set.capacity.saturating_sub(contexts);
            assert!(turns.set.capacity <= capacity, "{turns:?}");
            assert!(turns.part <= room && turns.part.saturating_add(turns.part) > room, "{turns:?}");
            assert_eq!(turns.set.devices, ["cuda:0"]);
        }
        assert!(Turns::on(&set(mib(12), mib(0))).is_err_and(|why| why.contains("8 MiB")));
    }
}
