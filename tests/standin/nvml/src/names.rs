//! What a device and the driver are called.

use std::ffi::{c_char, c_int, c_uint};

use gpulease_standin_card::{Settings, Switch};

use crate::answers::{Answer, answer, put, put_text};
use crate::library::{Device, with_card, with_device};

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [c_char; 32],
}

/// A device's PCI bus id, with NVML's eight digits of the domain.
pub(crate) fn pci_bus_id(device: u32) -> String {
    format!("00000000:{:02X}:00.0", Settings::pci_bus(device))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(device: Device, out: *mut c_char, room: c_uint) -> c_uint {
    // SAFETY: the header wants a buffer of that size.
    answer(with_device(device, |_, _| unsafe { put_text(out, room, Settings::NAME) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, out: *mut c_char, room: c_uint) -> c_uint {
    // SAFETY: as above.
    answer(with_device(device, |card, number| unsafe {
        put_text(out, room, &card.settings().uuid_text(number))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetIndex(device: Device, out: *mut c_uint) -> c_uint {
    // SAFETY: the header wants a pointer to a number, or null.
    answer(with_device(device, |_, number| unsafe { put(out, number) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: Device, out: *mut c_uint) -> c_uint {
    // SAFETY: as above.
    answer(with_device(device, |_, number| unsafe { put(out, number) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, out: *mut PciInfo) -> c_uint {
    answer(with_device(device, |_, number| {
        let mut info = PciInfo {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: Settings::pci_bus(number),
            device: 0,
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        let text = pci_bus_id(number);
        // SAFETY: both buffers are ours, with their sizes.
        unsafe {
            put_text(info.bus_id.as_mut_ptr(), 32, &text)?;
            put_text(info.bus_id_legacy.as_mut_ptr(), 16, &text[4..])?;
        }
        // SAFETY: the header wants a pointer to a PCI info, or null.
        unsafe { put(out, info) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_uint {
    // SAFETY: the header wants pointers to ints, or null.
    answer(with_device(device, |_, _| unsafe { put(major, 9).and_then(|()| put(minor, 0)) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_uint {
    answer(with_device(device, |card, _| {
        let mode = c_uint::from(card.settings().mig == Switch::On);
        // SAFETY: the header wants pointers to numbers, or null.
        unsafe { put(current, mode).and_then(|()| put(pending, mode)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeMode(device: Device, out: *mut c_uint) -> c_uint {
    // SAFETY: the header wants a pointer to a mode, or null; 0 lets every process in.
    answer(with_device(device, |_, _| unsafe { put(out, 0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, room: c_uint) -> c_uint {
    // SAFETY: the header wants a buffer of that size.
    answer(with_card(|_| unsafe { put_text(out, room, "580.00.00-standin") }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, room: c_uint) -> c_uint {
    // SAFETY: as above.
    answer(with_card(|_| unsafe { put_text(out, room, "13.580.00.00-standin") }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) -> c_uint {
    answer(with_card(|card| {
        let version = c_int::try_from(card.settings().version).map_err(|_| Answer::NotSupported)?;
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, version) }
    }))
}
