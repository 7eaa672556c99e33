//! The right to a directory: that it is safe, and that one broker at a time has its sockets there.

use std::fs;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use gpulease_words::Pid;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Paths, Rank, Unplaced, unfit};
use crate::device::claim::{Claim, Refused};

const LOCK: &str = "gpuleased.lock";

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    device: u64,
    inode: u64,
}

impl Mark {
    /// That of what stands at the path, if anything does.
    pub(super) fn at(path: &Path) -> Option<Self> {
        fs::symlink_metadata(path).ok().map(|stat| Self { device: stat.dev(), inode: stat.ino() })
    }

    fn of(file: &OwnedFd) -> Result<Self, Errno> {
        rustix::fs::fstat(file).map(|stat| Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// What keeps other brokers away from a directory.
#[derive(Debug)]
pub(super) struct Right {
    directory: Mark,
    /// It tells clients and people which process has the place.
    lock: OwnedFd,
    /// It holds where the lock's file is removed.
    _claim: Claim,
}

impl Right {
    pub(super) fn take(paths: &Paths, rank: Rank) -> Result<Self, Unplaced> {
        let place = paths.directory();
        let directory = open_directory(place, rank)?;
        let mark = Mark::of(&directory).map_err(|errno| unfit(place, errno.to_string()))?;
        let claim = Claim::of_directory(mark.device, mark.inode).map_err(|refused| match refused {
            Refused::Taken(pid) => Unplaced::Running { socket: paths.jobs.clone(), pid },
            Refused::Kernel(errno) => unfit(place, format!("the directory could not be claimed: {errno}")),
        })?;
        // The claim first: one who is refused by it leaves the lock alone, which its holder may be making anew.
        let lock = lock(&directory, paths)?;
        Ok(Self { directory: mark, lock, _claim: claim })
    }

    /// Takes the place again where its directory or its lock was removed.
    pub(super) fn mend(&mut self, paths: &Paths, rank: Rank) -> Result<(), Unplaced> {
        if Mark::at(paths.directory()) != Some(self.directory) {
            *self = Self::take(paths, rank)?;
        } else if Mark::at(&paths.directory().join(LOCK)) != Mark::of(&self.lock).ok() {
            self.lock = lock(&open_directory(paths.directory(), rank)?, paths)?;
        }
        Ok(())
    }
}

fn open_directory(path: &Path, rank: Rank) -> Result<OwnedFd, Unplaced> {
    match rustix::fs::mkdir(path, rank.directory_mode()) {
        // The mode again, without the umask's part in it.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(rank.directory_mode().as_raw_mode()))
            .map_err(|error| unfit(path, error.to_string()))?,
        Err(Errno::EXIST) => {}
        Err(Errno::NOENT) => return Err(unfit(path, "the directory above it does not exist; make it first")),
        Err(errno) => return Err(unfit(path, format!("the directory could not be made: {errno}"))),
    }
    let directory = opened(path)?;
    trusted(path, &directory)?;
    Ok(directory)
}

pub(super) fn opened(path: &Path) -> Result<OwnedFd, Unplaced> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => {
            unfit(path, "it is a symbolic link or no directory; somebody may have put it there, remove it")
        }
        other => unfit(path, format!("the directory could not be opened: {other}")),
    })
}

/// Refuses a directory in which somebody else could put sockets of his own.
pub(super) fn trusted(path: &Path, directory: &OwnedFd) -> Result<(), Unplaced> {
    let stat = rustix::fs::fstat(directory).map_err(|errno| unfit(path, errno.to_string()))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(unfit(
            path,
            format!(
                "it belongs to user {}, not to the broker's; remove it, or use another directory",
                stat.st_uid
            ),
        ));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(unfit(
            path,
            "others may write to it and could put a socket of their own there; use a directory of the broker's own, or chmod go-w",
        ));
    }
    let ancestors = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    for above in ancestors {
        let mode = fs::metadata(above).map_err(|error| unfit(above, error.to_string()))?.mode();
        if mode & 0o1002 == 0o002 {
            return Err(unfit(
                above,
                "anybody may rename what is in it, so the sockets would not be safe below it; use another directory, or chmod o-w",
            ));
        }
    }
    Ok(())
}

fn lock(directory: &OwnedFd, paths: &Paths) -> Result<OwnedFd, Unplaced> {
    let path = paths.directory().join(LOCK);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |errno: Errno| unfit(&path, format!("the lock could not be taken: {errno}"));
    let file = rustix::fs::openat(directory, LOCK, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            return Err(Unplaced::Running { socket: paths.jobs.clone(), pid: holder(paths) });
        }
        Err(errno) => return Err(failed(errno)),
    }
    let mut written = fs::File::from(file);
    let pid = format!("{}\n", std::process::id());
    written
        .set_len(0)
        .and_then(|()| written.write_all(pid.as_bytes()))
        .map_err(|error| unfit(&path, error.to_string()))?;
    Ok(written.into())
}

/// The process that answers at the job socket, or that the lock names while it is held.
pub(super) fn holder(paths: &Paths) -> Option<Pid> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    if rustix::net::connect(&socket, &SocketAddrUnix::new(&paths.jobs).ok()?).is_ok() {
        return crate::kernel::peer_pid(socket.as_fd());
    }
    let file = fs::File::open(paths.directory().join(LOCK)).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => None,
        Err(_) => std::io::read_to_string(file).ok()?.trim().parse().ok().map(Pid::new),
    }
}
