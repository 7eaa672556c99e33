//! Contexts beside the primary ones, which have to be waited for too; and the end of a primary one.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use crate::code::{Code, SUCCESS};
use crate::driver;
use crate::entries::real;
use crate::job;
use crate::pools;

static OWN: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// `cuCtxCreate`
pub(crate) unsafe fn create(out: *mut *mut c_void, flags: c_uint, device: c_int) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuCtxCreate_v2(out, flags, device) };
    // SAFETY: on success the driver has written the context.
    unsafe { created(code, out) }
}

/// `cuCtxCreate` with affinities.
pub(crate) unsafe fn create_v3(
    out: *mut *mut c_void,
    affinity: *const c_void,
    count: c_int,
    flags: c_uint,
    device: c_int,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuCtxCreate_v3(out, affinity, count, flags, device) };
    // SAFETY: on success the driver has written the context.
    unsafe { created(code, out) }
}

/// `cuCtxCreate` with parameters.
pub(crate) unsafe fn create_v4(
    out: *mut *mut c_void,
    parameters: *const c_void,
    flags: c_uint,
    device: c_int,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuCtxCreate_v4(out, parameters, flags, device) };
    // SAFETY: on success the driver has written the context.
    unsafe { created(code, out) }
}

/// # Safety
/// On success there is a context at `out`.
unsafe fn created(code: Code, out: *mut *mut c_void) -> Code {
    if code == SUCCESS {
        // SAFETY: the caller's promise.
        let context = unsafe { *out } as usize;
        OWN.lock().unwrap_or_else(PoisonError::into_inner).insert(context);
    }
    code
}

/// `cuCtxDestroy`
pub(crate) unsafe fn destroy(context: *mut c_void) -> Code {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).remove(&(context as usize));
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuCtxDestroy_v2(context) }
}

/// `cuCtxSynchronize`
pub(crate) unsafe fn wait() -> Code {
    // SAFETY: the call has no arguments.
    pools::after_wait(unsafe { real::cuCtxSynchronize() })
}

/// `cuDevicePrimaryCtxReset`
pub(crate) unsafe fn reset(device: c_int) -> Code {
    let_go(device);
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuDevicePrimaryCtxReset_v2(device) }
}

/// `cuDevicePrimaryCtxReset`, as it was first.
pub(crate) unsafe fn reset_v1(device: c_int) -> Code {
    let_go(device);
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuDevicePrimaryCtxReset(device) }
}

fn let_go(device: c_int) {
    if let Some(job) = job::if_joined() {
        job.let_go(device);
    }
}

/// Waits for the work of all of them.
pub(crate) fn synchronize() {
    let own: Vec<usize> = OWN.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
    for context in own {
        let mut popped = null_mut();
        // SAFETY: the context was made and not destroyed; the thread's own is current again afterwards. An error is of
        // work that ran before, and somebody else's to see.
        unsafe {
            if driver::cuCtxPushCurrent_v2(context as *mut c_void) == SUCCESS {
                driver::cuCtxSynchronize();
                driver::cuCtxPopCurrent_v2(&mut popped);
            }
        }
    }
}
