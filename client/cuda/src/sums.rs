//! Check sums of device memory, made by the device itself: at the speed of its own memory, and at no cost to the host's.

use std::ffi::{CStr, c_void};
use std::ptr::from_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpulease_words::Bytes;

use crate::allocation::size;
use crate::context::Context;
use crate::error::CudaError;
use crate::kernel::Kernel;
use crate::pinned::PinnedMemory;
use crate::reservation::DevicePtr;
use crate::stream::Stream;

const PTX: &str = concat!(include_str!("../kernels/sums.ptx"), "\0");
const NAME: &CStr = c"gpulease_sums";

/// As many as a block may have: a piece is read by one block, and one block alone should be faster than the link.
const THREADS: u32 = 1024;

const WORD: u64 = size_of::<u64>() as u64;
/// What a thread reads at a time: pieces begin and end at multiples of it.
const PAIR: u64 = 2 * WORD;

/// Sums pieces of memory of one device, one sum of 64 bits for each, on a stream of its own.
///
/// Making it takes the driver 0.1 s, so that it is made ahead of time. What is summed is summed beside copies and other
/// work, at several TB/s.
#[derive(Debug)]
pub struct PieceSums {
    context: Context,
    kernel: Arc<Kernel>,
    stream: Stream,
    piece: Bytes,
    /// For how many sums there is room.
    room: usize,
    /// Where the device writes the sums.
    found: Mutex<PinnedMemory>,
}

/// Sums that the device makes. Dropping it waits for them.
#[derive(Debug)]
pub struct SumsUnderWay<'a> {
    sums: &'a PieceSums,
    found: MutexGuard<'a, PinnedMemory>,
    asked: usize,
}

impl PieceSums {
    /// Prepares sums of pieces of this size, a multiple of 16 bytes.
    ///
    /// # Errors
    /// What the driver says: it takes the kernel for cards of compute capability 7.5 and newer.
    pub fn new(context: &Context, piece: Bytes) -> Result<Self, CudaError> {
        let text = CStr::from_bytes_with_nul(PTX.as_bytes()).expect("a PTX text has no zeros but the last");
        Self::with(context, Arc::new(Kernel::load(context, text, NAME)?), piece)
    }

    /// Another one with the same kernel, for somebody who sums at the same time. It is made at once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn another(&self) -> Result<Self, CudaError> {
        Self::with(&self.context, Arc::clone(&self.kernel), self.piece)
    }

    fn with(context: &Context, kernel: Arc<Kernel>, piece: Bytes) -> Result<Self, CudaError> {
        if piece.is_zero() || !piece.get().is_multiple_of(PAIR) {
            return Err(context.driver().invalid_value("cuLaunchKernel"));
        }
        // Enough for all memory of the device at once: 8 bytes for each 16 MiB of it.
        let room = size(context.device().total()?).div_ceil(size(piece));
        let found = Mutex::new(PinnedMemory::allocate(context, Bytes::new(room as u64 * WORD))?);
        let sums =
            Self { context: context.clone(), kernel, stream: Stream::new(context)?, piece, room, found };
        sums.warm_up()?;
        Ok(sums)
    }

    /// A driver may load a function only when it is first launched: that is done here, over nothing.
    fn warm_up(&self) -> Result<(), CudaError> {
        let found = self.found();
        // SAFETY: of no words none is read; the buffer is ours, and the wait is here.
        unsafe { self.launch(DevicePtr::from_raw(0), Bytes::ZERO, found.start().as_ptr(), 1) }?;
        self.stream.synchronize()
    }

    /// Begins to make sums; waits for those that somebody else makes with this.
    #[must_use]
    pub fn begin(&self) -> SumsUnderWay<'_> {
        SumsUnderWay { sums: self, found: self.found(), asked: 0 }
    }

    /// # Safety
    /// The range is readable and unchanged, and `to` has room for so many sums, until the stream has been waited for.
    unsafe fn launch(&self, at: DevicePtr, bytes: Bytes, to: *mut u8, pieces: u32) -> Result<(), CudaError> {
        let (mut at, mut to) = (at.raw(), to);
        let (mut words, mut piece) = (bytes.get() / WORD, self.piece.get() / WORD);
        let arguments: [*mut c_void; 4] = [
            from_mut(&mut at).cast(),
            from_mut(&mut words).cast(),
            from_mut(&mut piece).cast(),
            from_mut(&mut to).cast(),
        ];
        // SAFETY: the kernel's parameters are an address, two numbers of 64 bits, and an address, in this order; it
        // reads so many words and writes a sum for each block, as the caller allows.
        unsafe { self.kernel.launch(&self.stream, (pieces, THREADS), arguments) }
    }

    fn found(&self) -> MutexGuard<'_, PinnedMemory> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SumsUnderWay<'_> {
    /// Queues the sums of a range: whole pieces, of which the last may be shorter. They follow those asked before.
    ///
    /// # Errors
    /// What the driver says. `CUDA_ERROR_INVALID_VALUE` for a range that is not of multiples of 16 bytes, and for more
    /// pieces than the device's whole memory has.
    ///
    /// # Safety
    /// The range is mapped on the device, and nothing writes to it, until this is waited for or dropped.
    pub unsafe fn add(&mut self, at: DevicePtr, bytes: Bytes) -> Result<(), CudaError> {
        if bytes.is_zero() {
            return Ok(());
        }
        let invalid = || self.sums.context.driver().invalid_value("cuLaunchKernel");
        let pieces = size(bytes).div_ceil(size(self.sums.piece));
        let even = at.raw().is_multiple_of(PAIR) && bytes.get().is_multiple_of(PAIR);
        if !even || pieces > self.sums.room - self.asked {
            return Err(invalid());
        }
        let first = self.asked * size_of::<u64>();
        let blocks = u32::try_from(pieces).map_err(|_| invalid())?;
        // SAFETY: the places lie inside the buffer; the caller vouches for the range, and `Drop` waits.
        unsafe { self.sums.launch(at, bytes, self.found.start().as_ptr().add(first), blocks) }?;
        self.asked += pieces;
        Ok(())
    }

    /// Waits for all sums and returns them in the order in which they were asked for.
    ///
    /// # Errors
    /// What the driver says, which includes errors of the device on the way.
    pub fn wait(self) -> Result<Vec<u64>, CudaError> {
        self.sums.stream.synchronize()?;
        let found = &self.found.as_slice()[..self.asked * size_of::<u64>()];
        Ok(bytemuck::cast_slice(found).to_vec())
    }
}

impl Drop for SumsUnderWay<'_> {
    fn drop(&mut self) {
        // The memory may be given up now, and the buffer be written by the next.
        self.sums.context.driver().keep(self.sums.stream.synchronize());
    }
}

/// The sum of a piece, as the device makes it: for who has no device that does. Bytes after the last whole word are
/// zeros for it.
#[must_use]
pub fn sum_of_piece(piece: &[u8]) -> u64 {
    let (words, rest) = piece.as_chunks();
    let mut last = [0; size_of::<u64>()];
    last[..rest.len()].copy_from_slice(rest);
    let rest = (!rest.is_empty()).then_some(last);
    let all = words.iter().copied().chain(rest).zip(0_u64..);
    all.fold(0, |sum, (word, index)| sum.wrapping_add(mixed(u64::from_le_bytes(word), index)))
}

/// A bijection of the word for each index, so that one changed word always shows: the finalizer of `MurmurHash3`.
fn mixed(word: u64, index: u64) -> u64 {
    let mut x = word.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that differ, none of them zero.
    fn piece() -> Vec<u8> {
        (1..=512_u64).flat_map(|word| word.wrapping_mul(0x0123_4567_89ab_cdef).to_le_bytes()).collect()
    }

    #[test]
    fn equal_pieces_have_equal_sums() {
        assert_eq!(sum_of_piece(&piece()), sum_of_piece(&piece()));
        assert_eq!(sum_of_piece(&[]), 0);
        assert_eq!(sum_of_piece(&[7, 0, 0]), sum_of_piece(&[7, 0, 0, 0, 0, 0, 0, 0]));
        // By hand: the word at place 0 alone, and one beside it.
        assert_eq!(sum_of_piece(&1_u64.to_le_bytes()), mixed(1, 0));
        let two: Vec<u8> = [1_u64, 2].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(sum_of_piece(&two), mixed(1, 0).wrapping_add(mixed(2, 1)));
    }

    #[test]
    fn one_changed_byte_changes_the_sum_wherever_it_is() {
        let (piece, sum) = (piece(), sum_of_piece(&piece()));
        for at in 0..piece.len() {
            let mut changed = piece.clone();
            changed[at] ^= 1 << (at % 8);
            assert_ne!(sum_of_piece(&changed), sum, "byte {at}");
        }
    }

    #[test]
    fn words_at_other_places_have_another_sum() {
        let (piece, sum) = (piece(), sum_of_piece(&piece()));
        for word in 1..piece.len() / 8 {
            let mut moved = piece.clone();
            let (first, rest) = moved.split_at_mut(8 * word);
            first[..8].swap_with_slice(&mut rest[..8]);
            assert_ne!(sum_of_piece(&moved), sum, "words 0 and {word}");
        }
        let mut shifted = piece.clone();
        shifted.rotate_left(8);
        assert_ne!(sum_of_piece(&shifted), sum);
    }
}
