//! Jobs of the broker as processes of their own, on whichever device, led by a test.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, ExitStatus};

use gpulease_words::{Bytes, mib};

use crate::daemon::Daemon;
use crate::puppet::{Gpu, Puppet};
use crate::standin::Standin;

/// The device that a test runs on.
#[derive(Debug)]
pub enum Stage {
    /// Host memory.
    Host,
    /// A GPU, or what stands in for one.
    Gpu(Gpu),
}

/// A process that takes part in jobs as it is told; see `job-puppet` for what it obeys. Killed when
/// dropped.
#[derive(Debug)]
pub struct Member(Puppet);

impl Stage {
    /// Host memory, the stand-in driver, and the real card where this machine has one; else a line
    /// says what is skipped.
    #[must_use]
    pub fn all(test: &str) -> Vec<Self> {
        [Self::Host].into_iter().chain(Gpu::all(test).into_iter().map(Self::Gpu)).collect()
    }

    /// A card of one device of this size in host memory.
    #[must_use]
    pub fn standin(size: &str) -> Self {
        Self::Gpu(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", size)])))
    }

    /// A daemon that leases this much of the device.
    #[must_use]
    pub fn daemon(&self, capacity: Bytes) -> Daemon {
        self.daemon_with(capacity, "")
    }

    /// A daemon that leases this much of the device and has this configuration beside.
    #[must_use]
    pub fn daemon_with(&self, capacity: Bytes, configuration: &str) -> Daemon {
        let mut command = Command::new(crate::programs::gpuleased());
        match self {
            Self::Host => command.args(["--device", &format!("host:{}B", capacity.get())]),
            Self::Gpu(_) => {
                command.args(["--device", "cuda:0", "--capacity", &format!("{}B", capacity.get())])
            }
        };
        command.envs(self.environment());
        Daemon::start_configured(command, configuration)
    }

    /// What is set aside for the context of a process that has not made one yet.
    #[must_use]
    pub const fn overhead(&self) -> Bytes {
        match self {
            Self::Host => Bytes::ZERO,
            Self::Gpu(_) => mib(640),
        }
    }

    /// A job of this daemon, not connected yet.
    #[must_use]
    pub fn member(&self, daemon: &Daemon) -> Member {
        self.member_with(&daemon.socket(), &[], |command| command)
    }

    /// A job of the daemon at this socket, behind other words (`unshare --pid` for example), and
    /// with its command changed first: another user, more variables.
    #[must_use]
    pub fn member_with(
        &self,
        socket: &Path,
        before: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Member {
        let mut environment = self.environment();
        environment.push(("GPULEASE_SOCKET", socket.as_os_str().to_owned()));
        Member(Puppet::spawn("job-puppet", environment, before, change))
    }

    /// What a process needs in its environment to find the device.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        match self {
            Self::Host => Vec::new(),
            Self::Gpu(gpu) => gpu.environment(),
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Gpu(gpu) => gpu.fmt(f),
        }
    }
}

impl Member {
    /// Kills it at once, and waits until it is gone.
    pub fn kill(self) {
        self.0.kill();
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait(self) -> ExitStatus {
        self.0.wait()
    }

    /// Has it do something that fails, and says with which sentence.
    ///
    /// # Panics
    /// Where it works.
    pub fn refused(&self, command: &str) -> String {
        match self.ask(command) {
            Ok(said) => panic!("{command}: it works: {said}"),
            Err(sentence) => sentence,
        }
    }

    /// Has it do something that answers in `key=value` words.
    ///
    /// # Panics
    /// Where it does not work.
    #[must_use]
    pub fn facts(&self, command: &str) -> Facts {
        Facts::of(&self.must(command))
    }
}

impl Deref for Member {
    type Target = Puppet;

    fn deref(&self) -> &Puppet {
        &self.0
    }
}

/// An answer in `key=value` words.
#[derive(Clone, Debug)]
pub struct Facts(BTreeMap<String, String>);

impl Facts {
    /// The pairs of a text.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let pairs = text.split_whitespace().filter_map(|word| word.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// A text.
    ///
    /// # Panics
    /// Where it is not there.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    /// A number.
    ///
    /// # Panics
    /// Where it is not there, or none.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap_or_else(|error| panic!("{key}: {error} in {self:?}"))
    }
}

/// A child that a job forked; killed when dropped.
#[derive(Debug)]
pub struct Orphan(rustix::process::Pid);

impl Orphan {
    /// The child with the number that the job said.
    ///
    /// # Panics
    /// Where it is no number of a process.
    #[must_use]
    pub fn of(said: &str) -> Self {
        let pid = said.parse().ok().and_then(rustix::process::Pid::from_raw);
        Self(pid.expect("the number of a process"))
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.as_raw_pid().unsigned_abs()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
    }
}
