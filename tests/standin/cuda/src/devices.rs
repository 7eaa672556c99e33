//! Devices and what they say of themselves.

use std::ffi::{CStr, c_char};

use gpulease_standin_card::{Settings, Switch};

use crate::code::Code;
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::pointer::{put, put_text};

entry_points! {
    2000 fn cuDeviceGetCount(driver, out: *mut i32) {
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, i32::try_from(driver.count()).unwrap_or(i32::MAX)) }
    }

    2000 fn cuDeviceGet(driver, out: *mut i32, ordinal: i32) {
        driver.device(ordinal)?;
        // SAFETY: as above; a device is its ordinal here, as it is in the driver.
        unsafe { put(out, ordinal) }
    }

    2000 fn cuDeviceGetName(driver, out: *mut c_char, room: i32, device: i32) {
        driver.device(device)?;
        // SAFETY: the header wants a buffer of that size.
        unsafe { put_text(out, room, Settings::NAME) }
    }

    9020 fn cuDeviceGetUuid(driver, out: *mut [u8; 16], device: i32) {
        let uuid = driver.card.settings().uuid(driver.device(device)?);
        // SAFETY: the header wants a pointer to a CUuuid, or null.
        unsafe { put(out, uuid) }
    }

    11040 fn cuDeviceGetUuid_v2(driver, out: *mut [u8; 16], device: i32) {
        let uuid = driver.card.settings().uuid(driver.device(device)?);
        // SAFETY: as above.
        unsafe { put(out, uuid) }
    }

    4010 fn cuDeviceGetPCIBusId(driver, out: *mut c_char, room: i32, device: i32) {
        let bus = Settings::pci_bus(driver.device(device)?);
        // SAFETY: the header wants a buffer of that size.
        unsafe { put_text(out, room, &format!("0000:{bus:02x}:00.0")) }
    }

    3020 fn cuDeviceTotalMem_v2(driver, out: *mut usize, device: i32) {
        driver.device(device)?;
        let bytes = usize::try_from(driver.card.settings().bytes.get()).unwrap_or(usize::MAX);
        // SAFETY: the header wants a pointer to a size, or null.
        unsafe { put(out, bytes) }
    }

    2000 fn cuDeviceGetAttribute(driver, out: *mut i32, attribute: u32, device: i32) {
        let value = self::attribute(driver, attribute, driver.device(device)?)?;
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, value) }
    }

    4010 fn cuDeviceGetByPCIBusId(driver, out: *mut i32, name: *const c_char) {
        if name.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the header wants a text that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| Code::INVALID_VALUE)?.to_lowercase();
        let mut all = 0..i32::try_from(driver.count()).unwrap_or(0);
        let is_it = |&ordinal: &i32| {
            driver.device(ordinal).is_ok_and(|device| name.ends_with(&format!("{:02x}:00.0", Settings::pci_bus(device))))
        };
        // SAFETY: the header wants a pointer to a device, or null.
        unsafe { put(out, all.find(is_it).ok_or(Code::INVALID_VALUE)?) }
    }

    2000 fn cuDeviceComputeCapability(driver, major: *mut i32, minor: *mut i32, device: i32) {
        driver.device(device)?;
        // SAFETY: the header wants pointers to ints, or null.
        unsafe { put(major, 9).and_then(|()| put(minor, 0)) }
    }

    4000 fn cuDeviceCanAccessPeer(driver, out: *mut i32, device: i32, peer: i32) {
        let (one, other) = (driver.device(device)?, driver.device(peer)?);
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, i32::from(one != other)) }
    }

    8000 fn cuDeviceGetP2PAttribute(driver, out: *mut i32, _attribute: u32, device: i32, peer: i32) {
        let (one, other) = (driver.device(device)?, driver.device(peer)?);
        // SAFETY: as above.
        unsafe { put(out, i32::from(one != other)) }
    }

    4000 fn cuCtxEnablePeerAccess(driver, _peer: *mut std::ffi::c_void, _flags: u32) {
        driver.current_device().map(drop)
    }

    4000 fn cuCtxDisablePeerAccess(driver, _peer: *mut std::ffi::c_void) {
        driver.current_device().map(drop)
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
