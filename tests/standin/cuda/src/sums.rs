//! The one kernel that does something here: the check sums of a swap, which have a second implementation for that.

use crate::addresses::{Access, pointer};
use crate::code::{Code, Outcome};
use crate::driver::Driver;

/// Its name.
pub(crate) const SUMS: &str = "gpulease_sums";
const WORD: u64 = 8;

/// What the kernel gets: where to read, how many words, how many of them a block sums, where to write.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub(crate) at: u64,
    pub(crate) words: u64,
    pub(crate) piece: u64,
    pub(crate) to: u64,
}

impl Sums {
    /// One sum for each block, after a look at all that is read and written, so that a mistake is a code and no fault.
    pub(crate) fn make(&self, driver: &Driver, blocks: u32) -> Outcome {
        let bytes = self.words.checked_mul(WORD).ok_or(Code::ILLEGAL_ADDRESS)?;
        let room = u64::from(blocks) * WORD;
        let begin = |block: u32| u64::from(block).saturating_mul(self.piece);
        let state = driver.state();
        let readable = state.addresses.allows(self.at, bytes, Access::Read);
        let writable =
            state.host.is_pinned(self.to, room) || state.addresses.allows(self.to, room, Access::Write);
        // The kernel reads pairs of words, and a block past the end would read whatever is there.
        let even = self.at.is_multiple_of(16)
            && self.words.is_multiple_of(2)
            && self.piece.is_multiple_of(2)
            && self.to.is_multiple_of(WORD);
        if !readable || !writable || !even || begin(blocks - 1) > self.words {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        drop(state);
        for block in 0..blocks {
            let words = self.piece.min(self.words - begin(block));
            let sum = (0..words).fold(0_u64, |sum, index| {
                // SAFETY: the range is mapped for reading, and this word lies inside it.
                let word = unsafe { pointer(self.at + (begin(block) + index) * WORD).cast::<u64>().read() };
                sum.wrapping_add(mixed(word.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
            });
            // SAFETY: the range is writable and has room for one sum of each block.
            unsafe { pointer(self.to + u64::from(block) * WORD).cast::<u64>().write(sum) };
        }
        Ok(())
    }
}

/// The steps of the kernel, in its order.
fn mixed(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^= x >> 33;
    x
}
