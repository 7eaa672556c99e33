//! Devices and what they say of themselves.

use std::ffi::c_char;

use gpulease_standin_card::{Settings, Switch};

use crate::code::Code;
use crate::driver::{Driver, entry_points};
use crate::pointer::{put, put_text};

entry_points! {
    fn cuDeviceGetCount(driver, out: *mut i32) {
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, i32::try_from(driver.count()).unwrap_or(i32::MAX)) }
    }

    fn cuDeviceGet(driver, out: *mut i32, ordinal: i32) {
        driver.device(ordinal)?;
        // SAFETY: as above; a device is its ordinal here, as it is in the driver.
        unsafe { put(out, ordinal) }
    }

    fn cuDeviceGetName(driver, out: *mut c_char, room: i32, device: i32) {
        driver.device(device)?;
        // SAFETY: the header wants a buffer of that size.
        unsafe { put_text(out, room, Settings::NAME) }
    }

    fn cuDeviceGetUuid(driver, out: *mut [u8; 16], device: i32) {
        let uuid = driver.card.settings().uuid(driver.device(device)?);
        // SAFETY: the header wants a pointer to a CUuuid, or null.
        unsafe { put(out, uuid) }
    }

    fn cuDeviceGetUuid_v2(driver, out: *mut [u8; 16], device: i32) {
        let uuid = driver.card.settings().uuid(driver.device(device)?);
        // SAFETY: as above.
        unsafe { put(out, uuid) }
    }

    fn cuDeviceGetPCIBusId(driver, out: *mut c_char, room: i32, device: i32) {
        let bus = Settings::pci_bus(driver.device(device)?);
        // SAFETY: the header wants a buffer of that size.
        unsafe { put_text(out, room, &format!("0000:{bus:02x}:00.0")) }
    }

    fn cuDeviceTotalMem_v2(driver, out: *mut usize, device: i32) {
        driver.device(device)?;
        let bytes = usize::try_from(driver.card.settings().bytes.get()).unwrap_or(usize::MAX);
        // SAFETY: the header wants a pointer to a size, or null.
        unsafe { put(out, bytes) }
    }

    fn cuDeviceGetAttribute(driver, out: *mut i32, attribute: u32, device: i32) {
        let value = self::attribute(driver, attribute, driver.device(device)?)?;
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, value) }
    }
}

fn attribute(driver: &Driver, attribute: u32, device: u32) -> Result<i32, Code> {
    let settings = driver.card.settings();
    let switch = |switch: Switch| i32::from(switch == Switch::On);
    let known = match attribute {
        // Threads in a block, threads in a warp, multiprocessors.
        1 => 1024,
        10 => 32,
        16 => 132,
        // Maps host memory, runs kernels at once, one address space with the host.
        19 | 31 | 41 => 1,
        33 => i32::try_from(Settings::pci_bus(device)).unwrap_or(0),
        // Compute capability.
        75 => 9,
        76 => 0,
        102 => switch(settings.vmm),
        103 => switch(settings.descriptors),
        // Memory pools.
        115 => 1,
        // An attribute of no interest, or none at all.
        _ => 0,
    };
    if (1..=200).contains(&attribute) { Ok(known) } else { Err(Code::INVALID_VALUE) }
}
