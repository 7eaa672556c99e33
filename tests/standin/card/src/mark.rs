//! A mark on an open file that lasts as long as its description, whoever has that.
//!
//! It is a lock of the description on a byte behind the file's end, shared, so that many can have
//! it; who would lock it alone is told that it is taken.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Marks a file's description.
pub(crate) fn put(file: &File, at: u64) -> io::Result<()> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, at).map(|_| ())
}

/// Whether another description of the same file is marked.
pub(crate) fn is_there(file: &File, at: u64) -> io::Result<bool> {
    Ok(lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, at)? != libc::F_UNLCK)
}

/// What the kernel makes of the kind of lock.
fn lock(file: &File, command: i32, kind: i32, at: u64) -> io::Result<i32> {
    let kind = i16::try_from(kind).expect("it is one of three small numbers");
    let start = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    let whence = i16::try_from(libc::SEEK_SET).expect("it is zero");
    let mut lock = libc::flock { l_type: kind, l_whence: whence, l_start: start, l_len: 1, l_pid: 0 };
    // SAFETY: these commands want a pointer to a lock that may be written, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(i32::from(lock.l_type)),
    }
}
