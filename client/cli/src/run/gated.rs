//! A child that exists and waits at a gate before it execs, so that it can be made a member of
//! its lease while it is nobody yet.
//!
//! `Command::spawn` returns only after `exec`, so it runs on a thread of its own. The child tells
//! its pid over a socket pair and waits there for one byte. When the pair closes without it,
//! because we gave up or died, the child ends without having run anything.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};

use rustix::process::{PidfdFlags, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;

use crate::signals::Mask;

/// The child at the gate.
pub(crate) struct Gated {
    pid: u32,
    gate: tokio::net::UnixStream,
    started: oneshot::Receiver<io::Result<()>>,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// The child after `exec`.
pub(crate) struct Child {
    pidfd: OwnedFd,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl Gated {
    /// Forks the child with this signal mask and waits until it stands at the gate.
    ///
    /// # Errors
    /// Where the kernel refuses the process.
    pub(crate) async fn fork(mut command: Command, mask: Mask) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let (ours_number, theirs_number) = (ours.as_raw_fd(), theirs.as_raw_fd());
        // SAFETY: the closure calls only async-signal-safe functions and allocates nothing.
        unsafe { command.pre_exec(move || wait_at_gate(ours_number, theirs_number, mask)) };
        let (tell_started, started) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel();
        std::thread::Builder::new().name("child".into()).spawn(move || {
            let spawned = command.spawn();
            // Our copy of the child's end, so that a child that died shows as the end of the stream.
            drop((theirs, command));
            see_through(spawned, tell_started, tell_ended);
        })?;
        ours.set_nonblocking(true)?;
        let mut gate = tokio::net::UnixStream::from_std(ours)?;
        let mut pid = [0; 4];
        match gate.read_exact(&mut pid).await {
            Ok(_) => Ok(Self { pid: u32::from_ne_bytes(pid), gate, started, ended }),
            Err(error) => Err(refusal_of(started).await.unwrap_or(error)),
        }
    }

    /// Its pid in our namespace.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it go, and waits until it has become the program.
    ///
    /// # Errors
    /// What `exec` said.
    pub(crate) async fn open(mut self) -> io::Result<Child> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        // The child is ours and not reaped while it stands at the gate, so the pid is its own.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        self.gate.write_all(b"!").await?;
        self.started.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Child { pidfd, ended: self.ended })
    }
}

async fn refusal_of(started: oneshot::Receiver<io::Result<()>>) -> Option<io::Error> {
    started.await.ok().and_then(Result::err)
}

/// Waits for the child on the thread that spawned it. Nobody may be listening any more.
fn see_through(
    spawned: io::Result<std::process::Child>,
    started: oneshot::Sender<io::Result<()>>,
    ended: oneshot::Sender<io::Result<ExitStatus>>,
) {
    match spawned {
        Ok(mut child) => {
            let _ = started.send(Ok(()));
            let _ = ended.send(child.wait());
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    }
}

/// Runs in the child between fork and exec: its signals as they were, its pid told, and the one
/// byte awaited.
fn wait_at_gate(ours: RawFd, theirs: RawFd, mask: Mask) -> io::Result<()> {
    mask.set()?;
    // SAFETY: the number is the parent's end, inherited over fork; nothing in the child uses it. Left open it
    // would keep the pair alive after the parent died.
    unsafe { libc::close(ours) };
    let pid = std::process::id().to_ne_bytes();
    // SAFETY: `pid` is 4 valid bytes, and the descriptor is open: the closure that calls this owns nothing else.
    if unsafe { libc::write(theirs, pid.as_ptr().cast(), pid.len()) } != 4 {
        return Err(io::Error::from_raw_os_error(libc::ECANCELED));
    }
    let mut byte = 0_u8;
    loop {
        // SAFETY: `byte` is valid for one byte, and the descriptor is open.
        match unsafe { libc::read(theirs, (&raw mut byte).cast(), 1) } {
            1 => return Ok(()),
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            _ => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }
}

impl Child {
    /// Sends it a signal; one that has ended takes none.
    pub(crate) fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            // It may have ended meanwhile, which its status tells.
            let _ = rustix::process::pidfd_send_signal(&self.pidfd, signal);
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Where the kernel does not tell it.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        (&mut self.ended).await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}
