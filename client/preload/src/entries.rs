//! Every function that we stand before: one table, from which the exported symbols, the calls of the real functions
//! and the look-ups are made.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::code::Code;
use crate::real::{CUDA, Library, NVML};
use crate::{budget, job, memory, proc_address};

/// Which default stream a function means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// The one of all threads; or it has nothing to do with streams.
    Shared,
    /// One of each thread's own.
    PerThread,
}

/// One function that we stand before.
pub(crate) struct Entry {
    pub(crate) library: &'static Library,
    /// Its symbol.
    pub(crate) symbol: &'static CStr,
    /// The name by which `cuGetProcAddress` knows it and its other versions.
    base: &'static str,
    /// The CUDA version from which on the base name means it.
    since: c_int,
    streams: Streams,
    pub(crate) ours: *const c_void,
}

// SAFETY: the pointer is to a function.
unsafe impl Sync for Entry {}

/// Ours by symbol. Takes no memory and no lock: it may be called from within `malloc`.
pub(crate) fn by_symbol(symbol: &CStr) -> Option<&'static Entry> {
    let bytes = symbol.to_bytes();
    if !bytes.starts_with(b"cu") && !bytes.starts_with(b"nvml") {
        return None;
    }
    all().find(|entry| entry.symbol == symbol)
}

/// Ours for the real function at this address, if its base name is this.
pub(crate) fn by_pointer(base: &CStr, found: *mut c_void) -> Option<&'static Entry> {
    versions(base).find(|entry| entry.library.function(entry.symbol) == found)
}

/// The newest of ours that a program of this CUDA version can mean by the name.
pub(crate) fn by_version(base: &CStr, version: c_int, streams: Streams) -> Option<&'static Entry> {
    let fits = |entry: &&Entry| entry.since <= version;
    let of = |streams| versions(base).filter(fits).filter(move |entry| entry.streams == streams);
    let newest = of(streams).max_by_key(|entry| entry.since);
    newest.or_else(|| of(Streams::Shared).max_by_key(|entry| entry.since))
}

fn versions(base: &CStr) -> impl Iterator<Item = &'static Entry> {
    all().filter(move |entry| entry.base.as_bytes() == base.to_bytes())
}

fn all() -> impl Iterator<Item = &'static Entry> {
    SERVED.iter()
}

/// A symbol's name for the C side.
macro_rules! c_name {
    ($symbol:ident) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a symbol has no zero in it"),
        }
    };
}
pub(crate) use c_name;

macro_rules! streams {
    () => {
        Streams::Shared
    };
    (per_thread) => {
        Streams::PerThread
    };
}

/// Functions that do something else than the real ones: `library since "base" symbol [per_thread] (arguments) => what`.
macro_rules! served {
    ($($library:ident $since:literal $base:literal $symbol:ident $([$streams:ident])?
        ($($argument:ident: $kind:ty),* $(,)?) => $what:path;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($argument: $kind),*) -> Code {
                // SAFETY: the arguments are what the caller gave, of the types in the driver's header.
                unsafe { $what($($argument),*) }
            }
        )*

        /// The real functions. One that the library does not have answers `CUDA_ERROR_NOT_FOUND`.
        pub(crate) mod real {
            use super::*;
            use crate::code::NOT_FOUND;
            use crate::real::Slot;

            $(
                pub(crate) unsafe fn $symbol($($argument: $kind),*) -> Code {
                    static SLOT: Slot = Slot::new(&$library, c_name!($symbol));
                    let found = SLOT.get();
                    if found.is_null() {
                        return NOT_FOUND;
                    }
                    // SAFETY: the type is that of the header for this name; the arguments are the caller's matter.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(found)($($argument),*)
                    }
                }
            )*
        }

        static SERVED: &[Entry] = &[$(Entry {
            library: &$library,
            symbol: c_name!($symbol),
            base: $base,
            since: $since,
            streams: streams!($($streams)?),
            ours: $symbol as *const c_void,
        }),*];
    };
}

served! {
    CUDA 2000 "cuInit" cuInit(flags: c_uint) => job::init;
    CUDA 11030 "cuGetProcAddress" cuGetProcAddress(
        symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) => proc_address::v1;
    CUDA 12000 "cuGetProcAddress" cuGetProcAddress_v2(
        symbol: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) => proc_address::v2;

    CUDA 3020 "cuDeviceTotalMem" cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) => budget::total;
    CUDA 3020 "cuMemGetInfo" cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => budget::info;
    NVML 0 "" nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut budget::NvmlMemory) => budget::nvml;
    NVML 0 "" nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, memory: *mut budget::NvmlMemoryV2) => budget::nvml_v2;

    CUDA 3020 "cuMemAlloc" cuMemAlloc_v2(out: *mut u64, bytes: usize) => memory::allocate;
    CUDA 3020 "cuMemAllocPitch" cuMemAllocPitch_v2(
        out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::allocate_pitch;
    CUDA 3020 "cuMemFree" cuMemFree_v2(at: u64) => memory::free;
    CUDA 3020 "cuMemGetAddressRange" cuMemGetAddressRange_v2(
        base: *mut u64, bytes: *mut usize, at: u64) => memory::range;
}
