//! Tickets: who may fetch which segment's descriptors, once.
//!
//! The driver issues and voids them; the hand-over socket claims and ends them, on other threads.
//! Each ticket is independent of the others, which is what the concurrent map is good for.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dashmap::DashMap;
use gpulease_words::{ProcessId, SegmentId};

use crate::credentials::Secret;
use crate::device::Descriptors;

/// What is fetched with a ticket.
#[derive(Debug, Default)]
pub(crate) struct Parcel {
    /// The chunks of a segment.
    pub(crate) chunks: Descriptors,
    /// Where its bytes go when it is suspended, if it may be.
    pub(crate) host_copy: Option<OwnedFd>,
}

/// What a process shows to fetch a segment. Its debug form hides it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket([u8; 16]);

impl Ticket {
    pub(crate) const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// All tickets that are open.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    open: DashMap<Ticket, Entry>,
}

#[derive(Debug)]
struct Entry {
    segment: SegmentId,
    process: ProcessId,
    parcel: Arc<Parcel>,
    /// How often it was sent.
    sent: u32,
}

/// What a good claim gets.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) segment: SegmentId,
    pub(crate) parcel: Arc<Parcel>,
}

impl Tickets {
    /// A ticket for one process.
    pub(crate) fn issue(&self, segment: SegmentId, process: ProcessId, parcel: Parcel) -> Ticket {
        let ticket = Ticket::new(*Secret::random().bytes());
        let entry = Entry { segment, process, parcel: Arc::new(parcel), sent: 0 };
        let before = self.open.insert(ticket, entry);
        assert!(before.is_none(), "128 random bits came twice");
        ticket
    }

    /// What the ticket is for. It can be claimed again until it is acknowledged, so that a lost answer loses nothing.
    pub(crate) fn claim(&self, ticket: Ticket, process: ProcessId) -> Option<Claim> {
        let entry = self.open.get(&ticket).filter(|entry| entry.process == process)?;
        Some(Claim { segment: entry.segment, parcel: entry.parcel.clone() })
    }

    /// What it is for was sent; how often it was by now. `None`: it was made worthless meanwhile.
    pub(crate) fn sent(&self, ticket: Ticket) -> Option<u32> {
        let mut entry = self.open.get_mut(&ticket)?;
        entry.sent = entry.sent.saturating_add(1);
        Some(entry.sent)
    }

    /// Whether it can still be claimed.
    pub(crate) fn is_open(&self, ticket: Ticket) -> bool {
        self.open.contains_key(&ticket)
    }

    /// Ends a ticket whose parcel was sent; of several calls one gets the segment.
    pub(crate) fn acknowledge(&self, ticket: Ticket, process: ProcessId) -> Option<SegmentId> {
        let ended = self.open.remove_if(&ticket, |_, entry| entry.process == process && entry.sent > 0);
        ended.map(|(_, entry)| entry.segment)
    }

    /// Makes a ticket worthless: its segment is taken back.
    pub(crate) fn void(&self, ticket: Ticket) {
        self.open.remove(&ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    const OWNER: ProcessId = ProcessId::new(1);
    const OTHER: ProcessId = ProcessId::new(2);
    const SEGMENT: SegmentId = SegmentId::new(7);

    fn issued() -> (Tickets, Ticket) {
        let tickets = Tickets::default();
        let ticket = tickets.issue(SEGMENT, OWNER, Parcel::default());
        (tickets, ticket)
    }

    #[test]
    fn a_claim_repeats_until_it_is_acknowledged() {
        let (tickets, ticket) = issued();
        assert_eq!(tickets.acknowledge(ticket, OWNER), None, "nothing was claimed yet");
        assert_eq!(tickets.claim(ticket, OWNER).map(|c| c.segment), Some(SEGMENT));
        assert_eq!(tickets.acknowledge(ticket, OWNER), None, "nothing was sent yet");
        assert_eq!(tickets.sent(ticket), Some(1));
        assert!(tickets.claim(ticket, OWNER).is_some());
        assert_eq!(tickets.sent(ticket), Some(2));
        assert_eq!(tickets.acknowledge(ticket, OWNER), Some(SEGMENT));
        assert_eq!(tickets.acknowledge(ticket, OWNER), None);
        assert!(tickets.claim(ticket, OWNER).is_none());
    }

    #[test]
    fn another_process_gets_nothing_and_ends_nothing() {
        let (tickets, ticket) = issued();
        assert!(tickets.claim(ticket, OTHER).is_none());
        assert!(tickets.claim(ticket, OWNER).is_some());
        assert_eq!(tickets.acknowledge(ticket, OTHER), None);
        assert!(tickets.claim(ticket, OWNER).is_some());
    }

    #[test]
    fn a_void_ticket_is_worthless() {
        let (tickets, ticket) = issued();
        assert!(tickets.claim(ticket, OWNER).is_some());
        tickets.void(ticket);
        assert!(tickets.claim(ticket, OWNER).is_none());
        assert_eq!(tickets.sent(ticket), None);
        assert_eq!(tickets.acknowledge(ticket, OWNER), None);
    }

    #[test]
    fn of_many_threads_one_ends_it() {
        let (tickets, ticket) = issued();
        let ended = AtomicU32::new(0);
        tickets.sent(ticket).expect("open");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    if tickets.acknowledge(ticket, OWNER).is_some() {
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(ended.load(Ordering::SeqCst), 1);
    }
}
