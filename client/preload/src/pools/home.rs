//! Where the memory of pools comes from.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::{Pools, pool_of};
use crate::charged;
use crate::code::{Code, SUCCESS, check, code_of};
use crate::driver;
use crate::entries::real;
use crate::job::{self, Job};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: memory that stays where it is.
const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: c_uint = 1;

/// `CU_MEM_ALLOCATION_TYPE_MANAGED`
const MANAGED: c_uint = 2;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_uint,
    device: c_int,
}

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
}

/// Where a pool takes memory from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The lease, on this device.
    Lease(c_int),
    /// The driver, on this device: counted.
    Driver(c_int),
    /// The host: nothing of the lease.
    Host,
}

impl Location {
    /// Where memory of this kind is taken from; what belongs to no place, and moves, is counted on the current device.
    pub(super) fn home(self, kind: c_uint, current: Option<c_int>) -> Home {
        match (self.kind, kind) {
            (ON_DEVICE, PINNED) => Home::Lease(self.device),
            (ON_DEVICE, _) => Home::Driver(self.device),
            (_, MANAGED) => current.map_or(Home::Host, Home::Driver),
            _ => Home::Host,
        }
    }
}

impl Properties {
    /// Memory that is to be exported, and memory that moves by itself, can't be a segment.
    pub(super) fn home(&self) -> Home {
        match self.location.home(self.kind, None) {
            Home::Lease(device) if self.is_for_export() => Home::Driver(device),
            home => home,
        }
    }

    /// Whether others are to have it.
    pub(super) fn is_for_export(&self) -> bool {
        self.handle_types != 0
    }
}

/// `cuMemPoolCreate`
pub(crate) unsafe fn create(pool: *mut *mut c_void, properties: *const Properties) -> Code {
    let served = || {
        // SAFETY: the caller's arguments, passed on.
        let ask = || check(unsafe { real::cuMemPoolCreate(pool, properties.cast()) });
        // SAFETY: a pointer to properties as in the header, or null.
        let (Some(job), Some(asked)) = (job::current()?, unsafe { properties.as_ref() }) else {
            return ask();
        };
        if asked.is_for_export() {
            charged::pin(job, "pool for export")?;
        }
        ask()?;
        // SAFETY: the driver has written it.
        job.pools.lock().homes.insert(unsafe { *pool } as usize, asked.home());
        Ok(())
    };
    code_of(served())
}

/// `cuMemGetDefaultMemPool`
pub(crate) unsafe fn default_of(pool: *mut *mut c_void, location: *const Location, kind: c_uint) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuMemGetDefaultMemPool(pool, location, kind) };
    // SAFETY: as the driver took them.
    unsafe { found(code, pool, location, kind) }
}

/// `cuMemGetMemPool`
pub(crate) unsafe fn current_of(pool: *mut *mut c_void, location: *const Location, kind: c_uint) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuMemGetMemPool(pool, location, kind) };
    // SAFETY: as the driver took them.
    unsafe { found(code, pool, location, kind) }
}

/// A pool that the driver has by itself: of a device, of the host, or of managed memory.
///
/// # Safety
/// On success the driver has read the location and written the pool.
unsafe fn found(code: Code, pool: *mut *mut c_void, location: *const Location, kind: c_uint) -> Code {
    if code == SUCCESS
        && let Ok(Some(job)) = job::current()
    {
        // SAFETY: the caller's promise.
        let (pool, home) = unsafe { (*pool as usize, (*location).home(kind, driver::current_device().ok())) };
        // One that the program has made is known better.
        job.pools.lock().homes.entry(pool).or_insert(home);
    }
    code
}

impl Pools {
    /// The device whose memory of the lease a pool gives out.
    pub(crate) fn device_of(&self, job: &Job, pool: *mut c_void) -> Option<c_int> {
        match self.home_of(job, pool)? {
            Home::Lease(device) => Some(device),
            Home::Driver(_) | Home::Host => None,
        }
    }

    /// Where a pool takes its memory from; each device has one without the program's doing.
    pub(super) fn home_of(&self, job: &Job, pool: *mut c_void) -> Option<Home> {
        if let Some(home) = self.lock().homes.get(&(pool as usize)) {
            return Some(*home);
        }
        let mut devices = job.devices.iter().map(|device| device.number);
        let device = devices.find(|number| [default_pool(*number), pool_of(*number)].contains(&pool))?;
        let home = Home::Lease(device);
        self.lock().homes.insert(pool as usize, home);
        Some(home)
    }
}

/// The pool that a device has had from the start.
fn default_pool(device: c_int) -> *mut c_void {
    let mut pool = null_mut();
    // SAFETY: the pointer is to a handle of ours; where the driver has no pools it stays null.
    unsafe { driver::cuDeviceGetDefaultMemPool(&mut pool, device) };
    pool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_memory_of_a_device_comes_from_the_lease() {
        let pool = |kind, handle_types, location| {
            Properties { kind, handle_types, location: Location { kind: location, device: 1 } }.home()
        };
        assert_eq!(pool(PINNED, 0, ON_DEVICE), Home::Lease(1));
        assert_eq!(pool(PINNED, 1, ON_DEVICE), Home::Driver(1));
        // Managed memory, from CUDA 13 on.
        assert_eq!(pool(2, 0, ON_DEVICE), Home::Driver(1));
        for of_host in 2..=4 {
            assert_eq!(pool(PINNED, 0, of_host), Home::Host);
        }
        // The driver's own pool of managed memory has no place at all.
        let nowhere = Location { kind: 0, device: 0 };
        assert_eq!(nowhere.home(MANAGED, Some(1)), Home::Driver(1));
    }
}
