//! Claiming a segment's descriptors on the hand-over socket.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gpulease_proto::handover::{FrameError, MAX_DESCRIPTORS, MAX_FRAME, Reply, Request, Ticket};
use gpulease_words::Bytes;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, send, socket_with,
};

use crate::error::Error;
use crate::peer::peer_uid;
use crate::place::Place;

/// The broker answers a claim in microseconds; who takes longer is stopped.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A claim whose answer was lost, or whose descriptors found no room, is put again so often.
const CLAIMS: usize = 2;

/// Why a segment's descriptors did not arrive. The segment is given back then.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The hand-over socket beside the job socket could not be used.
    #[error("could not use the hand-over socket {}: {source}; it stands beside the job socket and has to be reachable as that is", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The broker refused the ticket.
    #[error("the broker did not hand the segment over: {0}")]
    Refused(String),
    /// The broker did not answer in time.
    #[error("the broker did not hand the segment over within {} s; see with `gpulease doctor` whether it is stopped", ANSWER_WITHIN.as_secs())]
    Silent,
    /// The broker closed the connection instead of answering.
    #[error("the broker closed the hand-over connection without an answer; ask again")]
    Closed,
    /// The answer is no frame of this version.
    #[error("the hand-over socket answered something else than a segment: {0}")]
    Frame(#[from] FrameError),
    /// The descriptors did not fit this process.
    #[error(
        "this process can't take the segment's descriptors, it has too many open; raise the limit (`ulimit -n`) or close some"
    )]
    NoDescriptorsLeft,
    /// More or fewer descriptors than chunks.
    #[error(
        "the segment has {chunks} chunks and came with {descriptors} descriptors; are client and broker of the same version?"
    )]
    Count {
        /// What the frame lists.
        chunks: usize,
        /// What came with it.
        descriptors: usize,
    },
    /// The chunks do not add up.
    #[error("the segment has {asked} and its chunks have {came}; are client and broker of the same version?")]
    Size {
        /// What was allocated.
        asked: Bytes,
        /// What came.
        came: Bytes,
    },
}

/// A connection to the hand-over socket.
#[derive(Debug)]
struct Connection {
    descriptor: OwnedFd,
    debt: Debt,
}

/// Whether an answer is still to come that nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Debt {
    None,
    Done,
}

/// The connection of the last claim, kept for the next: connecting costs more than a claim does. The
/// broker closes one that is not used for a while; then the next claim connects anew.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Option<Connection>>);

impl Spare {
    fn take(&self) -> Option<Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn keep(&self, connection: Connection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
    }
}

/// A ticket on its way to a segment's descriptors.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    place: &'a Place,
    spare: &'a Spare,
    ticket: Ticket,
}

/// A piece of a segment, as it came.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) descriptor: OwnedFd,
    pub(crate) bytes: Bytes,
}

impl<'a> Claim<'a> {
    pub(crate) fn new(place: &'a Place, spare: &'a Spare, ticket: Ticket) -> Self {
        Self { place, spare, ticket }
    }

    /// Receives the chunks, which have to be as many as descriptors and add up to `bytes`. Blocks at
    /// most for the time the broker has to answer.
    pub(crate) fn receive(&self, bytes: Bytes) -> Result<Received<'a>, Error> {
        let mut result = match self.spare.take().map(|connection| self.claim(connection)) {
            // What the broker answered stands, whichever connection it came over.
            Some(answered @ (Ok(_) | Err(HandOverError::Refused(_)))) => answered,
            Some(Err(_)) | None => self.claim(self.connect()?),
        };
        for _ in 1..CLAIMS {
            if !matches!(result, Err(HandOverError::NoDescriptorsLeft)) {
                break;
            }
            result = self.claim(self.connect()?);
        }
        let received = result?;
        let came = received.chunks.iter().map(|chunk| chunk.bytes).sum();
        if came == bytes { Ok(received) } else { Err(HandOverError::Size { asked: bytes, came }.into()) }
    }

    fn connect(&self) -> Result<Connection, Error> {
        self.place.check_directory()?;
        let descriptor = connected(self.place).map_err(|errno| failed(self.place, errno))?;
        let peer = peer_uid(descriptor.as_fd())
            .map_err(|source| HandOverError::Socket { socket: self.place.socket.clone(), source })?;
        self.place.check_peer(peer)?;
        Ok(Connection { descriptor, debt: Debt::None })
    }

    fn claim(&self, mut connection: Connection) -> Result<Received<'a>, HandOverError> {
        if connection.debt == Debt::Done {
            self.hear(&connection)?;
            connection.debt = Debt::None;
        }
        self.say(&connection, Request::Claim(self.ticket))?;
        let (sizes, descriptors, host_copy) = match self.hear(&connection)? {
            (Reply::Segment(sizes), descriptors) => (sizes, descriptors, None),
            (Reply::Movable(sizes), mut descriptors) => {
                let host_copy = descriptors.pop();
                (sizes, descriptors, host_copy)
            }
            (Reply::Refused(why), _) => return Err(HandOverError::Refused(why)),
            (Reply::Done, _) => return Err(HandOverError::Refused("it sent no segment".to_owned())),
        };
        if sizes.len() != descriptors.len() {
            return Err(HandOverError::Count { chunks: sizes.len(), descriptors: descriptors.len() });
        }
        let pairs = descriptors.into_iter().zip(sizes);
        let chunks = pairs.map(|(descriptor, bytes)| Chunk { descriptor, bytes }).collect();
        let claim = Claim { place: self.place, spare: self.spare, ticket: self.ticket };
        Ok(Received { chunks, host_copy, connection, claim })
    }

    fn say(&self, connection: &Connection, request: Request) -> Result<(), HandOverError> {
        let packet = request.encode();
        // A socket with a deadline does not go on by itself after a signal or a stop of the process.
        let sent = retry_on_intr(|| send(&connection.descriptor, &packet, SendFlags::NOSIGNAL));
        sent.map(drop).map_err(|errno| failed(self.place, errno))
    }

    /// The next packet. Descriptors that came with it are closed when dropped.
    fn hear(&self, connection: &Connection) -> Result<(Reply, Vec<OwnedFd>), HandOverError> {
        let mut packet = [0_u8; MAX_FRAME + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let parts = &mut [IoSliceMut::new(&mut packet)];
            recvmsg(&connection.descriptor, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        });
        let received = received.map_err(|errno| failed(self.place, errno))?;
        let descriptors = drained(&mut ancillary);
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(HandOverError::NoDescriptorsLeft);
        }
        match received.bytes {
            0 => Err(HandOverError::Closed),
            n => Ok((Reply::decode(&packet[..n])?, descriptors)),
        }
    }
}

/// A segment's chunks, until they are mapped.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    pub(crate) chunks: Vec<Chunk>,
    /// Where its bytes go in a suspension, where its lease can be suspended.
    pub(crate) host_copy: Option<OwnedFd>,
    connection: Connection,
    claim: Claim<'a>,
}

impl Received<'_> {
    /// Says that the segment is mapped, so that the broker lets its own descriptors go. Nobody waits
    /// for the answer: the ticket is this process's alone, and with the connection it ends as well.
    pub(crate) fn acknowledge(self) {
        let Self { mut connection, claim, .. } = self;
        if claim.say(&connection, Request::Acknowledge(claim.ticket)).is_ok() {
            connection.debt = Debt::Done;
            claim.spare.keep(connection);
        }
    }
}

fn failed(place: &Place, errno: Errno) -> HandOverError {
    match errno {
        Errno::AGAIN => HandOverError::Silent,
        Errno::PIPE | Errno::CONNRESET => HandOverError::Closed,
        _ => HandOverError::Socket { socket: place.socket.clone(), source: errno.into() },
    }
}

fn connected(place: &Place) -> Result<OwnedFd, Errno> {
    let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The send timeout bounds the connect, too, where the backlog is full.
    set_socket_timeout(&connection, Timeout::Send, Some(ANSWER_WITHIN))?;
    set_socket_timeout(&connection, Timeout::Recv, Some(ANSWER_WITHIN))?;
    let address = SocketAddrUnix::new(&place.socket)?;
    retry_on_intr(|| connect(&connection, &address))?;
    Ok(connection)
}

fn drained(ancillary: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        // Credentials, which nobody asked for.
        _ => None,
    });
    rights.flatten().collect()
}
