//! A segment's allocations: one, or a few where the card has no piece so large.

use gpulease_cuda::{Allocation, CudaError, Device};
use gpulease_words::{Bytes, GRANULARITY};

use crate::witness::{ProcessUse, Reading, people};

/// Creates so many bytes, in at most so many pieces where it is refused whole for want of memory and `in_pieces` says that it may help. All
/// or nothing.
pub(super) fn create(
    device: Device,
    bytes: Bytes,
    pieces_max: usize,
    in_pieces: impl FnOnce() -> bool,
) -> Result<Vec<Allocation>, CudaError> {
    let whole = match Allocation::create(device, bytes) {
        Ok(allocation) => return Ok(vec![allocation]),
        Err(error) => error,
    };
    if !whole.is_out_of_memory() || !in_pieces() {
        return Err(whole);
    }
    let halvings = (1..).map(|n| 1_usize << n).take_while(|pieces| *pieces <= pieces_max);
    let tries = halvings.filter_map(|pieces| split(bytes, pieces));
    for sizes in tries {
        match sizes.into_iter().map(|size| Allocation::create(device, size)).collect() {
            Ok(allocations) => return Ok(allocations),
            Err(error) if error.is_out_of_memory() => {}
            Err(error) => return Err(error),
        }
    }
    Err(whole)
}

/// So many pieces that differ by one step at most, the larger ones first; `None` where there are fewer steps.
fn split(bytes: Bytes, pieces: usize) -> Option<Vec<Bytes>> {
    let (steps, pieces) = (bytes.get() / GRANULARITY.get(), pieces as u64);
    let (each, larger) = (steps / pieces, steps % pieces);
    let size = |n: u64| GRANULARITY.checked_mul(each + u64::from(n < larger));
    if each == 0 { None } else { (0..pieces).map(size).collect() }
}

/// Why memory was not made, in numbers, and who may have it.
pub(super) fn not_made(
    bytes: Bytes,
    name: &str,
    why: &CudaError,
    reading: Option<&Reading>,
    made: Bytes,
) -> String {
    if !why.is_out_of_memory() {
        return format!("{bytes} could not be made on {name}: {why}");
    }
    format!("{bytes} could not be made on {name}{}", room(reading, made))
}

/// What the card has left, and who uses most of it.
pub(super) fn room(reading: Option<&Reading>, made: Bytes) -> String {
    let Some(reading) = reading else {
        return format!(": it has no room for it beside the {made} that are leased");
    };
    let free = format!(": {} of its {} are free, {made} are leased", reading.free(), reading.usable);
    let uses = reading.processes.iter().flatten();
    match uses.max_by_key(|process| process.bytes) {
        Some(ProcessUse { pid, bytes }) => format!("{free}, and {} uses {bytes}", people::describe(*pid)),
        None => free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::{gib, mib};

    #[test]
    fn pieces_are_whole_steps_and_add_up() {
        assert_eq!(split(mib(10), 2), Some(vec![mib(6), mib(4)]));
        assert_eq!(split(mib(4), 4), None);
        for pieces in [2, 4, 8, 16] {
            let sizes = split(gib(3), pieces).expect("there are enough steps");
            assert_eq!(sizes.len(), pieces);
            assert_eq!(sizes.iter().copied().sum::<Bytes>(), gib(3));
            assert!(sizes.iter().all(|size| size.is_granular() && !size.is_zero()));
        }
    }

    #[test]
    fn the_sentence_names_who_uses_most() {
        let me = gpulease_words::Pid::new(std::process::id());
        let other = ProcessUse { pid: gpulease_words::Pid::new(u32::MAX), bytes: gib(1) };
        let processes = Some(vec![other, ProcessUse { pid: me, bytes: gib(120) }]);
        let reading = Reading { used: gib(136), usable: gib(139), processes };
        let sentence = room(Some(&reading), gib(8));
        assert!(
            sentence
                .starts_with(&format!(": 3 GiB of its 139 GiB are free, 8 GiB are leased, and pid {me} (")),
            "{sentence}"
        );
        assert!(sentence.ends_with("uses 120 GiB"), "{sentence}");
        assert!(room(None, gib(8)).contains("8 GiB that are leased"));
    }
}
