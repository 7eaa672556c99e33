//! The driver's functions as a program has them that was linked to the driver, and `dlsym` as such a library calls it.
//!
//! A program loads this library to reach the driver through its symbols; loaded with `RTLD_DEEPBIND` it finds them in
//! its own dependencies first, whatever was loaded before.

#![allow(non_snake_case, reason = "the functions have the driver's own names")]

use std::ffi::{CStr, c_char, c_void};

include!(concat!(env!("OUT_DIR"), "/linked.rs"));

/// The address of a function of the driver, null for one that this library does not use.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linked_function(name: *const c_char) -> *const c_void {
    // SAFETY: the caller's promise.
    address_of(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// `dlsym`, called from here.
///
/// # Safety
/// As `dlsym`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linked_dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let found = unsafe { libc::dlsym(handle, name) };
    // What comes after keeps this from being a jump, so that the loader sees this library as its caller.
    std::hint::black_box(found)
}

/// A library that NCCL was linked into has its names.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId() {}

/// `cuMemCreate`, called from here.
///
/// # Safety
/// As `cuMemCreate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linked_create(
    create: unsafe extern "C" fn(*mut u64, usize, *const c_void, u64) -> u32,
    out: *mut u64,
    bytes: usize,
    properties: *const c_void,
) -> u32 {
    // SAFETY: the caller's promise.
    let code = unsafe { create(out, bytes, properties, 0) };
    // What comes after keeps this from being a jump, so that the driver's function sees this library as its caller.
    std::hint::black_box(code)
}
