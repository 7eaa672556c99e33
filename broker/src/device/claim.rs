//! One broker per device, whoever runs it, and one per directory of sockets, whatever files are deleted there.
//!
//! Brokers of different users share no directory that both could lock in, and a lock's file can be
//! removed, so they are claimed by names in the kernel's abstract socket namespace: it is one for
//! all users, is given up when its holder dies, and tells the holder's pid.

use std::os::fd::{AsFd as _, OwnedFd};

use gpulease_words::Pid;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A device or a directory that this broker alone has.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: OwnedFd,
}

/// Why a device could not be claimed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unclaimed {
    /// Another broker has it.
    #[error("device {uuid} is served by another broker already, process {}; stop that one, or name another device", pid.map_or("unknown".to_owned(), |pid| pid.to_string()))]
    Taken {
        /// Which device.
        uuid: String,
        /// By whom.
        pid: Option<Pid>,
    },
    /// The kernel refused.
    #[error("device {uuid} could not be claimed: {errno}")]
    Kernel {
        /// Which device.
        uuid: String,
        /// Why.
        errno: Errno,
    },
}

impl Claim {
    /// Claims the device with this uuid.
    ///
    /// # Errors
    /// When another broker has it, with its pid.
    pub(crate) fn take(uuid: &str) -> Result<Self, Unclaimed> {
        Self::named(&format!("gpulease-device/{uuid}")).map_err(|refused| match refused {
            Refused::Taken(pid) => Unclaimed::Taken { uuid: uuid.to_owned(), pid },
            Refused::Kernel(errno) => Unclaimed::Kernel { uuid: uuid.to_owned(), errno },
        })
    }

    /// Claims a directory, by its number and its device's: so it is the same one by whatever path, and another container's
    /// of the same path is not.
    ///
    /// # Errors
    /// When another broker has it.
    pub(crate) fn of_directory(device: u64, inode: u64) -> Result<Self, Refused> {
        Self::named(&format!("gpulease-directory/{device}/{inode}"))
    }

    fn named(name: &str) -> Result<Self, Refused> {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(Refused::Kernel)?;
        let socket = socket().map_err(Refused::Kernel)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Err(Refused::Taken(holder(&address))),
            Err(errno) => return Err(Refused::Kernel(errno)),
        }
        rustix::net::listen(&socket, 8).map_err(Refused::Kernel)?;
        Ok(Self { _socket: socket })
    }
}

/// Why a name could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another broker has it; by its pid.
    Taken(Option<Pid>),
    /// The kernel refused.
    Kernel(Errno),
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn holder(address: &SocketAddrUnix) -> Option<Pid> {
    let socket = socket().ok()?;
    rustix::net::connect(&socket, address).ok()?;
    crate::kernel::peer_pid(socket.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_is_refused_with_the_first_ones_pid_until_it_is_dropped() {
        let uuid = format!("GPU-test-{}", std::process::id());
        let first = Claim::take(&uuid).expect("nobody has it");
        let refused = Claim::take(&uuid).expect_err("taken");
        let own = Pid::new(std::process::id());
        assert!(matches!(refused, Unclaimed::Taken { pid: Some(pid), .. } if pid == own), "{refused}");
        drop(first);
        Claim::take(&uuid).expect("free again");
    }
}
