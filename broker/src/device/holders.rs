//! Who still holds a file of memory: a look through `/proc`, for people.
//!
//! A descriptor of GPU memory is one of a device file that every process with a context has open too; who is found by
//! that is a candidate.
//!
//! It runs on a thread of its own, since reading another process's maps can be made to take long.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
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
        match thread.spawn(move || drop(sender.send(holders(file)))) {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// That of an open file, if the kernel tells.
    pub(super) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let stat = rustix::fs::fstat(file).ok()?;
        Some(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

fn holders(file: Identity) -> Vec<Pid> {
    let own = std::process::id();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own && holds(*pid, file)).take(NAMED_MAX).map(Pid::new).collect()
}

fn holds(pid: u32, file: Identity) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    has_open(&process, file) || has_mapped(&process, file)
}

fn has_open(process: &Path, file: Identity) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    let mut files = descriptors.flatten().filter_map(|entry| fs::metadata(entry.path()).ok());
    files.any(|open| open.dev() == file.device && open.ino() == file.inode)
}

/// A line of maps is `range permissions offset major:minor inode path`; memory files have an internal device that
/// `maps` prints otherwise than `stat`, so the inode and the path's beginning have to do.
fn has_mapped(process: &Path, file: Identity) -> bool {
    let Ok(maps) = fs::read_to_string(process.join("maps")) else {
        return false;
    };
    let inode = file.inode.to_string();
    maps.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(4);
        fields.next() == Some(&inode)
            && fields.next().is_some_and(|path| path.starts_with("/memfd:gpulease-"))
    })
}
