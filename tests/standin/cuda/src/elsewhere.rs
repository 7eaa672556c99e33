//! Places from which memory can't be moved, and engines beside the processors: none of them is here, as on a machine with one card
//! and no network that reads its memory.

use std::ffi::c_void;

use crate::code::Code;
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::pointer::put;
use crate::vmm::{Location, ON_DEVICE, PINNED};

entry_points! {
    12010 fn cuMulticastBindMem(_driver, _multicast: u64, _to: usize, _handle: u64, _from: usize, _bytes: usize, _flags: u64) {
        Err(Code::INVALID_VALUE)
    }

    13010 fn cuMulticastBindMem_v2(_driver, _multicast: u64, _device: i32, _to: usize, _handle: u64, _from: usize, _bytes: usize, _flags: u64) {
        Err(Code::INVALID_VALUE)
    }

    12010 fn cuMulticastBindAddr(_driver, _multicast: u64, _to: usize, _at: u64, _bytes: usize, _flags: u64) {
        Err(Code::INVALID_VALUE)
    }

    13010 fn cuMulticastBindAddr_v2(_driver, _multicast: u64, _device: i32, _to: usize, _at: u64, _bytes: usize, _flags: u64) {
        Err(Code::INVALID_VALUE)
    }

    11010 & cuMemMapArrayAsync_ptsz fn cuMemMapArrayAsync(_driver, _list: *mut c_void, _count: u32, _stream: *mut c_void) {
        Err(Code::INVALID_VALUE)
    }

    11070 fn cuMemGetHandleForAddressRange(driver, out: *mut i32, at: u64, _bytes: usize, _kind: u32, _flags: u64) {
        let known = driver.state().addresses.around(at).is_some();
        if !known || out.is_null() { Err(Code::INVALID_VALUE) } else { Err(Code::NOT_SUPPORTED) }
    }

    12060 & cuMemBatchDecompressAsync_ptsz fn cuMemBatchDecompressAsync(_driver, _list: *mut c_void, _count: usize, _flags: u32, _failed: *mut usize, _stream: *mut c_void) {
        Err(Code::NOT_SUPPORTED)
    }

    13000 fn cuMemGetDefaultMemPool(driver, out: *mut *mut c_void, location: *const Location, kind: u32) {
        // SAFETY: the header wants a pointer to a location.
        let pool = unsafe { device_pool(driver, location, kind) }?;
        // SAFETY: the header wants a pointer to a pool, or null.
        unsafe { put(out, std::ptr::without_provenance_mut(pool)) }
    }
}

/// # Safety
/// `location` is to one, or null.
unsafe fn device_pool(driver: &Driver, location: *const Location, kind: u32) -> Result<usize, Code> {
    // SAFETY: the caller's promise.
    let location = unsafe { location.as_ref() }.ok_or(Code::INVALID_VALUE)?;
    if location.kind != ON_DEVICE || kind != PINNED {
        return Err(Code::NOT_SUPPORTED);
    }
    let device = driver.device(location.id)?;
    Ok(driver.state().pools.of(device).0)
}
