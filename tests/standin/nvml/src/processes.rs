//! Who uses a device.

use std::ffi::{c_uint, c_ulonglong};

use crate::answers::{Answer, Outcome, answer, put};
use crate::library::{Device, with_device, with_survey};

/// `nvmlProcessInfo_t`, the same since its second version.
#[repr(C)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

const NO_INSTANCE: c_uint = c_uint::MAX;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: Device,
    count: *mut c_uint,
    out: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: the header wants a pointer to a count, and an array of that length, or null.
    answer(unsafe { compute(device, count, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    out: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: as above.
    answer(unsafe { compute(device, count, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    _out: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: the header wants a pointer to a count, or null.
    answer(with_device(device, |_, _| unsafe { put(count, 0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v2(
    device: Device,
    count: *mut c_uint,
    _out: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: as above.
    answer(with_device(device, |_, _| unsafe { put(count, 0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    _out: *mut ProcessInfo,
) -> c_uint {
    // SAFETY: as above.
    answer(with_device(device, |_, _| unsafe { put(count, 0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: Device,
    _out: *mut std::ffi::c_void,
    _count: *mut c_uint,
    _since: c_ulonglong,
) -> c_uint {
    // The library's answer where nothing ran in the time asked for, and nothing runs here.
    answer(with_device(device, |_, _| Err(Answer::NotFound)))
}

/// # Safety
/// `count` is writable or null; `out` has room for as many as it says, or is null.
unsafe fn compute(device: Device, count: *mut c_uint, out: *mut ProcessInfo) -> Outcome {
    with_survey(device, |_, number, survey| {
        let residents = survey.residents(number);
        // SAFETY: the caller's promise.
        let room = unsafe { count.as_ref() }.copied().ok_or(Answer::InvalidArgument)? as usize;
        // SAFETY: the caller's promise.
        unsafe { put(count, c_uint::try_from(residents.len()).unwrap_or(c_uint::MAX)) }?;
        if residents.len() > room {
            return Err(Answer::InsufficientSize);
        }
        for (index, resident) in residents.iter().enumerate() {
            let info = ProcessInfo {
                pid: resident.pid,
                used_gpu_memory: resident.bytes.get(),
                gpu_instance_id: NO_INSTANCE,
                compute_instance_id: NO_INSTANCE,
            };
            // SAFETY: the caller's promise; there is room for the whole list.
            unsafe { put(out.wrapping_add(index), info) }?;
        }
        Ok(())
    })
}
