//! What a driver does that has no memory as its only outcome: names, captures, pools, contexts, copies of shapes.
//!
//! Each tells what it saw in words, so that the stand-in and a card can be held against each other.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::transmute;
use std::ptr::null_mut;

use crate::doors::{Driver, Failed, call};
use crate::linear::free;
use crate::virtual_memory::{self, HERE, Location};

const NON_BLOCKING: c_uint = 1;
const MIB: usize = 1 << 20;

/// Does one and tells.
pub(crate) fn trial(driver: &Driver, name: &str) -> Result<String, Failed> {
    match name {
        "names" => Ok(names(driver)),
        "broken-capture" => broken_capture(driver),
        "relaxed-capture" => relaxed_capture(driver),
        "large-in-capture" => large_in_capture(driver),
        "free-in-capture" => free_in_capture(driver),
        "destroy-in-capture" => destroy_in_capture(driver),
        "reset-in-capture" => reset_in_capture(driver),
        "pool" => pool(driver),
        "contexts" => contexts(driver),
        "shapes" => shapes(driver),
        "peers" => peers(driver),
        "other-device" => other_device(driver),
        "free-there" => free_there(driver),
        "elsewhere" => virtual_memory::elsewhere(driver),
        "default-pool-13" => default_pool_13(driver),
        "tomorrow" => Ok(tomorrow(driver)),
        _ => panic!("there is no trial {name}"),
    }
}

fn code(result: Result<(), Failed>) -> u32 {
    result.err().map_or(0, |failed| failed.code)
}

/// What the first device may do with memory of the second, taken in three ways, before and after it was let in: 3 is all.
/// The memory stays, and with the second device current.
fn peers(driver: &Driver) -> Result<String, Failed> {
    let contexts = both(driver)?;
    let enter = |nth: usize| enter(driver, contexts[nth]);
    enter(1)?;
    let (mut part, mut whole, mut later) = (0, 0, 0);
    let alloc =
        |at: &mut u64, bytes| call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut *at, bytes));
    alloc(&mut part, 1000)?;
    alloc(&mut whole, 32 * MIB)?;
    let before = [access(driver, part)?, access(driver, whole)?];
    enter(0)?;
    let enabled = code(call!(driver, "cuCtxEnablePeerAccess" "" (*mut c_void, c_uint)(contexts[1], 0)));
    enter(1)?;
    alloc(&mut later, 32 * MIB)?;
    let after = [access(driver, part)?, access(driver, whole)?, access(driver, later)?];
    Ok(format!("before {before:?}, enabled {enabled}, after {after:?}, at {whole}"))
}

/// What the first device may do at an address.
pub(crate) fn access(driver: &Driver, at: u64) -> Result<u64, Failed> {
    let (mut flags, first) = (0, HERE);
    call!(driver, "cuMemGetAccess" "" (*mut u64, *const Location, u64)(&raw mut flags, &raw const first, at))?;
    Ok(flags)
}

/// Memory of the second device's own pool, and a small piece of its plain memory, while the first one is current: the devices that
/// they are on.
fn other_device(driver: &Driver) -> Result<String, Failed> {
    const ORDINAL: c_uint = 9;
    let (mut pool, mut pooled, mut plain) = (null_mut(), 0_u64, 0_u64);
    let [first, second] = both(driver)?;
    enter(driver, second)?;
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut plain, 1000))?;
    enter(driver, first)?;
    call!(driver, "cuDeviceGetDefaultMemPool" "" (*mut *mut c_void, c_int)(&raw mut pool, 1))?;
    call!(driver, "cuMemAllocFromPoolAsync" "" (*mut u64, usize, *mut c_void, *mut c_void)
        (&raw mut pooled, MIB, pool, null_mut()))?;
    let device_of = |at: u64| -> Result<c_int, Failed> {
        let mut ordinal = -1;
        call!(driver, "cuPointerGetAttribute" "" (*mut c_void, c_uint, u64)((&raw mut ordinal).cast(), ORDINAL, at))?;
        Ok(ordinal)
    };
    Ok(format!("pool on {}, plain on {}, at {plain}", device_of(pooled)?, device_of(plain)?))
}

/// What a free of the second device's memory answers while the first one is current.
fn free_there(driver: &Driver) -> Result<String, Failed> {
    let mut plain = 0_u64;
    let [first, second] = both(driver)?;
    enter(driver, second)?;
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut plain, 1000))?;
    enter(driver, first)?;
    Ok(format!("freed {}", code(free(driver, plain))))
}

/// 64 MiB of the first device's pool, by the name that CUDA 13 gives it; they stay.
fn default_pool_13(driver: &Driver) -> Result<String, Failed> {
    const PINNED: c_uint = 1;
    let (mut pool, mut at, here) = (null_mut(), 0_u64, HERE);
    call!(driver, "cuMemGetDefaultMemPool" "" (*mut *mut c_void, *const Location, c_uint)(&raw mut pool, &raw const here, PINNED))?;
    call!(driver, "cuMemAllocFromPoolAsync" "" (*mut u64, usize, *mut c_void, *mut c_void)
        (&raw mut at, 64 * MIB, pool, null_mut()))?;
    Ok("taken".to_owned())
}

/// The primary contexts of two devices.
fn both(driver: &Driver) -> Result<[*mut c_void; 2], Failed> {
    let mut contexts = [null_mut(); 2];
    for (device, context) in (0..).zip(&mut contexts) {
        call!(driver, "cuDevicePrimaryCtxRetain" "" (*mut *mut c_void, c_int)(&raw mut *context, device))?;
    }
    Ok(contexts)
}

fn enter(driver: &Driver, context: *mut c_void) -> Result<(), Failed> {
    call!(driver, "cuCtxSetCurrent" "" (*mut c_void)(context))
}

/// Which functions a program gets that was built for a CUDA of tomorrow, by both ways to ask.
fn tomorrow(driver: &Driver) -> String {
    let known = form(driver, c"cuMemAlloc", 12_080, 0, c"cuMemAlloc_v2");
    let later = form(driver, c"cuMemAlloc", 99_010, 0, c"cuMemAlloc_v2");
    let symbol = look_up(driver.library(), c"cuMemAlloc_v9");
    let absent = look_up(libc::RTLD_DEFAULT, c"nvmlDeviceGetMemoryInfo");
    format!("{known}, {later}, {symbol}, {absent}")
}

/// Whether there is such a symbol; where not, the loader has to say which it was.
fn look_up(handle: *mut c_void, name: &CStr) -> String {
    // SAFETY: the handle is one that the loader knows, and the name is a text.
    if !unsafe { libc::dlsym(handle, name.as_ptr()) }.is_null() {
        return "a symbol".to_owned();
    }
    // SAFETY: the loader's answer is a text or null, and stays until this thread asks it for something else.
    let why = unsafe { libc::dlerror().as_ref().map(|why| CStr::from_ptr(why)) };
    match why.map(CStr::to_string_lossy) {
        Some(why) if why.contains(&*name.to_string_lossy()) => "no symbol".to_owned(),
        why => format!("no symbol, and the loader says {why:?}"),
    }
}

/// Whether the function that a name means, by version and kind of stream, is the one with this symbol.
fn form(driver: &Driver, name: &CStr, version: c_int, flags: u64, symbol: &CStr) -> String {
    type LookUp = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> c_uint;
    // SAFETY: this is the type of the driver's header for this name.
    let look_up: LookUp = unsafe { transmute(driver.symbol(c"cuGetProcAddress_v2")) };
    let (mut found, mut status) = (null_mut(), 9);
    // SAFETY: what it writes to is ours.
    unsafe { look_up(name.as_ptr(), &raw mut found, version, flags, &raw mut status) };
    match status {
        0 if found == driver.symbol(symbol) => "same".to_owned(),
        _ => format!("{} {status}", if found.is_null() { "none" } else { "another" }),
    }
}

/// Which function a name means, by version and kind of stream.
fn names(driver: &Driver) -> String {
    let is = |name, version, flags, symbol| form(driver, name, version, flags, symbol);
    let seen = [
        is(c"cuMemAlloc", 12_000, 0, c"cuMemAlloc_v2"),
        is(c"cuMemcpyHtoD", 12_000, 0, c"cuMemcpyHtoD_v2"),
        is(c"cuMemcpyHtoD", 12_000, 1, c"cuMemcpyHtoD_v2"),
        is(c"cuMemcpyHtoD", 12_000, 2, c"cuMemcpyHtoD_v2_ptds"),
        is(c"cuLaunchKernel", 12_000, 2, c"cuLaunchKernel_ptsz"),
        is(c"cuGraphAddNode", 12_020, 0, c"cuGraphAddNode"),
        is(c"cuGraphAddNode", 12_030, 0, c"cuGraphAddNode_v2"),
        is(c"cuGetProcAddress", 12_000, 0, c"cuGetProcAddress_v2"),
        is(c"cuGetProcAddress", 11_030, 0, c"cuGetProcAddress"),
        is(c"cuMemAllocAsync", 11_010, 0, c"cuMemAllocAsync"),
        is(c"cuNoSuchThing", 12_000, 0, c"cuMemAlloc_v2"),
    ];
    seen.join(", ")
}

fn stream(driver: &Driver) -> Result<*mut c_void, Failed> {
    let mut stream = null_mut();
    call!(driver, "cuStreamCreate" "" (*mut *mut c_void, c_uint)(&raw mut stream, NON_BLOCKING))?;
    Ok(stream)
}

fn begin(driver: &Driver, stream: *mut c_void, mode: c_uint) -> Result<(), Failed> {
    call!(driver, "cuStreamBeginCapture" "_v2" (*mut c_void, c_uint)(stream, mode))
}

fn status(driver: &Driver, stream: *mut c_void) -> Result<c_uint, Failed> {
    let mut status = 9;
    call!(driver, "cuStreamIsCapturing" "" (*mut c_void, *mut c_uint)(stream, &raw mut status))?;
    Ok(status)
}

/// An allocation while all calls are captured that can't be: it is refused, and the capture is broken.
fn broken_capture(driver: &Driver) -> Result<String, Failed> {
    let (stream, mut at, mut graph) = (stream(driver)?, 0, null_mut());
    begin(driver, stream, 0)?;
    let before = status(driver, stream)?;
    let alloc = code(call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, MIB)));
    let after = status(driver, stream)?;
    let end =
        code(call!(driver, "cuStreamEndCapture" "" (*mut c_void, *mut *mut c_void)(stream, &raw mut graph)));
    let ended = status(driver, stream)?;
    call!(driver, "cuStreamDestroy" "_v2" (*mut c_void)(stream))?;
    let again = code(call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, MIB)));
    free(driver, at)?;
    Ok(format!("status {before}, alloc {alloc}, status {after}, end {end}, status {ended}, alloc {again}"))
}

/// Where calls that can't be captured are let pass, they pass; what goes to the stream becomes a graph.
fn relaxed_capture(driver: &Driver) -> Result<String, Failed> {
    let (stream, mut at, mut graph, mut ready) = (stream(driver)?, 0, null_mut(), null_mut());
    let mut byte = 0_u8;
    begin(driver, stream, 2)?;
    let alloc = code(call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, MIB)));
    call!(driver, "cuMemsetD8Async" "" (u64, u8, usize, *mut c_void)(at, 7, MIB, stream))?;
    call!(driver, "cuStreamEndCapture" "" (*mut c_void, *mut *mut c_void)(stream, &raw mut graph))?;
    let mut nodes = 0;
    call!(driver, "cuGraphGetNodes" "" (*mut c_void, *mut *mut c_void, *mut usize)(graph, null_mut(), &raw mut nodes))?;
    call!(driver, "cuMemsetD8" "_v2" (u64, u8, usize)(at, 1, MIB))?;
    call!(driver, "cuGraphInstantiateWithFlags" "" (*mut *mut c_void, *mut c_void, c_ulonglong)(&raw mut ready, graph, 0))?;
    call!(driver, "cuMemcpyDtoH" "_v2" (*mut c_void, u64, usize)((&raw mut byte).cast(), at + 100, 1))?;
    let before = byte;
    call!(driver, "cuGraphLaunch" "" (*mut c_void, *mut c_void)(ready, stream))?;
    call!(driver, "cuStreamSynchronize" "" (*mut c_void)(stream))?;
    call!(driver, "cuMemcpyDtoH" "_v2" (*mut c_void, u64, usize)((&raw mut byte).cast(), at + 100, 1))?;
    call!(driver, "cuGraphExecDestroy" "" (*mut c_void)(ready))?;
    call!(driver, "cuGraphDestroy" "" (*mut c_void)(graph))?;
    call!(driver, "cuStreamDestroy" "_v2" (*mut c_void)(stream))?;
    free(driver, at)?;
    Ok(format!("alloc {alloc}, nodes {nodes}, {before} before and {byte} after"))
}

/// What `cuMemAlloc` of more than there is answers while a stream records.
fn large_in_capture(driver: &Driver) -> Result<String, Failed> {
    let (mut at, mut graph, stream) = (0_u64, null_mut(), stream(driver)?);
    begin(driver, stream, 2)?;
    let allocated = call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, 768 * MIB));
    call!(driver, "cuStreamEndCapture" "" (*mut c_void, *mut *mut c_void)(stream, &raw mut graph))?;
    call!(driver, "cuStreamDestroy" "_v2" (*mut c_void)(stream))?;
    Ok(format!("alloc={}", code(allocated)))
}

/// 256 MiB that are freed while a stream records, which then ends well.
fn free_in_capture(driver: &Driver) -> Result<String, Failed> {
    let (mut at, mut graph, stream) = (0_u64, null_mut(), stream(driver)?);
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, 256 * MIB))?;
    begin(driver, stream, 2)?;
    free(driver, at)?;
    call!(driver, "cuStreamEndCapture" "" (*mut c_void, *mut *mut c_void)(stream, &raw mut graph))?;
    call!(driver, "cuGraphDestroy" "" (*mut c_void)(graph))?;
    call!(driver, "cuStreamDestroy" "_v2" (*mut c_void)(stream))?;
    Ok("freed".to_owned())
}

/// The context of a stream that records is destroyed.
fn destroy_in_capture(driver: &Driver) -> Result<String, Failed> {
    let mut primary = null_mut();
    call!(driver, "cuCtxGetCurrent" "" (*mut *mut c_void)(&raw mut primary))?;
    let made = make_context(driver)?;
    begin(driver, stream(driver)?, 2)?;
    call!(driver, "cuCtxDestroy" "_v2" (*mut c_void)(made))?;
    call!(driver, "cuCtxSetCurrent" "" (*mut c_void)(primary))?;
    Ok("destroyed".to_owned())
}

/// The same with the primary one, which is reset and then made anew.
fn reset_in_capture(driver: &Driver) -> Result<String, Failed> {
    begin(driver, stream(driver)?, 2)?;
    driver.reset()?;
    driver.context()?;
    Ok("reset".to_owned())
}

/// A context beside the primary one, made current.
fn make_context(driver: &Driver) -> Result<*mut c_void, Failed> {
    let mut made = null_mut();
    // The form with three arguments went with CUDA 13, so it is taken by its symbol.
    // SAFETY: this is the type of the driver's header for this name.
    let create: unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_uint =
        unsafe { transmute(driver.symbol(c"cuCtxCreate_v2")) };
    // SAFETY: what it writes to is ours.
    match unsafe { create(&raw mut made, 0, 0) } {
        0 => Ok(made),
        code => Err(Failed { call: "cuCtxCreate", code }),
    }
}

/// What a pool keeps, in MiB.
fn pool(driver: &Driver) -> Result<String, Failed> {
    const THRESHOLD: c_uint = 4;
    let (mut pool, mut threshold) = (null_mut(), u64::MAX);
    call!(driver, "cuDeviceGetDefaultMemPool" "" (*mut *mut c_void, c_int)(&raw mut pool, 0))?;
    let figure = |attribute: c_uint| -> Result<u64, Failed> {
        let mut value = 0_u64;
        call!(driver, "cuMemPoolGetAttribute" "" (*mut c_void, c_uint, *mut u64)(pool, attribute, &raw mut value))?;
        Ok(value >> 20)
    };
    let set = |value: *mut u64| call!(driver, "cuMemPoolSetAttribute" "" (*mut c_void, c_uint, *mut u64)(pool, THRESHOLD, value));
    let round = || -> Result<String, Failed> {
        let mut at = 0;
        call!(driver, "cuMemAllocAsync" "" (*mut u64, usize, *mut c_void)(&raw mut at, 64 * MIB, null_mut()))?;
        let (reserved, used) = (figure(5)?, figure(7)?);
        call!(driver, "cuMemFreeAsync" "" (u64, *mut c_void)(at, null_mut()))?;
        driver.synchronize()?;
        Ok(format!("{used} of {reserved}, then {} of {}", figure(7)?, figure(5)?))
    };
    let first = round()?;
    set(&raw mut threshold)?;
    let second = round()?;
    call!(driver, "cuMemPoolTrimTo" "" (*mut c_void, usize)(pool, 0))?;
    threshold = 0;
    set(&raw mut threshold)?;
    Ok(format!("{first}; {second}; trimmed to {}", figure(5)?))
}

/// What was allocated in a context ends with it.
fn contexts(driver: &Driver) -> Result<String, Failed> {
    let (mut primary, mut at) = (null_mut(), 0);
    call!(driver, "cuCtxGetCurrent" "" (*mut *mut c_void)(&raw mut primary))?;
    let made = make_context(driver)?;
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut at, MIB))?;
    let mut kind = 0_u32;
    let known = |kind: &mut u32| {
        code(
            call!(driver, "cuPointerGetAttribute" "" (*mut c_void, c_uint, u64)((&raw mut *kind).cast(), 2, at)),
        )
    };
    let before = known(&mut kind);
    let destroyed = code(call!(driver, "cuCtxDestroy" "_v2" (*mut c_void)(made)));
    call!(driver, "cuCtxSetCurrent" "" (*mut c_void)(primary))?;
    let after = known(&mut kind);
    Ok(format!("pointer {before}, destroyed {destroyed}, pointer {after}"))
}

/// Rows copied into pitched memory and back, and filled there.
fn shapes(driver: &Driver) -> Result<String, Failed> {
    /// `CUDA_MEMCPY2D`.
    #[repr(C)]
    #[derive(Default)]
    struct Copy2D {
        from: [usize; 7],
        to: [usize; 7],
        width: usize,
        height: usize,
    }
    let (mut at, mut pitch) = (0, 0);
    call!(driver, "cuMemAllocPitch" "_v2" (*mut u64, *mut usize, usize, usize, c_uint)(&raw mut at, &raw mut pitch, 100, 8, 4))?;
    let (there, back) = ((0..800).map(|n| n as u8).collect::<Vec<u8>>(), vec![0_u8; 800]);
    // x, y, kind, host, device, array, pitch; 1 is the host and 2 the device.
    let host = |bytes: &[u8]| [0, 0, 1, bytes.as_ptr().expose_provenance(), 0, 0, 100];
    let device = [0, 0, 2, 0, usize::try_from(at).expect("an address"), 0, pitch];
    let copy = |from, to| {
        let copy = Copy2D { from, to, width: 100, height: 8 };
        call!(driver, "cuMemcpy2D" "_v2" (*const Copy2D)(&raw const copy))
    };
    copy(host(&there), device)?;
    call!(driver, "cuMemsetD2D32" "_v2" (u64, usize, c_uint, usize, usize)(at + 8, pitch, 0x0403_0201, 2, 3))?;
    driver.synchronize()?;
    copy(device, host(&back))?;
    free(driver, at)?;
    let filled = [1, 2, 3, 4, 1, 2, 3, 4];
    let expected = |row: usize, column: usize| match (row, column) {
        (0..3, 8..16) => filled[column - 8],
        _ => there[row * 100 + column],
    };
    let wrong = (0..800).filter(|&n| back[n] != expected(n / 100, n % 100)).count();
    Ok(format!("{wrong} of 800 bytes are wrong"))
}
