//! Modules and launches. One kernel runs here: the check sums of a swap, which have a second implementation for that.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};

use crate::addresses::{Access, pointer};
use crate::code::{Code, Outcome};
use crate::driver::{Driver, entry_points};
use crate::pointer::put;
use crate::stream::check_stream;

/// The kernel that runs here.
const SUMS: &str = "gpulease_sums";
const WORD: u64 = 8;

/// What was loaded, by the number that its handle is. A function is its module's number and one more.
#[derive(Default)]
pub(crate) struct Modules {
    last: usize,
    /// The texts.
    loaded: BTreeMap<usize, String>,
}

/// What the kernel gets: where to read, how many words, how many of them a block sums, where to write.
struct Sums {
    at: u64,
    words: u64,
    piece: u64,
    to: u64,
}

entry_points! {
    fn cuModuleLoadData(driver, out: *mut *mut c_void, image: *const c_char) {
        driver.current_device()?;
        if image.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the header wants a text that ends with a zero. Other images have one too, somewhere.
        let text = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| Code::INVALID_IMAGE)?;
        if !text.contains(".version") {
            return Err(Code::INVALID_IMAGE);
        }
        let mut state = driver.state();
        state.modules.last += 1;
        let handle = 0x10_0000 + state.modules.last * 16;
        state.modules.loaded.insert(handle, text.to_owned());
        // SAFETY: the header wants a pointer to a module, or null.
        unsafe { put(out, std::ptr::without_provenance_mut(handle)) }
    }

    fn cuModuleGetFunction(driver, out: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the header wants a text that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::NOT_FOUND)?;
        let state = driver.state();
        let text = state.modules.loaded.get(&module.addr()).ok_or(Code::INVALID_HANDLE)?;
        if !text.contains(&format!(".entry {name}(")) {
            return Err(Code::NOT_FOUND);
        }
        if name != SUMS {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the header wants a pointer to a function, or null.
        unsafe { put(out, std::ptr::without_provenance_mut(module.addr() + 1)) }
    }

    fn cuModuleUnload(driver, module: *mut c_void) {
        driver.state().modules.loaded.remove(&module.addr()).map(drop).ok_or(Code::INVALID_HANDLE)
    }
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "they are the driver's")]
unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: *mut c_void,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> u32 {
    crate::driver::enter("cuLaunchKernel", |driver| {
        check_stream(driver, stream)?;
        if !driver.state().modules.loaded.contains_key(&function.addr().wrapping_sub(1)) {
            return Err(Code::INVALID_HANDLE);
        }
        let shape = (grid_y, grid_z, block_y, block_z, shared);
        if grid_x == 0 || block_x == 0 || block_x > 1024 || arguments.is_null() || !extra.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        if shape != (1, 1, 1, 1, 0) || !block_x.is_multiple_of(32) {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the header wants a pointer for each parameter of the function, which has four of 64 bits.
        let [at, words, piece, to] = std::array::from_fn(|index| unsafe {
            arguments.add(index).read().cast::<u64>().read_unaligned()
        });
        Sums { at, words, piece, to }.make(driver, grid_x)
    })
}

impl Sums {
    /// One sum for each block, after a look at all that is read and written, so that a mistake is a code and no fault.
    fn make(&self, driver: &Driver, blocks: u32) -> Outcome {
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
