//! Who listens at the other end of a socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use gpulease_words::Uid;

/// The user of the process that listened when this socket was connected.
///
/// Asked without rustix, whose credentials have a pid that is never zero: from inside a pid
/// namespace a broker outside of it has the pid 0.
///
/// # Errors
/// What the kernel says.
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> io::Result<Uid> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("twelve bytes");
    let (fd, place) = (socket.as_raw_fd(), (&raw mut peer).cast());
    // SAFETY: the kernel writes at most `length` bytes at `place`, which is that long and takes any bytes.
    let code = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length) };
    if code == 0 { Ok(Uid::new(peer.uid)) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_user() {
        let (here, _there) = UnixStream::pair().unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(peer_uid(here.as_fd()).unwrap(), Uid::new(own));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(peer_uid(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
