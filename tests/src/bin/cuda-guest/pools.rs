//! Stream-ordered memory.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::doors::{Driver, Failed, call};
use crate::virtual_memory::{DESCRIPTOR, HERE, Location};
use crate::ways::Taken;

/// `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    win32: *mut c_void,
    most: usize,
    reserved: [u8; 56],
}

/// Of device 0, for this process alone.
pub(crate) const PLAIN: Properties =
    Properties { kind: 1, handle_types: 0, location: HERE, win32: null_mut(), most: 0, reserved: [0; 56] };

pub(crate) fn free(driver: &Driver, at: u64, stream: *mut c_void) -> Result<(), Failed> {
    call!(driver, "cuMemFreeAsync" "" (u64, *mut c_void)(at, stream))
}

fn trim(driver: &Driver, pool: *mut c_void) -> Result<(), Failed> {
    driver.synchronize()?;
    call!(driver, "cuMemPoolTrimTo" "" (*mut c_void, usize)(pool, 0))
}

fn default_pool(driver: &Driver) -> Result<*mut c_void, Failed> {
    let mut pool = null_mut();
    call!(driver, "cuDeviceGetDefaultMemPool" "" (*mut *mut c_void, c_int)(&raw mut pool, 0))?;
    Ok(pool)
}

pub(crate) fn of_stream(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let mut at = 0;
    call!(driver, "cuMemAllocAsync" "" (*mut u64, usize, *mut c_void)(&raw mut at, bytes, null_mut()))?;
    driver.synchronize()?;
    Taken::at(driver, at, bytes, mark, move |driver| {
        free(driver, at, null_mut())?;
        trim(driver, default_pool(driver)?)
    })
}

pub(crate) fn of_default_pool(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (pool, mut at) = (default_pool(driver)?, 0);
    from_pool(driver, &mut at, bytes, pool)?;
    Taken::at(driver, at, bytes, mark, move |driver| {
        free(driver, at, null_mut())?;
        trim(driver, pool)
    })
}

pub(crate) fn of_own_pool(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    of_new_pool(driver, bytes, mark, PLAIN)
}

/// Of a pool that other processes can have by a descriptor.
pub(crate) fn of_export_pool(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    of_new_pool(driver, bytes, mark, Properties { handle_types: DESCRIPTOR, ..PLAIN })
}

fn of_new_pool(driver: &Driver, bytes: usize, mark: u8, properties: Properties) -> Result<Taken, Failed> {
    let (mut pool, mut at) = (null_mut(), 0);
    call!(driver, "cuMemPoolCreate" "" (*mut *mut c_void, *const Properties)(&raw mut pool, &raw const properties))?;
    let destroy = move |driver: &Driver| call!(driver, "cuMemPoolDestroy" "" (*mut c_void)(pool));
    if let Err(failed) = from_pool(driver, &mut at, bytes, pool) {
        destroy(driver)?;
        return Err(failed);
    }
    Taken::at(driver, at, bytes, mark, move |driver| {
        free(driver, at, null_mut())?;
        driver.synchronize()?;
        destroy(driver)
    })
}

fn from_pool(driver: &Driver, at: &mut u64, bytes: usize, pool: *mut c_void) -> Result<(), Failed> {
    call!(driver, "cuMemAllocFromPoolAsync" "" (*mut u64, usize, *mut c_void, *mut c_void)
        (&raw mut *at, bytes, pool, null_mut()))?;
    driver.synchronize()
}
