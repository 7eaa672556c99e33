//! `cuMemAlloc` and its kin.

use std::ffi::{c_uint, c_void};

use gpulease_client::Bytes;

use crate::budget::put;
use crate::charged::Given;
use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, code_of};
use crate::driver;
use crate::entries::real;
use crate::heap::{Freed, Range};
use crate::job::{self, Job};
use crate::report::Once;

/// Rows begin at multiples of this, as the driver makes them.
const PITCH: usize = 512;

/// `cuMemAlloc`
pub(crate) unsafe fn allocate(out: *mut u64, bytes: usize) -> Code {
    let served = || {
        let Some(job) = job::current()? else {
            // SAFETY: the caller's arguments, passed on.
            return crate::code::check(unsafe { real::cuMemAlloc_v2(out, bytes) });
        };
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: it is not null, so that it is to an address.
        unsafe { put(out, here(job, bytes)?) }
    };
    code_of(served())
}

/// `cuMemAllocPitch`
pub(crate) unsafe fn allocate_pitch(
    out: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    let served = || {
        let Some(job) = job::current()? else {
            // SAFETY: the caller's arguments, passed on.
            return crate::code::check(unsafe {
                real::cuMemAllocPitch_v2(out, pitch, width, height, element)
            });
        };
        if out.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
        let at = here(job, bytes)?;
        // SAFETY: neither is null.
        unsafe { put(pitch, row).and(put(out, at)) }
    };
    code_of(served())
}

/// `cuMemFree`
pub(crate) unsafe fn free(at: u64) -> Code {
    let served = || {
        let job = job::current()?;
        let freed = job.map_or(Freed::Unknown, |job| {
            job.pools.forget(at);
            job.heap.free(job, at)
        });
        match freed {
            Freed::Ours(result) => result,
            Freed::Unknown => {
                // SAFETY: the caller's argument, passed on: the driver's own memory, or none.
                crate::code::check(unsafe { real::cuMemFree_v2(at) })?;
                job.into_iter().for_each(|job| job.charges.give(Given::At(at)));
                Ok(())
            }
        }
    };
    code_of(served())
}

/// `cuMemGetAddressRange`
pub(crate) unsafe fn range(base: *mut u64, bytes: *mut usize, at: u64) -> Code {
    let served = || match job::current()?.and_then(|job| range_of(job, at)) {
        Some(range) => {
            // SAFETY: pointers to values of the header's types, or null, which leaves that figure out.
            unsafe {
                base.as_mut().into_iter().for_each(|base| *base = range.base);
                bytes.as_mut().into_iter().for_each(|bytes| *bytes = range.bytes);
            }
            Ok(())
        }
        // SAFETY: the caller's arguments, passed on.
        None => crate::code::check(unsafe { real::cuMemGetAddressRange_v2(base, bytes, at) }),
    };
    code_of(served())
}

const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;

/// `cuPointerGetAttribute`: where an allocation begins and how large it is are ours to tell.
pub(crate) unsafe fn attribute(value: *mut c_void, attribute: c_uint, at: u64) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuPointerGetAttribute(value, attribute, at) };
    if code == SUCCESS {
        // SAFETY: the driver has just written the value of this attribute there.
        unsafe { correct(value, attribute, at) };
    }
    code
}

/// `cuPointerGetAttributes`
pub(crate) unsafe fn attributes(
    count: c_uint,
    attributes: *const c_uint,
    values: *const *mut c_void,
    at: u64,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuPointerGetAttributes(count, attributes, values, at) };
    if code == SUCCESS {
        for nth in 0..count as usize {
            // SAFETY: there are so many of both, and the driver has just written each.
            unsafe { correct(*values.add(nth), *attributes.add(nth), at) };
        }
    }
    code
}

/// # Safety
/// The value is of this attribute.
unsafe fn correct(value: *mut c_void, attribute: c_uint, at: u64) {
    if !matches!(attribute, RANGE_START | RANGE_SIZE) || value.is_null() {
        return;
    }
    if let Ok(Some(job)) = job::current()
        && let Some(range) = range_of(job, at)
    {
        let ours = if attribute == RANGE_START { range.base } else { range.bytes as u64 };
        // SAFETY: both are of 64 bits.
        unsafe { *value.cast::<u64>() = ours };
    }
}

/// The allocation or mapping of ours that an address is in.
fn range_of(job: &Job, at: u64) -> Option<Range> {
    job.heap.range_of(at).or_else(|| job.vmm.range_of(at))
}

/// Memory of the lease on the current context's device.
fn here(job: &'static Job, bytes: usize) -> Result<u64, Code> {
    on(job, driver::current_device()?, bytes)
}

/// Memory of the lease on this device.
pub(crate) fn on(job: &'static Job, number: i32, bytes: usize) -> Result<u64, Code> {
    static ELSEWHERE: Once = Once::new();
    let Some(device) = job.device(number) else {
        ELSEWHERE.say(|| {
            format!("device {number} is not in lease {}, so that there is no memory on it", job.lease.id())
        });
        return Err(OUT_OF_MEMORY);
    };
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = Bytes::new(bytes as u64);
    match job.heap.allocate(job, device.id, bytes) {
        // What was freed in the order of a stream is kept for the next of its size: not at this price.
        Err(OUT_OF_MEMORY) if job.pools.reclaim(job) => job.heap.allocate(job, device.id, bytes),
        other => other,
    }
}
