//! What the devices themselves say is in use: a second opinion beside the broker's book.
//!
//! A GPU is asked through NVML. Host memory is counted as the kernel has it: the blocks of the
//! memory files that the broker has open, but for the copies of what is swapped out.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gpulease_words::Bytes;
use nvml_wrapper::Nvml;

/// Between two looks. A job takes tens of milliseconds to fill what it got, so nothing is missed for long.
const EVERY: Duration = Duration::from_millis(10);

/// Where a device's use is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// From the card with this UUID.
    Card(String),
    /// From the memory files of the process with this pid.
    MemoryFiles(u32),
}

/// One device's use, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// At the first look; what is above it came with the demo.
    pub(super) at_first: Option<Bytes>,
    /// At the last look.
    pub(super) now: Option<Bytes>,
    /// The most at any look.
    pub(super) highest: Option<Bytes>,
}

impl Use {
    fn take(&mut self, now: Option<Bytes>) {
        self.now = now;
        self.at_first = self.at_first.or(now);
        self.highest = self.highest.max(now);
    }

    /// The most that was above the first look.
    pub(super) fn highest_above_first(&self) -> Option<Bytes> {
        Some(self.highest?.saturating_sub(self.at_first?))
    }

    /// What is above the first look now.
    pub(super) fn now_above_first(&self) -> Option<Bytes> {
        Some(self.now?.saturating_sub(self.at_first?))
    }
}

/// The look-out over all devices, on a thread of its own until dropped.
pub(super) struct Gauges {
    uses: Arc<Mutex<Vec<Use>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Gauges {
    /// Looks once and then goes on looking.
    ///
    /// # Errors
    /// Where the thread cannot be started.
    pub(super) fn watch(sources: Vec<Source>) -> std::io::Result<Self> {
        let nvml = sources
            .iter()
            .any(|source| matches!(source, Source::Card(_)))
            .then(|| Nvml::init().ok())
            .flatten();
        let uses = Arc::new(Mutex::new(vec![Use::default(); sources.len()]));
        let stop = Arc::new(AtomicBool::new(false));
        look(&sources, nvml.as_ref(), &uses);
        let (their_uses, their_stop) = (Arc::clone(&uses), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("gauges".into()).spawn(move || {
            while !their_stop.load(Ordering::Relaxed) {
                look(&sources, nvml.as_ref(), &their_uses);
                std::thread::park_timeout(EVERY);
            }
        })?;
        Ok(Self { uses, stop, thread: Some(thread) })
    }

    /// Each device's use, in the order of the sources.
    pub(super) fn uses(&self) -> Vec<Use> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only reads, so there is nothing to be told of a panic in it.
            let _ = thread.join();
        }
    }
}

fn look(sources: &[Source], nvml: Option<&Nvml>, uses: &Mutex<Vec<Use>>) {
    let now: Vec<Option<Bytes>> = sources.iter().map(|source| read(source, nvml)).collect();
    let mut uses = uses.lock().unwrap_or_else(PoisonError::into_inner);
    uses.iter_mut().zip(now).for_each(|(gauge, now)| gauge.take(now));
}

fn read(source: &Source, nvml: Option<&Nvml>) -> Option<Bytes> {
    match source {
        Source::Card(uuid) => Some(card(nvml?, uuid)?.used),
        Source::MemoryFiles(pid) => memory_files(*pid),
    }
}

/// What a card says of its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card {
    pub(super) used: Bytes,
    pub(super) free: Bytes,
}

/// Asks the card with this UUID.
pub(super) fn card(nvml: &Nvml, uuid: &str) -> Option<Card> {
    let memory = nvml.device_by_uuid(uuid).ok()?.memory_info().ok()?;
    Some(Card { used: Bytes::new(memory.used), free: Bytes::new(memory.free) })
}

/// The memory that the kernel has given to the memory files which a process has open, each file
/// once. A file that goes away meanwhile counts as gone.
fn memory_files(pid: u32) -> Option<Bytes> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let path = entry.path();
        let is_memory = std::fs::read_link(&path).is_ok_and(|target| is_of_a_device(&target));
        if let (true, Ok(file)) = (is_memory, std::fs::metadata(&path)) {
            // Linux counts blocks of 512 bytes, whatever the file system's own are.
            files.insert(file.ino(), file.blocks() * 512);
        }
    }
    Some(files.into_values().map(Bytes::new).sum())
}

/// Whether a descriptor's target is memory of a device, and not a copy of some.
fn is_of_a_device(target: &Path) -> bool {
    let name = target.as_os_str().to_string_lossy();
    name.starts_with("/memfd:") && !name.starts_with("/memfd:gpulease-copy-")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use gpulease_words::mib;
    use rustix::fs::{FallocateFlags, MemfdFlags};

    use super::*;

    #[test]
    fn memory_files_count_once_and_by_what_the_kernel_gave() {
        let before = memory_files(std::process::id()).expect("our own files");
        let file = rustix::fs::memfd_create("gauge-test", MemfdFlags::CLOEXEC).expect("a memory file");
        rustix::fs::ftruncate(&file, mib(64).get()).expect("its size");
        let _twin = file.as_fd().try_clone_to_owned().expect("a second descriptor");
        assert_eq!(memory_files(std::process::id()), Some(before), "nothing was touched");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mib(8).get()).expect("memory for it");
        assert_eq!(memory_files(std::process::id()), before.checked_add(mib(8)));
        assert_eq!(memory_files(u32::MAX), None);
        assert!(is_of_a_device(Path::new("/memfd:gpulease-3 (deleted)")));
        assert!(!is_of_a_device(Path::new("/memfd:gpulease-copy-3 (deleted)")));
    }

    #[test]
    fn the_highest_is_above_the_first_look() {
        let mut gauge = Use::default();
        assert_eq!(gauge.highest_above_first(), None);
        for bytes in [None, Some(mib(3)), Some(mib(90)), Some(mib(5))] {
            gauge.take(bytes);
        }
        assert_eq!(gauge.highest_above_first(), Some(mib(87)));
        assert_eq!(gauge.now_above_first(), Some(mib(2)));
    }
}
