//! Who still holds a file of memory: a look through `/proc`, for people.
//!
//! A descriptor of GPU memory is one of a device file that every process with a context has open too; who is found by
//! that is a candidate.
//!
//! It runs on a thread of its own, since reading another process's maps can be made to take long.

use std::fs;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use gpulease_words::Pid;

/// The most processes that are named; the list is for a person.
const NAMED_MAX: usize = 16;

/// A search that is under way or done.
#[derive(Debug)]
pub(super) enum Search {
    /// Under way.
    Running(Receiver<Vec<Pid>>),
    /// Done.
    Done(Vec<Pid>),
}

impl Search {
    /// Looks for other holders of the file.
    pub(super) fn start(file: Identity) -> Self {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("holders".into());
        match thread.spawn(move || drop(sender.send(holders(&file)))) {
            Ok(_) => Self::Running(receiver),
            Err(_) => Self::Done(Vec::new()),
        }
    }

    /// The holders, once the search is done; those that the broker may not look at are not among them.
    pub(super) fn found(&mut self) -> Option<&[Pid]> {
        if let Self::Running(receiver) = self {
            match receiver.try_recv() {
                Ok(pids) => *self = Self::Done(pids),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => *self = Self::Done(Vec::new()),
            }
        }
        match self {
            Self::Running(_) => None,
            Self::Done(pids) => Some(pids),
        }
    }
}

/// What a file is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// A file of a file system.
    File {
        /// Where.
        device: u64,
        /// Its number there.
        inode: u64,
    },
    /// A device file: by the device, since containers have files of their own for it.
    Device(u64),
    /// A file without a place: by the kernel's word for its kind.
    Anonymous(PathBuf),
}

impl Identity {
    /// That of an open file, if the kernel tells.
    pub(super) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        Self::at(&Path::new("/proc/self/fd").join(file.as_raw_fd().to_string()))
    }

    /// That of the file behind a link in `/proc`.
    fn at(link: &Path) -> Option<Self> {
        let about = fs::metadata(link).ok()?;
        if about.file_type().is_char_device() {
            return Some(Self::Device(about.rdev()));
        }
        match fs::read_link(link) {
            // All of these are one inode.
            Ok(name) if name.as_os_str().as_bytes().starts_with(b"anon_inode:") => {
                Some(Self::Anonymous(name))
            }
            Ok(_) | Err(_) => Some(Self::File { device: about.dev(), inode: about.ino() }),
        }
    }
}

fn holders(file: &Identity) -> Vec<Pid> {
    let own = std::process::id();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own && holds(*pid, file)).take(NAMED_MAX).map(Pid::new).collect()
}

fn holds(pid: u32, file: &Identity) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    has_open(&process, file) || matches!(file, Identity::File { inode, .. } if has_mapped(&process, *inode))
}

fn has_open(process: &Path, file: &Identity) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors.flatten().any(|entry| Identity::at(&entry.path()).as_ref() == Some(file))
}

/// A line of maps is `range permissions offset major:minor inode path`; memory files have an internal device that
/// `maps` prints otherwise than `stat`, so the inode and the path's beginning have to do.
fn has_mapped(process: &Path, inode: u64) -> bool {
    let Ok(maps) = fs::read_to_string(process.join("maps")) else {
        return false;
    };
    let inode = inode.to_string();
    maps.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(4);
        fields.next() == Some(&inode)
            && fields.next().is_some_and(|path| path.starts_with("/memfd:gpulease-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn files_devices_and_what_has_no_place_are_told_apart() {
        let of = |file: &fs::File| Identity::of(file.as_fd()).expect("it is open");
        let null = of(&fs::File::open("/dev/null").expect("every system has it"));
        assert_eq!(null, Identity::Device(rustix::fs::makedev(1, 3)));
        let (one, other) = (tempfile(), tempfile());
        assert!(matches!(of(&one), Identity::File { .. }));
        assert_eq!(of(&one), of(&one.try_clone().expect("it is open")));
        assert_ne!(of(&one), of(&other));
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("the kernel has them");
        assert_eq!(Identity::of(event.as_fd()), Some(Identity::Anonymous("anon_inode:[eventfd]".into())));
    }

    fn tempfile() -> fs::File {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("the kernel has them").into()
    }
}
