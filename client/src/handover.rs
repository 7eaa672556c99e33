//! Claiming a segment's descriptors on the hand-over socket.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use gpulease_proto::handover::{FrameError, MAX_CHUNKS, MAX_FRAME, Reply, Request, Ticket};
use gpulease_words::Bytes;
use rustix::io::Errno;
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

/// A connection on which one ticket is claimed.
pub(crate) struct Claim {
    connection: OwnedFd,
    ticket: Ticket,
    socket: PathBuf,
}

/// A piece of a segment, as it came.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) descriptor: OwnedFd,
    pub(crate) bytes: Bytes,
}

impl Claim {
    /// Connects; blocks at most for the time the broker has to answer.
    pub(crate) fn open(place: &Place, ticket: Ticket) -> Result<Self, Error> {
        place.check_directory()?;
        let failed =
            |errno: Errno| HandOverError::Socket { socket: place.socket.clone(), source: errno.into() };
        let connection = connected(place).map_err(failed)?;
        let peer = peer_uid(connection.as_fd())
            .map_err(|source| HandOverError::Socket { socket: place.socket.clone(), source })?;
        place.check_peer(peer)?;
        Ok(Self { connection, ticket, socket: place.socket.clone() })
    }

    /// Receives the chunks, which have to be as many as descriptors and add up to `bytes`.
    pub(crate) fn receive(&self, bytes: Bytes) -> Result<Vec<Chunk>, HandOverError> {
        let mut result = self.claim();
        for _ in 1..CLAIMS {
            if !matches!(result, Err(HandOverError::NoDescriptorsLeft)) {
                break;
            }
            result = self.claim();
        }
        let chunks = result?;
        let came = chunks.iter().map(|chunk| chunk.bytes).sum();
        if came == bytes { Ok(chunks) } else { Err(HandOverError::Size { asked: bytes, came }) }
    }

    /// Says that the segment is mapped, and waits until the broker knows.
    pub(crate) fn acknowledge(&self) -> Result<(), HandOverError> {
        match self.exchange(Request::Acknowledge(self.ticket))? {
            (Reply::Done, _) => Ok(()),
            (Reply::Refused(why), _) => Err(HandOverError::Refused(why)),
            (Reply::Segment(_), _) => Err(HandOverError::Refused("it sent the segment again".to_owned())),
        }
    }

    fn claim(&self) -> Result<Vec<Chunk>, HandOverError> {
        let (sizes, descriptors) = match self.exchange(Request::Claim(self.ticket))? {
            (Reply::Segment(sizes), descriptors) => (sizes, descriptors),
            (Reply::Refused(why), _) => return Err(HandOverError::Refused(why)),
            (Reply::Done, _) => return Err(HandOverError::Refused("it sent no segment".to_owned())),
        };
        if sizes.len() != descriptors.len() {
            return Err(HandOverError::Count { chunks: sizes.len(), descriptors: descriptors.len() });
        }
        let pairs = descriptors.into_iter().zip(sizes);
        Ok(pairs.map(|(descriptor, bytes)| Chunk { descriptor, bytes }).collect())
    }

    /// One packet each way. Descriptors that came are closed when dropped.
    fn exchange(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), HandOverError> {
        send(&self.connection, &request.encode(), SendFlags::NOSIGNAL).map_err(|errno| self.failed(errno))?;
        let mut packet = [0_u8; MAX_FRAME + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_CHUNKS + 1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.connection,
            &mut [IoSliceMut::new(&mut packet)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        );
        let received = received.map_err(|errno| self.failed(errno))?;
        let descriptors = drained(&mut ancillary);
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(HandOverError::NoDescriptorsLeft);
        }
        match received.bytes {
            0 => Err(HandOverError::Closed),
            n => Ok((Reply::decode(&packet[..n])?, descriptors)),
        }
    }

    fn failed(&self, errno: Errno) -> HandOverError {
        match errno {
            Errno::AGAIN => HandOverError::Silent,
            Errno::PIPE | Errno::CONNRESET => HandOverError::Closed,
            _ => HandOverError::Socket { socket: self.socket.clone(), source: errno.into() },
        }
    }
}

fn connected(place: &Place) -> Result<OwnedFd, Errno> {
    let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The send timeout bounds the connect, too, where the backlog is full.
    set_socket_timeout(&connection, Timeout::Send, Some(ANSWER_WITHIN))?;
    set_socket_timeout(&connection, Timeout::Recv, Some(ANSWER_WITHIN))?;
    connect(&connection, &SocketAddrUnix::new(&place.socket)?)?;
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
