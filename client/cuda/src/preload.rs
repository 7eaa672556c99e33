//! The preload library in the same process: programs that run under it may use the client library, too.
//!
//! Then two of the library's kind have a part in each suspension of this process. The preload library's gate holds up every
//! copy while memory is away, which must not befall the copies that bring memory away and back.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::sync::OnceLock;

use gpulease_words::LeaseId;

type Beside = unsafe extern "C" fn(u64) -> c_int;
type Moves = unsafe extern "C" fn(c_int) -> c_int;

/// What `libgpulease_preload.so` offers to a client library in its process.
#[derive(Clone, Copy, Debug)]
pub struct Preload {
    beside: Beside,
    moves: Moves,
}

impl Preload {
    /// The one of this process; `None` where there is none, and for the client library that is a part of it.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        static FOUND: OnceLock<Option<Preload>> = OnceLock::new();
        *FOUND.get_or_init(find)
    }

    /// Tells it that the client library is about to have memory of a lease in this process; whether it has some, too.
    #[must_use]
    pub fn has_memory_of(self, lease: LeaseId) -> bool {
        // SAFETY: the function is the preload library's, which is never unloaded, and takes a number.
        unsafe { (self.beside)(lease.get()) != 0 }
    }
}

/// Does what moves memory away or back, on this thread: no gate of a preload library holds it up.
pub fn moving<T>(work: impl FnOnce() -> T) -> T {
    let Some(preload) = Preload::of_this_process() else { return work() };
    // SAFETY: the function is the preload library's, which is never unloaded, and takes a number.
    let before = unsafe { (preload.moves)(1) };
    let result = work();
    // SAFETY: as above.
    unsafe { (preload.moves)(before) };
    result
}

fn find() -> Option<Preload> {
    // SAFETY: any name may be looked up.
    let symbol = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let (beside, moves) = (symbol(c"gpulease_preload_beside"), symbol(c"gpulease_preload_moves"));
    if beside.is_null() || moves.is_null() || base_of(beside) == base_of(find as *const c_void) {
        return None;
    }
    // SAFETY: these are the types of the preload library's functions of these names.
    unsafe {
        Some(Preload {
            beside: transmute::<*mut c_void, Beside>(beside),
            moves: transmute::<*mut c_void, Moves>(moves),
        })
    }
}

/// Where the file is loaded that an address is in.
fn base_of(address: *const c_void) -> *mut c_void {
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the record is ours; all zeros are one.
    unsafe {
        libc::dladdr(address, about.as_mut_ptr());
        about.assume_init().dli_fbase
    }
}
