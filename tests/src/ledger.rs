//! The daemon's books, watched from outside.

use std::fmt::Debug;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use gpulease_client::blocking::Observer;
use gpulease_proto::v1;
use gpulease_words::Bytes;

use crate::daemon::{Daemon, PATIENCE};
use crate::proc::{Proc, eventually};

/// A daemon's state as it changes.
#[derive(Debug)]
pub struct Ledger {
    observer: Observer,
    daemon: Proc,
    /// What the daemon had open before any job came.
    files: usize,
}

impl Ledger {
    /// Looks at a daemon that nobody uses yet.
    ///
    /// # Panics
    /// Where it does not answer.
    #[must_use]
    pub fn of(daemon: &Daemon) -> Self {
        let observer = Observer::connect_to(daemon.socket()).expect("the daemon is ready");
        let daemon = Proc(daemon.pid());
        let this = Self { observer, daemon, files: 0 };
        // The connection counts from its first answer on.
        drop(this.now());
        let files = this.daemon.open_files().len();
        Self { files, ..this }
    }

    /// The state as it is now.
    ///
    /// # Panics
    /// Where the daemon does not answer.
    #[must_use]
    pub fn now(&self) -> v1::StatusReply {
        self.observer.status().expect("the daemon answers")
    }

    /// The daemon's observer.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The books of the first device, as they are now.
    ///
    /// # Panics
    /// Where the daemon does not answer.
    #[must_use]
    pub fn memory(&self) -> v1::DeviceMemory {
        memory(&self.now())
    }

    /// Waits for a state, and returns what it was looked for.
    ///
    /// # Panics
    /// When it does not come in time; with the last state.
    pub fn wait<T>(&self, what: &str, ask: impl Fn(&v1::StatusReply) -> Option<T>) -> T {
        let (states, until) = (self.states(), Instant::now() + PATIENCE);
        let mut last = None;
        loop {
            match states.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(state) => match ask(&state) {
                    Some(answer) => return answer,
                    None => last = Some(state),
                },
                Err(RecvTimeoutError::Timeout) => panic!("not in time: {what}; the last was {last:#?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the daemon went away before {what}: {last:#?}")
                }
            }
        }
    }

    /// Waits until no lease and no ask is left and every byte is free.
    ///
    /// # Panics
    /// When it is not so in time.
    pub fn wait_for_all_free(&self) {
        self.wait("everything free again", |state| {
            let idle = state.leases.is_empty() && state.waiting.is_empty();
            (idle && memory(state).free_bytes == memory(state).capacity_bytes).then_some(())
        });
    }

    /// Waits until no lease and no ask is left and every byte is free, but for what is off-book.
    ///
    /// # Panics
    /// When it is not so in time.
    pub fn wait_for_nobody_to_have_any(&self) {
        self.wait("no lease, and all free that is not off-book", |state| {
            let (idle, memory) = (state.leases.is_empty() && state.waiting.is_empty(), memory(state));
            let off_book = memory.off_book_bytes.unwrap_or_default();
            (idle && memory.free_bytes + off_book == memory.capacity_bytes).then_some(())
        });
    }

    /// Waits until so many asks stand in the line.
    ///
    /// # Panics
    /// When it is not so in time.
    pub fn wait_for_waiting(&self, asks: usize) {
        self.wait(&format!("{asks} asks in the line"), |s| (s.waiting.len() == asks).then_some(()));
    }

    /// Waits until the daemon has given up every descriptor and every byte that jobs cost it.
    ///
    /// # Panics
    /// When it does not in time, with what is open.
    pub fn wait_for_no_leak(&self) {
        self.wait_for_all_free();
        eventually("as many open files as before", || match self.daemon.open_files() {
            files if files.len() <= self.files => Ok(()),
            files => Err(format!("{} instead of {}: {files:#?}", files.len(), self.files)),
        });
        assert_eq!(self.daemon.memory_files(), Bytes::ZERO, "memory files are left");
    }

    fn states(&self) -> Receiver<v1::StatusReply> {
        let (tell, states) = channel();
        let mut updates = self.observer.watch().expect("the daemon answers");
        std::thread::spawn(move || {
            // It ends with the receiver, at the next change, or with the daemon.
            while let Some(Ok(state)) = updates.next() {
                if tell.send(state).is_err() {
                    return;
                }
            }
        });
        states
    }
}

/// The books of a state's first device.
///
/// # Panics
/// Where it has none.
#[must_use]
pub fn memory(state: &v1::StatusReply) -> v1::DeviceMemory {
    state.devices.first().and_then(|device| device.memory).expect("a device has books")
}

/// The lease of this name in a state.
///
/// # Panics
/// Where there is none.
#[must_use]
pub fn lease<'s>(state: &'s v1::StatusReply, name: &str) -> &'s v1::LeaseStatus {
    let found = state.leases.iter().find(|lease| lease.name == name);
    found.unwrap_or_else(|| panic!("no lease {name}: {}", shown(&state.leases)))
}

fn shown(what: &impl Debug) -> String {
    format!("{what:#?}")
}
