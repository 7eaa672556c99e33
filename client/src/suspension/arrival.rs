//! Coming back, one segment after the other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use gpulease_proto::handover::Ticket;
use gpulease_words::SegmentId;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::error::Error;
use crate::handover::Claim;
use crate::lease_state::LeaseState;
use crate::suspension::body::{Body, MoveError, Moved};
use crate::suspension::report::News;

/// How a segment's return ended.
pub(crate) enum Arrival {
    Restored,
    /// The descriptors did not come; a ticket is good until it is acknowledged.
    NotHandedOver(Error),
    Failed(MoveError),
}

/// Between the first claim of a segment that was not handed over and the next, and the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A segment to be fetched back, after a pause where it was not handed over before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errand {
    pub(crate) segment: SegmentId,
    ticket: Ticket,
    pub(crate) pause: Duration,
}

impl Errand {
    pub(crate) const fn new(segment: SegmentId, ticket: Ticket) -> Self {
        Self { segment, ticket, pause: Duration::ZERO }
    }

    /// Once more, after a longer pause than the last.
    pub(crate) fn again(self) -> Self {
        Self { pause: (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE), ..self }
    }

    /// Runs it. Who drops the lease or the segment meanwhile is not kept from that.
    pub(crate) async fn run(
        self,
        lease: Weak<LeaseState>,
        body: Weak<Body>,
        turn: Arc<Semaphore>,
    ) -> Arrival {
        sleep(self.pause).await;
        match (lease.upgrade(), body.upgrade()) {
            (Some(lease), Some(body)) => come_back(lease, body, self.ticket, turn).await,
            // The broker is told of that by itself.
            (None, _) | (_, None) => Arrival::Restored,
        }
    }
}

/// Claims, maps and fills one segment, and says so.
async fn come_back(lease: Arc<LeaseState>, body: Arc<Body>, ticket: Ticket, turn: Arc<Semaphore>) -> Arrival {
    let _turn = turn.acquire_owned().await;
    let (at_work, segment) = (Arc::clone(&lease), body.id());
    let moved = spawn_blocking(move || fetch(&at_work, &body, ticket));
    match moved.await {
        Ok(Ok(Moved::There)) => {
            lease.session().report_surely(lease.key(), &News::Restored(segment)).await;
            Arrival::Restored
        }
        // The segment was dropped, of which the broker is told by itself.
        Ok(Ok(Moved::Closed)) => Arrival::Restored,
        Ok(Err(Fetch::HandOver(error))) => Arrival::NotHandedOver(error),
        Ok(Err(Fetch::Move(error))) => Arrival::Failed(error),
        Err(error) => Arrival::NotHandedOver(Error::Thread(std::io::Error::other(error))),
    }
}

enum Fetch {
    HandOver(Error),
    Move(MoveError),
}

/// Blocks.
fn fetch(lease: &LeaseState, body: &Body, ticket: Ticket) -> Result<Moved, Fetch> {
    let session = lease.session();
    let place = session.link.place().handoff();
    let received =
        Claim::new(&place, &session.spare, ticket).receive(body.bytes()).map_err(Fetch::HandOver)?;
    match body.settle(&received.chunks).map_err(Fetch::Move)? {
        Moved::There => {
            received.acknowledge();
            body.come_back(&session.gpus, &session.lanes).map_err(Fetch::Move)
        }
        Moved::Closed => Ok(Moved::Closed),
    }
}
