//! Arrays, which have no addresses.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

use crate::doors::{Driver, Failed, call};
use crate::ways::Taken;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
struct Deep {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

const FLOAT: c_uint = 0x20;
const ROW: usize = 4096;

pub(crate) fn array(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    let (shape, mut array) =
        (Flat { width: ROW / 16, height: bytes / ROW, format: FLOAT, channels: 4 }, null_mut());
    call!(driver, "cuArrayCreate" "_v2" (*mut *mut c_void, *const Flat)(&raw mut array, &raw const shape))?;
    Ok(Taken::unseen(move |driver| destroy(driver, array)))
}

pub(crate) fn array_3d(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    let (shape, mut array) = (cube(bytes), null_mut());
    call!(driver, "cuArray3DCreate" "_v2" (*mut *mut c_void, *const Deep)(&raw mut array, &raw const shape))?;
    Ok(Taken::unseen(move |driver| destroy(driver, array)))
}

/// One level and a few that add a seventh.
pub(crate) fn mipmap(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    let (shape, mut mipmap) = (cube(bytes), null_mut());
    call!(driver, "cuMipmappedArrayCreate" "" (*mut *mut c_void, *const Deep, c_uint)
        (&raw mut mipmap, &raw const shape, 3))?;
    Ok(Taken::unseen(move |driver| call!(driver, "cuMipmappedArrayDestroy" "" (*mut c_void)(mipmap))))
}

fn cube(bytes: usize) -> Deep {
    Deep { width: ROW / 16, height: 256, depth: bytes / (ROW * 256), format: FLOAT, channels: 4, flags: 0 }
}

fn destroy(driver: &Driver, array: *mut c_void) -> Result<(), Failed> {
    call!(driver, "cuArrayDestroy" "" (*mut c_void)(array))
}
