//! Files of memory of which the broker can prove that nobody else has them any more.
//!
//! The broker keeps a description of its own and hands over another one, both opened anew through
//! `/proc/self/fd`. The kernel counts the descriptions that are open for writing, whoever holds
//! them by descriptor, mapping or message in flight, and grants the broker a write lease
//! (`fcntl(F_SETLEASE, F_WRLCK)`) only where its own is the last: that is the proof of freedom.
//! The description that `memfd_create` itself returns is not counted, so it is closed at once and
//! never leaves this file.

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use gpulease_words::Bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};

/// Not in libc for every platform; the number is the same on all that have CUDA.
const F_SETSIG: libc::c_int = 10;

/// A memory file: the broker's own description of it, and the one to hand over.
pub(crate) fn make(name: &str, bytes: Bytes) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let uncounted = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&uncounted, bytes.get())?;
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&uncounted, seals)?;
    let own = opened_anew(uncounted.as_fd())?;
    let given = opened_anew(uncounted.as_fd())?;
    // Nobody opens it a third time, not even through a path-only descriptor kept back: another user's process lacks
    // the permission.
    rustix::fs::fchmod(&own, Mode::empty())?;
    Ok((own, given))
}

fn opened_anew(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Whether no other description of the file is left, in any process, mapping or message. Leaves the write lease in
/// place where it is so; closing the descriptor ends it.
pub(crate) fn is_sole_holder(own: BorrowedFd<'_>) -> bool {
    // The kernel announces a broken lease by a signal, by default one that kills; SIGURG is ignored.
    // SAFETY: F_SETSIG takes an integer and touches only the description, which `own` keeps open.
    let quiet = unsafe { libc::fcntl(own.as_raw_fd(), F_SETSIG, libc::SIGURG) };
    // SAFETY: F_SETLEASE takes an integer and touches only the description, which `own` keeps open.
    quiet == 0 && unsafe { libc::fcntl(own.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0
}

/// Gives the pages back even if a path-only descriptor keeps the empty file in being.
pub(crate) fn empty(own: BorrowedFd<'_>, bytes: Bytes) {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = rustix::fs::fallocate(own, hole, 0, bytes.get()) {
        tracing::warn!(%errno, "a memory file could not be emptied before it was closed");
    }
}

/// What the kernel has really given of it.
#[cfg(test)]
pub(crate) fn touched(own: BorrowedFd<'_>) -> Bytes {
    // `st_blocks` counts units of 512 bytes, whatever the block size.
    let blocks = rustix::fs::fstat(own).map(|about| about.st_blocks).unwrap_or(0);
    Bytes::new(u64::try_from(blocks).unwrap_or(0).saturating_mul(512))
}
