//! What an allocation costs a program that knows nothing of the broker, under `gpulease run`: a large one beside the same
//! through the client library, small ones beside the driver's own fastest way.

use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpulease_client::Client;
use gpulease_cuda::cudarc::driver::sys;
use gpulease_cuda::{Context, DeviceMemory, DevicePtr};
use gpulease_words::{Bytes, gib, mib};

use super::{bare, card, median};
use crate::daemon::Daemon;
use crate::programs;

const LARGE: Bytes = gib(1);
const ROUNDS: usize = 21;
const SMALL: Bytes = Bytes::new(256);
const SMALL_COUNT: usize = 10_000;

/// Runs it on the device of this context.
pub(super) fn run(context: &Context) -> anyhow::Result<()> {
    // The lease, and the contexts of this process and of the program.
    let daemon = Daemon::start(["--device", "cuda:0", "--capacity", "8GiB"]);
    let program = std::env::current_exe()?;
    let leased = Command::new(programs::gpulease())
        .env("GPULEASE_SOCKET", daemon.socket())
        .args(["run", "-m", "3GiB", "-n", "preload", "--"])
        .arg(&program)
        .arg("--preload-program")
        .output()?;
    let said = String::from_utf8_lossy(&leased.stdout);
    let [large, small, small_free] = figures(&said)
        .with_context(|| format!("the program said {said:?}; {}", String::from_utf8_lossy(&leased.stderr)))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let library = runtime.block_on(through_the_library(context, &daemon))?;
    let (pool, pool_free) = from_the_pool(context)?;
    daemon.stop();
    println!("\na program under `gpulease run`, medians of {ROUNDS}, means of {SMALL_COUNT}");
    println!("{:>20} {:>14} {:>22} {:>8}", "", "the program", "beside", "ratio");
    for (what, ours, other, theirs) in [
        ("cuMemAlloc 1 GiB", large, "client library", library),
        ("cuMemAlloc 256 B", small, "cuMemAllocAsync", pool),
        ("cuMemFree 256 B", small_free, "cuMemFreeAsync", pool_free),
    ] {
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!(
            "{what:>20} {:>11} ns {other:>16} {:>8} ns {ratio:>5.2}",
            ours.as_nanos(),
            theirs.as_nanos()
        );
    }
    Ok(())
}

/// What runs under the lease, as any program would.
pub(super) fn program() -> anyhow::Result<()> {
    let context = card()?;
    let mut large = Vec::new();
    // The first warms up what is made once.
    for round in 0..=ROUNDS {
        let start = Instant::now();
        let memory = DeviceMemory::allocate(&context, LARGE)?;
        let took = start.elapsed();
        bare::touch(&context, memory.ptr(), LARGE)?;
        drop(memory);
        if round > 0 {
            large.push(took);
        }
    }
    context.make_current()?;
    let mut pieces = Vec::with_capacity(SMALL_COUNT);
    let start = Instant::now();
    for _ in 0..SMALL_COUNT {
        let mut at = 0;
        // SAFETY: the pointer is to a number of ours; a context is current.
        unsafe { sys::cuMemAlloc_v2(&mut at, size(SMALL)) }.result()?;
        pieces.push(at);
    }
    let allocated = start.elapsed();
    let start = Instant::now();
    for at in pieces {
        // SAFETY: it was allocated above, and nothing uses it.
        unsafe { sys::cuMemFree_v2(at) }.result()?;
    }
    let freed = start.elapsed();
    println!(
        "figures {} {} {}",
        median(large).as_nanos(),
        each(allocated).as_nanos(),
        each(freed).as_nanos()
    );
    Ok(())
}

fn figures(said: &str) -> anyhow::Result<[Duration; 3]> {
    let line = said.lines().find_map(|line| line.strip_prefix("figures ")).context("no figures")?;
    let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [large, small, free] = numbers[..] else { bail!("three figures are due") };
    Ok([large, small, free].map(Duration::from_nanos))
}

async fn through_the_library(context: &Context, daemon: &Daemon) -> anyhow::Result<Duration> {
    let client = Client::connect_to(daemon.socket()).await?;
    let lease = client.lease(LARGE.saturating_add(mib(512))).name("library").acquire().await?;
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        let start = Instant::now();
        let segment = lease.allocate(LARGE).await?;
        let took = start.elapsed();
        let resident = lease.enter().await?;
        bare::touch(context, DevicePtr::from_raw(segment.device_ptr(&resident)?), LARGE)?;
        drop(resident);
        segment.free().await?;
        if round > 0 {
            times.push(took);
        }
    }
    lease.release().await?;
    Ok(median(times))
}

/// Allocations out of the driver's pool, which keeps what was freed.
fn from_the_pool(context: &Context) -> anyhow::Result<(Duration, Duration)> {
    context.make_current()?;
    let mut pieces = Vec::with_capacity(SMALL_COUNT);
    let fill = |pieces: &mut Vec<u64>| -> anyhow::Result<Duration> {
        let start = Instant::now();
        for _ in 0..SMALL_COUNT {
            let mut at = 0;
            // SAFETY: the pointer is to a number of ours; a context is current, and the stream is its default one.
            unsafe { sys::cuMemAllocAsync(&mut at, size(SMALL), null_mut()) }.result()?;
            pieces.push(at);
        }
        Ok(start.elapsed())
    };
    let empty = |pieces: &mut Vec<u64>| -> anyhow::Result<Duration> {
        let start = Instant::now();
        for at in pieces.drain(..) {
            // SAFETY: it was allocated from the pool, and nothing uses it.
            unsafe { sys::cuMemFreeAsync(at, null_mut()) }.result()?;
        }
        Ok(start.elapsed())
    };
    fill(&mut pieces)?;
    empty(&mut pieces)?;
    let (allocated, freed) = (fill(&mut pieces)?, empty(&mut pieces)?);
    ensure!(pieces.is_empty(), "all was freed");
    Ok((each(allocated), each(freed)))
}

fn each(all: Duration) -> Duration {
    all / u32::try_from(SMALL_COUNT).unwrap_or(u32::MAX)
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).unwrap_or(usize::MAX)
}
