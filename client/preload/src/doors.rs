//! `dlsym`, `dlvsym` and `dlopen` as programs call them.
//!
//! What they answer depends on who calls (`RTLD_NEXT`, the search path of the calling library), which the C library
//! reads off the return address. So each is a few instructions that ask [`sym`] or [`flags`] first and then jump on
//! into the real function, as if we had not been there.

use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::entries::{self, Entry};
use crate::job;
use crate::real::{self, DLOPEN, DLSYM, DLVSYM, Load};

/// What is answered in the real function's place.
#[repr(C)]
struct Answer {
    /// 0: the real function answers.
    decided: usize,
    pointer: *mut c_void,
}

const ASK_THE_REAL_ONE: Answer = Answer { decided: 0, pointer: std::ptr::null_mut() };

/// Also finds the real functions, into which the doors jump.
extern "C" fn sym(handle: *mut c_void, name: *const c_char) -> Answer {
    real::of_loader(&DLSYM, c"dlsym");
    real::of_loader(&DLVSYM, c"dlvsym");
    // SAFETY: who looks a symbol up gives a string.
    if name.is_null() || !unsafe { may_be_ours(name) } || real::is_within() {
        return ASK_THE_REAL_ONE;
    }
    // SAFETY: who looks a symbol up gives a string.
    let name = unsafe { CStr::from_ptr(name) };
    match entries::by_symbol(name) {
        Some(entry) => ours(entry, handle, name),
        // What comes after us would go around us.
        None if is_kept_back(handle, name) => {
            entries::say_unknown(name);
            nothing(handle, name, "it is later than this version of gpulease knows")
        }
        None => ASK_THE_REAL_ONE,
    }
}

/// Whether it is a form of one of ours that came after this library, and that the driver has.
fn is_kept_back(handle: *mut c_void, name: &CStr) -> bool {
    if !name.to_bytes().starts_with(b"cu") || !entries::is_later_form(name) || !job::is_named() {
        return false;
    }
    let everywhere = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
    // What the loader finds for who calls only the loader knows; the driver's own is what it would be.
    let from = if everywhere { real::CUDA.handle(Load::IfThere) } else { handle };
    !from.is_null() && !real::dlsym(from, name).is_null()
}

/// Whether a name begins as the driver's or NVML's do. Calls nothing, not even what compares bytes: a sanitizer asks for just that
/// at its own start, and can't do it before.
///
/// # Safety
/// It is a string.
unsafe fn may_be_ours(name: *const c_char) -> bool {
    // SAFETY: a string ends with a zero, behind which nothing is read, since no beginning has one.
    let byte = |nth| unsafe { name.cast::<u8>().add(nth).read_volatile() };
    let begins = |with: &[u8]| (0..with.len()).all(|nth| byte(nth) == with[nth]);
    begins(b"cu") || begins(b"nvml")
}

/// Our function, where the real one would be found: a library that is not there must not seem to be.
fn ours(entry: &'static Entry, handle: *mut c_void, name: &CStr) -> Answer {
    let everywhere = handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT;
    let there = match everywhere {
        true => !entry.library.handle(Load::IfThere).is_null(),
        false => !real::dlsym(handle, name).is_null(),
    };
    match (there, everywhere) {
        (true, _) => Answer { decided: 1, pointer: entry.ours.cast_mut() },
        // The real one says why it finds nothing.
        (false, false) => ASK_THE_REAL_ONE,
        // The real one would find ours.
        (false, true) => nothing(handle, name, "its library is not loaded"),
    }
}

/// Nothing, and `dlerror` says why: the real one is asked for a name that nobody has.
fn nothing(handle: *mut c_void, name: &CStr, why: &str) -> Answer {
    let words = format!("{}: {why}", name.to_string_lossy());
    if let Ok(words) = CString::new(words) {
        real::dlsym(handle, &words);
    }
    Answer { decided: 1, pointer: std::ptr::null_mut() }
}

/// A library that is loaded with its own symbols before all others would reach the driver around us.
extern "C" fn flags(_file: *const c_char, flags: c_int) -> c_int {
    real::of_loader(&DLOPEN, c"dlopen");
    if job::is_named() { flags & !libc::RTLD_DEEPBIND } else { flags }
}

/// Looks a symbol up in a library.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {sym}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "mov rax, rdx",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        sym = sym sym,
        real = sym DLSYM,
    )
}

/// Looks a symbol of a version up in a library.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {sym}",
        "mov rcx, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "mov rax, rcx",
        "ret",
        "2:",
        "jmp qword ptr [rip + {real}]",
        sym = sym sym,
        real = sym DLVSYM,
    )
}

/// Loads a library.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {flags}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "mov esi, eax",
        "jmp qword ptr [rip + {real}]",
        flags = sym self::flags,
        real = sym DLOPEN,
    )
}

/// Looks a symbol up in a library.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {sym}",
        "mov x9, x0",
        "mov x10, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x9, 2f",
        "mov x0, x10",
        "ret",
        "2:",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "br x9",
        sym = sym sym,
        real = sym DLSYM,
    )
}

/// Looks a symbol of a version up in a library.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {sym}",
        "mov x9, x0",
        "mov x10, x1",
        "ldr x2, [sp, #32]",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "cbz x9, 2f",
        "mov x0, x10",
        "ret",
        "2:",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "br x9",
        sym = sym sym,
        real = sym DLVSYM,
    )
}

/// Loads a library.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {flags}",
        "mov w9, w0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "mov w1, w9",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "br x9",
        flags = sym self::flags,
        real = sym DLOPEN,
    )
}
