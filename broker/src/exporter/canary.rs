//! The canary: whether the driver gives out memory with another process's data in it.
//!
//! CUDA promises no scrubbing, and no tenant may read what another wrote. So one short-lived
//! process writes a mark over memory of its own and ends, and a second one looks for the mark in
//! fresh memory. Both need a context, for half a second in all; the daemon runs them when it opens
//! a device, before anything is leased. It is a sample: a mark found is proof, none found is not.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use gpulease_cuda::{Access, Allocation, Context, Reservation};
use gpulease_words::Bytes;

use super::Program;
use super::process::{close_inherited, context};
use crate::witness::Reading;

const MARK: &str = "--cuda-canary-mark";
const LOOK: &str = "--cuda-canary-look";

/// The most that is marked, and a card's share of it; twice as much is looked through. A lightly used card gives the
/// same pages out again.
const MARKED_MAX: Bytes = Bytes::new(256 << 20);
const MARKED_SHARE: u64 = 128;
/// How much of it at a time, and the least.
const PIECE: Bytes = Bytes::new(16 << 20);
/// A card with less room than this is not troubled with it.
const ROOM: Bytes = Bytes::new(4 << 30);
/// The mark, in every byte.
const BYTE: u8 = 0xa5;
/// Marked bytes in a row that are no coincidence.
const RUN: usize = 64;

/// Two contexts and half a gigabyte of copies take half a second.
const PATIENCE: Duration = Duration::from_secs(15);

/// Whether the driver scrubs memory between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scrubbing {
    /// None of another process's data was in what was looked through.
    Seen,
    /// Another process's data was.
    Missing,
    /// It was not checked, and why.
    Unknown(String),
}

/// Runs the canary on the device of this UUID, unless its reading says that there is little room for one.
#[must_use]
pub fn check_scrubbing(program: &Program, uuid: &str, reading: Option<&Reading>) -> Scrubbing {
    if let Some(free) = reading.map(Reading::free).filter(|free| *free < ROOM) {
        return Scrubbing::Unknown(format!(
            "only {free} of the card were free, and a canary takes some of that"
        ));
    }
    let marked = run(program.command(MARK, uuid));
    let looked = marked.and_then(|_| run(program.command(LOOK, uuid)));
    match looked.as_deref() {
        Ok("clean") => Scrubbing::Seen,
        Ok("marked") => Scrubbing::Missing,
        Ok(other) => Scrubbing::Unknown(format!("the canary said {other:?}")),
        Err(why) => Scrubbing::Unknown(why.clone()),
    }
}

/// Runs a part of it to its end, and gives back the one line that it says.
fn run(mut command: Command) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("the canary could not be run: {error}");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let until = Instant::now() + PATIENCE;
    while child.try_wait().map_err(failed)?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the canary did not end within {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Runs this process as a part of the canary, if that is what it was started for.
pub(super) fn maybe_run(mode: &str, uuid: &str) -> Option<ExitCode> {
    let part = match mode {
        MARK => mark,
        LOOK => look,
        _ => return None,
    };
    close_inherited();
    let (said, code) = match context(uuid).and_then(|context| part(&context)) {
        Ok(said) => (said.to_owned(), ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    println!("{said}");
    Some(code)
}

fn mark(context: &Context) -> Result<&'static str, String> {
    let bytes = marked(context)?;
    let memory = map(context, bytes)?;
    // SAFETY: the whole range was mapped for writing a moment ago, and nothing else knows of it.
    unsafe { context.fill(memory.base(), BYTE, bytes) }.map_err(|why| why.to_string())?;
    Ok("done")
}

fn look(context: &Context) -> Result<&'static str, String> {
    let bytes = marked(context)?.saturating_add(marked(context)?);
    let memory = map(context, bytes)?;
    let mut piece = vec![0; usize::try_from(PIECE.get()).expect("16 MiB fit")];
    for n in 0..bytes.get() / PIECE.get() {
        let at = memory.base().offset(PIECE.checked_mul(n).expect("below what was mapped"));
        // SAFETY: the piece lies in the range that was mapped a moment ago, and nothing writes to it.
        unsafe { context.copy_to_host(&mut piece, at) }.map_err(|why| why.to_string())?;
        if is_marked(&piece) {
            return Ok("marked");
        }
    }
    Ok("clean")
}

/// How much is marked on this card: a whole number of pieces.
fn marked(context: &Context) -> Result<Bytes, String> {
    let total = context.device().total().map_err(|why| why.to_string())?;
    let pieces = (total.get() / MARKED_SHARE / PIECE.get()).max(1);
    Ok(PIECE.checked_mul(pieces).map_or(MARKED_MAX, |bytes| bytes.min(MARKED_MAX)))
}

fn is_marked(piece: &[u8]) -> bool {
    piece.chunks_exact(RUN).any(|run| run.iter().all(|byte| *byte == BYTE))
}

fn map(context: &Context, bytes: Bytes) -> Result<Reservation, String> {
    let device = context.device();
    let mapped = || {
        let memory = Allocation::create(device, bytes)?;
        let mut range = Reservation::reserve(device.driver(), bytes)?;
        range.map(&memory, Bytes::ZERO)?;
        range.set_access(device, Access::ReadWrite)?;
        Ok(range)
    };
    mapped().map_err(|why: gpulease_cuda::CudaError| format!("the canary got no {bytes}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen_and_zeros_are_not() {
        let mut piece = vec![0; 4096];
        assert!(!is_marked(&piece));
        piece[1024..1024 + RUN - 1].fill(BYTE);
        assert!(!is_marked(&piece));
        piece[1024 + RUN - 1] = BYTE;
        assert!(is_marked(&piece));
    }
}
