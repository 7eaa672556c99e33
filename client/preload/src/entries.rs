//! Every function that we stand before: one table, from which the exported symbols, the calls of the real functions
//! and the look-ups are made.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::code::Code;
use crate::gated::GATED;
use crate::real::{CUDA, Library, NVML};
use crate::report::Once;
use crate::vmm::Properties;
use crate::{
    ancient, arrays, budget, capture, contexts, elsewhere, job, memory, modules, peers, pools, proc_address,
    vmm,
};

/// Which default stream a function means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streams {
    /// The one of all threads; or it has nothing to do with streams.
    Shared,
    /// One of each thread's own.
    PerThread,
}

/// The newest CUDA version whose functions the table has.
pub(crate) const KNOWN: c_int = 13_020;

/// One function that we stand before.
pub(crate) struct Entry {
    pub(crate) library: &'static Library,
    /// Its symbol.
    pub(crate) symbol: &'static CStr,
    /// The name by which `cuGetProcAddress` knows it and its other versions.
    pub(crate) base: &'static str,
    /// The CUDA version from which on the base name means it.
    pub(crate) since: c_int,
    pub(crate) streams: Streams,
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

/// Whether a symbol is a later form of one of ours, `cuMemAlloc_v9` say, which would go around us. Costs as much as
/// [`by_symbol`].
pub(crate) fn is_later_form(symbol: &CStr) -> bool {
    let Some((base, number)) = form(symbol.to_bytes()) else { return false };
    let known = all().filter(|entry| entry.base.as_bytes() == base);
    // One that has no number is the first.
    let known = known.map(|entry| form(entry.symbol.to_bytes()).map_or(1, |(_, number)| number)).max();
    known.is_some_and(|known| number > known)
}

/// The base name of a symbol and the number of its form.
fn form(symbol: &[u8]) -> Option<(&[u8], u32)> {
    let whole =
        [&b"_ptsz"[..], b"_ptds"].into_iter().find_map(|end| symbol.strip_suffix(end)).unwrap_or(symbol);
    let digits = whole.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (name, number) = whole.split_at(whole.len() - digits);
    Some((name.strip_suffix(b"_v")?, std::str::from_utf8(number).ok()?.parse().ok()?))
}

/// Says once that a function is not given out.
pub(crate) fn say_unknown(name: &CStr) {
    static SAID: Once = Once::new();
    SAID.say(|| {
        format!(
            "the driver has a later {} than this version of gpulease knows, and a program in a lease does not get it; a newer \
             gpulease may know it",
            name.to_string_lossy()
        )
    });
}

/// Ours for the real function at this address. Functions that share one are told apart by the name that was asked for.
pub(crate) fn by_pointer(base: &CStr, found: *mut c_void) -> Option<&'static Entry> {
    static BY_POINTER: OnceLock<Vec<(usize, &'static Entry)>> = OnceLock::new();
    let real = BY_POINTER.get_or_init(|| {
        let of_driver = all().filter(|entry| std::ptr::eq(entry.library, &CUDA));
        of_driver.map(|entry| (entry.library.function(entry.symbol) as usize, entry)).collect()
    });
    let mut there = real.iter().filter(|(pointer, _)| *pointer == found as usize).map(|(_, entry)| *entry);
    let first = there.clone().next();
    there.find(|entry| entry.base.as_bytes() == base.to_bytes()).or(first)
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
    SERVED.iter().chain(GATED).chain(&CREATE)
}

/// It wants to know who calls, which the table's functions don't.
static CREATE: [Entry; 1] = [Entry {
    library: &CUDA,
    symbol: c"cuMemCreate",
    base: "cuMemCreate",
    since: 10_020,
    streams: Streams::Shared,
    ours: vmm::creation::cuMemCreate as *const c_void,
}];

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

/// The kind of default stream of an entry.
macro_rules! streams {
    () => {
        Streams::Shared
    };
    (per_thread) => {
        Streams::PerThread
    };
}
pub(crate) use streams;

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

    CUDA 11020 "cuMemAllocAsync" cuMemAllocAsync(out: *mut u64, bytes: usize, stream: *mut c_void) => pools::allocate;
    CUDA 11020 "cuMemAllocAsync" cuMemAllocAsync_ptsz [per_thread] (
        out: *mut u64, bytes: usize, stream: *mut c_void) => pools::allocate_per_thread;
    CUDA 11020 "cuMemAllocFromPoolAsync" cuMemAllocFromPoolAsync(
        out: *mut u64, bytes: usize, pool: *mut c_void, stream: *mut c_void) => pools::allocate_from;
    CUDA 11020 "cuMemAllocFromPoolAsync" cuMemAllocFromPoolAsync_ptsz [per_thread] (
        out: *mut u64, bytes: usize, pool: *mut c_void, stream: *mut c_void) => pools::allocate_from_per_thread;
    CUDA 11020 "cuMemFreeAsync" cuMemFreeAsync(at: u64, stream: *mut c_void) => pools::free;
    CUDA 11020 "cuMemFreeAsync" cuMemFreeAsync_ptsz [per_thread] (at: u64, stream: *mut c_void) => pools::free_per_thread;
    CUDA 11020 "cuMemPoolCreate" cuMemPoolCreate(
        pool: *mut *mut c_void, properties: *const pools::Properties) => pools::create;
    CUDA 11020 "cuMemPoolDestroy" cuMemPoolDestroy(pool: *mut c_void) => pools::destroy;
    CUDA 11020 "cuMemPoolTrimTo" cuMemPoolTrimTo(pool: *mut c_void, keep: usize) => pools::trim;
    CUDA 13000 "cuMemGetDefaultMemPool" cuMemGetDefaultMemPool(
        pool: *mut *mut c_void, location: *const pools::Location, kind: c_uint) => pools::default_of;
    CUDA 13000 "cuMemGetMemPool" cuMemGetMemPool(
        pool: *mut *mut c_void, location: *const pools::Location, kind: c_uint) => pools::current_of;
    CUDA 11020 "cuMemPoolSetAccess" cuMemPoolSetAccess(
        pool: *mut c_void, rights: *const peers::Right, count: usize) => peers::of_pool;
    CUDA 11020 "cuMemPoolGetAttribute" cuMemPoolGetAttribute(
        pool: *mut c_void, attribute: c_uint, value: *mut c_void) => pools::attribute;
    CUDA 11020 "cuMemPoolSetAttribute" cuMemPoolSetAttribute(
        pool: *mut c_void, attribute: c_uint, value: *mut c_void) => pools::set_attribute;

    CUDA 10020 "cuMemRelease" cuMemRelease(handle: u64) => vmm::release;
    CUDA 10020 "cuMemMap" cuMemMap(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) => vmm::map;
    CUDA 10020 "cuMemUnmap" cuMemUnmap(at: u64, bytes: usize) => vmm::unmap;
    CUDA 10020 "cuMemSetAccess" cuMemSetAccess(
        at: u64, bytes: usize, rights: *const peers::Right, count: usize) => vmm::set_access;
    CUDA 11000 "cuMemRetainAllocationHandle" cuMemRetainAllocationHandle(out: *mut u64, at: *mut c_void) => vmm::retain;
    CUDA 10020 "cuMemGetAllocationPropertiesFromHandle" cuMemGetAllocationPropertiesFromHandle(
        out: *mut Properties, handle: u64) => vmm::properties;
    CUDA 10020 "cuMemExportToShareableHandle" cuMemExportToShareableHandle(
        out: *mut c_void, handle: u64, kind: c_uint, flags: u64) => vmm::export;
    CUDA 11070 "cuMemGetHandleForAddressRange" cuMemGetHandleForAddressRange(
        out: *mut c_void, at: u64, bytes: usize, kind: c_uint, flags: u64) => elsewhere::range_handle;
    CUDA 11010 "cuMemMapArrayAsync" cuMemMapArrayAsync(
        list: *const elsewhere::MapInfo, count: c_uint, stream: *mut c_void) => elsewhere::map_arrays;
    CUDA 11010 "cuMemMapArrayAsync" cuMemMapArrayAsync_ptsz [per_thread] (
        list: *const elsewhere::MapInfo, count: c_uint, stream: *mut c_void) => elsewhere::map_arrays_per_thread;
    CUDA 12010 "cuMulticastBindMem" cuMulticastBindMem(
        multicast: u64, to: usize, handle: u64, from: usize, bytes: usize, flags: u64) => elsewhere::bind;
    CUDA 13010 "cuMulticastBindMem" cuMulticastBindMem_v2(
        multicast: u64, device: c_int, to: usize, handle: u64, from: usize, bytes: usize,
        flags: u64) => elsewhere::bind_v2;
    CUDA 12010 "cuMulticastBindAddr" cuMulticastBindAddr(
        multicast: u64, to: usize, at: u64, bytes: usize, flags: u64) => elsewhere::bind_range;
    CUDA 13010 "cuMulticastBindAddr" cuMulticastBindAddr_v2(
        multicast: u64, device: c_int, to: usize, at: u64, bytes: usize, flags: u64) => elsewhere::bind_range_v2;

    CUDA 6000 "cuMemAllocManaged" cuMemAllocManaged(out: *mut u64, bytes: usize, flags: c_uint) => arrays::managed;
    CUDA 3020 "cuArrayCreate" cuArrayCreate_v2(out: *mut *mut c_void, shape: *const arrays::Flat) => arrays::create;
    CUDA 3020 "cuArray3DCreate" cuArray3DCreate_v2(
        out: *mut *mut c_void, shape: *const arrays::Solid) => arrays::create_solid;
    CUDA 2000 "cuArrayDestroy" cuArrayDestroy(array: *mut c_void) => arrays::destroy;
    CUDA 5000 "cuMipmappedArrayCreate" cuMipmappedArrayCreate(
        out: *mut *mut c_void, shape: *const arrays::Solid, levels: c_uint) => arrays::create_mipmap;
    CUDA 5000 "cuMipmappedArrayDestroy" cuMipmappedArrayDestroy(array: *mut c_void) => arrays::destroy_mipmap;
    CUDA 3010 "cuCtxSetLimit" cuCtxSetLimit(which: c_uint, value: usize) => arrays::limit;
    CUDA 11040 "cuGraphAddMemAllocNode" cuGraphAddMemAllocNode(
        node: *mut *mut c_void, graph: *mut c_void, after: *const c_void, count: usize,
        memory: *mut arrays::MemoryNode) => arrays::memory_node;
    CUDA 12020 "cuGraphAddNode" cuGraphAddNode(
        node: *mut *mut c_void, graph: *mut c_void, after: *const c_void, count: usize,
        any: *mut arrays::AnyNode) => arrays::node;
    CUDA 12030 "cuGraphAddNode" cuGraphAddNode_v2(
        node: *mut *mut c_void, graph: *mut c_void, after: *const c_void, edges: *const c_void, count: usize,
        any: *mut arrays::AnyNode) => arrays::node_v2;
    CUDA 4010 "cuIpcGetMemHandle" cuIpcGetMemHandle(handle: *mut c_void, at: u64) => arrays::ipc_handle;
    CUDA 4000 "cuPointerGetAttribute" cuPointerGetAttribute(
        value: *mut c_void, attribute: c_uint, at: u64) => memory::attribute;
    CUDA 7000 "cuPointerGetAttributes" cuPointerGetAttributes(
        count: c_uint, attributes: *const c_uint, values: *const *mut c_void, at: u64) => memory::attributes;

    CUDA 2000 "cuModuleLoad" cuModuleLoad(module: *mut *mut c_void, name: *const c_char) => modules::load;
    CUDA 2000 "cuModuleLoadData" cuModuleLoadData(
        module: *mut *mut c_void, image: *const c_void) => modules::load_data;
    CUDA 2010 "cuModuleLoadDataEx" cuModuleLoadDataEx(
        module: *mut *mut c_void, image: *const c_void, count: c_uint, options: *mut c_void,
        values: *mut c_void) => modules::load_data_ex;
    CUDA 2000 "cuModuleLoadFatBinary" cuModuleLoadFatBinary(
        module: *mut *mut c_void, image: *const c_void) => modules::load_fat;
    CUDA 2000 "cuModuleUnload" cuModuleUnload(module: *mut c_void) => modules::unload;
    CUDA 12000 "cuLibraryLoadData" cuLibraryLoadData(
        library: *mut *mut c_void, image: *const c_void, jit: *mut c_void, jit_values: *mut c_void, jits: c_uint,
        options: *mut c_void, values: *mut c_void, count: c_uint) => modules::library_data;
    CUDA 12000 "cuLibraryLoadFromFile" cuLibraryLoadFromFile(
        library: *mut *mut c_void, name: *const c_char, jit: *mut c_void, jit_values: *mut c_void, jits: c_uint,
        options: *mut c_void, values: *mut c_void, count: c_uint) => modules::library_file;
    CUDA 12000 "cuLibraryUnload" cuLibraryUnload(library: *mut c_void) => modules::library_unload;

    CUDA 2000 "cuMemAlloc" cuMemAlloc(out: usize, bytes: usize) => ancient::cuMemAlloc;
    CUDA 2000 "cuMemAllocPitch" cuMemAllocPitch(
        out: usize, pitch: usize, width: usize, height: usize, element: usize) => ancient::cuMemAllocPitch;
    CUDA 2000 "cuArrayCreate" cuArrayCreate(out: usize, shape: usize) => ancient::cuArrayCreate;
    CUDA 2000 "cuArray3DCreate" cuArray3DCreate(out: usize, shape: usize) => ancient::cuArray3DCreate;

    CUDA 3020 "cuCtxCreate" cuCtxCreate_v2(
        out: *mut *mut c_void, flags: c_uint, device: c_int) => contexts::create;
    CUDA 11040 "cuCtxCreate" cuCtxCreate_v3(
        out: *mut *mut c_void, affinity: *const c_void, count: c_int, flags: c_uint,
        device: c_int) => contexts::create_v3;
    CUDA 12050 "cuCtxCreate" cuCtxCreate_v4(
        out: *mut *mut c_void, parameters: *const c_void, flags: c_uint, device: c_int) => contexts::create_v4;
    CUDA 4000 "cuCtxEnablePeerAccess" cuCtxEnablePeerAccess(
        peer: *mut c_void, flags: c_uint) => peers::enable;
    CUDA 2000 "cuCtxSynchronize" cuCtxSynchronize() => contexts::wait;
    CUDA 13000 "cuCtxSynchronize" cuCtxSynchronize_v2(context: *mut c_void) => contexts::wait_for;
    CUDA 2000 "cuStreamSynchronize" cuStreamSynchronize(stream: *mut c_void) => capture::wait;
    CUDA 7000 "cuStreamSynchronize" cuStreamSynchronize_ptsz [per_thread] (
        stream: *mut c_void) => capture::wait_per_thread;
    CUDA 4000 "cuCtxDestroy" cuCtxDestroy_v2(context: *mut c_void) => contexts::destroy;
    CUDA 7000 "cuDevicePrimaryCtxRetain" cuDevicePrimaryCtxRetain(
        out: *mut *mut c_void, device: c_int) => contexts::retain;
    CUDA 7000 "cuDevicePrimaryCtxRelease" cuDevicePrimaryCtxRelease(device: c_int) => contexts::release_v1;
    CUDA 11000 "cuDevicePrimaryCtxRelease" cuDevicePrimaryCtxRelease_v2(device: c_int) => contexts::release;
    CUDA 7000 "cuDevicePrimaryCtxReset" cuDevicePrimaryCtxReset(device: c_int) => contexts::reset_v1;
    CUDA 11000 "cuDevicePrimaryCtxReset" cuDevicePrimaryCtxReset_v2(device: c_int) => contexts::reset;

    CUDA 10000 "cuStreamBeginCapture" cuStreamBeginCapture(stream: *mut c_void) => capture::begin_v1;
    CUDA 10000 "cuStreamBeginCapture" cuStreamBeginCapture_ptsz [per_thread] (
        stream: *mut c_void) => capture::begin_v1_per_thread;
    CUDA 10010 "cuStreamBeginCapture" cuStreamBeginCapture_v2(stream: *mut c_void, mode: c_uint) => capture::begin;
    CUDA 10010 "cuStreamBeginCapture" cuStreamBeginCapture_v2_ptsz [per_thread] (
        stream: *mut c_void, mode: c_uint) => capture::begin_per_thread;
    CUDA 12030 "cuStreamBeginCaptureToGraph" cuStreamBeginCaptureToGraph(
        stream: *mut c_void, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize,
        mode: c_uint) => capture::begin_to_graph;
    CUDA 12030 "cuStreamBeginCaptureToGraph" cuStreamBeginCaptureToGraph_ptsz [per_thread] (
        stream: *mut c_void, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize,
        mode: c_uint) => capture::begin_to_graph_per_thread;
    CUDA 10000 "cuStreamEndCapture" cuStreamEndCapture(
        stream: *mut c_void, graph: *mut *mut c_void) => capture::end;
    CUDA 10000 "cuStreamEndCapture" cuStreamEndCapture_ptsz [per_thread] (
        stream: *mut c_void, graph: *mut *mut c_void) => capture::end_per_thread;
    CUDA 4000 "cuStreamDestroy" cuStreamDestroy_v2(stream: *mut c_void) => capture::destroy;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_up_to_the_last_cuda_that_is_known_are_given_out() {
        for known in [c"cuMemAlloc_v2", c"cuCtxSynchronize", c"cuCtxSynchronize_v2", c"cuCtxCreate_v4"] {
            assert!(by_symbol(known).is_some(), "{known:?}");
            assert!(!is_later_form(known), "{known:?}");
        }
        for later in
            [c"cuMemAlloc_v3", c"cuCtxSynchronize_v3", c"cuGraphAddNode_v3", c"cuMemcpyAsync_v9_ptsz"]
        {
            assert!(is_later_form(later), "{later:?}");
        }
        assert!(!is_later_form(c"cuOfNobody_v2"));
    }
}
