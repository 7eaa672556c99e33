//! The driver's result codes, as far as this driver gives them.

use std::ffi::{CStr, c_char};

use crate::entry::Entry;
use crate::pointer::put;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What an entry point ends with.
pub(crate) type Outcome = Result<(), Code>;

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Code {
            $(
                #[allow(dead_code, reason = "some are only given by injection, and need their name then")]
                pub(crate) const $name: Self = Self($number);
            )*
        }

        fn words(code: u32) -> Option<(&'static CStr, &'static CStr)> {
            let find = |name: &'static str, text: &'static str| {
                (CStr::from_bytes_with_nul(name.as_bytes()), CStr::from_bytes_with_nul(text.as_bytes()))
            };
            let (name, text) = match code {
                0 => find("CUDA_SUCCESS\0", "no error\0"),
                $($number => find(concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($text, "\0")),)*
                _ => return None,
            };
            Some((name.ok()?, text.ok()?))
        }
    };
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEVICE_UNAVAILABLE = 46, "CUDA-capable device(s) is/are busy or unavailable";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    FILE_NOT_FOUND = 301, "file not found";
    OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "system has unsupported display driver / cuda driver combination";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    UNKNOWN = 999, "unknown error";
}

// These two work before cuInit and never fail by injection, as an error could not be named then.

pub(crate) static ENTRIES: &[Entry] = &[
    Entry::new("cuGetErrorName", 6000, cuGetErrorName as *const ()),
    Entry::new("cuGetErrorString", 6000, cuGetErrorString as *const ()),
];

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: u32, out: *mut *const c_char) -> u32 {
    // SAFETY: the header wants a pointer to a pointer, or null.
    unsafe { word(code, out, |(name, _)| name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(code: u32, out: *mut *const c_char) -> u32 {
    // SAFETY: as above.
    unsafe { word(code, out, |(_, text)| text) }
}

/// # Safety
/// `out` is writable or null.
unsafe fn word(
    code: u32,
    out: *mut *const c_char,
    which: impl Fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> u32 {
    let found = words(code).map(which).map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the caller's promise.
    match unsafe { put(out, found) } {
        Ok(()) if !found.is_null() => 0,
        Ok(()) | Err(_) => Code::INVALID_VALUE.0,
    }
}
