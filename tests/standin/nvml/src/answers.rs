//! The library's return codes.

use std::ffi::{CStr, c_char, c_uint};
use std::io;

/// An `nvmlReturn_t` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    OperatingSystem = 17,
    VersionMismatch = 25,
}

/// What an entry point ends with.
pub(crate) type Outcome = Result<(), Answer>;

impl From<io::Error> for Answer {
    fn from(error: io::Error) -> Self {
        eprintln!("the stand-in NVML failed: {error}");
        Self::OperatingSystem
    }
}

/// The code of an outcome.
pub(crate) fn answer(outcome: Outcome) -> c_uint {
    outcome.err().map_or(0, |answer| answer as c_uint)
}

/// Writes, or refuses a null pointer as the library does.
///
/// # Safety
/// `out` is null or may be written to.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(Answer::InvalidArgument);
    }
    // SAFETY: the caller's promise, and it is not null.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text and its NUL where there is room for both.
///
/// # Safety
/// `out` is null or has room for `room` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, room: c_uint, text: &str) -> Outcome {
    if out.is_null() {
        return Err(Answer::InvalidArgument);
    }
    if text.len() >= room as usize {
        return Err(Answer::InsufficientSize);
    }
    // SAFETY: the caller's promise; the text and its NUL are no more than the room.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    let text: &CStr = match code {
        0 => c"The operation was successful",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        17 => c"Operating System Error",
        25 => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
