//! Pinned host memory: a book of it, since all memory here is the host's anyway.

use std::collections::BTreeMap;
use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::code::Code;
use crate::driver::{Driver, system};
use crate::entry::entry_points;
use crate::pointer::put;

/// First address to size.
#[derive(Default)]
pub(crate) struct HostMemory {
    allocated: BTreeMap<usize, usize>,
    registered: BTreeMap<usize, usize>,
}

impl HostMemory {
    /// Whether all of a range is pinned memory, of either kind, which a device may use at its host address.
    pub(crate) fn is_pinned(&self, at: u64, size: u64) -> bool {
        let Some((at, end)) =
            usize::try_from(at).ok().zip(at.checked_add(size).and_then(|end| usize::try_from(end).ok()))
        else {
            return false;
        };
        let holds = |book: &BTreeMap<usize, usize>| {
            book.range(..=at).next_back().is_some_and(|(&start, &length)| end <= start + length)
        };
        holds(&self.allocated) || holds(&self.registered)
    }
}

fn allocate(driver: &Driver, size: usize) -> Result<*mut c_void, Code> {
    driver.current_device()?;
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice harms nobody.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE) }
        .map_err(|_| Code::OUT_OF_MEMORY)?;
    driver.state().host.allocated.insert(start.addr(), size);
    Ok(start)
}

entry_points! {
    2020 fn cuMemHostAlloc(driver, out: *mut *mut c_void, size: usize, _flags: u32) {
        let start = allocate(driver, size)?;
        // SAFETY: the header wants a pointer to a pointer, or null.
        unsafe { put(out, start) }
    }

    3020 fn cuMemAllocHost_v2(driver, out: *mut *mut c_void, size: usize) {
        let start = allocate(driver, size)?;
        // SAFETY: as above.
        unsafe { put(out, start) }
    }

    3020 fn cuMemHostGetDevicePointer_v2(driver, out: *mut u64, start: *mut c_void, _flags: u32) {
        let at = start.addr() as u64;
        if !driver.state().host.is_pinned(at, 1) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    3020 fn cuMemHostGetFlags(driver, out: *mut u32, start: *mut c_void) {
        if !driver.state().host.is_pinned(start.addr() as u64, 1) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the header wants a pointer to flags, or null.
        unsafe { put(out, 0) }
    }

    2000 fn cuMemFreeHost(driver, start: *mut c_void) {
        let size = driver.state().host.allocated.remove(&start.addr()).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: exactly this range was mapped by cuMemHostAlloc.
        unsafe { munmap(start, size) }.map_err(|error| system(error.into()))
    }

    6050 fn cuMemHostRegister_v2(driver, start: *mut c_void, size: usize, _flags: u32) {
        driver.current_device()?;
        let end = start.addr().checked_add(size).filter(|_| size > 0 && !start.is_null()).ok_or(Code::INVALID_VALUE)?;
        let mut state = driver.state();
        if state.host.registered.range(..end).next_back().is_some_and(|(&at, &length)| at + length > start.addr()) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.host.registered.insert(start.addr(), size);
        Ok(())
    }

    4000 fn cuMemHostUnregister(driver, start: *mut c_void) {
        let removed = driver.state().host.registered.remove(&start.addr());
        removed.map(drop).ok_or(Code::HOST_MEMORY_NOT_REGISTERED)
    }
}
