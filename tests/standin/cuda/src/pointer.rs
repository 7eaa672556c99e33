//! Writing through a caller's pointer.

use std::ffi::c_void;

use crate::code::{Code, Outcome};

/// The handle that a number is.
pub(crate) fn handle(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

/// Writes, or refuses a null pointer as the driver does.
///
/// # Safety
/// `out` is null or may be written to.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Outcome {
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller's promise, and it is not null. C callers need not align what we type as u64.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Writes a text and its NUL, cut to the room there is.
///
/// # Safety
/// `out` is null or has room for `room` bytes.
pub(crate) unsafe fn put_text(out: *mut std::ffi::c_char, room: i32, text: &str) -> Outcome {
    let room = usize::try_from(room).unwrap_or(0);
    if out.is_null() || room == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    // SAFETY: the caller's promise; length + 1 is at most the room.
    unsafe {
        out.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        out.add(length).write(0);
    }
    Ok(())
}
