//! Who keeps a descriptor of an exported allocation: a look through `/proc`, for people.
//!
//! A descriptor of the driver is one of a device file that every process with a context has open.
//! So what is found are candidates; those on the card's own list are judged by that list.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use gpulease_words::Pid;

/// The most processes that are named; the list is for a person.
const NAMED_MAX: usize = 16;

/// What a file is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// That of an open file.
    pub(super) fn of(fd: impl AsFd) -> Option<Self> {
        let stat = rustix::fs::fstat(fd).ok()?;
        Some(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A search that is under way or done. It has a thread of its own: a host can have many processes.
#[derive(Debug)]
pub(super) enum Search {
    /// Under way.
    Running(Receiver<Vec<Pid>>),
    /// Done.
    Done(Vec<Pid>),
}

impl Search {
    /// Looks for other processes that have the file open.
    pub(super) fn of(identity: Identity) -> Self {
        let (sender, receiver) = channel();
        let search = move || drop(sender.send(keepers(identity)));
        match std::thread::Builder::new().name("keepers".into()).spawn(search) {
            Ok(_) => Self::Running(receiver),
            Err(_) => Self::Done(Vec::new()),
        }
    }

    /// Who was found, once the search is done; not those that the broker may not look at.
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

fn keepers(file: Identity) -> Vec<Pid> {
    let own = std::process::id();
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own && keeps(*pid, file)).take(NAMED_MAX).map(Pid::new).collect()
}

fn keeps(pid: u32, file: Identity) -> bool {
    let folder = Path::new("/proc").join(pid.to_string()).join("fd");
    let Ok(descriptors) = fs::read_dir(folder) else { return false };
    let mut files = descriptors.flatten().filter_map(|entry| fs::metadata(entry.path()).ok());
    files.any(|open| open.dev() == file.device && open.ino() == file.inode)
}
