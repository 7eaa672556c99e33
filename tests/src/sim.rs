//! The simulator: a seeded world of clients, devices, strangers and operators around the arbiter,
//! and a naive model that judges every step.
//!
//! Each run has two phases. In the first, clients misbehave and die, devices fail, strangers take
//! memory. Then the faults stop, holders finish in bounded time, and whatever waits has to be
//! granted within its bound; at the end everything has been given back.

mod actor;
mod card;
mod coverage;
mod diary;
mod dice;
mod hoard;
mod manners;
mod model;
mod mutant;
mod operator;
mod phases;
mod promise;
mod setting;
mod subject;
mod wish;
mod world;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use coverage::Coverage;
pub use hoard::Waits;
pub use mutant::Mutant;

use world::World;

/// The environment variable that names the one seed to run.
pub const SEED: &str = "GPULEASE_SIM_SEED";
/// The environment variable that says how many seeds to run.
pub const SEEDS: &str = "GPULEASE_SIM_SEEDS";

/// A promise that a run broke.
#[derive(Clone, Debug)]
pub struct Failure {
    seed: u64,
    what: String,
    diary: String,
}

impl Failure {
    /// What was broken.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the last of what happened:\n{}", self.diary)?;
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(
            f,
            "again: {SEED}={} cargo test -p gpulease-tests --test main simulator -- --nocapture",
            self.seed
        )
    }
}

/// Runs one seed, with a mutant where a test wants to see it found.
///
/// # Errors
/// When the arbiter breaks a promise, or panics.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Coverage, Box<Failure>> {
    let mut world = World::new(seed, mutant);
    let lived = judged(seed, &mut world, World::live);
    lived.map(|()| world.coverage)
}

/// Runs one seed of the world of hoarders, in which what is guaranteed has to be there in time.
///
/// # Errors
/// When it is not, or the arbiter breaks another promise, or panics.
pub fn run_hoard(seed: u64, mutant: Option<Mutant>) -> Result<Waits, Box<Failure>> {
    let (mut world, life) = World::of_hoarders(seed, mutant);
    judged(seed, &mut world, life)
}

fn judged<T>(
    seed: u64,
    world: &mut World,
    life: impl FnOnce(&mut World) -> Result<T, model::Broken>,
) -> Result<T, Box<Failure>> {
    let ended = catch_unwind(AssertUnwindSafe(|| life(world)));
    let what = match ended {
        Ok(Ok(lived)) => return Ok(lived),
        Ok(Err(broken)) => broken.0,
        Err(panic) => format!("panicked: {}", words_of(panic.as_ref())),
    };
    Err(Box::new(Failure { seed, what, diary: world.diary.to_string() }))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words").to_owned()
}
