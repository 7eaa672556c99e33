//! How much of a device is used.

use std::ffi::c_uint;

use gpulease_standin_card::{Card, Survey};

use crate::answers::{Answer, answer, put};
use crate::library::{Device, with_survey};

/// `nvmlMemory_t`.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The version that a caller writes into a [`MemoryV2`]: its size, and 2 in the highest byte.
const VERSION_2: c_uint = (size_of::<MemoryV2>() as c_uint) | (2 << 24);

/// Utilisation in percent, of which a stand-in has none.
#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, out: *mut Memory) -> c_uint {
    answer(with_survey(device, |card, number, survey| {
        let MemoryV2 { total, reserved, free, used, .. } = info(card, number, survey);
        // The first version counts the reserve as used.
        // SAFETY: the header wants a pointer to a memory info, or null.
        unsafe { put(out, Memory { total, free, used: used + reserved }) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: *mut MemoryV2) -> c_uint {
    // SAFETY: the header wants a pointer to a memory info with its version filled in, or null.
    let version = unsafe { out.as_ref() }.map(|asked| asked.version);
    answer(match version {
        None => Err(Answer::InvalidArgument),
        Some(VERSION_2) => with_survey(device, |card, number, survey| {
            // SAFETY: as above.
            unsafe { put(out, info(card, number, survey)) }
        }),
        Some(_) => Err(Answer::VersionMismatch),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, out: *mut Utilization) -> c_uint {
    answer(with_survey(device, |_, _, _| {
        // SAFETY: the header wants a pointer to a utilisation, or null.
        unsafe { put(out, Utilization { gpu: 0, memory: 0 }) }
    }))
}

fn info(card: &Card, device: u32, survey: &Survey) -> MemoryV2 {
    let settings = card.settings();
    let (bytes, reserved) = (settings.bytes.get(), settings.reserved.get());
    let used = survey.used(device).get();
    MemoryV2 { version: VERSION_2, total: bytes + reserved, reserved, free: survey.free(device).get(), used }
}
