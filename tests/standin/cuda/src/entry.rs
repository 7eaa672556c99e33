//! What every entry point does first, and the list of them that `cuGetProcAddress` looks through.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpulease_standin_card::{Fault, Faults};

use crate::code::{Code, Outcome};
use crate::driver::Driver;

/// A function of the library.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// The CUDA version that brought it.
    pub(crate) since: u32,
    address: Address,
}

#[derive(Clone, Copy)]
struct Address(*const ());

// SAFETY: it is the address of code, which nobody writes.
unsafe impl Sync for Address {}

impl Entry {
    pub(crate) const fn new(name: &'static str, since: u32, address: *const ()) -> Self {
        Self { name, since, address: Address(address) }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.address.0.cast_mut().cast()
    }
}

/// Makes entry points of the library: injected faults first, then the initialised driver. Each has the CUDA version
/// that brought it; a second name is the one that takes the stream of the thread where it is given none.
macro_rules! entry_points {
    ($($since:literal $(& $twin:ident)? fn $name:ident $arguments:tt $body:block)*) => {
        $(
            $crate::entry::entry_point!($name $arguments $body);
            $($crate::entry::entry_point!($twin $arguments $body);)?
        )*

        pub(crate) static ENTRIES: &[$crate::entry::Entry] = &[$(
            $crate::entry::Entry::new(stringify!($name), $since, $name as *const ()),
            $($crate::entry::Entry::new(stringify!($twin), $since, $twin as *const ()),)?
        )*];
    };
}
pub(crate) use entry_points;

macro_rules! entry_point {
    ($name:ident ($driver:ident $(, $argument:ident: $kind:ty)* $(,)?) $body:block) => {
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "they are the driver's")]
        unsafe extern "C" fn $name($($argument: $kind),*) -> u32 {
            $crate::entry::enter(stringify!($name), |$driver| $body)
        }
    };
}
pub(crate) use entry_point;

/// One call of an entry point.
pub(crate) fn enter(name: &'static str, body: impl FnOnce(&'static Driver) -> Outcome) -> u32 {
    let outcome =
        Driver::started().and_then(|driver| injected(&driver.faults, name).map(|()| driver)).and_then(body);
    outcome.err().map_or(0, |code| code.0)
}

/// The failures that a test has asked for at this call.
pub(crate) fn injected(faults: &Mutex<Faults>, name: &'static str) -> Outcome {
    let faults = || faults.lock().unwrap_or_else(PoisonError::into_inner);
    let (due, written) = {
        let mut faults = faults();
        (faults.next(name), faults.written().0)
    };
    for fault in due {
        match fault {
            Fault::Error(code) => return Err(Code(code)),
            Fault::Delay(time) => thread::sleep(time),
            Fault::Hold(most) => {
                let until = Instant::now() + most;
                while faults().written().1 == written && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    Ok(())
}
