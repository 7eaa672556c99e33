//! What pools are made of and what they say of themselves. None of them is ever shared with another process.

use std::ffi::c_void;

use crate::code::{Code, Outcome};
use crate::entry::entry_points;
use crate::pointer::put;
use crate::pools::{Gauge, Pool};
use crate::vmm::{Location, ON_DEVICE, PINNED, POSIX_DESCRIPTOR, Right};

/// `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: *mut c_void,
    most: usize,
    reserved: [u8; 56],
}

impl Properties {
    /// The device that the pool is to be on.
    pub(crate) fn device(&self) -> Result<i32, Code> {
        if self.kind != PINNED || self.location.kind != ON_DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        // One that can be exported is like any other; how it is exported is more than this driver has.
        let known = matches!(self.handle_types, 0 | POSIX_DESCRIPTOR);
        if known { Ok(self.location.id) } else { Err(Code::NOT_SUPPORTED) }
    }
}

entry_points! {
    11020 fn cuMemPoolGetAttribute(driver, pool: *mut c_void, attribute: u32, out: *mut c_void) {
        let mut state = driver.state();
        let pool = state.pools.get(pool.addr())?;
        // SAFETY: the header wants a pointer to an int for the first three, and to 64 bits for the others.
        unsafe { get(pool, attribute, out) }
    }

    11020 fn cuMemPoolSetAttribute(driver, pool: *mut c_void, attribute: u32, value: *mut c_void) {
        let mut state = driver.state();
        let pool = state.pools.get(pool.addr())?;
        if value.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { set(pool, attribute, value) }
    }

    11020 fn cuMemPoolSetAccess(driver, pool: *mut c_void, rights: *const Right, count: usize) {
        driver.state().pools.get(pool.addr())?;
        if rights.is_null() && count > 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    11020 fn cuMemPoolGetAccess(driver, out: *mut u32, pool: *mut c_void, location: *mut Location) {
        let device = driver.state().pools.get(pool.addr())?.device;
        // SAFETY: the header wants a pointer to a location, or null.
        let location = unsafe { location.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let access = if driver.device(location.id)? == device { 3 } else { 0 };
        // SAFETY: the header wants a pointer to flags, or null.
        unsafe { put(out, access) }
    }

    11020 fn cuMemPoolExportToShareableHandle(driver, _out: *mut c_void, pool: *mut c_void, _kind: u32, _flags: u64) {
        driver.state().pools.get(pool.addr())?;
        Err(Code::INVALID_VALUE)
    }

    11020 fn cuMemPoolImportFromShareableHandle(_driver, _out: *mut *mut c_void, _from: *mut c_void, _kind: u32, _flags: u64) {
        Err(Code::INVALID_VALUE)
    }

    11020 fn cuMemPoolExportPointer(_driver, _out: *mut c_void, _at: u64) {
        Err(Code::INVALID_VALUE)
    }

    11020 fn cuMemPoolImportPointer(_driver, _out: *mut u64, _pool: *mut c_void, _from: *mut c_void) {
        Err(Code::INVALID_VALUE)
    }
}

/// # Safety
/// `out` is null or has room for what the attribute is.
unsafe fn get(pool: &Pool, attribute: u32, out: *mut c_void) -> Outcome {
    let wide = match attribute {
        // SAFETY: the caller's promise.
        1..=3 => return unsafe { put(out.cast::<u32>(), pool.reuse[attribute as usize - 1]) },
        4 => pool.threshold,
        5 => pool.reserved.now,
        6 => pool.reserved.high,
        7 => pool.used.now,
        8 => pool.used.high,
        _ => return Err(Code::INVALID_VALUE),
    };
    // SAFETY: the caller's promise.
    unsafe { put(out.cast::<u64>(), wide) }
}

/// # Safety
/// `value` points to what the attribute is.
unsafe fn set(pool: &mut Pool, attribute: u32, value: *mut c_void) -> Outcome {
    let (narrow, wide) = match attribute {
        // SAFETY: the caller's promise: an int for the first three, 64 bits for the others.
        1..=3 => (unsafe { value.cast::<u32>().read_unaligned() }, 0),
        // SAFETY: as above.
        _ => (0, unsafe { value.cast::<u64>().read_unaligned() }),
    };
    let reset = |gauge: &mut Gauge| {
        gauge.high = gauge.now;
        // Only zero may be written to a highest figure.
        if wide == 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
    };
    match attribute {
        1..=3 => pool.reuse[attribute as usize - 1] = narrow,
        4 => pool.threshold = wide,
        6 => return reset(&mut pool.reserved),
        8 => return reset(&mut pool.used),
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}
