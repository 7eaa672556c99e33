//! Copies and fills, done when the call returns.

use std::ffi::c_void;

use crate::addresses::{Access, pointer};
use crate::code::{Code, Outcome};
use crate::driver::{Driver, entry_points};

entry_points! {
    fn cuMemcpyHtoD_v2(driver, to: u64, from: *const c_void, size: usize) {
        // SAFETY: the header wants a readable host range.
        unsafe { to_device(driver, to, from, size) }
    }

    fn cuMemcpyHtoDAsync_v2(driver, to: u64, from: *const c_void, size: usize, _stream: *mut c_void) {
        // SAFETY: as above.
        unsafe { to_device(driver, to, from, size) }
    }

    fn cuMemcpyDtoH_v2(driver, to: *mut c_void, from: u64, size: usize) {
        // SAFETY: the header wants a writable host range.
        unsafe { to_host(driver, to, from, size) }
    }

    fn cuMemcpyDtoHAsync_v2(driver, to: *mut c_void, from: u64, size: usize, _stream: *mut c_void) {
        // SAFETY: as above.
        unsafe { to_host(driver, to, from, size) }
    }

    fn cuMemcpyDtoD_v2(driver, to: u64, from: u64, size: usize) {
        on_device(driver, to, from, size)
    }

    fn cuMemcpyDtoDAsync_v2(driver, to: u64, from: u64, size: usize, _stream: *mut c_void) {
        on_device(driver, to, from, size)
    }

    fn cuMemsetD8_v2(driver, at: u64, byte: u8, size: usize) {
        fill(driver, at, byte, size)
    }

    fn cuMemsetD8Async(driver, at: u64, byte: u8, size: usize, _stream: *mut c_void) {
        fill(driver, at, byte, size)
    }
}

/// Whether the device could do that; it is checked first, so that a mistake is a code and no fault.
fn check(driver: &Driver, at: u64, size: usize, access: Access) -> Outcome {
    driver.current_device()?;
    if driver.state().addresses.allows(at, size as u64, access) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// # Safety
/// `from` is readable for `size` bytes.
unsafe fn to_device(driver: &Driver, to: u64, from: *const c_void, size: usize) -> Outcome {
    check(driver, to, size, Access::Write)?;
    // SAFETY: the caller's promise, and the device range is mapped for writing.
    unsafe { pointer(to).cast::<u8>().copy_from(from.cast(), size) };
    Ok(())
}

/// # Safety
/// `to` is writable for `size` bytes.
unsafe fn to_host(driver: &Driver, to: *mut c_void, from: u64, size: usize) -> Outcome {
    check(driver, from, size, Access::Read)?;
    // SAFETY: the caller's promise, and the device range is mapped for reading.
    unsafe { to.cast::<u8>().copy_from(pointer(from).cast(), size) };
    Ok(())
}

fn on_device(driver: &Driver, to: u64, from: u64, size: usize) -> Outcome {
    check(driver, to, size, Access::Write)?;
    check(driver, from, size, Access::Read)?;
    // SAFETY: both ranges are mapped, the first for writing; they may overlap.
    unsafe { pointer(to).cast::<u8>().copy_from(pointer(from).cast(), size) };
    Ok(())
}

fn fill(driver: &Driver, at: u64, byte: u8, size: usize) -> Outcome {
    check(driver, at, size, Access::Write)?;
    // SAFETY: the range is mapped for writing.
    unsafe { pointer(at).cast::<u8>().write_bytes(byte, size) };
    Ok(())
}
