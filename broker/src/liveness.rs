//! Processes: who is at the other end, and when it dies.
//!
//! A process has one [`ProcessId`] from first sight to death, however often it connects. The pid
//! alone does not tell processes apart, since numbers come round again; pid and start time do, and
//! a pidfd that was open before both were read shows that they were its own.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use gpulease_words::{Pid, ProcessId, Uid};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use crate::kernel::{self, Credentials};

/// A process that was alive when it was met.
pub(crate) struct Process {
    id: ProcessId,
    key: Key,
    pidfd: Arc<OwnedFd>,
    watch: OnceLock<AbortHandle>,
    table: Weak<Table>,
}

impl Process {
    pub(crate) const fn id(&self) -> ProcessId {
        self.id
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.key.pid
    }

    /// Sends it a signal: it, and no later process of its number.
    ///
    /// # Errors
    /// When it is dead, or of a user that the broker may not signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(&*self.pidfd, signal)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.id, self.key.pid)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            watch.abort();
        }
        if let Some(table) = self.table.upgrade() {
            table.forget(self.key);
        }
    }
}

/// A process as one connection shows it: the user is the one it had when it connected.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) process: Arc<Process>,
    pub(crate) uid: Uid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pid: Pid,
    /// Clock ticks from the boot to its start.
    started: u64,
}

#[derive(Debug, Default)]
struct Table {
    known: Mutex<BTreeMap<Key, Weak<Process>>>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Weak<Process>>> {
        self.known.lock().expect("nothing panics while it holds the lock")
    }

    /// Removes the entry of a process that is gone from memory, unless a new one took its place meanwhile.
    fn forget(&self, key: Key) {
        let mut known = self.lock();
        if known.get(&key).is_some_and(|process| process.strong_count() == 0) {
            known.remove(&key);
        }
    }
}

/// Why a process could not be met.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unmet {
    /// It is dead already.
    #[error("the process is gone")]
    Gone,
    /// The broker cannot see it.
    #[error(
        "the process is not visible from the broker's pid namespace; start the broker in the host's or in a parent of yours"
    )]
    Hidden,
    /// The kernel refused.
    #[error("the kernel would not say who is there: {0}")]
    Kernel(#[from] rustix::io::Errno),
}

/// All processes that are known, and the one place that says who is who.
pub(crate) struct Liveness {
    table: Arc<Table>,
    next: AtomicU64,
    on_death: Box<dyn Fn(ProcessId) + Send + Sync>,
}

impl fmt::Debug for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Liveness").finish_non_exhaustive()
    }
}

impl Liveness {
    /// Nobody known yet; `on_death` is told of each watched process that dies, once.
    pub(crate) fn new(on_death: impl Fn(ProcessId) + Send + Sync + 'static) -> Self {
        Self { table: Arc::default(), next: AtomicU64::new(1), on_death: Box::new(on_death) }
    }

    /// Who is at the other end of a connected socket.
    ///
    /// # Errors
    /// When it is gone or cannot be seen.
    pub(crate) fn meet(&self, socket: BorrowedFd<'_>) -> Result<Caller, Unmet> {
        let Credentials { pid, uid } = kernel::peer(socket)?;
        let pid = pid.ok_or(Unmet::Hidden)?;
        let process = self.identify(pid, kernel::peer_pidfd(socket, pid)?)?;
        Ok(Caller { process, uid })
    }

    /// The living process of this number and its user, as an owner names its child.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn find(&self, pid: Pid) -> Result<Caller, Unmet> {
        let pidfd = kernel::pidfd(pid)?;
        let uid = kernel::owner(pid).ok_or(Unmet::Gone)?;
        let process = self.identify(pid, pidfd)?;
        Ok(Caller { process, uid })
    }

    fn identify(&self, pid: Pid, pidfd: OwnedFd) -> Result<Arc<Process>, Unmet> {
        let started = kernel::start_time(pid)?;
        // Alive after its number was looked up: so the number was its own all along.
        if kernel::is_dead(&pidfd)? {
            return Err(Unmet::Gone);
        }
        let key = Key { pid, started: started.ok_or(Unmet::Hidden)? };
        let mut known = self.table.lock();
        if let Some(process) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(process);
        }
        let process = Arc::new(Process {
            id: ProcessId::new(self.next.fetch_add(1, Ordering::Relaxed)),
            key,
            pidfd: Arc::new(pidfd),
            watch: OnceLock::new(),
            table: Arc::downgrade(&self.table),
        });
        known.insert(key, Arc::downgrade(&process));
        Ok(process)
    }

    /// Sees to it that its death is told. More than one call is one watch.
    ///
    /// # Errors
    /// When it is dead already, which nobody would be told any more, or the kernel has no room to watch one more.
    pub(crate) fn watch(self: &Arc<Self>, process: &Arc<Process>) -> Result<(), Unmet> {
        // Its connection may live on in another process's hands.
        if kernel::is_dead(&process.pidfd)? {
            return Err(Unmet::Gone);
        }
        if process.watch.get().is_some() {
            return Ok(());
        }
        let interest = tokio::io::Interest::READABLE;
        // SAFETY: the descriptor stays the same and open for the whole life of the AsyncFd, which owns a share of it.
        let exit = unsafe { AsyncFd::register_with_interest(process.pidfd.clone(), interest) }
            .map_err(|error| Errno::from_io_error(&std::io::Error::from(error)).unwrap_or(Errno::IO))?;
        let (id, liveness) = (process.id, self.clone());
        let task = tokio::spawn(async move {
            if exit.readable().await.is_ok() {
                (liveness.on_death)(id);
            }
        });
        if process.watch.set(task.abort_handle()).is_err() {
            task.abort();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    fn silent() -> Arc<Liveness> {
        Arc::new(Liveness::new(|_| {}))
    }

    #[test]
    fn a_process_is_one_however_often_it_connects() {
        let liveness = silent();
        let (a, _a) = UnixStream::pair().expect("sockets");
        let (b, _b) = UnixStream::pair().expect("sockets");
        let first = liveness.meet(a.as_fd()).expect("it is this process");
        let second = liveness.meet(b.as_fd()).expect("it is this process");
        let found = liveness.find(Pid::new(std::process::id())).expect("it lives");
        assert_eq!(first.process.id(), second.process.id());
        assert_eq!(first.process.id(), found.process.id());
        assert_eq!(first.uid, found.uid);
        assert_eq!(first.process.pid(), Pid::new(std::process::id()));
    }

    #[test]
    fn who_is_forgotten_is_met_anew() {
        let liveness = silent();
        let pid = Pid::new(std::process::id());
        let first = liveness.find(pid).expect("it lives").process.id();
        assert!(liveness.table.lock().is_empty());
        assert_ne!(liveness.find(pid).expect("it lives").process.id(), first);
    }

    #[tokio::test]
    async fn a_death_is_told_and_the_dead_are_not_met() {
        let (told, mut deaths) = tokio::sync::mpsc::unbounded_channel();
        let liveness = Arc::new(Liveness::new(move |id| told.send(id).expect("the test waits")));
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
        let met = liveness.find(Pid::new(child.id())).expect("it lives");
        liveness.watch(&met.process).expect("watched");
        liveness.watch(&met.process).expect("watched");
        child.kill().expect("killed");
        let dead = tokio::time::timeout(Duration::from_secs(10), deaths.recv()).await;
        assert_eq!(dead.expect("in time"), Some(met.process.id()));
        assert!(matches!(liveness.watch(&met.process), Err(Unmet::Gone)));
        // A zombie still has its number, and is dead all the same.
        assert!(matches!(liveness.find(Pid::new(child.id())), Err(Unmet::Gone)));
        child.wait().expect("reaped");
        assert!(liveness.find(Pid::new(child.id())).is_err());
        assert!(deaths.try_recv().is_err(), "told once");
    }
}
