//! What daemon and exporter say to each other: one packet each, over a socket pair of packets.
//!
//! ```text
//! order:  kind u8 (1 make, 2 handed, 3 free) | segment u64 LE | bytes or pid u64 LE
//! answer: kind u8 (1 ready, 2 made, 3 refused, 4 freed) | segment u64 LE | handle, sentence or nothing
//! ```

use gpulease_words::{Bytes, Pid, SegmentId};

use crate::device::IpcHandle;

/// The largest packet.
pub(super) const PACKET_MAX: usize = 512;
const SENTENCE_MAX: usize = PACKET_MAX - HEADER;
const HEADER: usize = 9;

/// What the daemon orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Make memory and a handle; answered by made or refused.
    Make(SegmentId, Bytes),
    /// A process was given the handle.
    Handed(SegmentId, Pid),
    /// Free the memory; answered by freed, also where there is none.
    Free(SegmentId),
}

/// What the exporter answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has its context.
    Ready,
    /// The memory is there.
    Made(SegmentId, IpcHandle),
    /// It is not, and why; as the first answer: there is no exporter, and why.
    Refused(SegmentId, String),
    /// The memory is freed.
    Freed(SegmentId),
}

impl Order {
    /// The packet.
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, segment, value) = match self {
            Self::Make(segment, bytes) => (1_u8, segment, bytes.get()),
            Self::Handed(segment, pid) => (2, segment, u64::from(pid.get())),
            Self::Free(segment) => (3, segment, 0),
        };
        [[kind].as_slice(), &segment.get().to_le_bytes(), &value.to_le_bytes()].concat()
    }

    /// The order of a packet, if it is one.
    pub(super) fn decode(packet: &[u8]) -> Option<Self> {
        let (kind, segment, rest) = header(packet)?;
        let value = u64::from_le_bytes(rest.try_into().ok()?);
        match kind {
            1 => Some(Self::Make(segment, Bytes::new(value))),
            2 => Some(Self::Handed(segment, Pid::new(u32::try_from(value).ok()?))),
            3 => Some(Self::Free(segment)),
            _ => None,
        }
    }
}

impl Answer {
    /// The packet. A long sentence is cut.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, segment, rest): (u8, _, &[u8]) = match self {
            Self::Ready => (1, SegmentId::new(0), &[]),
            Self::Made(segment, handle) => (2, *segment, &handle.0),
            Self::Refused(segment, sentence) => (3, *segment, cut(sentence).as_bytes()),
            Self::Freed(segment) => (4, *segment, &[]),
        };
        [[kind].as_slice(), &segment.get().to_le_bytes(), rest].concat()
    }

    /// The answer of a packet, if it is one.
    pub(super) fn decode(packet: &[u8]) -> Option<Self> {
        let (kind, segment, rest) = header(packet)?;
        match kind {
            1 if rest.is_empty() => Some(Self::Ready),
            2 => Some(Self::Made(segment, IpcHandle(rest.try_into().ok()?))),
            3 => Some(Self::Refused(segment, String::from_utf8_lossy(rest).into_owned())),
            4 if rest.is_empty() => Some(Self::Freed(segment)),
            _ => None,
        }
    }
}

fn header(packet: &[u8]) -> Option<(u8, SegmentId, &[u8])> {
    let (header, rest) = packet.split_first_chunk::<HEADER>()?;
    let (kind, segment) = header.split_first()?;
    let segment = u64::from_le_bytes(segment.try_into().ok()?);
    Some((*kind, SegmentId::new(segment), rest))
}

fn cut(sentence: &str) -> &str {
    let mut end = sentence.len().min(SENTENCE_MAX);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    &sentence[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::gib;

    const SEGMENT: SegmentId = SegmentId::new(7);

    #[test]
    fn packets_read_back() {
        for order in
            [Order::Make(SEGMENT, gib(1)), Order::Handed(SEGMENT, Pid::new(4711)), Order::Free(SEGMENT)]
        {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        for answer in [
            Answer::Ready,
            Answer::Made(SEGMENT, IpcHandle([9; 64])),
            Answer::Refused(SEGMENT, "no room".into()),
            Answer::Freed(SEGMENT),
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    #[test]
    fn what_is_cut_or_longer_is_nothing() {
        let order = Order::Make(SEGMENT, gib(1)).encode();
        let answer = Answer::Made(SEGMENT, IpcHandle([9; 64])).encode();
        for n in 0..order.len() {
            assert_eq!(Order::decode(&order[..n]), None);
        }
        for n in 0..answer.len() {
            assert_eq!(Answer::decode(&answer[..n]), None);
        }
        assert_eq!(Order::decode(&[order.as_slice(), &[0]].concat()), None);
        assert_eq!(Answer::decode(&[answer.as_slice(), &[0]].concat()), None);
        assert_eq!(Order::decode(&[9; 17]), None);
    }

    #[test]
    fn a_long_sentence_fits_a_packet() {
        let packet = Answer::Refused(SEGMENT, "ä".repeat(600)).encode();
        assert!(packet.len() <= PACKET_MAX);
        assert!(
            matches!(Answer::decode(&packet), Some(Answer::Refused(_, s)) if s.chars().all(|c| c == 'ä'))
        );
    }
}
