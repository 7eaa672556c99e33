//! How a program comes by the driver's functions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::transmute;
use std::path::PathBuf;
use std::ptr::null_mut;

/// The version of CUDA that this program says it was built for.
const VERSION: c_int = 12_080;
const PER_THREAD_STREAMS: u64 = 2;

/// The ways in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    /// Symbols of a library that was linked to the driver.
    Linked,
    /// `dlsym` in the driver's library.
    Handle,
    /// `dlsym(RTLD_DEFAULT, ..)`, with the driver loaded for all.
    Default,
    /// `dlsym` as a library calls it that finds its own dependencies first.
    FromDeep,
    /// `dlsym(RTLD_NEXT, ..)`, as a library calls it that stands before the driver.
    Next,
    /// `cuGetProcAddress` in its first form, its second, and the second for streams of threads.
    Address1,
    Address2,
    AddressThread,
    /// As a runtime that was linked statically does: even `cuGetProcAddress` comes from `cuGetProcAddress`.
    Runtime,
}

/// The driver, through a door.
pub(crate) struct Driver {
    door: Door,
    name: String,
    library: *mut c_void,
    linked: *mut c_void,
    /// `cuGetProcAddress`, for the doors that use it.
    address: *mut c_void,
}

// SAFETY: what it points to is code and the loader's own handles, which any thread may use.
unsafe impl Sync for Driver {}

/// A call that did not succeed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) call: &'static str,
    pub(crate) code: u32,
}

type GetAddress1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_uint;
type GetAddress2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> c_uint;
type GetLinked = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type GetSymbol = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call={} code={}", self.call, self.code)
    }
}

impl Driver {
    pub(crate) fn open(name: &str) -> Result<Self, String> {
        let (door, deep) = match name {
            "linked" => (Door::Linked, 0),
            "linked-deep" => (Door::Linked, libc::RTLD_DEEPBIND),
            "handle" => (Door::Handle, 0),
            "handle-deep" => (Door::Handle, libc::RTLD_DEEPBIND),
            "default" => (Door::Default, libc::RTLD_GLOBAL),
            "from-deep" => (Door::FromDeep, libc::RTLD_DEEPBIND),
            "next" => (Door::Next, 0),
            "address-1" => (Door::Address1, 0),
            "address-2" => (Door::Address2, 0),
            "address-thread" => (Door::AddressThread, 0),
            "runtime" => (Door::Runtime, 0),
            _ => return Err("there is no such door".to_owned()),
        };
        let of_linked = matches!(door, Door::Linked | Door::FromDeep | Door::Next);
        let linked = if of_linked { load(&linked_library()?, deep)? } else { null_mut() };
        let library = load(c"libcuda.so.1", if of_linked { 0 } else { deep })?;
        let mut driver = Self { door, name: name.to_owned(), library, linked, address: null_mut() };
        driver.address = match door {
            Door::Address1 => driver.symbol(c"cuGetProcAddress"),
            Door::Address2 | Door::AddressThread | Door::Runtime => driver.symbol(c"cuGetProcAddress_v2"),
            Door::Linked | Door::Handle | Door::Default | Door::FromDeep | Door::Next => null_mut(),
        };
        if door == Door::Runtime {
            driver.address = driver.find(c"cuGetProcAddress", "_v2");
        }
        Ok(driver)
    }

    pub(crate) fn door_name(&self) -> &str {
        &self.name
    }

    /// A function, by the name without its version and by the version that this program means.
    pub(crate) fn find(&self, base: &CStr, version: &str) -> *mut c_void {
        let found = self.look_for(base, version);
        assert!(!found.is_null(), "through {:?} there is no {base:?}{version}", self.door);
        found
    }

    /// The same, null where there is none.
    pub(crate) fn look_for(&self, base: &CStr, version: &str) -> *mut c_void {
        let whole = [base.to_bytes(), version.as_bytes()].concat();
        let whole = CString::new(whole).expect("no name has a zero in it");
        match self.door {
            Door::Linked => {
                // SAFETY: this is the type of that function of the library.
                let linked: GetLinked = unsafe { transmute(real_symbol(self.linked, c"linked_function")) };
                // SAFETY: it is a text.
                unsafe { linked(whole.as_ptr()) }
            }
            Door::Handle => self.symbol(&whole),
            // SAFETY: the name is a text.
            Door::Default => unsafe { libc::dlsym(libc::RTLD_DEFAULT, whole.as_ptr()) },
            Door::FromDeep | Door::Next => {
                // SAFETY: this is the type of that function of the library.
                let symbol: GetSymbol = unsafe { transmute(real_symbol(self.linked, c"linked_dlsym")) };
                let from = if self.door == Door::Next { libc::RTLD_NEXT } else { self.library };
                // SAFETY: the handle is the driver's, or one that the loader knows, and the name is a text.
                unsafe { symbol(from, whole.as_ptr()) }
            }
            Door::Address1 => self.by_address_1(base),
            Door::Address2 | Door::Runtime => self.by_address_2(base, 0),
            Door::AddressThread => self.by_address_2(base, PER_THREAD_STREAMS),
        }
    }

    /// The loader's handle of the driver.
    pub(crate) fn library(&self) -> *mut c_void {
        self.library
    }

    /// A function by its whole name, whatever the door.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is the driver's and the name is a text.
        unsafe { libc::dlsym(self.library, name.as_ptr()) }
    }

    /// A function of the library that was linked to the driver, whatever the door.
    pub(crate) fn of_linked(&self, name: &CStr) -> *mut c_void {
        let library = linked_library().and_then(|path| load(&path, 0));
        real_symbol(library.unwrap_or_else(|error| panic!("{error}")), name)
    }

    fn by_address_1(&self, base: &CStr) -> *mut c_void {
        let mut found = null_mut();
        // SAFETY: this is the type of the function; what it writes to is ours.
        unsafe {
            let look_up: GetAddress1 = transmute(self.address);
            look_up(base.as_ptr(), &raw mut found, VERSION, 0);
        }
        found
    }

    fn by_address_2(&self, base: &CStr, flags: u64) -> *mut c_void {
        let (mut found, mut status) = (null_mut(), 9);
        // SAFETY: this is the type of the function; what it writes to is ours.
        let code = unsafe {
            let look_up: GetAddress2 = transmute(self.address);
            look_up(base.as_ptr(), &raw mut found, VERSION, flags, &raw mut status)
        };
        assert!((code, status) == (0, 0) || found.is_null(), "{base:?}: {code} {status}");
        found
    }
}

/// A function that is not the driver's.
fn real_symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the handle is open and the name is a text.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "the library has no {name:?}");
    found
}

fn load(name: &CStr, flags: c_int) -> Result<*mut c_void, String> {
    // SAFETY: the name is a text; loading runs initialisers, which is what a program wants that does it.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    if library.is_null() {
        // SAFETY: after a failure it is a text, until the next call.
        return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
    }
    Ok(library)
}

/// Beside this program, or in the folder of what it was built with.
fn linked_library() -> Result<CString, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = here.parent().ok_or("a program lies in a folder")?;
    let name = "libcuda_linked.so";
    let places: [PathBuf; 2] = [folder.join("deps").join(name), folder.join(name)];
    let place = places.iter().find(|place| place.is_file()).ok_or_else(|| format!("there is no {name}"))?;
    CString::new(place.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())
}

/// Calls a function of the driver: `call!(driver, "base" "version" (types)(arguments))`.
macro_rules! call {
    ($driver:expr, $base:literal $version:literal ($($kind:ty),* $(,)?) ($($argument:expr),* $(,)?)) => {{
        let base = std::ffi::CStr::from_bytes_with_nul(concat!($base, "\0").as_bytes()).expect("it ends with a zero");
        // SAFETY: these are the types of the driver's header for this name.
        let function: unsafe extern "C" fn($($kind),*) -> u32 = unsafe { std::mem::transmute($driver.find(base, $version)) };
        // SAFETY: pointers among the arguments are to values of this program, or what the driver gave.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            code => Err($crate::doors::Failed { call: $base, code }),
        }
    }};
}
pub(crate) use call;

impl Driver {
    pub(crate) fn init(&self) -> Result<(), Failed> {
        call!(self, "cuInit" "" (c_uint)(0))
    }

    pub(crate) fn context(&self) -> Result<(), Failed> {
        let mut context = null_mut();
        call!(self, "cuDevicePrimaryCtxRetain" "" (*mut *mut c_void, c_int)(&raw mut context, 0))?;
        call!(self, "cuCtxSetCurrent" "" (*mut c_void)(context))
    }

    pub(crate) fn reset(&self) -> Result<(), Failed> {
        call!(self, "cuDevicePrimaryCtxReset" "_v2" (c_int)(0))
    }

    pub(crate) fn synchronize(&self) -> Result<(), Failed> {
        call!(self, "cuCtxSynchronize" "" ()())
    }

    /// Free and total, as `cuMemGetInfo` says.
    pub(crate) fn info(&self) -> Result<(usize, usize), Failed> {
        let (mut free, mut total) = (0, 0);
        call!(self, "cuMemGetInfo" "_v2" (*mut usize, *mut usize)(&raw mut free, &raw mut total))?;
        Ok((free, total))
    }

    pub(crate) fn total(&self) -> Result<usize, Failed> {
        let mut total = 0;
        call!(self, "cuDeviceTotalMem" "_v2" (*mut usize, c_int)(&raw mut total, 0))?;
        Ok(total)
    }
}
