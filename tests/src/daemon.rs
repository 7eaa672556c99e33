//! A real daemon for one test: a process of its own, with a socket directory of its own.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::proc::Proc;
use crate::programs;

/// How long anything that should happen at once may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running daemon. Dropping it kills it; [`Daemon::stop`] stops it and looks at its log.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    command: Command,
    directory: tempfile::TempDir,
    log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Starts a daemon with these arguments beside `--socket` and waits until it is ready.
    ///
    /// # Panics
    /// When it ends before it is ready, or is not ready in time; with its log.
    #[must_use]
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(programs::gpuleased());
        command.args(arguments);
        Self::start_command(command)
    }

    /// A daemon on host memory of this size ("64MiB").
    #[must_use]
    pub fn on_host(size: &str) -> Self {
        Self::start(["--device".to_owned(), format!("host:{size}")])
    }

    /// Starts a daemon by a command that has everything but its socket.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    #[must_use]
    pub fn start_command(command: Command) -> Self {
        Self::start_configured(command, "")
    }

    /// Starts a daemon by a command that has everything but its socket and this configuration.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    #[must_use]
    pub fn start_configured(mut command: Command, configuration: &str) -> Self {
        let directory =
            tempfile::Builder::new().prefix("gpulease-test").tempdir().expect("a temporary folder");
        // Other users come in, too.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("the folder is ours");
        let file = directory.path().join("gpuleased.toml");
        fs::write(&file, configuration).expect("the folder takes a file");
        command.arg("--config").arg(file);
        command.arg("--socket").arg(directory.path().join("gpulease.sock"));
        command
            .env_remove("GPULEASE_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let (child, log) = spawn(&mut command);
        Self { child, command, directory, log }
    }

    /// Starts one that has ended again in the same place, by the same command.
    ///
    /// # Panics
    /// As [`Daemon::start`].
    pub fn start_again(&mut self) {
        (self.child, self.log) = spawn(&mut self.command);
    }

    /// Kills it as a crash would: what it keeps in its place stays there.
    ///
    /// # Panics
    /// Where the system fails.
    pub fn kill(&mut self) {
        self.child.kill().expect("the daemon is our child");
        self.child.wait().expect("the daemon is our child");
    }

    /// The job socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("gpulease.sock")
    }

    /// The operators' socket.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }

    /// The daemon's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().expect("nobody panics with the log").join("\n")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the daemon is our child");
    }

    /// Stops it as Ctrl-Z would, and waits until it stands still; SIGCONT lets it go on.
    ///
    /// # Panics
    /// When it does not.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        Proc(self.pid()).wait_until_stopped();
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for(&mut self.child, PATIENCE)
            .unwrap_or_else(|| panic!("the daemon does not end:\n{}", self.log()))
    }

    /// Stops it as a service manager would.
    ///
    /// # Panics
    /// When it does not end with success, or has logged an error.
    pub fn stop(mut self) {
        self.terminate();
    }

    /// As [`Self::stop`]; [`Self::start_again`] may follow.
    ///
    /// # Panics
    /// As [`Self::stop`].
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        let log = self.log();
        assert!(status.success(), "the daemon ended with {status}:\n{log}");
        assert!(!log.contains("ERROR"), "the daemon logged an error:\n{log}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts it, and waits until it is ready.
fn spawn(command: &mut Command) -> (Child, Arc<Mutex<Vec<String>>>) {
    let mut child = command.spawn().expect("the daemon can be started");
    let log = Arc::new(Mutex::new(Vec::new()));
    let ready = follow(child.stderr.take().expect("it is piped"), Arc::clone(&log));
    if ready.recv_timeout(PATIENCE).is_err() {
        // It may have ended already; then there is nothing to kill.
        let _ = child.kill();
        let _ = child.wait();
        panic!("the daemon did not get ready:\n{}", log.lock().expect("nobody panics with it").join("\n"));
    }
    (child, log)
}

/// Waits for a child's end, at most so long.
pub fn wait_for(child: &mut Child, at_most: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return Some(status);
        }
        if Instant::now() > until {
            return None;
        }
        // A child's end raises no event that a test could wait for without a runtime.
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Collects the lines of a daemon's log; the receiver hears of the line that says it is ready.
fn follow(stderr: impl std::io::Read + Send + 'static, log: Arc<Mutex<Vec<String>>>) -> mpsc::Receiver<()> {
    let (tell, ready) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let is_ready = line.contains(": ready;");
            log.lock().expect("nobody panics with the log").push(line);
            if is_ready {
                // The test may have given up already.
                let _ = tell.send(());
            }
        }
    });
    ready
}
