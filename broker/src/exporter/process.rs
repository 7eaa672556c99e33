//! The exporter's own process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use gpulease_cuda::{Context, DeviceMemory, Driver, Uuid};
use gpulease_words::{Bytes, Pid, SegmentId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{PidfdFlags, pidfd_open};

use super::frame::{Answer, Order, PACKET_MAX};
use crate::device::IpcHandle;

/// Serves the daemon at the other end of standard input, then what the daemon's death left.
pub(super) fn run(uuid: &str, idle: Duration) -> ExitCode {
    close_inherited();
    let stdin = io::stdin();
    match serve(stdin.as_fd(), uuid, idle) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Without a daemon there is nobody left to tell.
            let _ = answer(stdin.as_fd(), &Answer::Refused(SegmentId::new(0), why));
            ExitCode::FAILURE
        }
    }
}

/// A descriptor of leased memory, inherited by a race with another thread of the daemon, would keep that memory.
pub(super) fn close_inherited() {
    // SAFETY: nothing in this process has opened a descriptor above the standard ones yet.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if closed == 0 {
        return;
    }
    // Before Linux 5.9: one by one, as far as the daemon could have opened them.
    for fd in 3..4096 {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

fn serve(daemon: BorrowedFd<'_>, uuid: &str, idle: Duration) -> Result<(), String> {
    let context = context(uuid)?;
    let mut exports = Exports::default();
    let gone = |errno: Errno| format!("the daemon's socket failed: {errno}");
    answer(daemon, &Answer::Ready).map_err(gone)?;
    while let Next::Order(order) = next(daemon, exports.0.is_empty().then_some(idle)).map_err(gone)? {
        if let Some(said) = exports.carry_out(&context, order) {
            // A daemon that died meanwhile shows at the next order.
            let _ = answer(daemon, &said);
        }
    }
    exports.outlast_consumers();
    Ok(())
}

pub(super) fn context(uuid: &str) -> Result<Context, String> {
    let driver = Driver::load().map_err(|why| why.to_string())?;
    let wanted: Uuid = uuid.parse().map_err(|why: gpulease_cuda::ParseUuidError| why.to_string())?;
    let device = driver.device(wanted).map_err(|why| why.to_string())?;
    let device = device.ok_or_else(|| format!("the CUDA driver shows no {uuid}"))?;
    Context::retain(device).map_err(|why| format!("the card has no room for the exporter's context: {why}"))
}

enum Next {
    Order(Order),
    /// The daemon is gone, or there was nothing to do for long.
    End,
}

fn next(daemon: BorrowedFd<'_>, patience: Option<Duration>) -> rustix::io::Result<Next> {
    let patience = patience.map(timespec);
    let mut packet = [0; PACKET_MAX];
    loop {
        if wait(&[daemon], patience.as_ref())? == 0 {
            return Ok(Next::End);
        }
        match recv(daemon, &mut packet, RecvFlags::empty()) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(Next::End),
            Ok((n, _)) => match Order::decode(&packet[..n]) {
                Some(order) => return Ok(Next::Order(order)),
                // The daemon and this process are one program: this is no daemon.
                None => return Ok(Next::End),
            },
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn answer(daemon: BorrowedFd<'_>, answer: &Answer) -> rustix::io::Result<()> {
    send(daemon, &answer.encode(), SendFlags::NOSIGNAL).map(drop)
}

/// Waits until one of these can be read, and says how many can.
fn wait(fds: &[BorrowedFd<'_>], patience: Option<&Timespec>) -> rustix::io::Result<usize> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut polled, patience) {
        Err(Errno::INTR) => Ok(fds.len()),
        other => other,
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

#[derive(Default)]
struct Exports(BTreeMap<SegmentId, Export>);

struct Export {
    _memory: DeviceMemory,
    /// Processes that were given the handle.
    consumers: Vec<OwnedFd>,
}

impl Exports {
    fn carry_out(&mut self, context: &Context, order: Order) -> Option<Answer> {
        match order {
            Order::Make(segment, bytes) => Some(match make(context, bytes) {
                Ok((memory, handle)) => {
                    self.0.insert(segment, Export { _memory: memory, consumers: Vec::new() });
                    Answer::Made(segment, handle)
                }
                Err(why) => Answer::Refused(segment, why),
            }),
            Order::Handed(segment, pid) => {
                self.hand(segment, pid);
                None
            }
            Order::Free(segment) => {
                self.0.remove(&segment);
                Some(Answer::Freed(segment))
            }
        }
    }

    fn hand(&mut self, segment: SegmentId, pid: Pid) {
        let raw = i32::try_from(pid.get()).ok().and_then(rustix::process::Pid::from_raw);
        let Some((export, pid)) = self.0.get_mut(&segment).zip(raw) else { return };
        // One that is dead already needs no waiting for.
        export.consumers.extend(pidfd_open(pid, PidfdFlags::empty()));
    }

    /// Keeps each export while a process lives that was given it.
    fn outlast_consumers(mut self) {
        loop {
            self.0.retain(|_, export| {
                export.consumers.retain(is_alive);
                !export.consumers.is_empty()
            });
            let living: Vec<_> =
                self.0.values().flat_map(|export| &export.consumers).map(OwnedFd::as_fd).collect();
            if living.is_empty() || wait(&living, None).is_err() {
                return;
            }
        }
    }
}

fn make(context: &Context, bytes: Bytes) -> Result<(DeviceMemory, IpcHandle), String> {
    let memory = DeviceMemory::allocate(context, bytes).map_err(|why| why.to_string())?;
    let handle = memory.ipc_handle().map_err(|why| why.to_string())?;
    Ok((memory, IpcHandle(*handle.as_bytes())))
}

/// A pidfd becomes readable when its process ends.
fn is_alive(pidfd: &OwnedFd) -> bool {
    wait(&[pidfd.as_fd()], Some(&timespec(Duration::ZERO))) == Ok(0)
}
