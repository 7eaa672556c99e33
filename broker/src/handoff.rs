//! The hand-over socket: a ticket comes in, the segment's descriptors go out.
//!
//! The peer is known by its pidfd, so a ticket is good for the process that it was issued to and
//! for no other that got hold of it.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gpulease_proto::handover::{MAX_CHUNKS, MAX_DESCRIPTORS, MAX_FRAME, Reply, Request};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::device::Chunks;
use crate::driver::{Desk, World};
use crate::entrance::{Guests, Listener, Seat, TurnedAway};
use crate::liveness::{Caller, Liveness};
use crate::tickets::{Claim, Parcel, Ticket, Tickets};

/// How long a peer may keep a connection without a request.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long an answer may wait for the peer to read.
const SEND_MAX: Duration = Duration::from_secs(10);

/// How long a claim may wait for the device. Shorter than a client waits for an answer.
const EXPORT_MAX: Duration = Duration::from_secs(8);

const NO_TICKET: &str = "no such ticket for this process: it is used up, its segment was given back, or it is another process's; allocate again";

/// What the server needs.
#[derive(Clone, Debug)]
pub(crate) struct Handoff {
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) tickets: Arc<Tickets>,
    pub(crate) guests: Arc<Guests>,
    pub(crate) desk: Desk,
}

/// Serves until it is dropped.
pub(crate) async fn serve(mut listener: Listener, handoff: Handoff) {
    loop {
        let socket = listener.accept().await;
        match handoff.receive(socket) {
            Ok(visit) => drop(tokio::spawn(visit.run())),
            Err(why) => listener.regret(&why).await,
        }
    }
}

impl Handoff {
    fn receive(&self, socket: OwnedFd) -> Result<Visit, TurnedAway> {
        let (caller, seat) = self.guests.admit(&self.liveness, socket.as_fd())?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        // SAFETY: the descriptor stays the same and open for the whole life of the AsyncFd, which owns it.
        let socket =
            unsafe { AsyncFd::register_with_interest(socket, interest) }.map_err(std::io::Error::from)?;
        Ok(Visit { socket, caller, handoff: self.clone(), _seat: seat })
    }
}

/// One peer's connection.
struct Visit {
    socket: AsyncFd<OwnedFd>,
    caller: Caller,
    handoff: Handoff,
    _seat: Seat,
}

/// Whether more may be asked on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Continue,
    HangUp,
}

impl Visit {
    async fn run(self) {
        while let Ok(Some(packet)) = self.request().await {
            match self.answer(&packet).await {
                Ok(Next::Continue) => {}
                Ok(Next::HangUp) => return,
                Err(error) => {
                    return tracing::debug!(%error, caller = ?self.caller, "an answer did not get through");
                }
            }
        }
    }

    /// The next packet, `None` at the end. Descriptors that came with it are closed by the kernel, since no place was
    /// given for them.
    async fn request(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; MAX_FRAME];
        let received = self.socket.async_io(Interest::READABLE, |socket| {
            let (_, length) = rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
            Ok(length)
        });
        let length = tokio::time::timeout(SILENCE_MAX, received).await??;
        // A packet that was cut is longer than any frame; it is refused for its length.
        let packet = buffer[..length.min(MAX_FRAME)].to_vec();
        Ok((length > 0).then_some(packet))
    }

    async fn answer(&self, packet: &[u8]) -> io::Result<Next> {
        // Descriptors that nobody fetches from a socket count against a limit that all clients share.
        if has_unread(self.socket.get_ref().as_fd()) {
            return Ok(Next::HangUp);
        }
        match Request::decode(packet) {
            Ok(Request::Claim(ticket)) => self.hand_over(Ticket::new(*ticket.bytes())).await,
            Ok(Request::Acknowledge(ticket)) => self.acknowledge(Ticket::new(*ticket.bytes())).await,
            Err(error) => {
                self.send(&Reply::Refused(error.to_string()), &[]).await?;
                Ok(Next::HangUp)
            }
        }
    }

    async fn hand_over(&self, ticket: Ticket) -> io::Result<Next> {
        let claim = self.handoff.tickets.claim(ticket, self.caller.process.id());
        let Some(Claim { segment, parcel }) = claim else {
            return self.refuse(NO_TICKET).await;
        };
        let chunks = match exported(&parcel).await {
            // It may have been taken back meanwhile.
            Ok(_) if !self.handoff.tickets.is_open(ticket) => return self.refuse(NO_TICKET).await,
            Ok(chunks) => chunks,
            Err(why) => return self.refuse(&why).await,
        };
        let sizes = chunks.iter().map(|(_, bytes)| *bytes).collect();
        let reply = match parcel.host_copy {
            Some(_) => Reply::Movable(sizes),
            None => Reply::Segment(sizes),
        };
        let descriptors = chunks.iter().map(|(descriptor, _)| descriptor).chain(&parcel.host_copy);
        let descriptors: Vec<_> = descriptors.map(AsFd::as_fd).collect();
        self.send(&reply, &descriptors).await?;
        // One that did not get through does not count: the process claims again, over another connection.
        if self.handoff.tickets.sent(ticket) == Some(1) {
            self.handoff.desk.tell(World::Claimed(segment));
        }
        Ok(Next::Continue)
    }

    async fn acknowledge(&self, ticket: Ticket) -> io::Result<Next> {
        let Some(segment) = self.handoff.tickets.acknowledge(ticket, self.caller.process.id()) else {
            return self.refuse(NO_TICKET).await;
        };
        self.handoff.desk.tell(World::Acknowledged(segment));
        self.send(&Reply::Done, &[]).await?;
        Ok(Next::Continue)
    }

    async fn refuse(&self, why: &str) -> io::Result<Next> {
        self.send(&Reply::Refused(why.to_owned()), &[]).await?;
        Ok(Next::Continue)
    }

    async fn send(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let packet = reply.encode();
        let sent = self.socket.async_io(Interest::WRITABLE, |socket| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(fits, "a segment has at most {MAX_CHUNKS} chunks and one host copy");
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::sendmsg(socket, &[IoSlice::new(&packet)], &mut control, flags)?;
            Ok(())
        });
        tokio::time::timeout(SEND_MAX, sent).await?
    }
}

/// The descriptors, which the device may still be making.
async fn exported(parcel: &Parcel) -> Result<Arc<Chunks>, String> {
    let late = |_| {
        "the device is busy and has not exported the segment in time; free it and allocate again".to_owned()
    };
    tokio::time::timeout(EXPORT_MAX, parcel.chunks.arrive()).await.unwrap_or_else(|passed| Err(late(passed)))
}

/// Whether the peer has not read an earlier answer.
fn has_unread(socket: BorrowedFd<'_>) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ writes one int at the given place, which is one.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    rc == 0 && bytes > 0
}
