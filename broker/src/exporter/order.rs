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
    /// To be freed, which it had no room to hear yet.
    unheard: BTreeSet<SegmentId>,
    /// Given up while they were made, and to be freed right after.
    given_up: BTreeSet<SegmentId>,
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
        let (kept, unheard, given_up, freed) = Default::default();
        Ok(Self { pid, pidfd, reaper, socket: Some(socket), kept, unheard, given_up, freed })
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
    /// [`Trouble`]; nothing was made then, or is freed as soon as it is.
    pub(crate) fn make(&mut self, segment: SegmentId, bytes: Bytes) -> Result<IpcHandle, Trouble> {
        self.make_until(segment, bytes, Instant::now() + MAKE_MAX)
    }

    fn make_until(&mut self, segment: SegmentId, bytes: Bytes, until: Instant) -> Result<IpcHandle, Trouble> {
        self.order(Order::Make(segment, bytes))?;
        loop {
            match self.answer(until) {
                Ok(Answer::Made(made, handle)) if made == segment => {
                    self.kept.insert(segment);
                    return Ok(handle);
                }
                Ok(Answer::Refused(refused, why)) if refused == segment => return Err(Trouble::Refused(why)),
                Ok(other) => self.note(&other),
                Err(Trouble::Silent) => {
                    // It carries out one order after the other: nobody has to be there to hear that it was made.
                    self.given_up.insert(segment);
                    self.free(segment)?;
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

    /// Orders it to free a segment's memory; see [`Self::has_freed`]. Where it has no room to hear that now, it is told at
    /// the next contact.
    ///
    /// # Errors
    /// [`Trouble::Gone`].
    pub(crate) fn free(&mut self, segment: SegmentId) -> Result<(), Trouble> {
        self.unheard.insert(segment);
        self.say_unheard()
    }

    /// Tells it what it had no room to hear, as far as it has room now.
    ///
    /// # Errors
    /// [`Trouble::Gone`].
    pub(crate) fn say_unheard(&mut self) -> Result<(), Trouble> {
        while let Some(segment) = self.unheard.first().copied() {
            match self.send(Order::Free(segment)) {
                Ok(()) => self.unheard.remove(&segment),
                Err(Trouble::Silent) => return Ok(()),
                Err(trouble) => return Err(trouble),
            };
        }
        Ok(())
    }

    /// Whether it has said that it freed this segment. It says so once.
    ///
    /// # Errors
    /// [`Trouble::Gone`].
    pub(crate) fn has_freed(&mut self, segment: SegmentId) -> Result<bool, Trouble> {
        self.say_unheard()?;
        while !self.freed.contains(&segment) {
            match self.answer(Instant::now()) {
                Ok(answer) => self.note(&answer),
                Err(Trouble::Silent) => return Ok(false),
                Err(trouble) => return Err(trouble),
            }
        }
        self.kept.remove(&segment);
        Ok(self.freed.remove(&segment))
    }

    fn note(&mut self, answer: &Answer) {
        match answer {
            Answer::Freed(segment) if self.given_up.remove(segment) => {}
            Answer::Freed(segment) => drop(self.freed.insert(*segment)),
            // Of what was given up.
            Answer::Made(..) | Answer::Refused(..) | Answer::Ready => {}
        }
    }

    fn order(&mut self, order: Order) -> Result<(), Trouble> {
        self.say_unheard()?;
        self.send(order)
    }

    fn send(&self, order: Order) -> Result<(), Trouble> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::mib;

    /// An exporter of which the test is the other end.
    fn exporter() -> (Exporter, OwnedFd) {
        let (socket, other) = pair().expect("a socket pair");
        let child = std::process::Command::new("true").spawn().expect("a process");
        (Exporter::of(child, socket, Arc::default()).expect("it was just started"), other)
    }

    fn heard(end: &OwnedFd) -> Option<Order> {
        let mut packet = [0; PACKET_MAX];
        let (n, _) = recv(end, &mut packet, RecvFlags::DONTWAIT).ok()?;
        Order::decode(&packet[..n])
    }

    /// What came too late was freed only if something else was ordered of the exporter afterwards.
    #[test]
    fn what_comes_too_late_is_freed_though_nobody_listens() {
        let (mut exporter, end) = exporter();
        let [late, other] = [7, 8].map(SegmentId::new);
        assert_eq!(exporter.make_until(late, mib(2), Instant::now()), Err(Trouble::Silent));
        assert_eq!(heard(&end), Some(Order::Make(late, mib(2))));
        assert_eq!(heard(&end), Some(Order::Free(late)));
        for answer in [Answer::Made(late, IpcHandle([0; 64])), Answer::Freed(late), Answer::Freed(other)] {
            send(&end, &answer.encode(), SendFlags::empty()).expect("the exporter is there");
        }
        assert_eq!(exporter.has_freed(other), Ok(true));
        assert_eq!(exporter.has_freed(late), Ok(false), "nobody asks for it, and nothing of it is kept");
        assert!(exporter.given_up.is_empty() && exporter.freed.is_empty() && exporter.kept.is_empty());
    }

    /// An exporter that does not read had room for one order more, the one to make, and the one to free it again was lost:
    /// the memory stayed until its end.
    #[test]
    fn what_it_had_no_room_to_hear_is_said_at_the_next_contact() {
        let (mut exporter, end) = exporter();
        let [late, other, before] = [7, 8, 9].map(SegmentId::new);
        while exporter.handed(before, Pid::new(1)).is_ok() {}
        assert_eq!(heard(&end), Some(Order::Handed(before, Pid::new(1))));
        assert_eq!(exporter.make_until(late, mib(2), Instant::now()), Err(Trouble::Silent));
        assert_eq!(exporter.free(other), Ok(()));
        let heard_now = |end: &OwnedFd| -> Vec<Order> { std::iter::from_fn(|| heard(end)).collect() };
        assert_eq!(heard_now(&end).last(), Some(&Order::Make(late, mib(2))), "it has no room for more");
        assert_eq!(exporter.has_freed(other), Ok(false));
        assert_eq!(heard_now(&end), [Order::Free(late), Order::Free(other)]);
        for answer in [Answer::Made(late, IpcHandle([0; 64])), Answer::Freed(late), Answer::Freed(other)] {
            send(&end, &answer.encode(), SendFlags::empty()).expect("the exporter is there");
        }
        assert_eq!(exporter.has_freed(other), Ok(true));
        assert!(exporter.given_up.is_empty() && exporter.unheard.is_empty() && exporter.freed.is_empty());
    }
}
