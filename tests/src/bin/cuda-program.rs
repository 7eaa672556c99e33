//! A CUDA program that knows nothing of gpulease: it finds the driver's functions by one door and does what its
//! arguments say, one word after the other, with a line of output for each.
//!
//! `cuda-program DOOR STEP...`, where the door is `dlsym`, `look-up-1` or `look-up-2` (`cuGetProcAddress`).
//!
//! | step | does | prints |
//! |---|---|---|
//! | `init`, `context` | `cuInit`; the primary context of device 0 | the code |
//! | `info`, `total` | `cuMemGetInfo`; `cuDeviceTotalMem` | code, free, total; code, total |
//! | `alloc:BYTES`, `pitch:WIDTHxHEIGHT` | takes memory and writes its first and last byte | the code |
//! | `free:N` | frees the N-th allocation | the code |
//! | `range:N` | `cuMemGetAddressRange` in the middle of it | code, whether base and size are its own |
//! | `wait` | until a line comes in | `waited` |

use std::env;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::io::stdin;
use std::mem::transmute_copy;
use std::ptr::null_mut;

/// How functions of the driver are found.
#[derive(Clone, Copy)]
enum Door {
    Dlsym,
    LookUp1,
    LookUp2,
}

/// The driver's library, and the way to its functions.
struct Driver {
    library: *mut c_void,
    door: Door,
}

type LookUp1 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_uint;
type LookUp2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_uint;

impl Driver {
    fn open(door: &str) -> Self {
        let door = match door {
            "dlsym" => Door::Dlsym,
            "look-up-1" => Door::LookUp1,
            "look-up-2" => Door::LookUp2,
            other => panic!("no door {other}"),
        };
        // SAFETY: the name is a string; loading runs the driver's initialisers.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "there is no libcuda.so.1");
        Self { library, door }
    }

    fn by_symbol(&self, symbol: &str) -> *mut c_void {
        let symbol = CString::new(symbol).expect("a symbol has no zero");
        // SAFETY: the handle is open and the name a string.
        unsafe { libc::dlsym(self.library, symbol.as_ptr()) }
    }

    /// The function with this base name; `version` is the one of the symbol.
    fn find(&self, base: &str, version: &str) -> *mut c_void {
        let name = CString::new(base).expect("a name has no zero");
        let (mut found, mut status) = (null_mut(), 0);
        match self.door {
            Door::Dlsym => found = self.by_symbol(&format!("{base}{version}")),
            Door::LookUp1 => {
                // SAFETY: the type is the header's.
                let look_up: LookUp1 = unsafe { transmute_copy(&self.by_symbol("cuGetProcAddress")) };
                // SAFETY: the pointers are to values of ours.
                unsafe { look_up(name.as_ptr(), &mut found, 12_000, 0) };
            }
            Door::LookUp2 => {
                // SAFETY: the type is the header's.
                let look_up: LookUp2 = unsafe { transmute_copy(&self.by_symbol("cuGetProcAddress_v2")) };
                // SAFETY: the pointers are to values of ours.
                unsafe { look_up(name.as_ptr(), &mut found, 12_000, 0, &mut status) };
            }
        }
        assert!(!found.is_null(), "the driver has no {base}");
        found
    }
}

/// Calls a function of the driver by its base name.
macro_rules! call {
    ($driver:expr, $base:literal $version:literal ($($kind:ty),*), $($argument:expr),*) => {{
        let found = $driver.find($base, $version);
        // SAFETY: the type is the header's.
        let function: unsafe extern "C" fn($($kind),*) -> c_uint = unsafe { transmute_copy(&found) };
        // SAFETY: pointers among the arguments are to values of ours.
        unsafe { function($($argument),*) }
    }};
}

fn main() {
    let mut arguments = env::args().skip(1);
    let driver = Driver::open(&arguments.next().expect("a door"));
    let mut taken = Vec::new();
    for step in arguments {
        let (what, value) = step.split_once(':').unwrap_or((&step, ""));
        println!("{}", line(&driver, what, value, &mut taken));
    }
}

fn line(driver: &Driver, what: &str, value: &str, taken: &mut Vec<(u64, usize)>) -> String {
    let number = |text: &str| text.parse::<usize>().unwrap_or_else(|_| panic!("{text:?} is no number"));
    match what {
        "init" => call!(driver, "cuInit" "" (c_uint), 0).to_string(),
        "context" => context(driver).to_string(),
        "info" => {
            let (mut free, mut total) = (0_usize, 0_usize);
            let code = call!(driver, "cuMemGetInfo" "_v2" (*mut usize, *mut usize), &mut free, &mut total);
            format!("{code} {free} {total}")
        }
        "total" => {
            let mut total = 0_usize;
            let code = call!(driver, "cuDeviceTotalMem" "_v2" (*mut usize, c_int), &mut total, 0);
            format!("{code} {total}")
        }
        "alloc" => {
            let (mut at, bytes) = (0_u64, number(value));
            let code = call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize), &mut at, bytes);
            keep(driver, taken, code, at, bytes)
        }
        "pitch" => {
            let (width, height) = value.split_once('x').expect("WIDTHxHEIGHT");
            let (mut at, mut pitch, width, height) = (0_u64, 0_usize, number(width), number(height));
            let code = call!(driver, "cuMemAllocPitch" "_v2" (*mut u64, *mut usize, usize, usize, c_uint),
                &mut at, &mut pitch, width, height, 4);
            assert!(code != 0 || pitch >= width, "rows of {width} are {pitch} apart");
            keep(driver, taken, code, at, pitch * height)
        }
        "free" => call!(driver, "cuMemFree" "_v2" (u64), taken[number(value)].0).to_string(),
        "range" => {
            let ((at, bytes), mut base, mut size) = (taken[number(value)], 0_u64, 0_usize);
            let middle = at + bytes as u64 / 2;
            let code = call!(driver, "cuMemGetAddressRange" "_v2" (*mut u64, *mut usize, u64), &mut base, &mut size, middle);
            format!("{code} {}", base == at && size >= bytes)
        }
        "wait" => {
            stdin().read_line(&mut String::new()).expect("standard input is open");
            "waited".to_owned()
        }
        other => panic!("no step {other}"),
    }
}

fn context(driver: &Driver) -> c_uint {
    let mut context = null_mut();
    let code = call!(driver, "cuDevicePrimaryCtxRetain" "" (*mut *mut c_void, c_int), &mut context, 0);
    if code == 0 { call!(driver, "cuCtxSetCurrent" "" (*mut c_void), context) } else { code }
}

/// Uses the memory at both ends, so that one which is not there shows.
fn keep(driver: &Driver, taken: &mut Vec<(u64, usize)>, code: c_uint, at: u64, bytes: usize) -> String {
    if code != 0 {
        return code.to_string();
    }
    for end in [at, at + bytes as u64 - 1] {
        let (mark, mut back) = (taken.len() as u8 ^ 0x5a, 0_u8);
        let to = call!(driver, "cuMemcpyHtoD" "_v2" (u64, *const u8, usize), end, &mark, 1);
        let from = call!(driver, "cuMemcpyDtoH" "_v2" (*mut u8, u64, usize), &mut back, end, 1);
        assert!((to, from, back) == (0, 0, mark), "{to} {from} {back:#x} of {mark:#x} at {end:#x}");
    }
    taken.push((at, bytes));
    code.to_string()
}
