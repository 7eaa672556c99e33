//! The benchmark for a card: allocate-to-usable through the broker beside `cuMemAlloc` and beside
//! the bare calls it needs, SIGKILL-to-grantable beside the driver's own teardown, and the swap engine
//! beside plain pinned copies, and jobs that together exceed the card beside the same jobs alone.
//!
//! Contestants take turns within a round, so that a drift of the machine hits all alike; the
//! figures are medians over the rounds.

mod bare;
mod brokered;
mod preload;
mod rotation;
mod swap;
mod teardown;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use brokered::Hold;
use gpulease_cuda::{Context, Driver};
use gpulease_words::{Bytes, gib, mib};

/// A size, and how many rounds are worth its time.
const SIZES: [(Bytes, usize); 5] = [(mib(2), 21), (mib(64), 21), (gib(1), 21), (gib(16), 11), (gib(100), 5)];

/// How much of the card the largest size must leave: two contexts, and what libraries take.
const HEADROOM: Bytes = gib(4);

/// Runs the benchmark; `--victim-...` is what it calls itself with for the processes it kills.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        [] => card().and_then(|context| run(&context)),
        ["swap"] => card().and_then(|context| swap::run(&context)),
        ["hold"] => card().and_then(|context| out_of_the_hold(&context)),
        ["rotation", ref seconds @ ..] => card().and_then(|_| rotation::run(seconds.first().copied())),
        ["preload"] => card().and_then(|context| preload::run(&context)),
        [preload::PROGRAM] => preload::program(),
        [preload::LIBRARY_PROGRAM] => preload::library_program(),
        ["--rotation-job", ref words @ ..] => rotation::job(words),
        ["--victim-brokered", socket, bytes] => teardown::brokered_victim(socket, bytes),
        ["--victim-bare", bytes] => teardown::bare_victim(bytes),
        _ => Err(anyhow::anyhow!(
            "it takes no argument, `swap` for the swap engine, `hold` for allocations out of a hold, `rotation` for \
             jobs that take turns, or `preload` for \
             programs under `gpulease run`; it uses the first \
             GPU that CUDA shows"
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpulease-gpu-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The first GPU, by name.
fn card() -> anyhow::Result<Context> {
    let driver = Driver::load()?;
    let device = *driver.devices()?.first().context("there is no GPU")?;
    println!("{} driver {} ({})", device.name()?, driver.version(), device.uuid()?);
    Ok(Context::retain(device)?)
}

fn run(context: &Context) -> anyhow::Result<()> {
    let device = context.device();
    let room = context.memory_info()?.free.saturating_sub(HEADROOM);
    let sizes: Vec<_> = SIZES.into_iter().filter(|(bytes, _)| *bytes <= room).collect();
    for (bytes, _) in SIZES.iter().filter(|(bytes, _)| *bytes > room) {
        println!("left out: {bytes} does not fit in the {room} that are free");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;

    println!("\nallocate to usable (mapped, access set), medians");
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "size", "brokered", "bare calls", "cuMemAlloc", "x bare", "x alloc"
    );
    for (bytes, rounds) in &sizes {
        let row = runtime.block_on(brokered::rounds(context, *bytes, *rounds, Hold::None))?;
        println!(
            "{:>8} {:>12} {:>12} {:>12} {:>12.2} {:>12.2}",
            bytes,
            micros(row.brokered),
            micros(row.bare),
            micros(row.plain),
            ratio(row.brokered, row.bare),
            ratio(row.brokered, row.plain)
        );
    }

    out_of_the_hold(context)?;

    println!("\nSIGKILL of the holder to memory that another can have, medians");
    println!("{:>8} {:>12} {:>12} {:>12}", "size", "brokered", "driver alone", "ratio");
    for (bytes, _) in &sizes {
        let (brokered, alone) = runtime.block_on(teardown::rounds(device, *bytes, 3))?;
        println!(
            "{:>8} {:>12} {:>12} {:>12.2}",
            bytes,
            micros(brokered),
            micros(alone),
            ratio(brokered, alone)
        );
    }
    Ok(())
}

/// Allocations out of a hold beside the same without one and beside the bare calls.
fn out_of_the_hold(context: &Context) -> anyhow::Result<()> {
    let room = context.memory_info()?.free.saturating_sub(HEADROOM);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!("\nallocate to usable out of the hold, and without a hold, medians");
    let [size, held, made, bare, plain] = ["size", "out of hold", "made anew", "bare calls", "cuMemAlloc"];
    println!("{size:>8} {held:>12} {made:>12} {bare:>12} {plain:>12} {:>12}", "hold x bare");
    for (bytes, rounds) in SIZES.into_iter().filter(|(bytes, _)| *bytes <= room.min(gib(16))) {
        let with = runtime.block_on(brokered::rounds(context, bytes, rounds, Hold::All))?;
        let without = runtime.block_on(brokered::rounds(context, bytes, rounds, Hold::None))?;
        let [held, made, bare, plain] = [with.brokered, without.brokered, with.bare, with.plain].map(micros);
        let ratio = ratio(with.brokered, with.bare);
        println!("{bytes:>8} {held:>12} {made:>12} {bare:>12} {plain:>12} {ratio:>12.2}");
    }
    Ok(())
}

/// The middle of an odd number of times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn micros(time: Duration) -> String {
    format!("{} us", time.as_micros())
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}
