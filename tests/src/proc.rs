//! A process as `/proc` shows it: what a test of leaks and of idling looks at.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpulease_words::Bytes;

use crate::daemon::PATIENCE;

/// A process by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proc(
    /// The number.
    pub u32,
);

impl Proc {
    /// What its open descriptors point to, one entry each. Empty where the process is gone.
    #[must_use]
    pub fn open_files(self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.place("fd")) else { return Vec::new() };
        let targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.map(|target| target.to_string_lossy().into_owned()).collect()
    }

    /// The bytes behind the memory files of the broker that it has open, a file counted once.
    #[must_use]
    pub fn memory_files(self) -> Bytes {
        let Ok(entries) = fs::read_dir(self.place("fd")) else { return Bytes::ZERO };
        let ours = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:gpulease-"))
        };
        let files = entries.flatten().filter(ours).filter_map(|entry| fs::metadata(entry.path()).ok());
        let sizes = files.map(|file| (std::os::unix::fs::MetadataExt::ino(&file), file.len()));
        let each: std::collections::BTreeMap<_, _> = sizes.collect();
        each.into_values().map(Bytes::new).sum()
    }

    /// The processor time that it has used, itself and the kernel for it, to a hundredth of a second.
    ///
    /// # Panics
    /// Where the process is gone.
    #[must_use]
    pub fn cpu_time(self) -> Duration {
        let stat = fs::read_to_string(self.place("stat")).expect("the process lives");
        // The name, in brackets, may hold spaces and brackets itself.
        let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
        let ticks = |n: usize| fields.split_whitespace().nth(n).and_then(|t| t.parse::<u64>().ok());
        let (user, system) = (ticks(11).expect("user ticks"), ticks(12).expect("system ticks"));
        // Linux counts in hundredths for user space, whatever its own clock.
        Duration::from_millis((user + system) * 10)
    }

    /// The time that its living threads have run, to the nanosecond.
    ///
    /// # Panics
    /// Where the process is gone.
    #[must_use]
    pub fn run_time(self) -> Duration {
        let threads = fs::read_dir(self.place("task")).expect("the process lives");
        let ran = threads.flatten().filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(ran.sum())
    }

    /// The memory it has in use.
    ///
    /// # Panics
    /// Where the process is gone.
    #[must_use]
    pub fn resident(self) -> Bytes {
        let status = fs::read_to_string(self.place("status")).expect("the process lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
        Bytes::new(kib << 10)
    }

    /// Waits until a signal has stopped it, each of its threads: they go on for a moment after it was sent.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub fn wait_until_stopped(self) {
        eventually("a stopped process", || match self.thread_states() {
            states if !states.is_empty() && states.iter().all(|state| *state == 'T') => Ok(()),
            states => Err(format!("{states:?}")),
        });
    }

    /// The letter of each thread's state: `T` is stopped.
    fn thread_states(self) -> Vec<char> {
        let Ok(threads) = fs::read_dir(self.place("task")) else { return Vec::new() };
        let stats =
            threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
    }

    fn place(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }
}

/// Waits for something that raises no event, by asking again and again.
///
/// # Panics
/// When it is not so after [`PATIENCE`].
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(found) => assert!(Instant::now() < until, "not in time: {what}; it is {found}"),
        }
        // The kernel tells nobody of a descriptor that another process closes, or of a state it enters.
        std::thread::sleep(Duration::from_millis(2));
    }
}
