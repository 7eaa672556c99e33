//! One broker per device, whoever runs it.
//!
//! Brokers of different users share no directory that both could lock in, so a device is claimed
//! by a name in the kernel's abstract socket namespace: it is one for all users, is given up when
//! its holder dies, and tells the holder's pid.

use std::os::fd::{AsFd as _, OwnedFd};

use gpulease_words::Pid;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A device that this broker alone has.
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
        let kernel = |errno| Unclaimed::Kernel { uuid: uuid.to_owned(), errno };
        let address = address(uuid).map_err(kernel)?;
        let socket = socket().map_err(kernel)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                return Err(Unclaimed::Taken { uuid: uuid.to_owned(), pid: holder(&address) });
            }
            Err(errno) => return Err(kernel(errno)),
        }
        rustix::net::listen(&socket, 8).map_err(kernel)?;
        Ok(Self { _socket: socket })
    }
}

fn address(uuid: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("gpulease-device/{uuid}").as_bytes())
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
