//! The real functions behind ours.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::elf;

type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The libraries that have the real `dlsym`, `dlvsym` and `dlopen`: glibc from 2.34 on, and before.
const LOADER: &[&str] = &["libc.so", "libc-", "libdl.so", "libdl-"];

thread_local! {
    /// Without a destructor, so that it can be read at any time of a thread's life.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Runs what must reach the real driver by its own `dlsym`.
pub(crate) fn within<T>(work: impl FnOnce() -> T) -> T {
    let before = WITHIN.replace(true);
    let result = work();
    WITHIN.set(before);
    result
}

/// From now on, until it is said otherwise; what was so before.
pub(crate) fn set_within(now: bool) -> bool {
    WITHIN.replace(now)
}

/// Whether this thread is at work for the library itself.
pub(crate) fn is_within() -> bool {
    WITHIN.get()
}

/// A function of the loader, found once. Read by the doors' assembly, too.
pub(crate) fn of_loader(place: &AtomicPtr<c_void>, symbol: &CStr) -> *mut c_void {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = elf::find(LOADER, symbol).map_or(ptr::null_mut(), std::ptr::NonNull::as_ptr);
    assert!(!found.is_null(), "gpulease: the C library has no {}", symbol.to_string_lossy());
    place.store(found, Ordering::Relaxed);
    found
}

pub(crate) static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
pub(crate) static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
pub(crate) static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The C library's own `dlsym`. The caller it sees is this library, which matters for `RTLD_NEXT` alone.
pub(crate) fn dlsym(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    let found = of_loader(&DLSYM, c"dlsym");
    // SAFETY: the C library's dlsym has this type; it takes any handle and any name.
    unsafe { std::mem::transmute::<*mut c_void, LookUp>(found)(handle, symbol.as_ptr()) }
}

/// A library whose functions we stand before.
pub(crate) struct Library {
    name: &'static CStr,
    handle: AtomicPtr<c_void>,
}

/// The CUDA driver.
pub(crate) static CUDA: Library = Library::new(c"libcuda.so.1");
/// NVIDIA's management library.
pub(crate) static NVML: Library = Library::new(c"libnvidia-ml.so.1");

/// Whether a library that is not loaded may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    IfThere,
    AtNeed,
}

impl Library {
    const fn new(name: &'static CStr) -> Self {
        Self { name, handle: AtomicPtr::new(ptr::null_mut()) }
    }

    /// A handle of our own to it; null where there is none.
    pub(crate) fn handle(&self, load: Load) -> *mut c_void {
        let known = self.handle.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let flags = libc::RTLD_LAZY | if load == Load::IfThere { libc::RTLD_NOLOAD } else { 0 };
        let open = of_loader(&DLOPEN, c"dlopen");
        // SAFETY: the C library's dlopen has this type. The initialisers of a driver are made to be run; the handle is
        // never closed.
        let opened = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void>(
                open,
            )(self.name.as_ptr(), flags)
        };
        if !opened.is_null() {
            self.handle.store(opened, Ordering::Release);
        }
        opened
    }

    /// The real function of this name; null where the library has none.
    pub(crate) fn function(&self, symbol: &CStr) -> *mut c_void {
        let handle = self.handle(Load::AtNeed);
        if handle.is_null() { handle } else { dlsym(handle, symbol) }
    }
}

/// Where a real function's address is kept once it was looked for.
pub(crate) struct Slot {
    library: &'static Library,
    symbol: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Slot {
    pub(crate) const fn new(library: &'static Library, symbol: &'static CStr) -> Self {
        Self { library, symbol, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function, or null where the library has none.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.look() } else { known }
    }

    #[cold]
    fn look(&self) -> *mut c_void {
        let found = self.library.function(self.symbol);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}
