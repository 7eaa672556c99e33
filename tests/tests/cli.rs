//! The command line as a user has it: real processes against a real daemon on host memory.

mod budget;
mod demo;
mod ends;
mod gpu;
mod job_control;
mod run;
mod session;
mod state;
mod vanished;
mod wrong_input;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use gpulease_tests::daemon::{Daemon, PATIENCE, wait_for};
use gpulease_tests::programs;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// `gpulease` at this socket, with nothing of the surroundings' own leases and colours.
fn command(socket: &Path) -> Command {
    let mut command = Command::new(programs::gpulease());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GPULEASE") {
            command.env_remove(name);
        }
    }
    command.arg("--socket").arg(socket).stdin(Stdio::null());
    command
}

/// Runs `gpulease` to its end.
fn gpulease<S: AsRef<OsStr>>(daemon: &Daemon, arguments: impl IntoIterator<Item = S>) -> Output {
    finish(command(&daemon.socket()).args(arguments))
}

/// The same with the words of a line.
fn line(daemon: &Daemon, words: &str) -> Output {
    gpulease(daemon, words.split_whitespace())
}

/// Runs a command to its end, but not longer than a test waits.
fn finish(command: &mut Command) -> Output {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = wait_for(&mut child, 2 * PATIENCE);
    let Some(status) = status else {
        let _ = child.kill();
        panic!("{command:?} does not end: {}", text(&err.recv().unwrap_or_default()));
    };
    Output { status, stdout: out.recv().unwrap_or_default(), stderr: err.recv().unwrap_or_default() }
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (tell, all) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = tell.send(bytes);
    });
    all
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| panic!("ended by signal {:?}", status.signal()))
}

/// Asserts the exit code and that standard error has each of the words.
#[track_caller]
fn expect(output: &Output, exit: i32, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(code(output.status), exit, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

/// The state as a document.
fn state(daemon: &Daemon) -> Value {
    let output = line(daemon, "--json");
    expect(&output, 0, &[]);
    serde_json::from_slice(&output.stdout).expect("the state is a document")
}

/// The state once it is as the test wants it.
#[track_caller]
fn until(daemon: &Daemon, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let state = state(daemon);
        if so(&state) {
            return state;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "it does not come to it that {what}: {state:#}\n{}",
            daemon.log()
        );
    }
}

fn count(state: &Value, list: &str) -> usize {
    state[list].as_array().map_or(0, Vec::len)
}

/// Waits until nothing is leased, asked for or on its way back.
#[track_caller]
fn until_empty(daemon: &Daemon) {
    until(daemon, "all is given back", |state| {
        let memory = &state["devices"][0]["memory"];
        count(state, "leases") == 0
            && count(state, "waiting") == 0
            && memory["free_bytes"] == memory["capacity_bytes"]
    });
}

/// A `gpulease` that goes on, heard line by line on both of its outputs. Dropping it kills it.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    /// All that was said, for the message of a failure.
    heard: Vec<String>,
    /// What no test has heard for.
    waiting: Vec<String>,
}

impl Running {
    fn start<S: AsRef<OsStr>>(daemon: &Daemon, arguments: impl IntoIterator<Item = S>) -> Self {
        Self::start_command(command(&daemon.socket()).args(arguments))
    }

    fn start_command(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (tell, lines) = mpsc::channel();
        follow(child.stdout.take().expect("it is piped"), tell.clone());
        follow(child.stderr.take().expect("it is piped"), tell);
        Self { child, lines, heard: Vec::new(), waiting: Vec::new() }
    }

    /// A line that has this word and was not heard for yet; what comes over two pipes comes in any order.
    #[track_caller]
    fn hear(&mut self, word: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.waiting.iter().position(|line| line.contains(word)) {
                return self.waiting.remove(at);
            }
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.heard.push(line.clone());
                    self.waiting.push(line);
                }
                Err(_) => panic!("it never said {word:?}: {:#?}", self.heard),
            }
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it is our child");
    }

    /// Closes its input.
    fn close_input(&mut self) {
        self.child.stdin.take();
    }

    /// Its exit code.
    #[track_caller]
    fn end(&mut self) -> i32 {
        let status = wait_for(&mut self.child, PATIENCE);
        let status = status.unwrap_or_else(|| panic!("it does not end: {:#?}", self.heard));
        code(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn follow(pipe: impl std::io::Read + Send + 'static, tell: mpsc::Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                break;
            }
        }
    });
}

/// Waits until a process that is no child of ours is gone.
#[track_caller]
fn until_gone(pid: u32) {
    let start = Instant::now();
    let place = format!("/proc/{pid}");
    while Path::new(&place).exists() && !is_zombie(pid) {
        assert!(start.elapsed() < PATIENCE, "process {pid} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether it has ended and nobody has asked how: init of a container may never do.
fn is_zombie(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}
