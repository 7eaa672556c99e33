//! What the driver says of an address.

use std::ffi::c_void;

use crate::addresses::{Access, Mapping, Origin};
use crate::code::{Code, Outcome};
use crate::driver::{Driver, State};
use crate::entry::entry_points;
use crate::pointer::put;
use crate::vmm::POSIX_DESCRIPTOR;

const ON_HOST: u32 = 1;
const ON_DEVICE: u32 = 2;

entry_points! {
    4000 fn cuPointerGetAttribute(driver, out: *mut c_void, attribute: u32, at: u64) {
        // SAFETY: the header wants a pointer to what the attribute is.
        unsafe { tell(driver, out, attribute, at) }
    }

    7000 fn cuPointerGetAttributes(driver, count: u32, attributes: *const u32, outs: *mut *mut c_void, at: u64) {
        if attributes.is_null() || outs.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        for index in 0..count as usize {
            // SAFETY: the header wants two arrays of `count`.
            let (attribute, out) = unsafe { (attributes.add(index).read(), outs.add(index).read()) };
            // SAFETY: as above. What is not known of an address is answered by zeros.
            match unsafe { tell(driver, out, attribute, at) } {
                Ok(()) => {}
                // SAFETY: the smallest of them has four bytes.
                Err(_) => unsafe { put(out.cast::<u32>(), 0) }?,
            }
        }
        Ok(())
    }

    6000 fn cuPointerSetAttribute(driver, value: *const c_void, attribute: u32, at: u64) {
        let known = driver.state().addresses.around(at).is_some();
        // Only `SYNC_MEMOPS` can be set.
        if known && attribute == 6 && !value.is_null() { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }
}

/// # Safety
/// `out` has room for what the attribute is, or is null.
unsafe fn tell(driver: &Driver, out: *mut c_void, attribute: u32, at: u64) -> Outcome {
    let state = driver.state();
    let Some((start, mapping)) = state.addresses.around(at) else {
        // SAFETY: the caller's promise.
        return unsafe { tell_of_host(&state, out, attribute, at) };
    };
    let ordinal = driver.ordinal(mapping.held.memory().device()).ok_or(Code::INVALID_DEVICE)?;
    let size = mapping.origin.asked().unwrap_or(mapping.size);
    // SAFETY: the caller's promise; the types are those of the header for each attribute.
    unsafe {
        match attribute {
            1 => put(out.cast::<usize>(), mapping.context),
            2 => put(out.cast::<u32>(), ON_DEVICE),
            3 | 11 => put(out.cast::<u64>(), if attribute == 3 { at } else { start }),
            7 => put(out.cast::<u64>(), mapping.held.memory().id()),
            8 => put(out.cast::<u32>(), u32::from(matches!(mapping.origin, Origin::Managed { .. }))),
            9 => put(out.cast::<i32>(), ordinal),
            10 => put(out.cast::<u32>(), u32::from(matches!(mapping.origin, Origin::Allocated { .. }))),
            12 => put(out.cast::<usize>(), usize::try_from(size).unwrap_or(usize::MAX)),
            13 => put(out.cast::<u32>(), 1),
            14 => put(out.cast::<u64>(), handle_types(mapping)),
            15 => put(out.cast::<u32>(), 1),
            16 => put(out.cast::<u32>(), access(mapping)),
            17 => put(out.cast::<usize>(), pool(mapping)),
            4 | 6 => Err(Code::INVALID_VALUE),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }
}

/// # Safety
/// As [`tell`].
unsafe fn tell_of_host(state: &State, out: *mut c_void, attribute: u32, at: u64) -> Outcome {
    if !state.host.is_pinned(at, 1) {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe {
        match attribute {
            2 => put(out.cast::<u32>(), ON_HOST),
            3 | 4 => put(out.cast::<u64>(), at),
            8 => put(out.cast::<u32>(), 0),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}

fn handle_types(mapping: &Mapping) -> u64 {
    if mapping.origin == Origin::Vmm { u64::from(POSIX_DESCRIPTOR) } else { 0 }
}

fn access(mapping: &Mapping) -> u32 {
    match mapping.access {
        Access::None => 0,
        Access::Read => 1,
        Access::Write => 3,
    }
}

fn pool(mapping: &Mapping) -> usize {
    match mapping.origin {
        Origin::Pooled { pool, .. } => pool,
        _ => 0,
    }
}
