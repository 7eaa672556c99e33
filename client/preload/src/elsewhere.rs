//! Segments in places from which they can't be moved: multicast objects, sparse arrays, and descriptors for other devices.

use std::ffi::{c_int, c_uint, c_void};

use crate::charged;
use crate::code::{Code, NOT_SUPPORTED, SUCCESS, check, code_of};
use crate::driver;
use crate::entries::real;
use crate::gate;
use crate::job;
use crate::report::Once;
use crate::vmm;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`
const DMA_BUF_SUPPORTED: c_uint = 124;

/// `CUarrayMapInfo`, of which only the handle matters here.
#[repr(C)]
pub(crate) struct MapInfo {
    place: [u64; 8],
    handle: u64,
    rest: [u64; 3],
}

/// `cuMulticastBindMem`
pub(crate) unsafe fn bind(
    multicast: u64,
    to: usize,
    handle: u64,
    from: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    if vmm::is_ours(handle) {
        return refused("cuMulticastBindMem");
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMulticastBindMem(multicast, to, handle, from, bytes, flags) }
}

/// `cuMulticastBindMem` with a device.
pub(crate) unsafe fn bind_v2(
    multicast: u64,
    device: c_int,
    to: usize,
    handle: u64,
    from: usize,
    bytes: usize,
    flags: u64,
) -> Code {
    if vmm::is_ours(handle) {
        return refused("cuMulticastBindMem");
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMulticastBindMem_v2(multicast, device, to, handle, from, bytes, flags) }
}

/// `cuMulticastBindAddr`
pub(crate) unsafe fn bind_range(multicast: u64, to: usize, at: u64, bytes: usize, flags: u64) -> Code {
    if is_leased(at) {
        return refused("cuMulticastBindAddr");
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMulticastBindAddr(multicast, to, at, bytes, flags) }
}

/// `cuMulticastBindAddr` with a device.
pub(crate) unsafe fn bind_range_v2(
    multicast: u64,
    device: c_int,
    to: usize,
    at: u64,
    bytes: usize,
    flags: u64,
) -> Code {
    if is_leased(at) {
        return refused("cuMulticastBindAddr");
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMulticastBindAddr_v2(multicast, device, to, at, bytes, flags) }
}

/// `cuMemMapArrayAsync`
pub(crate) unsafe fn map_arrays(list: *const MapInfo, count: c_uint, stream: *mut c_void) -> Code {
    // SAFETY: the caller gives so many of them.
    if unsafe { has_ours(list, count) } {
        return refused("cuMemMapArrayAsync");
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMemMapArrayAsync(list, count, stream) }
}

/// `cuMemMapArrayAsync` with threads' own default streams.
pub(crate) unsafe fn map_arrays_per_thread(list: *const MapInfo, count: c_uint, stream: *mut c_void) -> Code {
    // SAFETY: the caller gives so many of them.
    if unsafe { has_ours(list, count) } {
        return refused("cuMemMapArrayAsync");
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMemMapArrayAsync_ptsz(list, count, stream) }
}

/// `cuMemGetHandleForAddressRange`: whoever has the descriptor has the memory, so that it stays where it is. A card that makes none
/// is only asked whether it does, as transport libraries do.
pub(crate) unsafe fn range_handle(out: *mut c_void, at: u64, bytes: usize, kind: c_uint, flags: u64) -> Code {
    let served = || {
        if let Some(job) = job::current()?.filter(|_| is_leased(at) && has_descriptors()) {
            charged::pin(job, "descriptor of leased memory for other devices")?;
        }
        // SAFETY: the caller's arguments, passed on.
        check(gate::pass(|| unsafe { real::cuMemGetHandleForAddressRange(out, at, bytes, kind, flags) }))
    };
    code_of(served())
}

/// Whether the current device makes descriptors of memory for others; where it does not say, it may.
fn has_descriptors() -> bool {
    let mut has = 1;
    // SAFETY: the pointer is to an int of ours.
    let asked = driver::current_device()
        .map(|device| unsafe { driver::cuDeviceGetAttribute(&mut has, DMA_BUF_SUPPORTED, device) });
    asked != Ok(SUCCESS) || has != 0
}

/// Whether memory of the lease is at this address.
fn is_leased(at: u64) -> bool {
    job::if_joined().is_some_and(|job| job.heap.range_of(at).is_some() || job.vmm.range_of(at).is_some())
}

/// # Safety
/// There are so many, or the list is null.
unsafe fn has_ours(list: *const MapInfo, count: c_uint) -> bool {
    // SAFETY: the caller's promise.
    !list.is_null() && (0..count as usize).any(|nth| vmm::is_ours(unsafe { (*list.add(nth)).handle }))
}

fn refused(call: &str) -> Code {
    static REFUSED: Once = Once::new();
    REFUSED.say(|| {
        format!("leased memory can't be moved away from where {call} would put it; with GPULEASE_EXPORT=1 what could be \
                 exported is the driver's own, which can be put there")
    });
    NOT_SUPPORTED
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the driver's header has it: the handle is the ninth of twelve words.
    #[test]
    fn the_handle_is_where_the_header_has_it() {
        assert_eq!((size_of::<MapInfo>(), std::mem::offset_of!(MapInfo, handle)), (96, 64));
    }
}
