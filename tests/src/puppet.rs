//! A process that does CUDA and NVML calls as it is told, so that a test can have several of them,
//! kill them, and look at the card from outside.
//!
//! The test asks, the puppet (`cuda-puppet`) answers; descriptors go along with either. Commands
//! are listed in the program. A job of the broker (`job-puppet`) is led by the same strings.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::wait_for;
use crate::proc::Proc;
use crate::programs::program;
use crate::standin::Standin;

/// How long an answer may take; a real driver's slowest call takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest command or answer.
const MESSAGE: usize = 16 << 10;

/// Which driver a puppet finds.
#[derive(Debug)]
pub enum Gpu {
    /// A card of its own in host memory.
    Standin(Standin),
    /// The driver of this machine, for this test alone: figures of the card are exact then.
    Real(Turn),
}

/// A test's turn at the machine's real card; others of this process wait.
#[derive(Debug)]
pub struct Turn {
    _card: Option<MutexGuard<'static, ()>>,
}

/// A running puppet, killed when dropped.
#[derive(Debug)]
pub struct Puppet {
    child: Child,
    socket: OwnedFd,
}

/// An answer: the words after "ok", or the sentence after "error".
pub type Answer = Result<String, String>;

impl Gpu {
    /// Both where this machine has a GPU, else the stand-in and a line that says what is skipped.
    /// `GPULEASE_TEST_GPU=1` insists on a real one, `0` leaves it alone.
    ///
    /// # Panics
    /// Where a GPU is insisted on and there is none.
    #[must_use]
    pub fn all(test: &str) -> Vec<Self> {
        [Self::Standin(Standin::new())].into_iter().chain(Self::real(test)).collect()
    }

    /// The machine's own where there is one, once it is this test's turn; else none, and a line.
    #[must_use]
    pub fn real(test: &str) -> Option<Self> {
        match Self::real_or_why() {
            Ok(()) => Some(Self::Real(Turn::wait())),
            Err(why) => {
                println!("skipped on a real GPU: {test}: {why}");
                None
            }
        }
    }

    /// A stand-in on a machine without NVML; none, and a line, where the machine has one, which can't be hidden.
    #[must_use]
    pub fn without_nvml(test: &str) -> Vec<Self> {
        if nvml_wrapper::Nvml::init().is_ok() {
            println!("skipped where there is a real NVML: {test}");
            return Vec::new();
        }
        vec![Self::Standin(Standin::new().without_nvml())]
    }

    /// Whether tests run on a real GPU too, or why not.
    ///
    /// # Errors
    /// The reason.
    ///
    /// # Panics
    /// Where a GPU is insisted on and there is none.
    pub fn real_or_why() -> Result<(), String> {
        static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
        let wanted = std::env::var("GPULEASE_TEST_GPU").ok();
        if wanted.as_deref() == Some("0") {
            return Err("GPULEASE_TEST_GPU is 0".to_owned());
        }
        let answer =
            ANSWER.get_or_init(|| Puppet::start(&Self::Real(Turn::unneeded())).ask("load").map(drop)).clone();
        assert!(wanted.is_none() || answer.is_ok(), "GPULEASE_TEST_GPU asks for a GPU: {answer:?}");
        answer
    }

    /// What a process needs in its environment to find it.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        match self {
            Self::Standin(standin) => standin.environment(),
            Self::Real(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standin(_) => "the stand-in",
            Self::Real(_) => "a real GPU",
        })
    }
}

impl Turn {
    /// Waits until no other test of this process has the card.
    #[must_use]
    pub fn wait() -> Self {
        static CARD: Mutex<()> = Mutex::new(());
        Self { _card: Some(CARD.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// No turn: for what leaves the card alone.
    #[must_use]
    pub fn unneeded() -> Self {
        Self { _card: None }
    }
}

impl Puppet {
    /// Starts one, and waits until its program runs: until then a child still has its parent's descriptors, those of
    /// a stand-in's memory too.
    ///
    /// # Panics
    /// Where the program was not built beside the tests, or the system fails.
    #[must_use]
    pub fn start(gpu: &Gpu) -> Self {
        let puppet = Self::start_with(gpu, |command| command);
        puppet.must("here");
        puppet
    }

    /// Starts one behind other words, `unshare --pid` for example; its pid is then that program's.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_behind(gpu: &Gpu, words: &[&str]) -> Self {
        Self::spawn("cuda-puppet", gpu.environment(), words, |command| command)
    }

    /// Starts one whose command is changed first: another user, more variables.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_with(gpu: &Gpu, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        Self::spawn("cuda-puppet", gpu.environment(), &[], change)
    }

    /// Starts any program that obeys in this way.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn spawn(
        name: &str,
        environment: Vec<(&'static str, OsString)>,
        before: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Self {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair of sockets can be made");
        sockopt::set_socket_timeout(&ours, sockopt::Timeout::Recv, Some(PATIENCE))
            .expect("the socket is ours");
        let puppet = program(name).into_os_string();
        let mut words = before.iter().map(OsString::from).chain([puppet]);
        let mut command = Command::new(words.next().expect("there is one word at least"));
        command.args(words).envs(environment).stdin(Stdio::from(theirs));
        change(&mut command);
        let child = command.spawn().expect("the puppet starts");
        Self { child, socket: ours }
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it do something.
    ///
    /// # Errors
    /// The sentence in which it says what went wrong.
    ///
    /// # Panics
    /// Where it died, or took longer than a minute.
    pub fn ask(&self, command: &str) -> Answer {
        self.exchange(command, None).0
    }

    /// Has it do something with a descriptor.
    ///
    /// # Errors
    /// As [`Self::ask`].
    ///
    /// # Panics
    /// As [`Self::ask`].
    pub fn give(&self, command: &str, descriptor: BorrowedFd<'_>) -> Answer {
        self.exchange(command, Some(descriptor)).0
    }

    /// Has it do something that yields a descriptor.
    ///
    /// # Errors
    /// As [`Self::ask`].
    ///
    /// # Panics
    /// As [`Self::ask`], and where it sends none.
    pub fn take(&self, command: &str) -> Result<OwnedFd, String> {
        let (answer, descriptor) = self.exchange(command, None);
        answer.map(|_| descriptor.expect("the answer brings a descriptor"))
    }

    /// Has it do something that works.
    ///
    /// # Panics
    /// Where it does not.
    pub fn must(&self, command: &str) -> String {
        self.ask(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// What NVML says of a device: `used`, `free`, `total`, `reserved` and one entry a listed pid.
    ///
    /// # Panics
    /// Where NVML fails.
    #[must_use]
    pub fn nvml(&self, device: u32) -> BTreeMap<String, u64> {
        let said = self.must(&format!("nvml {device}"));
        let pairs = said.split_whitespace().filter_map(|word| word.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.parse().expect("a figure"))).collect()
    }

    /// Tells it what to do and does not wait; [`Self::answer`] does.
    ///
    /// # Panics
    /// Where it died.
    pub fn begin(&self, command: &str) {
        self.tell(command, None);
    }

    /// The answer to the last [`Self::begin`].
    ///
    /// # Errors
    /// As [`Self::ask`].
    ///
    /// # Panics
    /// As [`Self::ask`].
    pub fn answer(&self) -> Answer {
        self.hear("what was begun").0
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// Where it was waited for already.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the puppet is our child");
    }

    /// Stops it as Ctrl-Z would, and waits until it stands still.
    ///
    /// # Panics
    /// Where it does not.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        Proc(self.pid()).wait_until_stopped();
    }

    /// Kills it at once, and waits until it is gone.
    pub fn kill(self) {
        drop(self);
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it does not.
    pub fn wait(mut self) -> ExitStatus {
        wait_for(&mut self.child, PATIENCE).expect("the puppet ends")
    }

    fn exchange(&self, command: &str, descriptor: Option<BorrowedFd<'_>>) -> (Answer, Option<OwnedFd>) {
        self.tell(command, descriptor);
        self.hear(command)
    }

    fn tell(&self, command: &str, descriptor: Option<BorrowedFd<'_>>) {
        send(self.socket.as_fd(), command, descriptor)
            .unwrap_or_else(|e| panic!("{command}: the puppet is gone: {e}"));
    }

    fn hear(&self, command: &str) -> (Answer, Option<OwnedFd>) {
        let (said, descriptor) = receive(self.socket.as_fd())
            .unwrap_or_else(|e| panic!("{command}: no answer of the puppet: {e}"));
        let answer = match said.split_once(' ') {
            Some(("ok", words)) => Ok(words.to_owned()),
            Some(("error", sentence)) => Err(sentence.to_owned()),
            Some(_) | None => panic!("{command}: the puppet died, or answered {said:?}"),
        };
        (answer, descriptor)
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Sends one message, with a descriptor or none.
///
/// # Errors
/// What the kernel says.
pub fn send(
    socket: BorrowedFd<'_>,
    text: &str,
    descriptor: Option<BorrowedFd<'_>>,
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// Waits for one message and the descriptor that it may bring. An empty one means the other side
/// is gone.
///
/// # Errors
/// What the kernel says: the wait ran out, for example.
pub fn receive(socket: BorrowedFd<'_>) -> rustix::io::Result<(String, Option<OwnedFd>)> {
    let (mut bytes, mut space) =
        (vec![0; MESSAGE], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    bytes.truncate(received.bytes);
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = rights.flatten().next();
    Ok((String::from_utf8_lossy(&bytes).into_owned(), descriptor))
}
