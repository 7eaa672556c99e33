//! `cuGetProcAddress`: the driver's own look-up, by base name, CUDA version and kind of default stream.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::code::{Code, SUCCESS};
use crate::entries::{self, Streams, real};

const PER_THREAD: u64 = 1 << 1;

pub(crate) unsafe fn v1(symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuGetProcAddress(symbol, out, version, flags) };
    if code == SUCCESS {
        // SAFETY: as the driver took them.
        unsafe { swap(symbol, out, version, flags) };
    }
    code
}

pub(crate) unsafe fn v2(
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuGetProcAddress_v2(symbol, out, version, flags, status) };
    if code == SUCCESS {
        // SAFETY: as the driver took them.
        unsafe { swap(symbol, out, version, flags) };
    }
    code
}

/// Puts our function in the place of the real one that was found.
///
/// # Safety
/// The driver has just taken these arguments with success.
unsafe fn swap(symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) {
    if symbol.is_null() || out.is_null() {
        return;
    }
    // SAFETY: the driver took the name as a string and wrote the pointer.
    let (base, found) = unsafe { (CStr::from_ptr(symbol), *out) };
    if found.is_null() {
        return;
    }
    let streams = if flags & PER_THREAD == 0 { Streams::Shared } else { Streams::PerThread };
    if let Some(entry) =
        entries::by_pointer(base, found).or_else(|| entries::by_version(base, version, streams))
    {
        // SAFETY: as above.
        unsafe { *out = entry.ours.cast_mut() };
    }
}
