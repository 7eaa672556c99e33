//! Devices that use one another's memory. The driver opens its own allocations to a peer; segments are opened here.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use gpulease_cuda::{CudaError, Driver, let_in};

use crate::code::{Code, SUCCESS};
use crate::driver;
use crate::entries::real;
use crate::job::{self, Job};
use crate::real::within;
use crate::report::say;

const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
const PEER_ACCESS_UNSUPPORTED: Code = 217;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const DEVICE: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_AND_WRITE: c_uint = 3;

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Right {
    location: c_uint,
    device: c_int,
    flags: c_uint,
}

/// `cuCtxEnablePeerAccess`: the current context's device may use all memory of the peer's.
pub(crate) unsafe fn enable(peer: *mut c_void, flags: c_uint) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuCtxEnablePeerAccess(peer, flags) };
    let (SUCCESS | PEER_ACCESS_ALREADY_ENABLED, Some(job)) = (code, job::if_joined()) else { return code };
    // SAFETY: the driver has just taken it for a context.
    match (driver::current_device(), unsafe { device_of(peer) }) {
        (Ok(guest), Some(owner)) if !open(job, owner, guest) => PEER_ACCESS_UNSUPPORTED,
        _ => code,
    }
}

/// `cuMemPoolSetAccess`
pub(crate) unsafe fn of_pool(pool: *mut c_void, rights: *const Right, count: usize) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuMemPoolSetAccess(pool, rights.cast(), count) };
    if code == SUCCESS
        && let Some(job) = job::if_joined()
        && let Some(owner) = job.pools.device_of(job, pool)
    {
        // SAFETY: the driver has just read so many of them.
        return unsafe { let_all_in(job, owner, rights, count) };
    }
    code
}

/// Opens a device's segments to all that are given the right.
///
/// # Safety
/// There are so many rights.
pub(crate) unsafe fn let_all_in(job: &Job, owner: c_int, rights: *const Right, count: usize) -> Code {
    // SAFETY: the caller's promise.
    let rights = (0..count).map(|nth| unsafe { rights.add(nth).read() });
    let mut guests = rights.filter(|right| right.location == DEVICE && right.flags == READ_AND_WRITE);
    if guests.all(|right| open(job, owner, right.device)) { SUCCESS } else { PEER_ACCESS_UNSUPPORTED }
}

/// Whether the guest may use the owner's segments now. What is not of the lease is the driver's to open.
fn open(job: &Job, owner: c_int, guest: c_int) -> bool {
    if owner == guest || job.device(owner).is_none() {
        return true;
    }
    let opened = within(|| {
        Driver::load().map_err(|why| why.to_string()).and_then(|driver| {
            let devices = driver.devices().map_err(|error: CudaError| error.to_string())?;
            let find = |number: c_int| devices.get(usize::try_from(number).ok()?).copied();
            let (Some(owner), Some(guest)) = (find(owner), find(guest)) else { return Ok(()) };
            let_in(owner, guest).map_err(|error| error.to_string())
        })
    });
    if let Err(why) = &opened {
        say(&format!("device {guest} can't use the leased memory of device {owner}: {why}"));
    }
    opened.is_ok()
}

/// # Safety
/// It is a context.
unsafe fn device_of(context: *mut c_void) -> Option<c_int> {
    let mut popped = null_mut();
    // SAFETY: the caller's promise; what was current before is so again afterwards.
    unsafe {
        (driver::cuCtxPushCurrent_v2(context) == SUCCESS).then_some(())?;
        let device = driver::current_device().ok();
        driver::cuCtxPopCurrent_v2(&mut popped);
        device
    }
}
