//! IPC handles: 64 bytes by which another process maps what this one allocated.

use std::process;
use std::sync::Arc;

use crate::addresses::Origin;
use crate::code::Code;
use crate::context::current;
use crate::driver::{Driver, Held, system};
use crate::entry::entry_points;
use crate::pointer::put;

const MAGIC: [u8; 8] = *b"standin\0";

/// `CUipcMemHandle`, which goes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    bytes: [u8; 64],
}

entry_points! {
    4010 fn cuIpcGetMemHandle(driver, out: *mut Handle, at: u64) {
        let state = driver.state();
        let (_, mapping) = state.addresses.around(at).ok_or(Code::INVALID_VALUE)?;
        let Origin::Allocated { asked } = mapping.origin else { return Err(Code::INVALID_VALUE) };
        // SAFETY: the header wants a pointer to a handle, or null.
        unsafe { put(out, write_handle(&mapping.held, asked)) }
    }

    11000 fn cuIpcOpenMemHandle_v2(driver, out: *mut u64, handle: Handle, flags: u32) {
        driver.current_device()?;
        if flags != 1 {
            return Err(Code::INVALID_VALUE);
        }
        let at = open(driver, &handle.bytes)?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    4010 fn cuIpcCloseMemHandle(driver, at: u64) {
        driver.current_device()?;
        let mut state = driver.state();
        let mapping = state.addresses.starting(at).ok_or(Code::INVALID_VALUE)?;
        match &mut mapping.origin {
            Origin::Opened { times: 1, .. } => state.addresses.take(at),
            Origin::Opened { times, .. } => {
                *times -= 1;
                Ok(())
            }
            Origin::Vmm
            | Origin::Allocated { .. }
            | Origin::Managed { .. }
            | Origin::Pooled { .. }
            | Origin::Cached { .. }
            | Origin::Array
            | Origin::Variable { .. }
            | Origin::Graph { .. } => Err(Code::INVALID_VALUE),
        }
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
    let context = current().ok_or(Code::INVALID_CONTEXT)?;
    state.addresses.place(Origin::Opened { times: 1, asked }, context, held)
}
