//! Functions of the driver that we call and do not stand before.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::code::{Code, NOT_FOUND, check};
use crate::entries::c_name;
use crate::real::{CUDA, NVML, Slot};

macro_rules! called {
    ($($library:ident $symbol:ident($($argument:ident: $kind:ty),*);)*) => {$(
        pub(crate) unsafe fn $symbol($($argument: $kind),*) -> Code {
            static SLOT: Slot = Slot::new(&$library, c_name!($symbol));
            let found = SLOT.get();
            if found.is_null() {
                return NOT_FOUND;
            }
            // SAFETY: the type is that of the header for this name; the arguments are the caller's matter.
            unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(found)($($argument),*)
            }
        }
    )*};
}

called! {
    CUDA cuDeviceGetCount(count: *mut c_int);
    CUDA cuCtxGetDevice(device: *mut c_int);
    CUDA cuCtxSynchronize();
    CUDA cuCtxPushCurrent_v2(context: *mut c_void);
    CUDA cuCtxPopCurrent_v2(context: *mut *mut c_void);
    CUDA cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    CUDA cuStreamGetCtx(stream: *mut c_void, context: *mut *mut c_void);
    CUDA cuStreamIsCapturing(stream: *mut c_void, status: *mut c_uint);
    CUDA cuEventCreate(event: *mut *mut c_void, flags: c_uint);
    CUDA cuEventRecord(event: *mut c_void, stream: *mut c_void);
    CUDA cuEventRecord_ptsz(event: *mut c_void, stream: *mut c_void);
    CUDA cuEventQuery(event: *mut c_void);
    CUDA cuEventSynchronize(event: *mut c_void);
    CUDA cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int);
    CUDA cuDevicePrimaryCtxRelease_v2(device: c_int);
    CUDA cuDeviceGetMemPool(pool: *mut *mut c_void, device: c_int);
    CUDA cuDeviceGetDefaultMemPool(pool: *mut *mut c_void, device: c_int);
    CUDA cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_uint, value: *mut c_void);
    CUDA cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int);
    CUDA cuMemCreate(out: *mut u64, bytes: usize, properties: *const c_void, flags: u64);
    NVML nvmlDeviceGetUUID(device: *mut c_void, text: *mut c_char, length: c_uint);
}

/// The device of the current context.
///
/// # Errors
/// What the driver says: for example that there is no context.
pub(crate) fn current_device() -> Result<i32, Code> {
    let mut device = 0;
    // SAFETY: the pointer is to an int of ours.
    check(unsafe { cuCtxGetDevice(&mut device) })?;
    Ok(device)
}

/// Waits for all work of the current context.
///
/// # Errors
/// What the driver says, which includes errors of work that ran before.
pub(crate) fn synchronize() -> Result<(), Code> {
    // SAFETY: the call has no arguments.
    check(unsafe { cuCtxSynchronize() })
}

/// Waits for all work on a device that has memory of the lease: of the current context where that is the device's, else of its
/// primary one, which the library has a claim on.
///
/// # Errors
/// As [`synchronize`].
pub(crate) fn synchronize_on(device: c_int) -> Result<(), Code> {
    if current_device() == Ok(device) {
        return synchronize();
    }
    let (mut context, mut popped) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are to handles of ours; what was current before is so again afterwards, and the claim is given up.
    unsafe {
        check(cuDevicePrimaryCtxRetain(&mut context, device))?;
        let waited = check(cuCtxPushCurrent_v2(context)).and_then(|()| {
            let waited = synchronize();
            cuCtxPopCurrent_v2(&mut popped);
            waited
        });
        cuDevicePrimaryCtxRelease_v2(device);
        waited
    }
}
