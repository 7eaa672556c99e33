//! Code on the device: what it takes there, and launches.

use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::ptr::null_mut;
use std::time::Instant;

use crate::doors::{Driver, Failed, call};
use crate::ways::Taken;

const HEADER: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
/// `CU_LIMIT_PRINTF_FIFO_SIZE`.
const PRINTED: c_uint = 1;
/// `CU_LIMIT_MALLOC_HEAP_SIZE`.
const HEAP: c_uint = 2;

fn variable_of(bytes: usize) -> CString {
    let text = format!("{HEADER}.visible .global .align 256 .b8 big[{bytes}];\n");
    CString::new(text).expect("there is no zero in it")
}

/// A variable of a module.
pub(crate) fn variable(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (text, mut module) = (variable_of(bytes), null_mut());
    call!(driver, "cuModuleLoadData" "" (*mut *mut c_void, *const c_char)(&raw mut module, text.as_ptr()))?;
    variable_in(driver, module, mark)
}

/// The same, loaded with options.
pub(crate) fn variable_with_options(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (text, mut module) = (variable_of(bytes), null_mut());
    call!(driver, "cuModuleLoadDataEx" "" (*mut *mut c_void, *const c_char, c_uint, *mut c_void, *mut c_void)
        (&raw mut module, text.as_ptr(), 0, null_mut(), null_mut()))?;
    variable_in(driver, module, mark)
}

/// The same, loaded from a file.
pub(crate) fn variable_of_file(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (file, mut module) = (file_of(&variable_of(bytes)), null_mut());
    call!(driver, "cuModuleLoad" "" (*mut *mut c_void, *const c_char)(&raw mut module, file.name.as_ptr()))?;
    variable_in(driver, module, mark)
}

fn variable_in(driver: &Driver, module: *mut c_void, mark: u8) -> Result<Taken, Failed> {
    let (mut at, mut size) = (0, 0);
    call!(driver, "cuModuleGetGlobal" "_v2" (*mut u64, *mut usize, *mut c_void, *const c_char)
        (&raw mut at, &raw mut size, module, c"big".as_ptr()))?;
    Taken::at(driver, at, size, mark, move |driver| call!(driver, "cuModuleUnload" "" (*mut c_void)(module)))
}

/// A variable of a library.
pub(crate) fn library_variable(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    let (text, mut library) = (variable_of(bytes), null_mut());
    call!(driver, "cuLibraryLoadData" ""
        (*mut *mut c_void, *const c_char, *mut c_void, *mut c_void, c_uint, *mut c_void, *mut c_void, c_uint)
        (&raw mut library, text.as_ptr(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0))?;
    Ok(Taken::unseen(move |driver| call!(driver, "cuLibraryUnload" "" (*mut c_void)(library))))
}

/// A variable of a library that is loaded from a file.
pub(crate) fn library_of_file(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    let (file, mut library) = (file_of(&variable_of(bytes)), null_mut());
    call!(driver, "cuLibraryLoadFromFile" ""
        (*mut *mut c_void, *const c_char, *mut c_void, *mut c_void, c_uint, *mut c_void, *mut c_void, c_uint)
        (&raw mut library, file.name.as_ptr(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0))?;
    Ok(Taken::unseen(move |driver| call!(driver, "cuLibraryUnload" "" (*mut c_void)(library))))
}

/// A file that goes when this is dropped.
struct Image {
    name: CString,
    _file: tempfile::TempPath,
}

fn file_of(text: &CStr) -> Image {
    let file = tempfile::NamedTempFile::new().expect("a file can be made").into_temp_path();
    std::fs::write(&file, text.to_bytes()).expect("it can be written");
    let name = CString::new(file.as_os_str().to_owned().into_vec()).expect("no path has a zero in it");
    Image { name, _file: file }
}

/// What kernels take by `malloc`.
pub(crate) fn heap(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    more_of(driver, HEAP, bytes)
}

/// What kernels print into.
pub(crate) fn printed(driver: &Driver, bytes: usize, _mark: u8) -> Result<Taken, Failed> {
    more_of(driver, PRINTED, bytes)
}

fn more_of(driver: &Driver, limit: c_uint, bytes: usize) -> Result<Taken, Failed> {
    let mut before = 0;
    call!(driver, "cuCtxGetLimit" "" (*mut usize, c_uint)(&raw mut before, limit))?;
    call!(driver, "cuCtxSetLimit" "" (c_uint, usize)(limit, before + bytes))?;
    Ok(Taken::unseen(move |driver| call!(driver, "cuCtxSetLimit" "" (c_uint, usize)(limit, before))))
}

/// Launches a kernel that does nothing so many times; nanoseconds for each.
pub(crate) fn launch(driver: &Driver, times: u64) -> Result<u64, Failed> {
    type Launch = unsafe extern "C" fn(
        *mut c_void,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        *mut c_void,
        *mut c_void,
        *mut c_void,
    ) -> u32;
    let text =
        CString::new(format!("{HEADER}.visible .entry nothing()\n{{\n    ret;\n}}\n")).expect("no zero");
    let (mut module, mut function) = (null_mut(), null_mut());
    call!(driver, "cuModuleLoadData" "" (*mut *mut c_void, *const c_char)(&raw mut module, text.as_ptr()))?;
    call!(driver, "cuModuleGetFunction" "" (*mut *mut c_void, *mut c_void, *const c_char)
        (&raw mut function, module, c"nothing".as_ptr()))?;
    let name: &CStr = c"cuLaunchKernel";
    // SAFETY: this is the type of the driver's header for this name.
    let launch: Launch = unsafe { std::mem::transmute(driver.find(name, "")) };
    let start = Instant::now();
    for _ in 0..times {
        // SAFETY: the function takes no arguments.
        let code = unsafe { launch(function, 1, 1, 1, 32, 1, 1, 0, null_mut(), null_mut(), null_mut()) };
        if code != 0 {
            return Err(Failed { call: "cuLaunchKernel", code });
        }
    }
    let took = start.elapsed();
    driver.synchronize()?;
    call!(driver, "cuModuleUnload" "" (*mut c_void)(module))?;
    Ok(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) / times.max(1))
}
