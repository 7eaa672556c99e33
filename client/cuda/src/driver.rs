//! The driver library of this process.

use std::error::Error;
use std::ffi::{CStr, c_char};
use std::fmt;
use std::mem::ManuallyDrop;
use std::process;
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::sys;
use libloading::Library;

use crate::device::{Device, Uuid};
use crate::error::{Code, CudaError, CudaVersion, DEINITIALIZED, INVALID_VALUE, SUCCESS};
use crate::symbols::{Missing, Symbols, probe_cudarc};
use crate::unavailable::{Unavailable, init_failed, no_device};

/// Calls a driver function and turns its code into a `Result`. The call is unsafe, so this stands
/// in an unsafe block.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $driver.check(stringify!($name), ($driver.symbols().$name)($($argument),*))
    };
}
pub(crate) use call;

/// How many errors of `Drop` are kept: enough to see what went wrong first, small enough to forget.
const KEPT_AT_MOST: usize = 16;

/// The CUDA driver of this process: found, complete and initialised.
pub struct Driver {
    symbols: Symbols,
    library: &'static Library,
    version: CudaVersion,
    loaded_by: u32,
    kept: Mutex<KeptErrors>,
}

/// Errors of `Drop`, which has no other way to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptErrors {
    /// The first of them, at most 16.
    pub first: Vec<CudaError>,
    /// How many more there were.
    pub more: u64,
}

impl Driver {
    /// The driver, loaded and initialised at the first call (about 0.1 s) and the same ever after.
    ///
    /// # Errors
    /// See [`Unavailable`]. The answer of the first call is kept: what CUDA refuses once in a
    /// process it goes on refusing there.
    pub fn load() -> Result<&'static Self, Unavailable> {
        static LOADED: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();
        let driver = LOADED.get_or_init(Self::open).as_ref().map_err(Clone::clone)?;
        if driver.loaded_by == process::id() { Ok(driver) } else { Err(Unavailable::Forked) }
    }

    /// The CUDA version that the driver speaks.
    #[must_use]
    pub fn version(&self) -> CudaVersion {
        self.version
    }

    /// The devices in CUDA's order, which `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` change.
    ///
    /// # Errors
    /// What the driver says.
    pub fn devices(&'static self) -> Result<Vec<Device>, CudaError> {
        (0..self.count()?).map(|ordinal| Device::at(self, ordinal)).collect()
    }

    /// The device with this UUID, which no variable changes, or `None` where this process sees none.
    ///
    /// # Errors
    /// What the driver says.
    pub fn device(&'static self, uuid: Uuid) -> Result<Option<Device>, CudaError> {
        for device in self.devices()? {
            if device.uuid()? == uuid {
                return Ok(Some(device));
            }
        }
        Ok(None)
    }

    /// Checks that cudarc's own types (context, stream, slice, module) find all that they call,
    /// since cudarc panics where they do not. Its `elapsed_ms` of events is not part of this: it
    /// needs CUDA 12.8, and [`crate::Event::since`] does not.
    ///
    /// # Errors
    /// [`Unavailable::SymbolMissing`] for a driver too old.
    pub fn check_cudarc(&self) -> Result<(), Unavailable> {
        probe_cudarc(self.library).map_err(|missing| too_old(&missing, Some(self.version)))
    }

    /// The errors that `Drop` met since the last call.
    #[must_use]
    pub fn take_kept_errors(&self) -> KeptErrors {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn open() -> Result<Self, Unavailable> {
        let library = library()?;
        let symbols =
            Symbols::probe(library).map_err(|missing| too_old(&missing, version_before_probe(library)))?;
        let driver = Self {
            version: version(&symbols),
            symbols,
            library,
            loaded_by: process::id(),
            kept: Mutex::default(),
        };
        // SAFETY: cuInit may be called at any time, with 0 as its only flag.
        unsafe { call!(driver, cuInit(0)) }.map_err(init_failed)?;
        match driver.count() {
            Ok(0) => Err(no_device()),
            Ok(_) => Ok(driver),
            Err(error) => Err(init_failed(error)),
        }
    }

    fn count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        // SAFETY: the pointer is to an int of ours.
        unsafe { call!(self, cuDeviceGetCount(&mut count)) }?;
        Ok(count)
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    pub(crate) fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    /// The driver's answer to an argument that we did not even pass on.
    pub(crate) fn invalid_value(&self, call: &'static str) -> CudaError {
        self.error(call, INVALID_VALUE)
    }

    /// Keeps what a `Drop` could not return.
    pub(crate) fn keep(&self, result: Result<(), CudaError>) {
        let Err(error) = result else { return };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.first.len() < KEPT_AT_MOST {
            kept.first.push(error);
        } else {
            kept.more = kept.more.saturating_add(1);
        }
    }

    fn error(&self, call: &'static str, code: Code) -> CudaError {
        let name = self.word(self.symbols.cuGetErrorName, code);
        let text = self.word(self.symbols.cuGetErrorString, code);
        let (unnamed, undescribed) = match code {
            DEINITIALIZED => ("CUDA_ERROR_DEINITIALIZED", "the program is ending, and the driver with it"),
            _ => ("an error that this driver has no name for", "no description"),
        };
        let or = |word: Option<String>, other: &str| word.unwrap_or_else(|| other.to_owned());
        CudaError::new(call, code, or(name, unnamed), or(text, undescribed))
    }

    fn word(
        &self,
        ask: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
        code: Code,
    ) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: the pointer is to a pointer of ours; the driver answers with a static string.
        let answer = unsafe { ask(code, &mut text) };
        if answer != SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: on success it is a NUL-terminated static string of the driver.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("version", &self.version).finish_non_exhaustive()
    }
}

/// The library under the name that cudarc finds, so that both use the same one.
fn library() -> Result<&'static Library, Unavailable> {
    // SAFETY: loading runs the initialisers of the NVIDIA driver, which are made for this.
    if unsafe { sys::is_culib_present() } {
        // SAFETY: as above; it was present a moment ago, so cudarc does not panic for want of it.
        return Ok(unsafe { sys::culib() });
    }
    // SAFETY: as above.
    let detail = match unsafe { Library::new("libcuda.so.1") } {
        // The sentence of the dynamic loader is behind "dlopen failed".
        Err(error) => error.source().unwrap_or(&error).to_string(),
        Ok(library) => {
            // Only just come; a process that initialised CUDA must not unload it.
            let _stays = ManuallyDrop::new(library);
            "libcuda.so.1 appeared while it was looked for".to_owned()
        }
    };
    Err(Unavailable::NoLibrary { detail })
}

fn version(symbols: &Symbols) -> CudaVersion {
    let mut number = 0;
    // SAFETY: the pointer is to an int of ours; the call is allowed before cuInit.
    unsafe { (symbols.cuDriverGetVersion)(&mut number) };
    CudaVersion::from_number(u32::try_from(number).unwrap_or(0))
}

fn version_before_probe(library: &'static Library) -> Option<CudaVersion> {
    // SAFETY: the type is that of the driver's header.
    let ask = unsafe { library.get::<unsafe extern "C" fn(*mut i32) -> Code>("cuDriverGetVersion") }.ok()?;
    let mut number = 0;
    // SAFETY: the pointer is to an int of ours; the call is allowed before cuInit.
    let answer = unsafe { ask(&mut number) };
    u32::try_from(number).ok().filter(|_| answer == SUCCESS).map(CudaVersion::from_number)
}

fn too_old(missing: &Missing, found: Option<CudaVersion>) -> Unavailable {
    Unavailable::SymbolMissing { symbol: missing.symbol, found, needed: missing.needed }
}
