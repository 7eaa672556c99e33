//! Contexts beside the primary ones, which have to be waited for too; and the end of a primary one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use crate::capture;
use crate::code::{Code, SUCCESS};
use crate::driver;
use crate::entries::real;
use crate::job;
use crate::pools;

/// The program's claims on primary contexts, by device.
static RETAINED: Mutex<BTreeMap<c_int, u32>> = Mutex::new(BTreeMap::new());
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
    if code == SUCCESS && !job::is_of_no_matter() {
        // SAFETY: the caller's promise.
        let context = unsafe { *out } as usize;
        OWN.lock().unwrap_or_else(PoisonError::into_inner).insert(context);
    }
    code
}

/// `cuCtxDestroy`
pub(crate) unsafe fn destroy(context: *mut c_void) -> Code {
    if !job::is_of_no_matter() {
        OWN.lock().unwrap_or_else(PoisonError::into_inner).remove(&(context as usize));
        capture::end_with(context);
    }
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuCtxDestroy_v2(context) }
}

/// `cuCtxSynchronize`
pub(crate) unsafe fn wait() -> Code {
    // SAFETY: the call has no arguments.
    pools::after_wait(unsafe { real::cuCtxSynchronize() })
}

/// `cuCtxSynchronize` of a context that is named.
pub(crate) unsafe fn wait_for(context: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    pools::after_wait(unsafe { real::cuCtxSynchronize_v2(context) })
}

/// `cuDevicePrimaryCtxRetain`
pub(crate) unsafe fn retain(out: *mut *mut c_void, device: c_int) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuDevicePrimaryCtxRetain(out, device) };
    if code == SUCCESS && !job::is_of_no_matter() {
        *RETAINED.lock().unwrap_or_else(PoisonError::into_inner).entry(device).or_default() += 1;
    }
    code
}

/// `cuDevicePrimaryCtxRelease`
pub(crate) unsafe fn release(device: c_int) -> Code {
    released(device);
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuDevicePrimaryCtxRelease_v2(device) }
}

/// `cuDevicePrimaryCtxRelease`, as it was first.
pub(crate) unsafe fn release_v1(device: c_int) -> Code {
    released(device);
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuDevicePrimaryCtxRelease(device) }
}

/// With the program's last claim on the context its memory goes, although the library has a claim of its own.
fn released(device: c_int) {
    if job::is_of_no_matter() {
        return;
    }
    let mut retained = RETAINED.lock().unwrap_or_else(PoisonError::into_inner);
    let claims = retained.get_mut(&device);
    let last = claims.is_some_and(|claims| {
        let last = *claims == 1;
        *claims = claims.saturating_sub(1);
        last
    });
    drop(retained);
    if last {
        let_go(device);
    }
}

/// `cuDevicePrimaryCtxReset`
pub(crate) unsafe fn reset(device: c_int) -> Code {
    end_recordings(device);
    let_go(device);
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuDevicePrimaryCtxReset_v2(device) }
}

/// `cuDevicePrimaryCtxReset`, as it was first.
pub(crate) unsafe fn reset_v1(device: c_int) -> Code {
    end_recordings(device);
    let_go(device);
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuDevicePrimaryCtxReset(device) }
}

/// The primary context is about to be reset. Its handle, by which its streams are known, is told only to who has a claim.
fn end_recordings(device: c_int) {
    let mut context = null_mut();
    // SAFETY: the pointer is to a handle of ours; the claim is given up at once.
    unsafe {
        if capture::is_under_way() && driver::cuDevicePrimaryCtxRetain(&mut context, device) == SUCCESS {
            driver::cuDevicePrimaryCtxRelease_v2(device);
            capture::end_with(context);
        }
    }
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
