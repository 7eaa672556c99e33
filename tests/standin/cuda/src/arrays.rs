//! Arrays and mipmapped arrays. Theirs lie row after row, as nobody sees them but through copies.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use gpulease_words::Bytes;

use crate::addresses::Origin;
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::pointer::{handle, put};
use crate::vmm::create;

/// Arrays of these flags get their memory later, by `cuMemMapArrayAsync`, which this driver has not.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// The arrays of this process, by the number that their handle is.
#[derive(Default)]
pub(crate) struct Arrays {
    made: usize,
    arrays: BTreeMap<usize, Array>,
    mipmaps: BTreeMap<usize, Vec<usize>>,
}

/// An array, or a level of a mipmapped one.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    shape: Shape,
    context: usize,
    owner: Owner,
    /// Where its memory is.
    pub(crate) at: u64,
}

/// Who ends an array.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Program,
    Mipmap,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Flat {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
struct Requirements {
    size: usize,
    alignment: usize,
    reserved: [u32; 4],
}

impl Shape {
    fn element(self) -> Result<usize, Code> {
        let each = match self.format {
            1 | 8 => 1,
            2 | 9 | 16 => 2,
            3 | 10 | 32 => 4,
            _ => return Err(Code::INVALID_VALUE),
        };
        if matches!(self.channels, 1 | 2 | 4) {
            Ok(each * self.channels as usize)
        } else {
            Err(Code::INVALID_VALUE)
        }
    }

    fn row(self) -> Result<usize, Code> {
        self.width.checked_mul(self.element()?).filter(|&row| row > 0).ok_or(Code::INVALID_VALUE)
    }

    fn size(self) -> Result<usize, Code> {
        let rows = self.height.max(1).checked_mul(self.depth.max(1)).ok_or(Code::INVALID_VALUE)?;
        self.row()?.checked_mul(rows).ok_or(Code::OUT_OF_MEMORY)
    }

    fn level(self, level: u32) -> Self {
        let half = |extent: usize| if extent == 0 { 0 } else { (extent >> level).max(1) };
        Self { width: half(self.width), height: half(self.height), depth: half(self.depth), ..self }
    }
}

impl Array {
    /// Bytes of a row, and rows of a layer.
    pub(crate) fn pitch(&self) -> Result<(usize, usize), Code> {
        Ok((self.shape.row()?, self.shape.height.max(1)))
    }
}

impl Arrays {
    fn add(&mut self, array: Array) -> usize {
        self.made += 1;
        let number = 0x50_0000 + self.made * 16;
        self.arrays.insert(number, array);
        number
    }

    pub(crate) fn get(&self, array: *mut c_void) -> Result<Array, Code> {
        self.arrays.get(&array.addr()).copied().ok_or(Code::INVALID_HANDLE)
    }

    /// Ends the arrays of a context, whose memory ends with it.
    pub(crate) fn forget_context(&mut self, context: usize) {
        self.arrays.retain(|_, array| array.context != context);
        let alive = &self.arrays;
        self.mipmaps.retain(|_, levels| levels.iter().all(|level| alive.contains_key(level)));
    }
}

impl Driver {
    fn place_array(&self, size: usize, flags: u32) -> Result<(u64, usize), Code> {
        self.may_not_be_captured()?;
        let (device, context) = (self.current_device()?, self.current_context()?);
        if flags & WITHOUT_MEMORY != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let bytes = Bytes::new(size as u64).round_up().ok_or(Code::OUT_OF_MEMORY)?;
        let held = Arc::new(create(self, device, bytes)?);
        let at = self.state().addresses.place(Origin::Array, context, held)?;
        Ok((at, context))
    }

    fn make_array(&self, shape: Shape) -> Result<*mut c_void, Code> {
        let (at, context) = self.place_array(shape.size()?, shape.flags)?;
        Ok(handle(self.state().arrays.add(Array { shape, context, owner: Owner::Program, at })))
    }

    fn make_mipmap(&self, shape: Shape, levels: u32) -> Result<*mut c_void, Code> {
        if levels == 0 || levels > 32 {
            return Err(Code::INVALID_VALUE);
        }
        let shapes: Vec<Shape> = (0..levels).map(|level| shape.level(level)).collect();
        let sizes = shapes.iter().map(|shape| shape.size()).collect::<Result<Vec<_>, _>>()?;
        let (mut at, context) = self.place_array(sizes.iter().sum(), shape.flags)?;
        let mut state = self.state();
        let mut handles = Vec::new();
        for (shape, size) in shapes.into_iter().zip(sizes) {
            handles.push(state.arrays.add(Array { shape, context, owner: Owner::Mipmap, at }));
            at += size as u64;
        }
        state.arrays.made += 1;
        let number = 0x50_0000 + state.arrays.made * 16;
        state.arrays.mipmaps.insert(number, handles);
        Ok(handle(number))
    }

    fn end_array(&self, array: *mut c_void) -> Outcome {
        self.may_not_be_captured()?;
        let mut state = self.state();
        let Array { at, owner, .. } = state.arrays.get(array)?;
        if owner == Owner::Mipmap {
            return Err(Code::INVALID_VALUE);
        }
        state.arrays.arrays.remove(&array.addr());
        state.addresses.take(at)
    }

    fn end_mipmap(&self, mipmap: *mut c_void) -> Outcome {
        self.may_not_be_captured()?;
        let mut state = self.state();
        let levels = state.arrays.mipmaps.remove(&mipmap.addr()).ok_or(Code::INVALID_HANDLE)?;
        let first =
            levels.iter().filter_map(|level| state.arrays.arrays.remove(level)).map(|array| array.at).min();
        state.addresses.take(first.ok_or(Code::INVALID_HANDLE)?)
    }
}

entry_points! {
    3020 fn cuArrayCreate_v2(driver, out: *mut *mut c_void, shape: *const Flat) {
        // SAFETY: the header wants a pointer to a description, or null.
        let Flat { width, height, format, channels } = *unsafe { shape.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let array = driver.make_array(Shape { width, height, depth: 0, format, channels, flags: 0 })?;
        // SAFETY: the header wants a pointer to an array, or null.
        unsafe { put(out, array) }
    }

    3020 fn cuArray3DCreate_v2(driver, out: *mut *mut c_void, shape: *const Shape) {
        // SAFETY: as above.
        let array = driver.make_array(*unsafe { shape.as_ref() }.ok_or(Code::INVALID_VALUE)?)?;
        // SAFETY: as above.
        unsafe { put(out, array) }
    }

    2000 fn cuArrayDestroy(driver, array: *mut c_void) {
        driver.end_array(array)
    }

    3020 fn cuArrayGetDescriptor_v2(driver, out: *mut Flat, array: *mut c_void) {
        let Shape { width, height, format, channels, .. } = driver.state().arrays.get(array)?.shape;
        // SAFETY: the header wants a pointer to a description, or null.
        unsafe { put(out, Flat { width, height, format, channels }) }
    }

    3020 fn cuArray3DGetDescriptor_v2(driver, out: *mut Shape, array: *mut c_void) {
        let shape = driver.state().arrays.get(array)?.shape;
        // SAFETY: as above.
        unsafe { put(out, shape) }
    }

    11060 fn cuArrayGetMemoryRequirements(driver, out: *mut Requirements, array: *mut c_void, _device: i32) {
        let size = driver.state().arrays.get(array)?.shape.size()?;
        // SAFETY: the header wants a pointer to requirements, or null.
        unsafe { put(out, Requirements { size, alignment: 512, reserved: [0; 4] }) }
    }

    5000 fn cuMipmappedArrayCreate(driver, out: *mut *mut c_void, shape: *const Shape, levels: u32) {
        // SAFETY: the header wants a pointer to a description, or null.
        let mipmap = driver.make_mipmap(*unsafe { shape.as_ref() }.ok_or(Code::INVALID_VALUE)?, levels)?;
        // SAFETY: the header wants a pointer to a mipmapped array, or null.
        unsafe { put(out, mipmap) }
    }

    5000 fn cuMipmappedArrayGetLevel(driver, out: *mut *mut c_void, mipmap: *mut c_void, level: u32) {
        let state = driver.state();
        let levels = state.arrays.mipmaps.get(&mipmap.addr()).ok_or(Code::INVALID_HANDLE)?;
        let array = *levels.get(level as usize).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the header wants a pointer to an array, or null.
        unsafe { put(out, handle(array)) }
    }

    5000 fn cuMipmappedArrayDestroy(driver, mipmap: *mut c_void) {
        driver.end_mipmap(mipmap)
    }
}
