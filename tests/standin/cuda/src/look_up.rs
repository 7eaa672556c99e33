//! `cuGetProcAddress`, by which frameworks find the driver's functions.

use std::ffi::{CStr, c_char, c_void};

use crate::code::{Code, Outcome};
use crate::driver;
use crate::entry::Entry;
use crate::pointer::put;

/// Functions that take no stream, or take the legacy one where none is given.
const LEGACY_STREAM: u64 = 1;
/// Functions that take the stream of the thread where none is given.
const PER_THREAD_STREAM: u64 = 2;
const PER_THREAD: [&str; 2] = ["_ptds", "_ptsz"];

/// `CUdriverProcAddressQueryResult`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Function(*mut c_void),
    Nothing,
    Later,
}

/// The functions of this file and of the start, which need no initialised driver.
static ENTRIES: &[Entry] = &[
    Entry::new("cuGetProcAddress", 11_030, cuGetProcAddress as *const ()),
    Entry::new("cuGetProcAddress_v2", 12_000, cuGetProcAddress_v2 as *const ()),
];

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> u32 {
    // SAFETY: the header wants a text and a pointer to a pointer.
    unsafe { look_up(name, out, version, flags, std::ptr::null_mut()) }.err().map_or(0, |code| code.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> u32 {
    // SAFETY: the header wants a text, a pointer to a pointer, and a pointer to a status, or null.
    unsafe { look_up(name, out, version, flags, status) }.err().map_or(0, |code| code.0)
}

/// # Safety
/// `name` is a NUL-terminated text or null; `out` and `status` may be written to or are null.
unsafe fn look_up(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Outcome {
    if name.is_null() || flags & !(LEGACY_STREAM | PER_THREAD_STREAM) != 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::INVALID_VALUE)?;
    let version = u32::try_from(version).map_err(|_| Code::INVALID_VALUE)?;
    let streams = if flags & PER_THREAD_STREAM == 0 { Streams::Legacy } else { Streams::PerThread };
    let found = find(name, version.min(driver::version()), streams);
    let (address, said) = match found {
        Found::Function(address) => (address, 0),
        Found::Nothing => (std::ptr::null_mut(), 1),
        Found::Later => (std::ptr::null_mut(), 2),
    };
    if !status.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(status, said) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { put(out, address) }?;
    if said == 0 { Ok(()) } else { Err(Code::NOT_FOUND) }
}

/// Whose function for streams is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streams {
    Legacy,
    PerThread,
}

/// The newest form of a function that a program of this version knows.
fn find(name: &str, version: u32, streams: Streams) -> Found {
    let mut found = Found::Nothing;
    let mut newest = (0, false);
    for entry in all() {
        let (base, of_thread) = base_of(entry.name);
        if base != name || (of_thread && streams == Streams::Legacy) {
            continue;
        }
        if entry.since > version {
            if found == Found::Nothing {
                found = Found::Later;
            }
        } else if (entry.since, of_thread) >= newest {
            newest = (entry.since, of_thread);
            found = Found::Function(entry.address());
        }
    }
    found
}

/// The name that a program asks by, and whether the function takes the stream of the thread.
fn base_of(name: &str) -> (&str, bool) {
    let stem = PER_THREAD.iter().find_map(|end| name.strip_suffix(end));
    let (rest, of_thread) = stem.map_or((name, false), |stem| (stem, true));
    match rest.rsplit_once("_v") {
        Some((base, number)) if number.len() == 1 && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            (base, of_thread)
        }
        Some(_) | None => (rest, of_thread),
    }
}

fn all() -> impl Iterator<Item = &'static Entry> {
    let files = [
        ENTRIES,
        driver::ENTRIES,
        crate::allocation::ENTRIES,
        crate::arrays::ENTRIES,
        crate::attributes::ENTRIES,
        crate::capture::ENTRIES,
        crate::code::ENTRIES,
        crate::context::ENTRIES,
        crate::copy::ENTRIES,
        crate::devices::ENTRIES,
        crate::elsewhere::ENTRIES,
        crate::fill::ENTRIES,
        crate::graph::ENTRIES,
        crate::graph_memory::ENTRIES,
        crate::host::ENTRIES,
        crate::ipc::ENTRIES,
        crate::launch::ENTRIES,
        crate::limits::ENTRIES,
        crate::modules::ENTRIES,
        crate::old::ENTRIES,
        crate::pool_properties::ENTRIES,
        crate::pools::ENTRIES,
        crate::shaped_copy::ENTRIES,
        crate::stream::ENTRIES,
        crate::values::ENTRIES,
        crate::vmm::ENTRIES,
    ];
    files.into_iter().flatten()
}
