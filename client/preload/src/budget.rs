//! What the program is told of the card's memory: its lease, and nothing of what others do on the card.
//!
//! The total is the lease's limit. Free is the limit less the segments that this process has and less what counts beside
//! them, so that an allocation of all that is free fits.

use std::env::var_os;
use std::ffi::{CStr, c_int, c_uint, c_void};

use gpulease_client::Bytes;
use gpulease_cuda::Uuid;

use crate::code::{Code, INVALID_VALUE, SUCCESS, code_of};
use crate::driver;
use crate::entries::real;
use crate::job::{self, Job};

/// `nvmlMemory_t`
#[repr(C)]
pub(crate) struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`
#[repr(C)]
pub(crate) struct NvmlMemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// What a device seems to have.
#[derive(Clone, Copy)]
struct Figures {
    free: Bytes,
    total: Bytes,
}

/// `cuDeviceTotalMem`
pub(crate) unsafe fn total(bytes: *mut usize, number: c_int) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuDeviceTotalMem_v2(bytes, number) };
    if code != SUCCESS {
        return code;
    }
    match job::current() {
        Ok(Some(job)) if job.device(number).is_some() => {
            // SAFETY: the driver has just written there.
            unsafe { *bytes = size(job.limit()) };
            SUCCESS
        }
        Ok(_) => SUCCESS,
        Err(code) => code,
    }
}

/// `cuMemGetInfo`
pub(crate) unsafe fn info(free: *mut usize, total: *mut usize) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuMemGetInfo_v2(free, total) };
    if code != SUCCESS {
        return code;
    }
    let told = || {
        let Some(job) = job::current()? else { return Ok(()) };
        let Some(figures) = of_device(job, driver::current_device()?) else { return Ok(()) };
        // SAFETY: the driver has just written to both, or was given null, which it lets pass.
        unsafe {
            free.as_mut().into_iter().for_each(|free| *free = size(figures.free));
            total.as_mut().into_iter().for_each(|total| *total = size(figures.total));
        }
        Ok(())
    };
    code_of(told())
}

/// `nvmlDeviceGetMemoryInfo`
pub(crate) unsafe fn nvml(device: *mut c_void, memory: *mut NvmlMemory) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::nvmlDeviceGetMemoryInfo(device, memory) };
    if code == SUCCESS
        && let Some(figures) = of_nvml(device)
    {
        let (total, free) = (figures.total.get(), figures.free.get());
        // SAFETY: NVML has just written there.
        unsafe { *memory = NvmlMemory { total, free, used: total - free } };
    }
    code
}

/// `nvmlDeviceGetMemoryInfo_v2`
pub(crate) unsafe fn nvml_v2(device: *mut c_void, memory: *mut NvmlMemoryV2) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::nvmlDeviceGetMemoryInfo_v2(device, memory) };
    if code == SUCCESS
        && let Some(figures) = of_nvml(device)
    {
        let (total, free) = (figures.total.get(), figures.free.get());
        // SAFETY: NVML has just read the version and written the rest.
        let memory = unsafe { &mut *memory };
        *memory = NvmlMemoryV2 { version: memory.version, total, reserved: 0, free, used: total - free };
    }
    code
}

/// What a leased device seems to have.
fn of_device(job: &Job, number: c_int) -> Option<Figures> {
    let device = job.device(number)?;
    let total = job.limit();
    let taken = [job.held(device.id), job.charges.on(number), job.pools.of_driver(number)];
    Some(Figures { free: total.saturating_sub(taken.into_iter().sum()), total })
}

/// What NVML's device seems to have. Programs look before they start CUDA: then by what the environment tells.
fn of_nvml(device: *mut c_void) -> Option<Figures> {
    let limit = job::limit_told()?;
    let uuid = uuid(device)?;
    match job::if_joined() {
        Some(job) => of_device(job, job.devices.iter().find(|leased| leased.uuid == uuid)?.number),
        None => {
            let visible = var_os("CUDA_VISIBLE_DEVICES")?;
            let leased = visible.to_string_lossy().split(',').any(|name| name.trim().parse() == Ok(uuid));
            leased.then_some(Figures { free: limit, total: limit })
        }
    }
}

fn uuid(device: *mut c_void) -> Option<Uuid> {
    let mut text = [0; 96];
    // SAFETY: the buffer is ours and its length is told.
    let code = unsafe { driver::nvmlDeviceGetUUID(device, text.as_mut_ptr(), 96) };
    // SAFETY: on success NVML has written a string.
    let text = (code == SUCCESS).then(|| unsafe { CStr::from_ptr(text.as_ptr()) })?;
    text.to_str().ok()?.parse().ok()
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).expect("CUDA's hosts have 64-bit addresses")
}

/// Puts an address or a size where the caller wants it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for null, as the driver says.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Code> {
    // SAFETY: the caller of a driver function gives a pointer to a value of the header's type, or null.
    match unsafe { out.as_mut() } {
        Some(out) => {
            *out = value;
            Ok(())
        }
        None => Err(INVALID_VALUE),
    }
}
