//! `cuMemAlloc` and IPC handles.

use std::process;
use std::sync::Arc;

use gpulease_words::Bytes;

use crate::addresses::Origin;
use crate::code::{Code, Outcome};
use crate::driver::{Driver, Held, entry_points, system};
use crate::pointer::put;
use crate::vmm::create;

const MAGIC: [u8; 8] = *b"standin\0";

/// `CUipcMemHandle`, which goes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    bytes: [u8; 64],
}

entry_points! {
    fn cuMemAlloc_v2(driver, out: *mut u64, size: usize) {
        let at = allocate(driver, size, |asked| Origin::Allocated { asked })?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    fn cuMemAllocAsync(driver, out: *mut u64, size: usize, _stream: *mut std::ffi::c_void) {
        let at = allocate(driver, size, |asked| Origin::Pooled { asked })?;
        // SAFETY: as above.
        unsafe { put(out, at) }
    }

    fn cuMemFree_v2(driver, at: u64) {
        free(driver, at)
    }

    fn cuMemFreeAsync(driver, at: u64, _stream: *mut std::ffi::c_void) {
        free(driver, at)
    }

    fn cuMemGetAddressRange_v2(driver, base: *mut u64, size: *mut usize, at: u64) {
        let state = driver.state();
        let (start, mapping) = state.addresses.around(at).ok_or(Code::NOT_FOUND)?;
        let length = match mapping.origin {
            Origin::Vmm => mapping.size,
            Origin::Allocated { asked } | Origin::Pooled { asked } | Origin::Opened { asked, .. } => asked,
        };
        if !base.is_null() {
            // SAFETY: the header wants a pointer to an address, or null.
            unsafe { put(base, start) }?;
        }
        if !size.is_null() {
            // SAFETY: the header wants a pointer to a size, or null.
            unsafe { put(size, usize::try_from(length).unwrap_or(usize::MAX)) }?;
        }
        Ok(())
    }

    fn cuIpcGetMemHandle(driver, out: *mut Handle, at: u64) {
        let state = driver.state();
        let (_, mapping) = state.addresses.around(at).ok_or(Code::INVALID_VALUE)?;
        let Origin::Allocated { asked } = mapping.origin else { return Err(Code::INVALID_VALUE) };
        // SAFETY: the header wants a pointer to a handle, or null.
        unsafe { put(out, write_handle(&mapping.held, asked)) }
    }

    fn cuIpcOpenMemHandle_v2(driver, out: *mut u64, handle: Handle, flags: u32) {
        driver.current_device()?;
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let at = open(driver, &handle.bytes)?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    fn cuIpcCloseMemHandle(driver, at: u64) {
        driver.current_device()?;
        let mut state = driver.state();
        let mapping = state.addresses.starting(at).ok_or(Code::INVALID_VALUE)?;
        match &mut mapping.origin {
            Origin::Opened { times: 1, .. } => state.addresses.take(at),
            Origin::Opened { times, .. } => {
                *times -= 1;
                Ok(())
            }
            Origin::Vmm | Origin::Allocated { .. } | Origin::Pooled { .. } => Err(Code::INVALID_VALUE),
        }
    }
}

fn allocate(driver: &Driver, size: usize, origin: impl Fn(u64) -> Origin) -> Result<u64, Code> {
    let device = driver.current_device()?;
    let asked = Bytes::new(size as u64);
    if asked.is_zero() {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = asked.round_up().ok_or(Code::OUT_OF_MEMORY)?;
    let held = Arc::new(create(driver, device, bytes)?);
    driver.state().addresses.place(origin(asked.get()), held)
}

fn free(driver: &Driver, at: u64) -> Outcome {
    if at == 0 {
        return Ok(());
    }
    let mut state = driver.state();
    match state.addresses.starting(at).map(|mapping| mapping.origin) {
        Some(Origin::Allocated { .. } | Origin::Pooled { .. }) => state.addresses.take(at),
        Some(Origin::Vmm | Origin::Opened { .. }) | None => Err(Code::INVALID_VALUE),
    }
}

fn write_handle(held: &Held, asked: u64) -> Handle {
    let (memory, mut handle) = (held.memory(), [0; 64]);
    handle[..8].copy_from_slice(&MAGIC);
    handle[8..16].copy_from_slice(&memory.id().to_le_bytes());
    handle[16..20].copy_from_slice(&process::id().to_le_bytes());
    handle[24..32].copy_from_slice(&asked.to_le_bytes());
    handle[32..48].copy_from_slice(&memory.nonce());
    Handle { bytes: handle }
}

fn open(driver: &Driver, handle: &[u8; 64]) -> Result<u64, Code> {
    let number =
        |at: usize| u64::from_le_bytes(handle[at..at + 8].try_into().expect("eight bytes were taken"));
    let (id, asked) = (number(8), number(24));
    if handle[..8] != MAGIC {
        return Err(Code::INVALID_VALUE);
    }
    if handle[16..20] == process::id().to_le_bytes() {
        return Err(Code::INVALID_CONTEXT);
    }
    let is_it = |(at, mapping): (u64, &crate::addresses::Mapping)| {
        (matches!(mapping.origin, Origin::Opened { .. }) && mapping.held.memory().id() == id).then_some(at)
    };
    let mut state = driver.state();
    let there = state.addresses.all().find_map(is_it);
    if let Some(at) = there {
        let mapping = state.addresses.starting(at).ok_or(Code::INVALID_VALUE)?;
        if let Origin::Opened { times, .. } = &mut mapping.origin {
            *times += 1;
        }
        return Ok(at);
    }
    let nonce = handle[32..48].try_into().expect("sixteen bytes were taken");
    let found = driver.card.find(&driver.process, id, nonce).map_err(system)?;
    let held = Arc::new(Held::new(found.ok_or(Code::INVALID_VALUE)?));
    state.addresses.place(Origin::Opened { times: 1, asked }, held)
}
