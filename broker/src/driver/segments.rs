//! Segments from the order to make them to the proof that they are free: the descriptors on their
//! way to the one who asked, and the ticket by which he fetches them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpulease_arbiter::RequestId;
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SegmentId, SessionId, Uid};

use super::command::Access;
use crate::device::Handover;
use crate::tickets::{Parcel, Ticket, Tickets};

/// One segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) lease: LeaseId,
    pub(super) device: DeviceId,
    pub(super) bytes: Bytes,
    stage: Stage,
    /// Its host copy's descriptor on its way to the process, where it may be suspended.
    host_copy: Option<OwnedFd>,
}

impl Segment {
    /// Whether its host copy's descriptor is to go to the process.
    pub(super) fn has_copy(&self) -> bool {
        self.host_copy.is_some()
    }
}

#[derive(Debug)]
enum Stage {
    /// The device is at it.
    Ordered,
    /// Made, and not yet given to anyone.
    Made(Handover),
    /// A ticket is out.
    Offered { to: Recipient, ticket: Ticket },
    /// A CUDA IPC handle was told; nothing says whether it arrived.
    Told { to: Recipient },
    /// The process has it.
    Delivered,
    /// It is being taken back.
    Reclaimed,
    /// Its bytes are in its host copy, and nowhere else.
    Away,
    /// Made again; a ticket for the process is out.
    Back { ticket: Ticket },
    /// The process has it again, and fills it.
    Returned,
}

/// Whether a segment's process has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// It does.
    Present,
    /// It does not, or not yet again.
    Away,
}

/// Who asked for a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient {
    pub(super) request: RequestId,
    pub(super) session: SessionId,
    pub(super) uid: Uid,
    pub(super) process: ProcessId,
}

/// The table.
#[derive(Debug)]
pub(super) struct Segments {
    known: BTreeMap<SegmentId, Segment>,
    offered: BTreeMap<Uid, u32>,
    by_request: BTreeMap<RequestId, SegmentId>,
    tickets: Arc<Tickets>,
}

impl Segments {
    pub(super) fn new(tickets: Arc<Tickets>) -> Self {
        Self { known: BTreeMap::new(), offered: BTreeMap::new(), by_request: BTreeMap::new(), tickets }
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<&Segment> {
        self.known.get(&id)
    }

    /// The session it was offered to and that has not acknowledged it.
    pub(super) fn session_of(&self, id: SegmentId) -> Option<SessionId> {
        match self.get(id)?.stage {
            Stage::Offered { to, .. } | Stage::Told { to } => Some(to.session),
            Stage::Ordered
            | Stage::Made(_)
            | Stage::Delivered
            | Stage::Reclaimed
            | Stage::Away
            | Stage::Back { .. }
            | Stage::Returned => None,
        }
    }

    /// Whether it was given to a process for the first time and is not on its way back.
    pub(super) fn is_out(&self, id: SegmentId) -> bool {
        self.get(id).is_some_and(|segment| match segment.stage {
            Stage::Offered { .. } | Stage::Told { .. } | Stage::Delivered => true,
            Stage::Ordered
            | Stage::Made(_)
            | Stage::Reclaimed
            | Stage::Away
            | Stage::Back { .. }
            | Stage::Returned => false,
        })
    }

    /// How many tickets of a user are open.
    pub(super) fn offered(&self, uid: Uid) -> u32 {
        self.offered.get(&uid).copied().unwrap_or(0)
    }

    /// The segment that this request got, unless its process has acknowledged it.
    pub(super) fn answer_to(&self, request: RequestId) -> Option<SegmentId> {
        self.by_request.get(&request).copied()
    }

    /// It is to be made; where it may be suspended, this is its host copy's descriptor.
    pub(super) fn order(
        &mut self,
        id: SegmentId,
        (lease, device, bytes): (LeaseId, DeviceId, Bytes),
        host_copy: Option<OwnedFd>,
    ) {
        let segment = Segment { lease, device, bytes, stage: Stage::Ordered, host_copy };
        let before = self.known.insert(id, segment);
        assert!(before.is_none(), "segment {id} is ordered twice");
    }

    /// The device made it. One that is being taken back already loses its descriptors here.
    pub(super) fn made(&mut self, id: SegmentId, handover: Handover) {
        let segment = self.get_mut(id);
        match segment.stage {
            Stage::Ordered => segment.stage = Stage::Made(handover),
            Stage::Reclaimed => drop(handover),
            Stage::Made(_)
            | Stage::Offered { .. }
            | Stage::Told { .. }
            | Stage::Delivered
            | Stage::Away
            | Stage::Back { .. }
            | Stage::Returned => {
                panic!("segment {id} was made twice: {:?}", segment.stage)
            }
        }
    }

    /// Offers a made segment to the one who asked.
    pub(super) fn offer(&mut self, id: SegmentId, to: Recipient) -> Access {
        let tickets = self.tickets.clone();
        let segment = self.get_mut(id);
        let (stage, access) = match std::mem::replace(&mut segment.stage, Stage::Reclaimed) {
            Stage::Made(Handover::Descriptors(chunks)) => {
                let parcel = Parcel { chunks, host_copy: segment.host_copy.take() };
                let ticket = tickets.issue(id, to.process, parcel);
                (Stage::Offered { to, ticket }, Access::Ticket(ticket))
            }
            Stage::Made(Handover::CudaIpc(handle)) => (Stage::Told { to }, Access::CudaIpc(handle)),
            stage => panic!("segment {id} is handed over while {stage:?}"),
        };
        if matches!(stage, Stage::Offered { .. }) {
            *self.offered.entry(to.uid).or_insert(0) += 1;
        }
        self.get_mut(id).stage = stage;
        self.by_request.insert(to.request, id);
        access
    }

    /// The process has its descriptors: the ticket is used up. Returns the request that this ends.
    pub(super) fn acknowledged(&mut self, id: SegmentId) -> Option<RequestId> {
        let next = match self.known.get(&id)?.stage {
            Stage::Offered { .. } => Stage::Delivered,
            Stage::Back { .. } => Stage::Returned,
            Stage::Ordered
            | Stage::Made(_)
            | Stage::Told { .. }
            | Stage::Delivered
            | Stage::Reclaimed
            | Stage::Away
            | Stage::Returned => return None,
        };
        self.leave_stage(id, next)
    }

    /// It is free on the device, and its bytes are in its host copy.
    pub(super) fn sent_away(&mut self, id: SegmentId) {
        self.get_mut(id).stage = Stage::Away;
    }

    /// The device is to make it again.
    pub(super) fn order_again(&mut self, id: SegmentId) {
        let segment = self.get_mut(id);
        assert!(matches!(segment.stage, Stage::Away), "segment {id} is restored while {:?}", segment.stage);
        segment.stage = Stage::Ordered;
    }

    /// A ticket by which the process fetches a segment that was made again; `None` where it has it.
    pub(super) fn hand_back(&mut self, id: SegmentId, process: ProcessId) -> Option<Ticket> {
        let tickets = self.tickets.clone();
        let segment = self.get_mut(id);
        match std::mem::replace(&mut segment.stage, Stage::Reclaimed) {
            Stage::Made(Handover::Descriptors(chunks)) => {
                let ticket = tickets.issue(id, process, Parcel { chunks, host_copy: None });
                segment.stage = Stage::Back { ticket };
                Some(ticket)
            }
            // It was told already, and the word was lost.
            Stage::Back { ticket } => {
                segment.stage = Stage::Back { ticket };
                Some(ticket)
            }
            stage => {
                segment.stage = stage;
                None
            }
        }
    }

    /// Its host copy is needed no more.
    pub(super) fn drop_copy(&mut self, id: SegmentId) {
        self.get_mut(id).host_copy = None;
    }

    /// The process has filled a segment that came back.
    pub(super) fn restored(&mut self, id: SegmentId) {
        if let Some(segment) = self.known.get_mut(&id)
            && matches!(segment.stage, Stage::Returned)
        {
            segment.stage = Stage::Delivered;
        }
    }

    /// The segments of a lease, each with whether its process has to do without it.
    pub(super) fn of_lease(&self, lease: LeaseId) -> impl Iterator<Item = (SegmentId, Whereabouts)> {
        let of_it = self.known.iter().filter(move |(_, segment)| segment.lease == lease);
        of_it.map(|(id, segment)| {
            let whereabouts = match segment.stage {
                Stage::Offered { .. } | Stage::Told { .. } | Stage::Delivered => Whereabouts::Present,
                Stage::Ordered
                | Stage::Made(_)
                | Stage::Reclaimed
                | Stage::Away
                | Stage::Back { .. }
                | Stage::Returned => Whereabouts::Away,
            };
            (*id, whereabouts)
        })
    }

    /// It is taken back: its ticket is void, its descriptors are closed. Returns the request that this ends.
    pub(super) fn reclaim(&mut self, id: SegmentId) -> Option<RequestId> {
        self.leave_stage(id, Stage::Reclaimed)
    }

    /// It is free, or never came to be.
    pub(super) fn forget(&mut self, id: SegmentId) {
        self.known.remove(&id);
    }

    fn leave_stage(&mut self, id: SegmentId, next: Stage) -> Option<RequestId> {
        let request = match std::mem::replace(&mut self.get_mut(id).stage, next) {
            Stage::Offered { to, ticket } => {
                self.tickets.void(ticket);
                self.withdraw_offer(to.uid);
                to.request
            }
            Stage::Told { to } => to.request,
            Stage::Back { ticket } => {
                self.tickets.void(ticket);
                return None;
            }
            Stage::Ordered
            | Stage::Made(_)
            | Stage::Delivered
            | Stage::Reclaimed
            | Stage::Away
            | Stage::Returned => return None,
        };
        self.by_request.remove(&request);
        Some(request)
    }

    fn withdraw_offer(&mut self, uid: Uid) {
        let count = self.offered.get_mut(&uid).expect("an offer was counted");
        *count = count.checked_sub(1).expect("an offer was counted");
        if *count == 0 {
            self.offered.remove(&uid);
        }
    }

    fn get_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.known.get_mut(&id).unwrap_or_else(|| panic!("segment {id} is not known"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Descriptors;
    use gpulease_words::mib;

    const SEGMENT: SegmentId = SegmentId::new(1);
    const REQUEST: RequestId = RequestId(9);
    const UID: Uid = Uid::new(1_000);
    const PROCESS: ProcessId = ProcessId::new(3);
    const TO: Recipient =
        Recipient { request: REQUEST, session: SessionId::new(2), uid: UID, process: PROCESS };

    fn made() -> (Segments, Arc<Tickets>) {
        let tickets = Arc::new(Tickets::default());
        let mut segments = Segments::new(tickets.clone());
        segments.order(SEGMENT, (LeaseId::new(1), DeviceId::new(0), mib(2)), None);
        segments.made(SEGMENT, Handover::Descriptors(Descriptors::default()));
        (segments, tickets)
    }

    fn offered() -> (Segments, Arc<Tickets>, Ticket) {
        let (mut segments, tickets) = made();
        let Access::Ticket(ticket) = segments.offer(SEGMENT, TO) else { panic!("a ticket") };
        (segments, tickets, ticket)
    }

    #[test]
    fn an_offer_lasts_until_it_is_acknowledged() {
        let (mut segments, tickets, ticket) = offered();
        assert_eq!((segments.offered(UID), segments.answer_to(REQUEST)), (1, Some(SEGMENT)));
        assert_eq!(segments.session_of(SEGMENT), Some(TO.session));
        assert!(tickets.claim(ticket, PROCESS).is_some());
        assert_eq!(segments.acknowledged(SEGMENT), Some(REQUEST));
        assert_eq!((segments.offered(UID), segments.answer_to(REQUEST)), (0, None));
        assert_eq!((segments.session_of(SEGMENT), segments.is_out(SEGMENT)), (None, true));
        assert_eq!(segments.acknowledged(SEGMENT), None, "once");
    }

    #[test]
    fn a_reclaimed_segment_has_no_ticket_any_more() {
        let (mut segments, tickets, ticket) = offered();
        assert_eq!(segments.reclaim(SEGMENT), Some(REQUEST));
        assert!(tickets.claim(ticket, PROCESS).is_none());
        assert_eq!((segments.offered(UID), segments.is_out(SEGMENT)), (0, false));
        segments.forget(SEGMENT);
        assert!(segments.get(SEGMENT).is_none());
    }

    #[test]
    fn a_segment_goes_away_and_comes_back_under_a_new_ticket() {
        let (mut segments, tickets, ticket) = offered();
        tickets.claim(ticket, PROCESS).expect("open");
        assert_eq!(segments.acknowledged(SEGMENT), Some(REQUEST));
        let whereabouts = |segments: &Segments| segments.of_lease(LeaseId::new(1)).next();
        assert_eq!(whereabouts(&segments), Some((SEGMENT, Whereabouts::Present)));
        segments.reclaim(SEGMENT);
        segments.sent_away(SEGMENT);
        assert_eq!(whereabouts(&segments), Some((SEGMENT, Whereabouts::Away)));
        segments.order_again(SEGMENT);
        assert_eq!(segments.hand_back(SEGMENT, PROCESS), None, "it is not made yet");
        segments.made(SEGMENT, Handover::Descriptors(Descriptors::default()));
        let back = segments.hand_back(SEGMENT, PROCESS).expect("a ticket");
        assert_eq!(segments.hand_back(SEGMENT, PROCESS), Some(back), "said again, it is the same");
        assert!(tickets.claim(back, PROCESS).is_some_and(|claim| claim.parcel.host_copy.is_none()));
        assert_eq!(segments.acknowledged(SEGMENT), None, "no request ends by it");
        assert_eq!(segments.hand_back(SEGMENT, PROCESS), None, "the process has it");
        assert_eq!(whereabouts(&segments), Some((SEGMENT, Whereabouts::Away)), "it is not filled yet");
        segments.restored(SEGMENT);
        assert_eq!(whereabouts(&segments), Some((SEGMENT, Whereabouts::Present)));
    }

    #[test]
    fn a_segment_on_its_way_back_that_is_taken_again_has_no_ticket_any_more() {
        let (mut segments, tickets, _) = offered();
        segments.reclaim(SEGMENT);
        segments.sent_away(SEGMENT);
        segments.order_again(SEGMENT);
        segments.made(SEGMENT, Handover::Descriptors(Descriptors::default()));
        let back = segments.hand_back(SEGMENT, PROCESS).expect("a ticket");
        assert_eq!(segments.reclaim(SEGMENT), None);
        assert!(tickets.claim(back, PROCESS).is_none());
        assert_eq!(segments.offered(UID), 0);
    }

    #[test]
    fn a_host_copy_goes_with_the_first_ticket_alone() {
        let tickets = Arc::new(Tickets::default());
        let mut segments = Segments::new(tickets.clone());
        let (near, _far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        segments.order(SEGMENT, (LeaseId::new(1), DeviceId::new(0), mib(2)), Some(near.into()));
        segments.made(SEGMENT, Handover::Descriptors(Descriptors::default()));
        assert!(segments.get(SEGMENT).is_some_and(Segment::has_copy));
        let Access::Ticket(ticket) = segments.offer(SEGMENT, TO) else { panic!("a ticket") };
        assert!(tickets.claim(ticket, PROCESS).is_some_and(|claim| claim.parcel.host_copy.is_some()));
        assert!(!segments.get(SEGMENT).is_some_and(Segment::has_copy));
    }

    #[test]
    fn descriptors_that_nobody_wants_any_more_are_closed() {
        let tickets = Arc::new(Tickets::default());
        let mut segments = Segments::new(tickets);
        segments.order(SEGMENT, (LeaseId::new(1), DeviceId::new(0), mib(2)), None);
        segments.reclaim(SEGMENT);
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("sockets");
        segments.made(SEGMENT, Handover::Descriptors(vec![(near.into(), mib(2))].into()));
        far.set_nonblocking(true).expect("set");
        let read = std::io::Read::read(&mut &far, &mut [0]);
        assert!(matches!(read, Ok(0)), "the other end is closed: {read:?}");
    }
}
