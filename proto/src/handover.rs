//! The frame of the hand-over socket: a ticket goes in, descriptors come out.
//!
//! The socket is `SOCK_SEQPACKET`, so that each frame is one packet and descriptors belong to
//! exactly one of them. A client sends [`Request::Claim`]; the broker answers [`Reply::Segment`]
//! with one descriptor per chunk attached, [`Reply::Movable`] with one more, the segment's host copy,
//! or [`Reply::Refused`]. A claim can be repeated until
//! [`Request::Acknowledge`] ends the ticket, so that a client that lost an answer loses nothing.
//!
//! ```text
//! request: magic "GPL1" | kind u8 (1 claim, 2 acknowledge) | ticket [u8; 16]            21 bytes
//! segment: magic "GPL1" | kind u8 (1) | chunk count u8 | chunk bytes u64 LE ...         up to 6 + 8 x 240
//! movable: magic "GPL1" | kind u8 (4) | as a segment; the last descriptor is the host copy
//! refused: magic "GPL1" | kind u8 (2) | sentence in UTF-8, at most 200 bytes
//! done:    magic "GPL1" | kind u8 (3)
//! ```

use gpulease_words::Bytes;

/// The most chunks a segment can have: `SCM_RIGHTS` allows 253 descriptors, and a host copy goes with them.
pub const MAX_CHUNKS: usize = 240;

/// The most descriptors that come with a frame.
pub const MAX_DESCRIPTORS: usize = MAX_CHUNKS + 1;

/// The largest frame either side sends, in bytes.
pub const MAX_FRAME: usize = 2_048;

const MAGIC: &[u8; 4] = b"GPL1";
const MAX_SENTENCE: usize = 200;

/// A one-time claim for a segment's descriptors, bound to one process.
///
/// Its debug form hides the secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket([u8; 16]);

impl Ticket {
    /// The ticket with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, for sending.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl TryFrom<&[u8]> for Ticket {
    type Error = FrameError;

    fn try_from(bytes: &[u8]) -> Result<Self, FrameError> {
        bytes.try_into().map(Self).map_err(|_| FrameError::Length(bytes.len()))
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// Why a packet is no frame of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first four bytes are not ours: something else speaks at this socket.
    #[error("the packet does not start with GPL1; is this the hand-over socket of gpulease?")]
    Magic,
    /// The kind is unknown, as from a newer version.
    #[error("the packet is of the unknown kind {0}; are client and broker of the same version?")]
    Kind(u8),
    /// The packet has the wrong length for its kind.
    #[error("the packet has {0} bytes, which no frame of its kind has")]
    Length(usize),
    /// A chunk is empty or not a multiple of 2 MiB, or there are none or too many.
    #[error("the packet's list of chunks makes no sense")]
    Chunks,
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Send the descriptors of this ticket's segment.
    Claim(Ticket),
    /// They arrived; the ticket is used up.
    Acknowledge(Ticket),
}

/// What the broker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The segment's chunks in address order; as many descriptors are attached.
    Segment(Vec<Bytes>),
    /// The same of a segment that may be suspended; one more descriptor is attached at the end, its host copy: a
    /// memfd of the segment's size.
    Movable(Vec<Bytes>),
    /// No such ticket for this process; what to do.
    Refused(String),
    /// The acknowledgement was taken.
    Done,
}

impl Request {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, ticket) = match self {
            Self::Claim(ticket) => (1, ticket),
            Self::Acknowledge(ticket) => (2, ticket),
        };
        [MAGIC.as_slice(), &[kind], ticket.bytes()].concat()
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// When it is no request of this version.
    pub fn decode(packet: &[u8]) -> Result<Self, FrameError> {
        let (kind, rest) = header(packet)?;
        match kind {
            1 => Ticket::try_from(rest).map(Self::Claim),
            2 => Ticket::try_from(rest).map(Self::Acknowledge),
            _ => Err(FrameError::Kind(kind)),
        }
    }
}

impl Reply {
    /// The packet. A sentence is cut at 200 bytes.
    ///
    /// # Panics
    /// When a segment has no chunk or more than [`MAX_CHUNKS`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut packet = MAGIC.to_vec();
        match self {
            Self::Segment(chunks) => push_chunks(&mut packet, 1, chunks),
            Self::Movable(chunks) => push_chunks(&mut packet, 4, chunks),
            Self::Refused(sentence) => {
                packet.push(2);
                let fits = |end: &usize| sentence.is_char_boundary(*end);
                let end = (0..=MAX_SENTENCE.min(sentence.len())).rev().find(fits).unwrap_or(0);
                packet.extend_from_slice(&sentence.as_bytes()[..end]);
            }
            Self::Done => packet.push(3),
        }
        packet
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// When it is no reply of this version.
    pub fn decode(packet: &[u8]) -> Result<Self, FrameError> {
        let (kind, rest) = header(packet)?;
        match kind {
            1 => chunks(rest).map(Self::Segment),
            2 if rest.len() <= MAX_SENTENCE => Ok(Self::Refused(String::from_utf8_lossy(rest).into_owned())),
            2 => Err(FrameError::Length(packet.len())),
            3 if rest.is_empty() => Ok(Self::Done),
            3 => Err(FrameError::Length(packet.len())),
            4 => chunks(rest).map(Self::Movable),
            _ => Err(FrameError::Kind(kind)),
        }
    }
}

fn header(packet: &[u8]) -> Result<(u8, &[u8]), FrameError> {
    match packet.strip_prefix(MAGIC) {
        Some([kind, rest @ ..]) => Ok((*kind, rest)),
        Some([]) => Err(FrameError::Length(packet.len())),
        None => Err(FrameError::Magic),
    }
}

fn push_chunks(packet: &mut Vec<u8>, kind: u8, chunks: &[Bytes]) {
    assert!((1..=MAX_CHUNKS).contains(&chunks.len()), "a segment has 1 to {MAX_CHUNKS} chunks");
    packet.push(kind);
    packet.push(u8::try_from(chunks.len()).expect("the most chunks are fewer than 256"));
    packet.extend(chunks.iter().flat_map(|c| c.get().to_le_bytes()));
}

fn chunks(rest: &[u8]) -> Result<Vec<Bytes>, FrameError> {
    let (count, rest) = rest.split_first().ok_or(FrameError::Chunks)?;
    let (sizes, []) = rest.as_chunks::<8>() else {
        return Err(FrameError::Chunks);
    };
    let chunks: Vec<Bytes> = sizes.iter().map(|b| Bytes::new(u64::from_le_bytes(*b))).collect();
    let sound = chunks.iter().all(|c| !c.is_zero() && c.is_granular());
    let total = chunks.iter().try_fold(Bytes::ZERO, |sum, c| sum.checked_add(*c));
    if sound
        && total.is_some()
        && chunks.len() == usize::from(*count)
        && (1..=MAX_CHUNKS).contains(&chunks.len())
    {
        Ok(chunks)
    } else {
        Err(FrameError::Chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::{gib, mib};

    #[test]
    fn frames_read_back() {
        let ticket = Ticket::new(*b"0123456789abcdef");
        for request in [Request::Claim(ticket), Request::Acknowledge(ticket)] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for reply in [
            Reply::Segment(vec![gib(1), mib(2)]),
            Reply::Segment(vec![mib(2); MAX_CHUNKS]),
            Reply::Movable(vec![gib(1); MAX_CHUNKS]),
            Reply::Refused("no".into()),
            Reply::Done,
        ] {
            let packet = reply.encode();
            assert!(packet.len() <= MAX_FRAME);
            assert_eq!(Reply::decode(&packet), Ok(reply));
        }
    }

    #[test]
    fn a_cut_or_foreign_packet_is_refused() {
        let packet = Request::Claim(Ticket::new([7; 16])).encode();
        for n in 0..packet.len() {
            assert!(Request::decode(&packet[..n]).is_err(), "{n}");
        }
        assert_eq!(Request::decode(b"GET / HTTP/1.1"), Err(FrameError::Magic));
        for reply in [Reply::Segment(vec![gib(1), gib(2)]), Reply::Movable(vec![gib(1)])] {
            let packet = reply.encode();
            for n in 0..packet.len() {
                assert!(Reply::decode(&packet[..n]).is_err(), "{n}");
            }
        }
        assert_eq!(
            Reply::decode(&[b"GPL1".as_slice(), &[1, 1], &3_u64.to_le_bytes()].concat()),
            Err(FrameError::Chunks)
        );
        assert_eq!(Reply::decode(&[b"GPL1".as_slice(), &[9]].concat()), Err(FrameError::Kind(9)));
    }

    #[test]
    fn a_long_sentence_is_cut_between_letters() {
        let packet = Reply::Refused("ä".repeat(300)).encode();
        assert!(packet.len() <= MAX_FRAME);
        assert!(matches!(Reply::decode(&packet), Ok(Reply::Refused(s)) if s.chars().all(|c| c == 'ä')));
    }

    #[test]
    fn a_ticket_is_not_shown() {
        assert_eq!(format!("{:?}", Ticket::new([7; 16])), "Ticket(..)");
    }
}
