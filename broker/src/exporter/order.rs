//! The daemon's end: an exporter that can be ordered about.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, Pid, SegmentId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Program;
use super::frame::{Answer, Order, PACKET_MAX};
use crate::device::{Gauge, IpcHandle};

/// A context takes 0.3 s, and seconds where the driver has first to wake the card.
const START_MAX: Duration = Duration::from_secs(10);
/// An allocation takes less than a millisecond.
const MAKE_MAX: Duration = Duration::from_secs(2);
/// An exporter with nothing left to keep ends at once when its socket closes.
const END_MAX: Duration = Duration::from_secs(2);

/// A running exporter.
#[derive(Debug)]
pub(crate) struct Exporter {
    pid: Pid,
    pidfd: OwnedFd,
    /// Waits for its end.
    reaper: JoinHandle<()>,
    socket: Option<OwnedFd>,
    kept: BTreeSet<SegmentId>,
    /// Ordered, given up, and to be freed should they still come.
    abandoned: BTreeSet<SegmentId>,
    freed: BTreeSet<SegmentId>,
}

/// Why an exporter did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It refused, and why.
    Refused(String),
    /// It does not answer.
    Silent,
    /// It has ended.
    Gone,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::Silent => f.write_str("the exporter process does not answer"),
            Self::Gone => f.write_str("the exporter process has ended"),
        }
    }
}

impl Exporter {
    /// Starts one for the device of this UUID and waits until it has its context. While it runs it is among the
    /// gauge's helpers.
    ///
    /// # Errors
    /// [`Trouble`], where there is no exporter then.
    pub(crate) fn start(program: &Program, uuid: &str, gauge: &Arc<Gauge>) -> Result<Self, Trouble> {
        let (socket, other) = pair().map_err(|errno| no_exporter(&errno))?;
        let child = program.exporter(uuid).stdin(other).stdout(Stdio::null()).spawn();
        let exporter = Self::of(child.map_err(|error| no_exporter(&error))?, socket, Arc::clone(gauge))?;
        match exporter.answer(Instant::now() + START_MAX) {
            Ok(Answer::Ready) => Ok(exporter),
            Ok(Answer::Refused(_, why)) => Err(Trouble::Refused(why)),
            Ok(Answer::Made(..) | Answer::Freed(_)) => Err(Trouble::Gone),
            Err(trouble) => {
                exporter.end_by_force();
                Err(trouble)
            }
        }
    }

    fn of(mut child: Child, socket: OwnedFd, gauge: Arc<Gauge>) -> Result<Self, Trouble> {
        let pid = Pid::new(child.id());
        let raw = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| no_exporter(&errno))?;
        gauge.helper_started(pid);
        let reap = move || {
            // It fails only for a process that is not our child.
            let _ = child.wait();
            gauge.helper_ended(pid);
        };
        let reaper = std::thread::Builder::new().name("exporter-end".into()).spawn(reap);
        let reaper = reaper.map_err(|error| no_exporter(&error))?;
        let (kept, abandoned, freed) = Default::default();
        Ok(Self { pid, pidfd, reaper, socket: Some(socket), kept, abandoned, freed })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.reaper.is_finished()
    }

    /// Makes memory and its handle.
    ///
    /// # Errors
    /// [`Trouble`]; nothing was made then, or is freed as soon as it comes.
    pub(crate) fn make(&mut self, segment: SegmentId, bytes: Bytes) -> Result<IpcHandle, Trouble> {
        self.order(Order::Make(segment, bytes))?;
        let until = Instant::now() + MAKE_MAX;
        loop {
            match self.answer(until) {
                Ok(Answer::Made(made, handle)) if made == segment => {
                    self.kept.insert(segment);
                    return Ok(handle);
                }
                Ok(Answer::Refused(refused, why)) if refused == segment => return Err(Trouble::Refused(why)),
                Ok(other) => self.note(&other)?,
                Err(Trouble::Silent) => {
                    self.abandoned.insert(segment);
                    return Err(Trouble::Silent);
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    /// Tells it who was given a handle.
    pub(crate) fn handed(&mut self, segment: SegmentId, process: Pid) -> Result<(), Trouble> {
        self.order(Order::Handed(segment, process))
    }

    /// Orders it to free a segment's memory; see [`Self::has_freed`].
    pub(crate) fn free(&mut self, segment: SegmentId) -> Result<(), Trouble> {
        self.order(Order::Free(segment))
    }

    /// Whether it has said that it freed this segment. It says so once.
    ///
    /// # Errors
    /// [`Trouble::Gone`].
    pub(crate) fn has_freed(&mut self, segment: SegmentId) -> Result<bool, Trouble> {
        while !self.freed.contains(&segment) {
            match self.answer(Instant::now()) {
                Ok(answer) => self.note(&answer)?,
                Err(Trouble::Silent) => return Ok(false),
                Err(trouble) => return Err(trouble),
            }
        }
        self.kept.remove(&segment);
        Ok(self.freed.remove(&segment))
    }

    fn note(&mut self, answer: &Answer) -> Result<(), Trouble> {
        match answer {
            Answer::Freed(segment) => drop(self.freed.insert(*segment)),
            Answer::Made(segment, _) if self.abandoned.remove(segment) => self.free(*segment)?,
            Answer::Refused(segment, _) => drop(self.abandoned.remove(segment)),
            Answer::Made(..) | Answer::Ready => {}
        }
        Ok(())
    }

    fn order(&mut self, order: Order) -> Result<(), Trouble> {
        let socket = self.socket.as_ref().expect("taken only by drop");
        match send(socket, &order.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => Err(Trouble::Silent),
            Err(_) => Err(Trouble::Gone),
        }
    }

    fn answer(&self, until: Instant) -> Result<Answer, Trouble> {
        let socket = self.socket.as_ref().expect("taken only by drop");
        let mut packet = [0; PACKET_MAX];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("seconds fit");
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(Trouble::Silent),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Err(Trouble::Gone),
            }
            match recv(socket, &mut packet, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Trouble::Gone),
                Ok((n, _)) => return Answer::decode(&packet[..n]).ok_or(Trouble::Gone),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return Err(Trouble::Gone),
            }
        }
    }

    fn end_by_force(&self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

impl Drop for Exporter {
    /// Lets it go: it ends, or stays for the consumers it has.
    fn drop(&mut self) {
        drop(self.socket.take());
        if !self.kept.is_empty() {
            return;
        }
        let end_max = Timespec::try_from(END_MAX).expect("seconds fit");
        if !matches!(poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&end_max)), Ok(1)) {
            self.end_by_force();
        }
    }
}

fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn no_exporter(error: &dyn std::error::Error) -> Trouble {
    Trouble::Refused(format!("the exporter process could not be started: {error}"))
}
