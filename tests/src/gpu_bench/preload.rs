//! What an allocation costs a program that knows nothing of the broker, under `gpulease run`: a large one beside the same
//! by a program that uses the client library, small ones beside the driver's own fastest way.
//!
//! Both programs are members of a lease of their own, started by `gpulease run`, and both free as their users do: the one by
//! `cuMemFree`, the other by a drop, which tells the broker in the background.

use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use gpulease_client::blocking::{Client, Lease, Segment};
use gpulease_cuda::cudarc::driver::sys;
use gpulease_cuda::{Context, DeviceMemory, DevicePtr};
use gpulease_words::{Bytes, gib};

use super::{bare, card, median};
use crate::daemon::Daemon;
use crate::programs;

const LARGE: Bytes = gib(1);
const ROUNDS: usize = 21;
const SMALL: Bytes = Bytes::new(256);
const SMALL_COUNT: usize = 10_000;

/// What the programs are called with.
pub(super) const PROGRAM: &str = "--preload-program";
pub(super) const LIBRARY_PROGRAM: &str = "--library-program";

/// Runs it on the device of this context.
pub(super) fn run(context: &Context) -> anyhow::Result<()> {
    // The lease, and the contexts of this process and of the program.
    let daemon = Daemon::start(["--device", "cuda:0", "--capacity", "8GiB"]);
    let [again, fresh, small, small_free] = leased(&daemon, &[], PROGRAM)?;
    let [library_again, library_fresh] = leased(&daemon, &["--no-preload"], LIBRARY_PROGRAM)?;
    let (pool, pool_free) = from_the_pool(context)?;
    daemon.stop();
    println!("\na program under `gpulease run`, medians of {ROUNDS}, means of {SMALL_COUNT}");
    println!("{:>28} {:>14} {:>22} {:>8}", "", "the program", "beside", "ratio");
    for (what, ours, other, theirs) in [
        ("1 GiB after a free of as much", again, "client library", library_again),
        ("1 GiB beside another", fresh, "client library", library_fresh),
        ("cuMemAlloc 256 B", small, "cuMemAllocAsync", pool),
        ("cuMemFree 256 B", small_free, "cuMemFreeAsync", pool_free),
    ] {
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!(
            "{what:>28} {:>11} ns {other:>16} {:>8} ns {ratio:>5.2}",
            ours.as_nanos(),
            theirs.as_nanos()
        );
    }
    Ok(())
}

/// Runs this program again, in a lease; what it measured.
fn leased<const N: usize>(daemon: &Daemon, options: &[&str], program: &str) -> anyhow::Result<[Duration; N]> {
    let output = Command::new(programs::gpulease())
        .env("GPULEASE_SOCKET", daemon.socket())
        .args(["run", "-m", "4GiB", "-n", "measured"])
        .args(options)
        .arg("--")
        .arg(std::env::current_exe()?)
        .arg(program)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    figures(&said)
        .with_context(|| format!("the program said {said:?}; {}", String::from_utf8_lossy(&output.stderr)))
}

/// What runs under the lease, as any program would.
pub(super) fn program() -> anyhow::Result<()> {
    let context = card()?;
    let [again, fresh] = large(|| {
        let start = Instant::now();
        let memory = DeviceMemory::allocate(&context, LARGE)?;
        let took = start.elapsed();
        bare::touch(&context, memory.ptr(), LARGE)?;
        Ok((memory, took))
    })?;
    context.make_current()?;
    // A small one stays, as a program has some; a first round warms up, as the pool's does.
    let (mut first, mut pieces) = (0, Vec::with_capacity(SMALL_COUNT));
    // SAFETY: the pointer is to a number of ours; a context is current.
    unsafe { sys::cuMemAlloc_v2(&mut first, size(SMALL)) }.result()?;
    fill(&mut pieces)?;
    empty(&mut pieces)?;
    let (allocated, freed) = (fill(&mut pieces)?, empty(&mut pieces)?);
    tell(&[again, fresh, each(allocated), each(freed)]);
    Ok(())
}

/// What runs under the lease and uses the library.
pub(super) fn library_program() -> anyhow::Result<()> {
    let context = card()?;
    let lease = Client::join_from_env()?;
    let figures = large(|| {
        let start = Instant::now();
        let segment = lease.allocate(LARGE)?;
        let took = start.elapsed();
        bare::touch(&context, address(&lease, &segment)?, LARGE)?;
        Ok((segment, took))
    })?;
    tell(&figures);
    Ok(())
}

fn address(lease: &Lease, segment: &Segment) -> anyhow::Result<DevicePtr> {
    let resident = lease.enter()?;
    Ok(DevicePtr::from_raw(segment.device_ptr(&resident)?))
}

/// The time of an allocation right after as much was freed, and of one right after another.
fn large<T>(mut allocate: impl FnMut() -> anyhow::Result<(T, Duration)>) -> anyhow::Result<[Duration; 2]> {
    let (mut again, mut fresh) = (Vec::new(), Vec::new());
    // The first warms up what is made once.
    for round in 0..=ROUNDS {
        let (one, after_a_free) = allocate()?;
        let (other, beside) = allocate()?;
        if round > 0 {
            again.push(after_a_free);
            fresh.push(beside);
        }
        drop(other);
        drop(one);
    }
    Ok([median(again), median(fresh)])
}

fn fill(pieces: &mut Vec<u64>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    for _ in 0..SMALL_COUNT {
        let mut at = 0;
        // SAFETY: the pointer is to a number of ours; a context is current.
        unsafe { sys::cuMemAlloc_v2(&mut at, size(SMALL)) }.result()?;
        pieces.push(at);
    }
    Ok(start.elapsed())
}

fn empty(pieces: &mut Vec<u64>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    for at in pieces.drain(..) {
        // SAFETY: it was allocated by `fill`, and nothing uses it.
        unsafe { sys::cuMemFree_v2(at) }.result()?;
    }
    Ok(start.elapsed())
}

fn tell(figures: &[Duration]) {
    let figures: Vec<String> = figures.iter().map(|time| time.as_nanos().to_string()).collect();
    println!("figures {}", figures.join(" "));
}

fn figures<const N: usize>(said: &str) -> anyhow::Result<[Duration; N]> {
    let line = said.lines().find_map(|line| line.strip_prefix("figures ")).context("no figures")?;
    let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let Ok(numbers) = <[u64; N]>::try_from(numbers) else { bail!("{N} figures are due") };
    Ok(numbers.map(Duration::from_nanos))
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
