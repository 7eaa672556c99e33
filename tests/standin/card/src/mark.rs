//! A mark on an open file that lasts as long as its description, whoever has that.
//!
//! It is a lock of the description on a byte behind the file's end, shared, so that many can have
//! it; who would lock it alone is told that it is taken.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Marks a file's description with a number; the marks begin at this byte.
pub(crate) fn put(file: &File, start: u64, number: u64) -> io::Result<()> {
    lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, (start + number, 1)).map(|_| ())
}

/// The numbers with which other descriptions of the same file are marked.
pub(crate) fn all(file: &File, start: u64) -> io::Result<Vec<u64>> {
    let (mut next, mut found) = (start, Vec::new());
    while let Some(at) = lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, (next, 0))? {
        found.push(at - start);
        next = at + 1;
    }
    Ok(found)
}

/// Where the kernel knows of another lock in these bytes, of which no number means all that come.
fn lock(file: &File, command: i32, kind: i32, (start, length): (u64, i64)) -> io::Result<Option<u64>> {
    let small = |number: i32| i16::try_from(number).expect("it is one of a few small numbers");
    let start = i64::try_from(start).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut lock = libc::flock {
        l_type: small(kind),
        l_whence: small(libc::SEEK_SET),
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: these commands want a pointer to a lock that may be written, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ if i32::from(lock.l_type) == libc::F_UNLCK => Ok(None),
        _ => Ok(u64::try_from(lock.l_start).ok()),
    }
}
