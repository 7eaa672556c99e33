//! Copies of bytes in a row, done when the call returns.

use std::ffi::c_void;

use crate::addresses::{Access, pointer};
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph::Kind;

/// Where a copy begins or ends: the host's memory, which is not checked, or the device's.
#[derive(Clone, Copy)]
enum Place {
    Host(u64),
    Device(u64),
    /// Whichever of them the address is of.
    Either(u64),
}

const LEGACY: *mut c_void = std::ptr::null_mut();

entry_points! {
    3020 & cuMemcpyHtoD_v2_ptds fn cuMemcpyHtoD_v2(driver, to: u64, from: *const c_void, size: usize) {
        copy(driver, LEGACY, Place::Device(to), Place::Host(from.expose_provenance() as u64), size)
    }

    3020 & cuMemcpyHtoDAsync_v2_ptsz fn cuMemcpyHtoDAsync_v2(driver, to: u64, from: *const c_void, size: usize, stream: *mut c_void) {
        copy(driver, stream, Place::Device(to), Place::Host(from.expose_provenance() as u64), size)
    }

    3020 & cuMemcpyDtoH_v2_ptds fn cuMemcpyDtoH_v2(driver, to: *mut c_void, from: u64, size: usize) {
        copy(driver, LEGACY, Place::Host(to.expose_provenance() as u64), Place::Device(from), size)
    }

    3020 & cuMemcpyDtoHAsync_v2_ptsz fn cuMemcpyDtoHAsync_v2(driver, to: *mut c_void, from: u64, size: usize, stream: *mut c_void) {
        copy(driver, stream, Place::Host(to.expose_provenance() as u64), Place::Device(from), size)
    }

    3020 & cuMemcpyDtoD_v2_ptds fn cuMemcpyDtoD_v2(driver, to: u64, from: u64, size: usize) {
        copy(driver, LEGACY, Place::Device(to), Place::Device(from), size)
    }

    3020 & cuMemcpyDtoDAsync_v2_ptsz fn cuMemcpyDtoDAsync_v2(driver, to: u64, from: u64, size: usize, stream: *mut c_void) {
        copy(driver, stream, Place::Device(to), Place::Device(from), size)
    }

    4000 & cuMemcpy_ptds fn cuMemcpy(driver, to: u64, from: u64, size: usize) {
        copy(driver, LEGACY, Place::Either(to), Place::Either(from), size)
    }

    4000 & cuMemcpyAsync_ptsz fn cuMemcpyAsync(driver, to: u64, from: u64, size: usize, stream: *mut c_void) {
        copy(driver, stream, Place::Either(to), Place::Either(from), size)
    }

    4000 & cuMemcpyPeer_ptds fn cuMemcpyPeer(driver, to: u64, _there: *mut c_void, from: u64, _here: *mut c_void, size: usize) {
        copy(driver, LEGACY, Place::Device(to), Place::Device(from), size)
    }

    4000 & cuMemcpyPeerAsync_ptsz fn cuMemcpyPeerAsync(
        driver, to: u64, _there: *mut c_void, from: u64, _here: *mut c_void, size: usize, stream: *mut c_void,
    ) {
        copy(driver, stream, Place::Device(to), Place::Device(from), size)
    }

    12080 & cuMemcpyBatchAsync_ptsz fn cuMemcpyBatchAsync(
        driver, to: *const u64, from: *const u64, sizes: *const usize, count: usize, _attributes: *const c_void,
        _indices: *const usize, _attributes_count: usize, _failed: *mut usize, stream: *mut c_void,
    ) {
        // SAFETY: the header wants three arrays of `count`.
        unsafe { batch(driver, stream, to, from, sizes, count) }
    }

    13000 & cuMemcpyBatchAsync_v2_ptsz fn cuMemcpyBatchAsync_v2(
        driver, to: *const u64, from: *const u64, sizes: *const usize, count: usize, _attributes: *const c_void,
        _indices: *const usize, _attributes_count: usize, stream: *mut c_void,
    ) {
        // SAFETY: as above.
        unsafe { batch(driver, stream, to, from, sizes, count) }
    }

    8000 & cuMemPrefetchAsync_ptsz fn cuMemPrefetchAsync(driver, at: u64, size: usize, _device: i32, stream: *mut c_void) {
        driver.check_stream(stream)?;
        check(driver, at, size, Access::Read)
    }

    8000 fn cuMemAdvise(driver, at: u64, size: usize, _advice: u32, _device: i32) {
        check(driver, at, size, Access::Read)
    }
}

fn copy(driver: &Driver, stream: *mut c_void, to: Place, from: Place, size: usize) -> Outcome {
    driver.submit(stream, Kind::Copy, move |driver| {
        let to = resolve(driver, to, size, Access::Write)?;
        let from = resolve(driver, from, size, Access::Read)?;
        // SAFETY: device ranges are mapped, the first for writing; host ranges are the caller's promise.
        // They may overlap.
        unsafe { pointer(to).cast::<u8>().copy_from(pointer(from).cast(), size) };
        Ok(())
    })
}

/// # Safety
/// Each array has `count` elements, or is null.
unsafe fn batch(
    driver: &Driver,
    stream: *mut c_void,
    to: *const u64,
    from: *const u64,
    sizes: *const usize,
    count: usize,
) -> Outcome {
    if to.is_null() || from.is_null() || sizes.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    (0..count).try_for_each(|index| {
        // SAFETY: the caller's promise.
        let (to, from, size) =
            unsafe { (to.add(index).read(), from.add(index).read(), sizes.add(index).read()) };
        copy(driver, stream, Place::Either(to), Place::Either(from), size)
    })
}

fn resolve(driver: &Driver, place: Place, size: usize, access: Access) -> Result<u64, Code> {
    match place {
        Place::Host(at) => Ok(at),
        Place::Device(at) => check(driver, at, size, access).map(|()| at),
        Place::Either(at) => match driver.state().addresses.around(at) {
            Some((start, mapping))
                if mapping.access >= access && at + size as u64 <= start + mapping.size =>
            {
                Ok(at)
            }
            Some(_) => Err(Code::INVALID_VALUE),
            None => Ok(at),
        },
    }
}

/// Whether the device could do that; it is checked first, so that a mistake is a code and no fault.
pub(crate) fn check(driver: &Driver, at: u64, size: usize, access: Access) -> Outcome {
    let state = driver.state();
    if state.addresses.allows(at, size as u64, access) || state.host.is_pinned(at, size as u64) {
        Ok(())
    } else {
        Err(Code::INVALID_VALUE)
    }
}
