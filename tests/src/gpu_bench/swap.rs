//! The swap engine beside plain pinned copies of the same run: out, in, and one out while another comes in.
//!
//! No daemon takes part: memory is made, exported and given up here as the broker does it, so that the figures are the
//! client's part of a suspension: copy, sums, unmap and map. That the bytes are the same afterwards is checked each time.

mod plain;
mod segment;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use gpulease_client::swap::{Lane, Sums};
use gpulease_cuda::Context;
use gpulease_words::{Bytes, gib};

use super::median;
use plain::Plain;
use segment::Segment;

/// A size, and how many rounds are worth its time.
const ONE_WAY: [(Bytes, usize); 3] = [(gib(1), 12), (gib(8), 8), (gib(64), 4)];
const BOTH_WAYS: [(Bytes, usize); 3] = [(gib(1), 11), (gib(8), 7), (gib(24), 3)];

/// A plain copy goes over a buffer of at most so much again and again: pinned memory takes half a second a GiB to make.
const PLAIN_BUFFER: Bytes = gib(4);

/// The driver clears memory that was given up, at some 400 GB/s, and whoever gets it at once waits for that. After
/// this rest it has cleared the largest segment.
const CLEARING: Duration = Duration::from_millis(300);

/// What the host must keep besides the copies.
const HOST_HEADROOM: Bytes = gib(4);

/// So often a segment goes and comes back while the host's memory is watched.
const CYCLES: usize = 50;

/// Runs it on the device of this context.
pub(super) fn run(context: &Context) -> anyhow::Result<()> {
    let plain = Plain::new(context, PLAIN_BUFFER)?;
    let kind = Lane::cuda(context)?.sum_kind();
    println!("\nswap engine beside one plain pinned copy (over {PLAIN_BUFFER} at most), GB/s, medians");
    println!("check sums are made {kind}");
    println!(
        "{:>8} {:>10} {:>10} {:>8} {:>10} {:>10} {:>8} {:>8}",
        "size", "out", "plain", "ratio", "in", "plain", "ratio", "at once"
    );
    for (bytes, rounds) in ONE_WAY {
        if fits(context, bytes, bytes)? {
            one_way(context, &plain, bytes, rounds)?;
        }
    }
    println!("\nexchange: one segment out while another of the same size comes in, GB/s of both together");
    println!("{:>8} {:>10} {:>10} {:>8}", "size", "exchange", "plain", "ratio");
    for (bytes, rounds) in BOTH_WAYS {
        let both = bytes.saturating_add(bytes);
        if fits(context, both, both)? {
            exchange(context, &plain, bytes, rounds)?;
        }
    }
    flat(context)
}

/// Whether card and host have room; says so where they do not.
fn fits(context: &Context, on_card: Bytes, on_host: Bytes) -> anyhow::Result<bool> {
    let (card, host) = (context.memory_info()?.free, host_available()?.saturating_sub(HOST_HEADROOM));
    if on_card > card {
        println!("{on_card:>8} left out: the card has {card} free");
    } else if on_host > host {
        println!("{on_host:>8} left out: the host has {host} for it");
    }
    Ok(on_card <= card && on_host <= host)
}

fn one_way(context: &Context, plain: &Plain, bytes: Bytes, rounds: usize) -> anyhow::Result<()> {
    let out_lane = Lane::cuda(context)?;
    let back_lane = out_lane.another()?;
    let mut segment = Segment::new(context, bytes, 1)?;
    let (mut out, mut plain_out, mut plain_back) = (vec![], vec![], vec![]);
    let (mut back, mut at_once) = (vec![], vec![]);
    let mut first: Option<Sums> = None;
    // The first round warms up what is made once.
    for round in 0..=rounds {
        let (sums, out_took) = segment.out(&out_lane)?;
        ensure!(*first.get_or_insert_with(|| sums.clone()) == sums, "the bytes changed on the way");
        let rested = round % 2 == 1;
        if rested {
            thread::sleep(CLEARING);
        }
        segment.make()?;
        let back_took = segment.back(&back_lane, &sums)?;
        let plain_out_took = plain.out(bytes)?;
        let plain_back_took = plain.back(bytes)?;
        if round > 0 {
            out.push(out_took);
            if rested { &mut back } else { &mut at_once }.push(back_took);
            plain_out.push(plain_out_took);
            plain_back.push(plain_back_took);
        }
    }
    let [out, back, at_once, plain_out, plain_back] =
        [out, back, at_once, plain_out, plain_back].map(|times| rate(bytes, median(times)));
    println!(
        "{:>8} {out:>10.2} {plain_out:>10.2} {:>8.3} {back:>10.2} {plain_back:>10.2} {:>8.3} {:>8.3}",
        bytes.to_string(),
        out / plain_out,
        back / plain_back,
        at_once / plain_back
    );
    Ok(())
}

fn exchange(context: &Context, plain: &Plain, bytes: Bytes, rounds: usize) -> anyhow::Result<()> {
    let out_lane = Lane::cuda(context)?;
    let back_lane = out_lane.another()?;
    let (mut here, mut away) = (Segment::new(context, bytes, 1)?, Segment::new(context, bytes, 2)?);
    let (mut sums, _) = away.out(&out_lane)?;
    let (mut times, mut plain_times) = (vec![], vec![]);
    for round in 0..=rounds {
        away.make()?;
        let start = Instant::now();
        let (left, came) = thread::scope(|scope| {
            let leaving = scope.spawn(|| here.out(&out_lane));
            let coming = away.back(&back_lane, &sums);
            (leaving.join(), coming)
        });
        let took = start.elapsed();
        came?;
        (sums, _) = left.ok().context("the thread that copies out panicked")??;
        std::mem::swap(&mut here, &mut away);
        let plain_took = plain.both_ways(bytes)?;
        if round > 0 {
            times.push(took);
            plain_times.push(plain_took);
        }
    }
    let both = bytes.saturating_add(bytes);
    let (exchange, plain) = (rate(both, median(times)), rate(both, median(plain_times)));
    println!("{:>8} {exchange:>10.2} {plain:>10.2} {:>8.3}", bytes.to_string(), exchange / plain);
    Ok(())
}

/// Goes and comes back many times: what the host has left before and after.
fn flat(context: &Context) -> anyhow::Result<()> {
    let out_lane = Lane::cuda(context)?;
    let back_lane = out_lane.another()?;
    let mut segment = Segment::new(context, gib(1), 3)?;
    let mut cycle = || -> anyhow::Result<()> {
        let (sums, _) = segment.out(&out_lane)?;
        segment.make()?;
        segment.back(&back_lane, &sums).map(drop)
    };
    cycle()?;
    let before = resident()?;
    for _ in 0..CYCLES {
        cycle()?;
    }
    println!(
        "\nhost memory of this process before and after {CYCLES} cycles of 1 GiB: {before}, {}",
        resident()?
    );
    Ok(())
}

fn rate(bytes: Bytes, time: Duration) -> f64 {
    bytes.get() as f64 / time.as_secs_f64() / 1e9
}

/// What the kernel says is available on the host.
fn host_available() -> anyhow::Result<Bytes> {
    line_of("/proc/meminfo", "MemAvailable:")
}

/// What this process has of the host's memory.
fn resident() -> anyhow::Result<Bytes> {
    line_of("/proc/self/status", "VmRSS:")
}

fn line_of(file: &str, name: &str) -> anyhow::Result<Bytes> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line
        .and_then(|line| line.split_whitespace().next())
        .with_context(|| format!("no {name} in {file}"))?;
    Ok(Bytes::new(number.parse::<u64>()? * 1024))
}
