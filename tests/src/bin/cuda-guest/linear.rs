//! `cuMemAlloc` and its kin, and what another process opens of it.

use std::ffi::{c_uint, c_void};

use crate::doors::{Driver, Failed, call};
use crate::ways::Taken;

/// Of every device.
const GLOBAL: c_uint = 1;

pub(crate) fn free(driver: &Driver, at: u64) -> Result<(), Failed> {
    call!(driver, "cuMemFree" "_v2" (u64)(at))
}

pub(crate) fn alloc(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let mut at = 0;
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, bytes))?;
    let (mut base, mut size) = (0_u64, 0_usize);
    let middle = at + bytes as u64 / 2;
    call!(driver, "cuMemGetAddressRange" "_v2" (*mut u64, *mut usize, u64)(&raw mut base, &raw mut size, middle))?;
    assert!(base == at && size >= bytes, "{bytes} at {at:#x} are said to be {size} at {base:#x}");
    Taken::at(driver, at, bytes, mark, move |driver| free(driver, at))
}

pub(crate) fn pitch(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (mut at, mut pitch, width) = (0, 0, 4096 - 100);
    let height = bytes / 4096;
    call!(driver, "cuMemAllocPitch" "_v2" (*mut u64, *mut usize, usize, usize, c_uint)
        (&raw mut at, &raw mut pitch, width, height, 4))?;
    assert!(pitch >= width, "rows of {width} are {pitch} apart");
    Taken::at(driver, at, pitch * height, mark, move |driver| free(driver, at))
}

pub(crate) fn managed(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let mut at = 0;
    call!(driver, "cuMemAllocManaged" "" (*mut u64, usize, c_uint)(&raw mut at, bytes, GLOBAL))?;
    // Managed memory is on the device once the device has used it.
    call!(driver, "cuMemsetD8" "_v2" (u64, u8, usize)(at, mark, bytes))?;
    Taken::at(driver, at, bytes, mark, move |driver| free(driver, at))
}

/// An allocation that another process can open.
pub(crate) fn ipc(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (mut at, mut handle) = (0, [0_u8; 64]);
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, bytes))?;
    let exported = call!(driver, "cuIpcGetMemHandle" "" (*mut c_void, u64)(handle.as_mut_ptr().cast(), at));
    if let Err(failed) = exported {
        free(driver, at)?;
        return Err(failed);
    }
    Taken::at(driver, at, bytes, mark, move |driver| free(driver, at))
}

/// By the form that has addresses of 32 bits, which no other door has. What the driver gives can't be used or freed.
pub(crate) fn old_form(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    let mut at = 0_u32;
    // SAFETY: this is the type that the function had.
    let allocate: unsafe extern "C" fn(*mut u32, c_uint) -> u32 =
        unsafe { std::mem::transmute(driver.symbol(c"cuMemAlloc")) };
    let size = c_uint::try_from(bytes).map_err(|_| Failed { call: "cuMemAlloc of old", code: 2 })?;
    // SAFETY: what it writes to is ours.
    match unsafe { allocate(&raw mut at, size) } {
        0 => Ok(Taken::unseen(Driver::reset)),
        code => Err(Failed { call: "cuMemAlloc of old", code }),
    }
}
