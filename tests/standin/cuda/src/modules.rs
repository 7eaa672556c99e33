//! Modules and libraries: their functions and their variables.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use gpulease_words::Bytes;

use crate::addresses::Origin;
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::launch::Body;
use crate::pointer::{handle, put};
use crate::sums::SUMS;
use crate::vmm::create;

/// What was loaded, by the number that its handle is. A function is its module's number and one or two more.
#[derive(Default)]
pub(crate) struct Modules {
    last: usize,
    loaded: BTreeMap<usize, Module>,
}

struct Module {
    text: String,
    context: usize,
    /// Address and size, by name.
    variables: BTreeMap<String, (u64, u64)>,
}

impl Modules {
    /// What a function does.
    pub(crate) fn body(&self, function: *mut c_void) -> Result<Body, Code> {
        let (module, kind) = (function.addr() & !15, function.addr() & 15);
        let known = self.loaded.contains_key(&module);
        match kind {
            1 if known => Ok(Body::Sums),
            2 if known => Ok(Body::Nothing),
            _ => Err(Code::INVALID_HANDLE),
        }
    }

    /// Ends the modules of a context, whose memory ends with it.
    pub(crate) fn forget_context(&mut self, context: usize) {
        self.loaded.retain(|_, module| module.context != context);
    }

    fn get(&self, module: *mut c_void) -> Result<&Module, Code> {
        self.loaded.get(&module.addr()).ok_or(Code::INVALID_HANDLE)
    }
}

impl Module {
    /// The last digit of a function's handle.
    fn function(&self, name: &str) -> Result<usize, Code> {
        let start = self.text.find(&format!(".entry {name}(")).ok_or(Code::NOT_FOUND)?;
        let body = self.text[start..].split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        match body {
            _ if name == SUMS => Ok(1),
            Some((body, _)) if body.trim() == "ret;" => Ok(2),
            Some(_) | None => Err(Code::NOT_SUPPORTED),
        }
    }
}

entry_points! {
    2000 fn cuModuleLoadData(driver, out: *mut *mut c_void, image: *const c_char) {
        // SAFETY: the header wants a pointer to a module and an image, or null.
        unsafe { load(driver, out, image) }
    }

    2000 fn cuModuleLoad(driver, out: *mut *mut c_void, name: *const c_char) {
        // SAFETY: as above, with the name of a file.
        unsafe { load_file(driver, out, name) }
    }

    12000 fn cuLibraryLoadFromFile(
        driver, out: *mut *mut c_void, name: *const c_char, _jit: *mut u32, _jit_values: *mut *mut c_void, _jit_count: u32,
        _options: *mut u32, _values: *mut *mut c_void, _count: u32,
    ) {
        // SAFETY: as above.
        unsafe { load_file(driver, out, name) }
    }

    2010 fn cuModuleLoadDataEx(
        driver, out: *mut *mut c_void, image: *const c_char, _count: u32, _options: *mut u32, _values: *mut *mut c_void,
    ) {
        // SAFETY: as above.
        unsafe { load(driver, out, image) }
    }

    12000 fn cuLibraryLoadData(
        driver, out: *mut *mut c_void, image: *const c_char, _jit: *mut u32, _jit_values: *mut *mut c_void, _jit_count: u32,
        _options: *mut u32, _values: *mut *mut c_void, _count: u32,
    ) {
        // SAFETY: as above.
        unsafe { load(driver, out, image) }
    }

    2000 fn cuModuleUnload(driver, module: *mut c_void) {
        unload(driver, module)
    }

    12000 fn cuLibraryUnload(driver, library: *mut c_void) {
        unload(driver, library)
    }

    12000 fn cuLibraryGetModule(driver, out: *mut *mut c_void, library: *mut c_void) {
        driver.state().modules.get(library)?;
        // SAFETY: the header wants a pointer to a module, or null.
        unsafe { put(out, library) }
    }

    2000 fn cuModuleGetFunction(driver, out: *mut *mut c_void, module: *mut c_void, name: *const c_char) {
        // SAFETY: the header wants a pointer to a function and a text, or null.
        unsafe { function(driver, out, module, name) }
    }

    12000 fn cuLibraryGetKernel(driver, out: *mut *mut c_void, library: *mut c_void, name: *const c_char) {
        // SAFETY: as above.
        unsafe { function(driver, out, library, name) }
    }

    12000 fn cuKernelGetFunction(driver, out: *mut *mut c_void, kernel: *mut c_void) {
        driver.state().modules.body(kernel)?;
        // SAFETY: the header wants a pointer to a function, or null.
        unsafe { put(out, kernel) }
    }

    2020 fn cuFuncGetAttribute(driver, out: *mut i32, attribute: u32, function: *mut c_void) {
        driver.state().modules.body(function)?;
        // Threads in a block at most; nothing else is of interest.
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, if attribute == 0 { 1024 } else { 0 }) }
    }

    9000 fn cuFuncSetAttribute(driver, function: *mut c_void, _attribute: u32, _value: i32) {
        driver.state().modules.body(function).map(drop)
    }

    3020 fn cuModuleGetGlobal_v2(driver, at: *mut u64, size: *mut usize, module: *mut c_void, name: *const c_char) {
        // SAFETY: the header wants pointers to an address and a size, or null, and a text.
        unsafe { variable(driver, at, size, module, name) }
    }

    12000 fn cuLibraryGetGlobal(driver, at: *mut u64, size: *mut usize, library: *mut c_void, name: *const c_char) {
        // SAFETY: as above.
        unsafe { variable(driver, at, size, library, name) }
    }
}

/// # Safety
/// `text` is NUL-terminated or null.
unsafe fn read<'a>(text: *const c_char) -> Result<&'a str, Code> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_IMAGE)
}

/// # Safety
/// `out` is writable or null; `image` is null or ends with a zero, as images other than texts do somewhere, too.
unsafe fn load(driver: &Driver, out: *mut *mut c_void, image: *const c_char) -> Outcome {
    let context = driver.current_context()?;
    // SAFETY: the caller's promise.
    let text = unsafe { read(image) }?;
    if !text.contains(".version") {
        return Err(Code::INVALID_IMAGE);
    }
    let mut variables = BTreeMap::new();
    for (name, size) in text.lines().filter_map(sized_variable) {
        variables.insert(name.to_owned(), (place_variable(driver, size, context)?, size));
    }
    let mut state = driver.state();
    state.modules.last += 1;
    let number = 0x10_0000 + state.modules.last * 16;
    state.modules.loaded.insert(number, Module { text: text.to_owned(), context, variables });
    // SAFETY: the caller's promise.
    unsafe { put(out, handle(number)) }
}

/// # Safety
/// As [`load`], with the name of a file.
unsafe fn load_file(driver: &Driver, out: *mut *mut c_void, name: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    let name = unsafe { read(name) }?;
    let text = std::fs::read(name).map_err(|_| Code::FILE_NOT_FOUND)?;
    let text = CString::new(text).map_err(|_| Code::INVALID_IMAGE)?;
    // SAFETY: the text ends with a zero.
    unsafe { load(driver, out, text.as_ptr()) }
}

/// Name and size of a variable that a line of PTX declares: `.global .align 4 .b8 name[1024];`
fn sized_variable(line: &str) -> Option<(&str, u64)> {
    let declared = line.trim().trim_start_matches(".visible").trim_start().strip_prefix(".global")?;
    let (before, after) = declared.split_once('[')?;
    let count: u64 = after.split_once(']')?.0.parse().ok()?;
    let mut words = before.split_whitespace().rev();
    let (name, kind) = (words.next()?, words.next()?);
    let bits: u64 = kind.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    Some((name, count.checked_mul(bits / 8)?))
}

fn place_variable(driver: &Driver, size: u64, context: usize) -> Result<u64, Code> {
    let device = driver.current_device()?;
    let bytes = Bytes::new(size).round_up().ok_or(Code::OUT_OF_MEMORY)?;
    let held = Arc::new(create(driver, device, bytes)?);
    driver.state().addresses.place(Origin::Variable { asked: size }, context, held)
}

fn unload(driver: &Driver, module: *mut c_void) -> Outcome {
    let mut state = driver.state();
    let module = state.modules.loaded.remove(&module.addr()).ok_or(Code::INVALID_HANDLE)?;
    module.variables.into_values().try_for_each(|(at, _)| state.addresses.take(at))
}

/// # Safety
/// `out` is writable or null; `name` is NUL-terminated or null.
unsafe fn function(
    driver: &Driver,
    out: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Outcome {
    // SAFETY: the caller's promise.
    let name = unsafe { read(name) }?;
    let digit = driver.state().modules.get(module)?.function(name)?;
    // SAFETY: the caller's promise.
    unsafe { put(out, handle(module.addr() + digit)) }
}

/// # Safety
/// `at` and `size` are writable or null; `name` is NUL-terminated or null.
unsafe fn variable(
    driver: &Driver,
    at: *mut u64,
    size: *mut usize,
    module: *mut c_void,
    name: *const c_char,
) -> Outcome {
    // SAFETY: the caller's promise.
    let name = unsafe { read(name) }?;
    let found = driver.state().modules.get(module)?.variables.get(name).copied().ok_or(Code::NOT_FOUND)?;
    if !at.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(at, found.0) }?;
    }
    if !size.is_null() {
        // SAFETY: the caller's promise.
        unsafe { put(size, usize::try_from(found.1).unwrap_or(usize::MAX)) }?;
    }
    Ok(())
}
