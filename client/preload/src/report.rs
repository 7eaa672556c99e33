//! What the library says to people: lines on standard error, each at most once where it could come often.

use std::sync::atomic::{AtomicBool, Ordering};

/// Something that is said once in a process, however often it happens.
pub(crate) struct Once(AtomicBool);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Says it, the first time.
    pub(crate) fn say(&self, line: impl FnOnce() -> String) {
        if !self.0.swap(true, Ordering::Relaxed) {
            say(&line());
        }
    }
}

/// Writes one line at once, so that it is not mixed with others'. Where nobody reads, nothing is lost.
pub(crate) fn say(line: &str) {
    let line = format!("gpulease: {line}\n");
    // SAFETY: the pointer and length are of a buffer of ours.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
