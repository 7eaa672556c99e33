//! `cuMemAlloc` and its kin.

use std::sync::Arc;

use gpulease_words::Bytes;

use crate::addresses::Origin;
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph_memory;
use crate::pointer::put;
use crate::pools;
use crate::vmm::create;

/// Rows of pitched memory begin at multiples of this.
const PITCH: usize = 512;

entry_points! {
    3020 fn cuMemAlloc_v2(driver, out: *mut u64, size: usize) {
        driver.may_not_be_captured()?;
        let at = allocate(driver, size, |asked| Origin::Allocated { asked })?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    // A form that no driver has yet, for who has to do with a driver of tomorrow; a setting makes this one such.
    99000 fn cuMemAlloc_v9(driver, out: *mut u64, size: usize) {
        driver.may_not_be_captured()?;
        let at = allocate(driver, size, |asked| Origin::Allocated { asked })?;
        // SAFETY: as above.
        unsafe { put(out, at) }
    }

    3020 fn cuMemAllocPitch_v2(driver, out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        driver.may_not_be_captured()?;
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(Code::OUT_OF_MEMORY)?;
        let size = row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?;
        let at = allocate(driver, size, |asked| Origin::Allocated { asked })?;
        // SAFETY: the header wants pointers to an address and a size, or null.
        unsafe { put(out, at).and_then(|()| put(pitch, row)) }
    }

    6000 fn cuMemAllocManaged(driver, out: *mut u64, size: usize, flags: u32) {
        driver.may_not_be_captured()?;
        if !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        let at = allocate(driver, size, |asked| Origin::Managed { asked })?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    3020 fn cuMemFree_v2(driver, at: u64) {
        driver.may_not_be_captured()?;
        free(driver, at)
    }

    3020 fn cuMemGetAddressRange_v2(driver, base: *mut u64, size: *mut usize, at: u64) {
        let state = driver.state();
        let (start, mapping) = state.addresses.around(at).ok_or(Code::NOT_FOUND)?;
        let length = mapping.origin.asked().unwrap_or(mapping.size);
        if !base.is_null() {
            // SAFETY: the header wants a pointer to an address, or null.
            unsafe { put(base, start) }?;
        }
        if !size.is_null() {
            // SAFETY: the header wants a pointer to a size, or null.
            unsafe { put(size, usize::try_from(length).unwrap_or(usize::MAX)) }?;
        }
        Ok(())
    }
}

/// Takes memory of the current context's device and maps it.
pub(crate) fn allocate(driver: &Driver, size: usize, origin: impl Fn(u64) -> Origin) -> Result<u64, Code> {
    let (device, context) = (driver.current_device()?, driver.current_context()?);
    let asked = Bytes::new(size as u64);
    if asked.is_zero() {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = asked.round_up().ok_or(Code::OUT_OF_MEMORY)?;
    let held = Arc::new(create(driver, device, bytes)?);
    driver.state().addresses.place(origin(asked.get()), context, held)
}

/// Frees what this made, and what came from pools and graphs.
pub(crate) fn free(driver: &Driver, at: u64) -> Outcome {
    if at == 0 {
        return Ok(());
    }
    let origin = driver.state().addresses.starting(at).map(|mapping| mapping.origin);
    match origin {
        Some(Origin::Allocated { .. } | Origin::Managed { .. }) => driver.state().addresses.take(at),
        Some(Origin::Pooled { .. }) => pools::give_back(driver, at),
        Some(Origin::Graph { .. }) => graph_memory::free(driver, at),
        Some(
            Origin::Vmm
            | Origin::Opened { .. }
            | Origin::Cached { .. }
            | Origin::Array
            | Origin::Variable { .. },
        )
        | None => Err(Code::INVALID_VALUE),
    }
}
