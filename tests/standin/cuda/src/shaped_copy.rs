//! Copies of rows and layers, between the host, the device and arrays.

use std::ffi::c_void;

use crate::addresses::{Access, pointer};
use crate::code::{Code, Outcome};
use crate::copy::check;
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph::Kind;

const LEGACY: *mut c_void = std::ptr::null_mut();
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// One end of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FlatEnd {
    x: usize,
    y: usize,
    kind: u32,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Flat {
    from: FlatEnd,
    to: FlatEnd,
    width: usize,
    height: usize,
}

/// One end of a `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct End {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: usize,
    device: u64,
    array: usize,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Deep {
    from: End,
    to: End,
    width: usize,
    height: usize,
    depth: usize,
}

/// Where rows of one end begin.
#[derive(Clone, Copy)]
struct Rows {
    at: u64,
    pitch: u64,
    layer: u64,
    checked: bool,
}

impl From<FlatEnd> for End {
    fn from(end: FlatEnd) -> Self {
        let FlatEnd { x, y, kind, host, device, array, pitch } = end;
        Self { x, y, z: 0, level: 0, kind, host, device, array, reserved: 0, pitch, height: 0 }
    }
}

impl From<Flat> for Deep {
    fn from(flat: Flat) -> Self {
        let Flat { from, to, width, height } = flat;
        Self { from: from.into(), to: to.into(), width, height, depth: 1 }
    }
}

impl End {
    fn rows(&self, driver: &Driver, width: usize) -> Result<Rows, Code> {
        let (base, pitch, height, checked) = match self.kind {
            HOST => (self.host as u64, self.pitch, self.height, false),
            DEVICE => (self.device, self.pitch, self.height, true),
            UNIFIED => {
                let checked = driver.state().addresses.around(self.device).is_some();
                (self.device, self.pitch, self.height, checked)
            }
            ARRAY => {
                let array = driver.state().arrays.get(crate::pointer::handle(self.array))?;
                let (row, rows) = array.pitch()?;
                (array.at, row, rows, true)
            }
            _ => return Err(Code::INVALID_VALUE),
        };
        let pitch = if pitch == 0 { self.x + width } else { pitch } as u64;
        let layer = pitch * height as u64;
        let at = base + self.z as u64 * layer + self.y as u64 * pitch + self.x as u64;
        Ok(Rows { at, pitch, layer, checked })
    }
}

impl Deep {
    fn make(&self, driver: &Driver) -> Outcome {
        let (from, to) = (self.from.rows(driver, self.width)?, self.to.rows(driver, self.width)?);
        for z in 0..self.depth.max(1) as u64 {
            for y in 0..self.height.max(1) as u64 {
                let row = |rows: Rows, access| {
                    let at = rows.at + z * rows.layer + y * rows.pitch;
                    if rows.checked { check(driver, at, self.width, access).map(|()| at) } else { Ok(at) }
                };
                let (from, to) = (row(from, Access::Read)?, row(to, Access::Write)?);
                // SAFETY: ranges of the device are mapped, the second for writing; those of the host are the
                // caller's promise.
                unsafe { pointer(to).cast::<u8>().copy_from(pointer(from).cast(), self.width) };
            }
        }
        Ok(())
    }

    fn submit(self, driver: &Driver, stream: *mut c_void) -> Outcome {
        driver.submit(stream, Kind::Copy, move |driver| self.make(driver))
    }
}

/// # Safety
/// `copy` is null or points to a description.
unsafe fn flat(copy: *const Flat) -> Result<Deep, Code> {
    // SAFETY: the caller's promise.
    unsafe { copy.as_ref() }.map(|flat| Deep::from(*flat)).ok_or(Code::INVALID_VALUE)
}

/// # Safety
/// As [`flat`].
unsafe fn deep(copy: *const Deep) -> Result<Deep, Code> {
    // SAFETY: the caller's promise.
    unsafe { copy.as_ref() }.copied().ok_or(Code::INVALID_VALUE)
}

/// Bytes of an array in a row, from this one on.
fn in_array(array: *mut c_void, at: usize) -> FlatEnd {
    FlatEnd { x: at, y: 0, kind: ARRAY, host: 0, device: 0, array: array.addr(), pitch: 0 }
}

fn in_host(at: usize) -> FlatEnd {
    FlatEnd { x: 0, y: 0, kind: HOST, host: at, device: 0, array: 0, pitch: 0 }
}

fn on_device(at: u64) -> FlatEnd {
    FlatEnd { x: 0, y: 0, kind: DEVICE, host: 0, device: at, array: 0, pitch: 0 }
}

fn line(driver: &Driver, stream: *mut c_void, from: FlatEnd, to: FlatEnd, width: usize) -> Outcome {
    Deep::from(Flat { from, to, width, height: 1 }).submit(driver, stream)
}

entry_points! {
    3020 & cuMemcpy2D_v2_ptds fn cuMemcpy2D_v2(driver, copy: *const Flat) {
        // SAFETY: the header wants a pointer to a description, or null.
        unsafe { flat(copy) }?.submit(driver, LEGACY)
    }

    3020 & cuMemcpy2DUnaligned_v2_ptds fn cuMemcpy2DUnaligned_v2(driver, copy: *const Flat) {
        // SAFETY: as above.
        unsafe { flat(copy) }?.submit(driver, LEGACY)
    }

    3020 & cuMemcpy2DAsync_v2_ptsz fn cuMemcpy2DAsync_v2(driver, copy: *const Flat, stream: *mut c_void) {
        // SAFETY: as above.
        unsafe { flat(copy) }?.submit(driver, stream)
    }

    3020 & cuMemcpy3D_v2_ptds fn cuMemcpy3D_v2(driver, copy: *const Deep) {
        // SAFETY: as above.
        unsafe { deep(copy) }?.submit(driver, LEGACY)
    }

    3020 & cuMemcpy3DAsync_v2_ptsz fn cuMemcpy3DAsync_v2(driver, copy: *const Deep, stream: *mut c_void) {
        // SAFETY: as above.
        unsafe { deep(copy) }?.submit(driver, stream)
    }

    3020 & cuMemcpyHtoA_v2_ptds fn cuMemcpyHtoA_v2(driver, to: *mut c_void, at: usize, from: *const c_void, size: usize) {
        line(driver, LEGACY, in_host(from.expose_provenance()), in_array(to, at), size)
    }

    3020 & cuMemcpyAtoH_v2_ptds fn cuMemcpyAtoH_v2(driver, to: *mut c_void, from: *mut c_void, at: usize, size: usize) {
        line(driver, LEGACY, in_array(from, at), in_host(to.expose_provenance()), size)
    }

    3020 & cuMemcpyHtoAAsync_v2_ptsz fn cuMemcpyHtoAAsync_v2(
        driver, to: *mut c_void, at: usize, from: *const c_void, size: usize, stream: *mut c_void,
    ) {
        line(driver, stream, in_host(from.expose_provenance()), in_array(to, at), size)
    }

    3020 & cuMemcpyAtoHAsync_v2_ptsz fn cuMemcpyAtoHAsync_v2(
        driver, to: *mut c_void, from: *mut c_void, at: usize, size: usize, stream: *mut c_void,
    ) {
        line(driver, stream, in_array(from, at), in_host(to.expose_provenance()), size)
    }

    4000 & cuMemcpy3DPeer_ptds fn cuMemcpy3DPeer(driver, copy: *const Deep) {
        // The reserved words of a description are contexts here, which change nothing.
        // SAFETY: as above.
        unsafe { deep(copy) }?.submit(driver, LEGACY)
    }

    4000 & cuMemcpy3DPeerAsync_ptsz fn cuMemcpy3DPeerAsync(driver, copy: *const Deep, stream: *mut c_void) {
        // SAFETY: as above.
        unsafe { deep(copy) }?.submit(driver, stream)
    }

    3020 & cuMemcpyDtoA_v2_ptds fn cuMemcpyDtoA_v2(driver, to: *mut c_void, at: usize, from: u64, size: usize) {
        line(driver, LEGACY, on_device(from), in_array(to, at), size)
    }

    3020 & cuMemcpyAtoD_v2_ptds fn cuMemcpyAtoD_v2(driver, to: u64, from: *mut c_void, at: usize, size: usize) {
        line(driver, LEGACY, in_array(from, at), on_device(to), size)
    }

    3020 & cuMemcpyAtoA_v2_ptds fn cuMemcpyAtoA_v2(
        driver, to: *mut c_void, to_at: usize, from: *mut c_void, from_at: usize, size: usize,
    ) {
        line(driver, LEGACY, in_array(from, from_at), in_array(to, to_at), size)
    }
}
