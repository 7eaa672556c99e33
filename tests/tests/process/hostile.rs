//! Clients that mean harm, or are none: each gets a refusal or is hung up on, and nobody else notices.

mod floods;
mod forgeries;
mod nonsense;

use std::future::Future;

use gpulease_tests::daemon::Daemon;
use gpulease_tests::ledger::Ledger;
use gpulease_tests::member::{Member, Stage};
use gpulease_tests::wire::Wire;
use gpulease_words::mib;

/// A user that is on every system and has no rights.
const NOBODY: u32 = 65_534;
/// Another user, who need not exist.
const STRANGER: u32 = 65_533;

/// A daemon on a little host memory, and an honest job beside whatever happens.
struct Scene {
    daemon: Daemon,
    ledger: Ledger,
    honest: Member,
}

impl Scene {
    fn new(configuration: &str) -> Self {
        let daemon = Stage::Host.daemon_with(mib(16), configuration);
        let ledger = Ledger::of(&daemon);
        let honest = Stage::Host.member(&daemon);
        honest.must("connect");
        Self { daemon, ledger, honest }
    }

    /// The honest job has what it wants at once.
    fn serves_the_honest(&self) {
        for command in ["acquire a 2MiB now", "take s a 2MiB", "zero s a", "fill s a 1", "check s a 1"] {
            self.honest.must(command);
        }
        self.honest.must("free s");
        self.honest.must("release a");
    }

    /// A job as another user; `None`, and a line, where this one may not start any.
    fn member_of(&self, uid: u32) -> Option<Member> {
        member_of(&Stage::Host, &self.daemon, uid)
    }

    /// Nothing is left of anybody, and nothing went wrong.
    fn ends_well(self) {
        self.serves_the_honest();
        self.honest.must("end");
        self.ledger.wait_for_no_leak();
        self.daemon.stop();
    }
}

/// A job as another user; `None`, and a line, where this one may not start any.
pub(crate) fn member_of(stage: &Stage, daemon: &Daemon, uid: u32) -> Option<Member> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a process of another user");
        return None;
    }
    use std::os::unix::process::CommandExt as _;
    Some(stage.member_with(&daemon.socket(), &[], |command| command.uid(uid).gid(uid)))
}

/// Runs what waits.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    // A thread of its own for the connections, so that a test may block.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a process gets a thread").block_on(future)
}

/// A connection with an open session of this very process.
pub(crate) async fn session(daemon: &Daemon) -> Wire {
    let mut wire = Wire::connect(&daemon.socket()).await.expect("the daemon listens");
    wire.open().await.expect("everybody may open a session");
    wire
}
