//! Virtual memory management: handles, descriptors, mappings. None of it needs a context.

use std::collections::BTreeMap;
use std::env;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use gpulease_standin_card::{Memory, Switch};
use gpulease_words::{Bytes, GRANULARITY};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::addresses::{Access, Origin};
use crate::code::{Code, Outcome};
use crate::driver::{Driver, Held, system};
use crate::entry::entry_points;
use crate::pointer::put;

pub(crate) const POSIX_DESCRIPTOR: u32 = 1;
pub(crate) const PINNED: u32 = 1;
pub(crate) const ON_DEVICE: u32 = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Kind {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Right {
    location: Location,
    flags: u32,
}

/// The allocation handles of this process.
#[derive(Default)]
pub(crate) struct Handles {
    last: u64,
    handles: BTreeMap<u64, Handle>,
}

#[derive(Clone)]
struct Handle {
    held: Arc<Held>,
    exportable: Switch,
    /// How often it has to be released.
    claims: u32,
}

impl Handles {
    fn add(&mut self, handle: Handle) -> u64 {
        self.last += 1;
        // Not a small number, as the driver's are not: nobody shall guess one.
        let name = 0x7f00_0000_0000 + (self.last << 8);
        self.handles.insert(name, handle);
        name
    }

    /// Takes a claim back; with the last one the handle ends.
    fn release(&mut self, name: u64) -> Result<Option<Handle>, Code> {
        let handle = self.handles.get_mut(&name).ok_or(Code::INVALID_VALUE)?;
        handle.claims -= 1;
        Ok(if handle.claims == 0 { self.handles.remove(&name) } else { None })
    }

    /// One claim more on the handle of this memory, which may have ended while the memory was mapped.
    fn retain(&mut self, held: &Arc<Held>) -> u64 {
        let known = self.handles.iter_mut().find(|(_, handle)| Arc::ptr_eq(&handle.held, held));
        match known {
            Some((&name, handle)) => {
                handle.claims += 1;
                name
            }
            None => self.add(Handle { held: Arc::clone(held), exportable: Switch::Off, claims: 1 }),
        }
    }

    fn get(&self, name: u64) -> Result<Handle, Code> {
        self.handles.get(&name).cloned().ok_or(Code::INVALID_VALUE)
    }
}

entry_points! {
    10020 fn cuMemGetAllocationGranularity(driver, out: *mut usize, kind: *const Kind, option: u32) {
        // SAFETY: the header wants a pointer to properties, or null.
        let kind = unsafe { kind.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        if option > 1 || kind.kind != PINNED || kind.location.kind != ON_DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        if driver.card.settings().vmm == Switch::Off {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the header wants a pointer to a size, or null.
        unsafe { put(out, usize::try_from(GRANULARITY.get()).unwrap_or(usize::MAX)) }
    }

    10020 fn cuMemCreate(driver, out: *mut u64, size: usize, kind: *const Kind, flags: u64) {
        // SAFETY: the header wants a pointer to properties, or null.
        let (device, exportable) = device_of(driver, unsafe { kind.as_ref() })?;
        let bytes = granular(size)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let held = Arc::new(create(driver, device, bytes)?);
        let name = driver.state().handles.add(Handle { held, exportable, claims: 1 });
        // SAFETY: the header wants a pointer to a handle, or null.
        unsafe { put(out, name) }
    }

    10020 fn cuMemRelease(driver, handle: u64) {
        let released = driver.state().handles.release(handle)?;
        drop(released);
        Ok(())
    }

    11000 fn cuMemRetainAllocationHandle(driver, out: *mut u64, at: *mut c_void) {
        let mut state = driver.state();
        let (_, mapping) = state.addresses.around(at.addr() as u64).ok_or(Code::INVALID_VALUE)?;
        if mapping.origin != Origin::Vmm {
            return Err(Code::INVALID_VALUE);
        }
        let held = Arc::clone(&mapping.held);
        let name = state.handles.retain(&held);
        // SAFETY: the header wants a pointer to a handle, or null.
        unsafe { put(out, name) }
    }

    10020 fn cuMemGetAllocationPropertiesFromHandle(driver, out: *mut Kind, handle: u64) {
        let handle = driver.state().handles.get(handle)?;
        let id = driver.ordinal(handle.held.memory().device()).ok_or(Code::INVALID_DEVICE)?;
        let handle_types = if handle.exportable == Switch::On { POSIX_DESCRIPTOR } else { 0 };
        let location = Location { kind: ON_DEVICE, id };
        let kind = Kind { kind: PINNED, handle_types, location, win32: std::ptr::null_mut(), flags: [0; 8] };
        // SAFETY: the header wants a pointer to properties, or null.
        unsafe { put(out, kind) }
    }

    10020 fn cuMemExportToShareableHandle(driver, out: *mut i32, handle: u64, kind: u32, flags: u64) {
        let handle = driver.state().handles.get(handle)?;
        if kind != POSIX_DESCRIPTOR || flags != 0 || handle.exportable == Switch::Off {
            return Err(Code::INVALID_VALUE);
        }
        // CUDA does not promise that the descriptor is closed on exec, so here it never is.
        let descriptor = driver.card.export(handle.held.memory()).map_err(system)?;
        fcntl_setfd(&descriptor, FdFlags::empty()).map_err(|error| system(error.into()))?;
        // SAFETY: the header wants a pointer to an int, or null, for this kind of handle.
        unsafe { put(out, descriptor.into_raw_fd()) }
    }

    10020 fn cuMemImportFromShareableHandle(driver, out: *mut u64, from: *mut c_void, kind: u32) {
        let fd = i32::try_from(from.addr()).ok().filter(|&fd| fd >= 0).ok_or(Code::UNKNOWN)?;
        if kind != POSIX_DESCRIPTOR {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller keeps it open during the call; one that is closed is refused by the kernel.
        let mut memory = Memory::import(unsafe { BorrowedFd::borrow_raw(fd) }).ok_or(Code::UNKNOWN)?;
        driver.ordinal(memory.device()).ok_or(Code::INVALID_DEVICE)?;
        let holding = driver.card.hold(&driver.process, &mut memory).map_err(system)?;
        let held = Arc::new(Held::new((memory, holding)));
        let name = driver.state().handles.add(Handle { held, exportable: Switch::Off, claims: 1 });
        // SAFETY: the header wants a pointer to a handle, or null.
        unsafe { put(out, name) }
    }

    10020 fn cuMemAddressReserve(driver, out: *mut u64, size: usize, alignment: usize, _near: u64, flags: u64) {
        let bytes = granular(size)?;
        if flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        let base = driver.state().addresses.reserve(bytes.get())?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, base) }
    }

    10020 fn cuMemAddressFree(driver, base: u64, size: usize) {
        driver.state().addresses.free(base, size as u64)
    }

    10020 fn cuMemMap(driver, at: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        let mut state = driver.state();
        let held = state.handles.get(handle)?.held;
        if flags != 0 || !Bytes::new(at).is_granular() {
            return Err(Code::INVALID_VALUE);
        }
        if offset != 0 || held.memory().bytes() != Bytes::new(size as u64) {
            return Err(Code::NOT_SUPPORTED);
        }
        state.addresses.map(at, size as u64, held)
    }

    10020 fn cuMemUnmap(driver, at: u64, size: usize) {
        driver.state().addresses.unmap(at, size as u64)
    }

    10020 fn cuMemSetAccess(driver, at: u64, size: usize, rights: *const Right, count: usize) {
        if rights.is_null() || count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for index in 0..count {
            // SAFETY: the header wants an array of `count` descriptors.
            let right = unsafe { rights.add(index).read() };
            set_access(driver, at, size as u64, right)?;
        }
        Ok(())
    }

    10020 fn cuMemGetAccess(driver, out: *mut u64, location: *const Location, at: u64) {
        // SAFETY: the header wants a pointer to a location, or null.
        let location = unsafe { location.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let device = driver.device(location.id)?;
        let state = driver.state();
        let (_, mapping) = state.addresses.around(at).ok_or(Code::INVALID_VALUE)?;
        let flags = match mapping.access {
            Access::None => 0,
            Access::Read => 1,
            Access::Write => 3,
        };
        let as_guest = if mapping.guests.contains(&device) { 3 } else { 0 };
        let flags = if mapping.held.memory().device() == device { flags } else { as_guest };
        // SAFETY: the header wants a pointer to flags, or null.
        unsafe { put(out, flags) }
    }
}

fn set_access(driver: &Driver, at: u64, size: u64, right: Right) -> Outcome {
    if right.location.kind != ON_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    let device = driver.device(right.location.id).map_err(|_| Code::INVALID_VALUE)?;
    let access = match right.flags {
        0 => Access::None,
        1 => Access::Read,
        3 => Access::Write,
        _ => return Err(Code::INVALID_VALUE),
    };
    driver.state().addresses.set_access(at, size, device, access)
}

/// Creates memory, dirty where the test asks for that.
pub(crate) fn create(driver: &Driver, device: u32, bytes: Bytes) -> Result<Held, Code> {
    let held = Held::new(driver.card.create(&driver.process, device, bytes)?);
    if env::var("GPULEASE_STANDIN_DIRTY").is_ok_and(|value| value == "on") {
        held.memory().soil().map_err(system)?;
    }
    Ok(held)
}

/// The device that properties are for, and whether memory of that kind can be exported.
fn device_of(driver: &Driver, kind: Option<&Kind>) -> Result<(u32, Switch), Code> {
    let kind = kind.ok_or(Code::INVALID_VALUE)?;
    let settings = driver.card.settings();
    if settings.vmm == Switch::Off {
        return Err(Code::NOT_SUPPORTED);
    }
    if kind.kind != PINNED || kind.location.kind != ON_DEVICE || kind.handle_types & !POSIX_DESCRIPTOR != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let exportable = if kind.handle_types == POSIX_DESCRIPTOR { Switch::On } else { Switch::Off };
    if exportable == Switch::On && settings.descriptors == Switch::Off {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok((driver.device(kind.location.id)?, exportable))
}

fn granular(size: usize) -> Result<Bytes, Code> {
    let bytes = Bytes::new(size as u64);
    if bytes.is_zero() || !bytes.is_granular() { Err(Code::INVALID_VALUE) } else { Ok(bytes) }
}
