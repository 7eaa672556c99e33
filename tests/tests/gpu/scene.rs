//! A card, and who looks at it from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use gpulease_tests::daemon::Daemon;
use gpulease_tests::member::Stage;
use gpulease_tests::puppet::{Gpu, Puppet};
use gpulease_tests::standin::Standin;
use gpulease_words::Bytes;

/// A user that is on every system and has no rights.
const NOBODY: u32 = 65_534;

/// A card, who looks at it by NVML alone, and what was used before anything was started.
pub(super) struct Scene {
    pub(super) stage: Stage,
    watcher: Puppet,
    pub(super) used_before: Bytes,
}

impl Scene {
    /// On a stand-in of one device of 16 GiB and on a real card.
    pub(super) fn all(test: &str) -> Vec<Self> {
        Gpu::all(test)
            .into_iter()
            .map(|gpu| match gpu {
                Gpu::Standin(_) => {
                    Self::on(Gpu::Standin(Standin::with(&[("DEVICES", "1"), ("BYTES", "16GiB")])))
                }
                Gpu::Real(turn) => Self::on(Gpu::Real(turn)),
            })
            .collect()
    }

    fn on(gpu: Gpu) -> Self {
        let watcher = Puppet::start(&gpu);
        let used_before = used(&watcher);
        println!("on {gpu}: {used_before} are used before");
        Self { stage: Stage::Gpu(gpu), watcher, used_before }
    }

    /// A daemon that leases all of the card.
    pub(super) fn daemon_of_all(&self) -> Daemon {
        let mut command = std::process::Command::new(gpulease_tests::programs::gpuleased());
        command.args(["--device", "cuda:0"]).envs(self.stage.environment());
        Daemon::start_command(command)
    }

    /// One that leases all of the card but the headroom and keeps what is not leased.
    pub(super) fn holding_daemon(&self) -> Daemon {
        let mut command = std::process::Command::new(gpulease_tests::programs::gpuleased());
        command.args(["--device", "cuda:0", "--hold", "all"]).envs(self.stage.environment());
        Daemon::start_command(command)
    }

    /// What is used beyond what was before; none where others let go meanwhile.
    pub(super) fn used_more(&self) -> Bytes {
        used(&self.watcher).saturating_sub(self.used_before)
    }

    /// Whether what the witness is to see within a second showed so soon. Beside other tests that use the processors
    /// only a card that is this test's alone can tell.
    pub(super) fn is_in_time(&self, after: Duration) -> bool {
        match &self.stage {
            Stage::Gpu(Gpu::Real(_)) => after < Duration::from_millis(1_500),
            Stage::Gpu(Gpu::Standin(_)) | Stage::Host => true,
        }
    }

    /// A process that uses the card and has no lease.
    pub(super) fn stranger(&self) -> Puppet {
        match &self.stage {
            Stage::Gpu(gpu) => Puppet::start(gpu),
            Stage::Host => unreachable!("these tests have a card"),
        }
    }

    /// One of another user than the jobs; `None`, and a line, where this test may not start any.
    pub(super) fn stranger_of_another_user(&self) -> Option<Puppet> {
        use std::os::unix::process::CommandExt as _;
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can start a process of another user");
            return None;
        }
        match &self.stage {
            Stage::Gpu(gpu) => Some(Puppet::start_with(gpu, |command| command.uid(NOBODY).gid(NOBODY))),
            Stage::Host => unreachable!("these tests have a card"),
        }
    }

    /// Looks at the card again and again while something happens; the most that was used.
    pub(super) fn highest_during(&self, what: impl FnOnce()) -> (Bytes, u32) {
        let done = AtomicBool::new(false);
        let mut found = (Bytes::ZERO, 0);
        thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let (mut highest, mut looks) = (Bytes::ZERO, 0);
                while !done.load(Ordering::SeqCst) {
                    highest = highest.max(used(&self.watcher));
                    looks += 1;
                }
                (highest, looks)
            });
            what();
            done.store(true, Ordering::SeqCst);
            found = looking.join().expect("NVML answers");
        });
        found
    }
}

fn used(watcher: &Puppet) -> Bytes {
    Bytes::new(watcher.nvml(0)["used"])
}
