//! The first forms of functions, from when addresses and sizes had 32 bits. Programs of today don't call them, but the
//! library has them, and they take memory.

use std::ffi::c_void;

use crate::addresses::Origin;
use crate::allocation::{allocate, free};
use crate::driver::system;
use crate::entry::entry_points;
use crate::pointer::put;

entry_points! {
    2000 fn cuMemAlloc(driver, out: *mut u32, size: u32) {
        driver.may_not_be_captured()?;
        let at = allocate(driver, size as usize, |asked| Origin::Allocated { asked })?;
        // What does not fit into the address is lost, and the memory with it.
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, low(at)) }
    }

    2000 fn cuMemFree(driver, at: u32) {
        driver.may_not_be_captured()?;
        free(driver, u64::from(at))
    }

    2000 fn cuMemGetInfo(driver, free: *mut u32, total: *mut u32) {
        let device = driver.current_device()?;
        let left = driver.card.survey().map_err(system)?.free(device);
        let all = driver.card.settings().bytes;
        let most = |bytes: gpulease_words::Bytes| u32::try_from(bytes.get()).unwrap_or(u32::MAX);
        // SAFETY: the header wants pointers to sizes, or null.
        unsafe { put(free, most(left)).and_then(|()| put(total, most(all))) }
    }

    2000 fn cuDeviceTotalMem(driver, out: *mut u32, device: i32) {
        driver.device(device)?;
        // SAFETY: the header wants a pointer to a size, or null.
        unsafe { put(out, u32::try_from(driver.card.settings().bytes.get()).unwrap_or(u32::MAX)) }
    }

    10000 & cuStreamBeginCapture_ptsz fn cuStreamBeginCapture(driver, stream: *mut c_void) {
        driver.begin_capture(stream, None, 0)
    }
}

fn low(at: u64) -> u32 {
    u32::try_from(at & u64::from(u32::MAX)).unwrap_or(0)
}
