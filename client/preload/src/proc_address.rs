//! `cuGetProcAddress`: the driver's own look-up, by base name, CUDA version and kind of default stream.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::code::{Code, NOT_FOUND, SUCCESS};
use crate::entries::{self, Streams, real};
use crate::job;

const PER_THREAD: u64 = 1 << 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`
const LATER: c_int = 2;

pub(crate) unsafe fn v1(symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuGetProcAddress(symbol, out, version, flags) };
    // SAFETY: as the driver took them.
    if code == SUCCESS && unsafe { swap(symbol, out, version, flags) } == Swap::Unknown {
        return NOT_FOUND;
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
    // SAFETY: as the driver took them.
    if code == SUCCESS && unsafe { swap(symbol, out, version, flags) } == Swap::Unknown {
        // SAFETY: a pointer to a status, or null.
        unsafe { status.as_mut() }.into_iter().for_each(|status| *status = LATER);
        return NOT_FOUND;
    }
    code
}

/// What became of a function that the driver found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    Done,
    /// It is a form of one of ours that came after this library, and nothing is given out: it would go around us, and ours
    /// may take other arguments.
    Unknown,
}

/// Puts our function in the place of the real one that was found.
///
/// # Safety
/// The driver has just taken these arguments with success.
unsafe fn swap(symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) -> Swap {
    if symbol.is_null() || out.is_null() {
        return Swap::Done;
    }
    // SAFETY: the driver took the name as a string and wrote the pointer.
    let (base, found) = unsafe { (CStr::from_ptr(symbol), *out) };
    if found.is_null() {
        return Swap::Done;
    }
    let streams = if flags & PER_THREAD == 0 { Streams::Shared } else { Streams::PerThread };
    let entry = match entries::by_pointer(base, found) {
        Some(entry) => Some(entry),
        None => match entries::by_version(base, version, streams) {
            Some(_) if is_later(base, found, version, flags) => None,
            Some(entry) => Some(entry),
            None => return Swap::Done,
        },
    };
    // SAFETY: as above.
    unsafe { *out = entry.map_or(std::ptr::null_mut(), |entry| entry.ours.cast_mut()) };
    if entry.is_some() { Swap::Done } else { Swap::Unknown }
}

/// Whether what was found is a form of a function that came after the last CUDA version that the table knows. Without a lease
/// that is no matter.
fn is_later(base: &CStr, found: *mut c_void, version: c_int, flags: u64) -> bool {
    if version <= entries::KNOWN || !job::is_named() {
        return false;
    }
    let mut known = std::ptr::null_mut();
    // SAFETY: the name is a string and the pointer is to one of ours. A driver with such functions has this form.
    unsafe {
        real::cuGetProcAddress_v2(base.as_ptr(), &mut known, entries::KNOWN, flags, std::ptr::null_mut())
    };
    if known != found {
        entries::say_unknown(base);
    }
    known != found
}
