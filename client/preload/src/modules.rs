//! Variables of modules and libraries: as far as their image can be read, they count against the lease before it is
//! loaded. What is in compressed images the broker sees when it is on the card.

mod image;

use std::ffi::{CStr, c_char, c_uint, c_void};

use gpulease_client::Bytes;

use crate::charged::Given;
use crate::code::{Code, SUCCESS, check, code_of};
use crate::driver;
use crate::entries::real;
use crate::job;

/// What does not count: libraries of kernels have small variables, and many are loaded.
const SMALL: Bytes = Bytes::new(1 << 20);

/// Loads what has so many bytes of variables.
fn loaded(bytes: Bytes, ask: impl Fn() -> Code, given: impl FnOnce() -> Given) -> Code {
    let served = || match job::current()? {
        Some(job) if bytes > SMALL => {
            let device = driver::current_device()
                .or_else(|code| job.devices.first().map_or(Err(code), |d| Ok(d.number)))?;
            check(job.charges.take(job, device, bytes, ask, given))
        }
        Some(_) | None => check(ask()),
    };
    code_of(served())
}

fn unloaded(code: Code, given: Given) -> Code {
    if code == SUCCESS
        && let Some(job) = job::if_joined()
    {
        job.charges.give(given);
    }
    code
}

/// The variables of a file's image; none where it can't be read, which the driver then says too.
///
/// # Safety
/// The name is a string, or null.
unsafe fn of_file(name: *const c_char) -> Bytes {
    if name.is_null() {
        return Bytes::ZERO;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let Ok(mut image) = std::fs::read(name.to_string_lossy().as_ref()) else { return Bytes::ZERO };
    image.push(0);
    // SAFETY: it is whole, and ends with a zero.
    unsafe { image::variables(image.as_ptr()) }
}

/// `cuModuleLoadData`
pub(crate) unsafe fn load_data(module: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: the caller's arguments, passed on; an image as the driver takes it.
    unsafe {
        loaded(
            image::variables(image.cast()),
            || real::cuModuleLoadData(module, image),
            || Given::Module(*module as usize),
        )
    }
}

/// `cuModuleLoadDataEx`
pub(crate) unsafe fn load_data_ex(
    module: *mut *mut c_void,
    image: *const c_void,
    count: c_uint,
    options: *mut c_void,
    values: *mut c_void,
) -> Code {
    // SAFETY: the caller's arguments, passed on; an image as the driver takes it.
    unsafe {
        loaded(
            image::variables(image.cast()),
            || real::cuModuleLoadDataEx(module, image, count, options, values),
            || Given::Module(*module as usize),
        )
    }
}

/// `cuModuleLoadFatBinary`
pub(crate) unsafe fn load_fat(module: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: the caller's arguments, passed on; an image as the driver takes it.
    unsafe {
        loaded(
            image::variables(image.cast()),
            || real::cuModuleLoadFatBinary(module, image),
            || Given::Module(*module as usize),
        )
    }
}

/// `cuModuleLoad`
pub(crate) unsafe fn load(module: *mut *mut c_void, name: *const c_char) -> Code {
    // SAFETY: the caller's arguments, passed on.
    unsafe { loaded(of_file(name), || real::cuModuleLoad(module, name), || Given::Module(*module as usize)) }
}

/// `cuModuleUnload`
pub(crate) unsafe fn unload(module: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    unloaded(unsafe { real::cuModuleUnload(module) }, Given::Module(module as usize))
}

/// `cuLibraryLoadData`
pub(crate) unsafe fn library_data(
    library: *mut *mut c_void,
    image: *const c_void,
    jit: *mut c_void,
    jit_values: *mut c_void,
    jits: c_uint,
    options: *mut c_void,
    values: *mut c_void,
    count: c_uint,
) -> Code {
    // SAFETY: the caller's arguments, passed on; an image as the driver takes it.
    unsafe {
        loaded(
            image::variables(image.cast()),
            || real::cuLibraryLoadData(library, image, jit, jit_values, jits, options, values, count),
            || Given::Library(*library as usize),
        )
    }
}

/// `cuLibraryLoadFromFile`
pub(crate) unsafe fn library_file(
    library: *mut *mut c_void,
    name: *const c_char,
    jit: *mut c_void,
    jit_values: *mut c_void,
    jits: c_uint,
    options: *mut c_void,
    values: *mut c_void,
    count: c_uint,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    unsafe {
        loaded(
            of_file(name),
            || real::cuLibraryLoadFromFile(library, name, jit, jit_values, jits, options, values, count),
            || Given::Library(*library as usize),
        )
    }
}

/// `cuLibraryUnload`
pub(crate) unsafe fn library_unload(library: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    unloaded(unsafe { real::cuLibraryUnload(library) }, Given::Library(library as usize))
}
