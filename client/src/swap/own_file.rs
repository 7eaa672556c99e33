//! A descriptor that forked children do not keep.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Those that are open. A forked child closes them, and keeps none that its parent's threads were about to close.
static OPEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// A descriptor of a file that is this process's alone, closed when dropped.
///
/// A child that is forked and goes on, as workers of data loaders do, would keep the memory behind it from being given
/// back for as long as it lives.
#[derive(Debug)]
pub(super) struct OwnFile(RawFd);

impl OwnFile {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        static AT_FORK: Once = Once::new();
        AT_FORK.call_once(|| {
            // SAFETY: the function is of this library, with which its registration goes. Where there is no memory for the
            // note, children keep the descriptors, which end with them.
            unsafe { libc::pthread_atfork(None, None, Some(close_all)) };
        });
        let mut open = open();
        let raw = descriptor.into_raw_fd();
        open.insert(raw);
        Self(raw)
    }
}

impl AsFd for OwnFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open until the drop. In a forked child, where it is not, nothing of the library works.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let mut open = open();
        // In a forked child it is closed already, and the number may be another file's.
        if open.remove(&self.0) {
            // SAFETY: it came out of an owned descriptor, and has just been struck from the list by which it is closed once.
            drop(unsafe { OwnedFd::from_raw_fd(self.0) });
        }
    }
}

/// Runs in a forked child, which has this one thread.
unsafe extern "C" fn close_all() {
    // Where another thread had the lock at the fork, nobody will open it here; then the child keeps them, as any other.
    let Ok(mut open) = OPEN.try_lock() else { return };
    for raw in std::mem::take(&mut *open) {
        // SAFETY: each is open and this process's copy, which nobody closes again once it is off the list.
        drop(unsafe { OwnedFd::from_raw_fd(raw) });
    }
}

fn open() -> MutexGuard<'static, BTreeSet<RawFd>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}
