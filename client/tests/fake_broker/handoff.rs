//! The fake's hand-over socket.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use gpulease_client::Bytes;
use gpulease_proto::handover::{MAX_FRAME, Reply, Request, Ticket};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, listen, recv, sendmsg, shutdown, socket_with,
};

use crate::broker::{HandOver, Segment, Shared};

pub struct Listener {
    socket: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    pub fn start(path: &Path, shared: &Arc<Shared>) -> Self {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let _ = std::fs::remove_file(path);
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 64).unwrap();
        let (socket, shared) = (Arc::new(socket), Arc::clone(shared));
        let listening = Arc::clone(&socket);
        let thread = std::thread::spawn(move || accept_all(&listening, &shared));
        Self { socket, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        shutdown(&self.socket, Shutdown::Both).unwrap();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Serves each connection on a thread of its own, since a client keeps one, and ends them with the listener.
fn accept_all(listening: &OwnedFd, shared: &Arc<Shared>) {
    let mut served = Vec::new();
    while let Ok(connection) = accept_with(listening, SocketFlags::CLOEXEC) {
        let (connection, shared) = (Arc::new(connection), Arc::clone(shared));
        let peer = Arc::clone(&connection);
        served.push((connection, std::thread::spawn(move || serve(&peer, &shared))));
    }
    for (connection, thread) in served {
        // The client may have closed it.
        let _ = shutdown(&connection, Shutdown::Both);
        thread.join().unwrap();
    }
}

/// Whether somebody else has one of the segment's chunks mapped or open: the kernel gives a write
/// lease only to who has it alone.
pub fn still_in_use(segment: &Segment) -> bool {
    segment.chunks.iter().any(|(memory, _)| is_used(memory))
}

/// The same of one memory file.
pub fn is_used(memory: &OwnedFd) -> bool {
    // SAFETY: F_SETLEASE takes an int and changes nothing but the lease of this description.
    unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) != 0 }
}

fn serve(connection: &OwnedFd, shared: &Shared) {
    let mut packet = [0; MAX_FRAME];
    loop {
        match recv(connection, &mut packet, RecvFlags::empty()) {
            Ok((0, _)) | Err(_) => return,
            Ok((length, _)) => answer(connection, shared, Request::decode(&packet[..length]).unwrap()),
        }
    }
}

fn answer(connection: &OwnedFd, shared: &Shared, request: Request) {
    // Under the book's lock to the end, so that nobody looks before our copies are closed, too.
    shared.change(|book| {
        let handover = book.handover;
        book.claims += u32::from(matches!(request, Request::Claim(_)));
        let refused = || (Reply::Refused("the fake knows no such ticket".to_owned()), Vec::new());
        let (reply, descriptors) = match request {
            Request::Claim(_) if handover == HandOver::RefuseTicket => refused(),
            Request::Claim(ticket) => match book.segments.get(&segment_of(ticket)) {
                Some(segment) => claimed(segment, handover),
                None => refused(),
            },
            Request::Acknowledge(ticket) => match book.segments.get_mut(&segment_of(ticket)) {
                Some(segment) => {
                    segment.acknowledged = true;
                    (Reply::Done, Vec::new())
                }
                None => refused(),
            },
        };
        book.refused_tickets += u32::from(matches!(reply, Reply::Refused(_)));
        send(connection, &reply, &descriptors);
    });
}

fn segment_of(ticket: Ticket) -> u64 {
    u64::from_le_bytes(ticket.bytes()[..8].try_into().unwrap())
}

/// A description of its own of the same memory. The kernel counts writers only of those: one that
/// `memfd_create` made itself is not counted, and a write lease on it never given.
pub fn reopened(memory: &OwnedFd) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    std::fs::File::options().read(true).write(true).open(path).unwrap().into()
}

/// The client's own descriptions of the chunks, so that the broker's stay apart from them.
fn claimed(segment: &Segment, handover: HandOver) -> (Reply, Vec<OwnedFd>) {
    let scale = if handover == HandOver::Larger { 2 } else { 1 };
    let sizes = segment.chunks.iter().map(|(_, size)| Bytes::new(size * scale)).collect();
    let mut descriptors: Vec<OwnedFd> = segment.chunks.iter().map(|(memory, _)| reopened(memory)).collect();
    match handover {
        HandOver::OneTooFew => drop(descriptors.pop()),
        HandOver::OneTooMany => descriptors.push(reopened(&segment.chunks[0].0)),
        HandOver::Right | HandOver::RefuseTicket | HandOver::Larger => {}
    }
    match &segment.host_copy {
        Some(copy) if segment.returns == 0 => {
            descriptors.push(reopened(copy));
            (Reply::Movable(sizes), descriptors)
        }
        Some(_) | None => (Reply::Segment(sizes), descriptors),
    }
}

fn send(connection: &OwnedFd, reply: &Reply, descriptors: &[OwnedFd]) {
    let borrowed: Vec<_> = descriptors.iter().map(OwnedFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    // A client that went away is its own affair.
    let _ = sendmsg(connection, &[IoSlice::new(&reply.encode())], &mut ancillary, SendFlags::NOSIGNAL);
}
