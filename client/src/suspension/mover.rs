//! Does what the broker's notices say, for one lease, in their order: the one place that moves its memory.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use gpulease_proto::handover::Ticket;
use gpulease_words::SegmentId;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use crate::gate::{Absence, Gate, Presence};
use crate::lease::Standing;
use crate::lease_state::LeaseState;
use crate::suspension::arrival::{Arrival, Errand};
use crate::suspension::body::Body;
use crate::suspension::departure::{drain, leave, left};
use crate::suspension::preparation::prepare_all;
use crate::suspension::report::News;

/// More notices than the broker lets a lease have segments: it says one of each at a time.
const ORDERS_MAX: usize = 8192;

/// So many segments move at a time: while one's bytes cross, another is mapped or unmapped, and each device has a link
/// of its own.
const MOVING: usize = 4;

/// What a notice, or this process, asks for.
#[derive(Debug)]
pub(crate) enum Order {
    /// Close the gate and drain, within this time.
    Suspend(Duration),
    /// Copy out and unmap.
    SwapOut,
    /// The suspension is off, for this reason.
    Cancelled(String),
    /// The segment is on the device again.
    Back(SegmentId, Ticket),
    /// The lease is never suspended any more.
    Pinned,
    /// After a rejoin: the broker counts the lease among those that have all their memory.
    Whole,
    /// A segment that may be suspended has arrived.
    Landed(Weak<Body>),
}

/// Where a lease's notices go; they are worked on until the lease is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Orders(mpsc::Sender<Order>);

impl Orders {
    /// Starts the mover of this lease on the library's thread.
    pub(crate) fn start(lease: &Arc<LeaseState>) -> Self {
        let (orders, received) = mpsc::channel(ORDERS_MAX);
        let (preparing, landed) = mpsc::unbounded_channel();
        let engine = lease.session().engine.handle();
        engine.spawn(prepare_all(Arc::downgrade(lease), landed));
        let mover = Mover {
            lease: Arc::downgrade(lease),
            gate: Arc::clone(lease.gate()),
            orders: received,
            draining: None,
            course: Course::Here,
            coming: JoinSet::new(),
            again: BTreeMap::new(),
            preparing,
            one_by_one: Arc::new(Semaphore::new(MOVING)),
            idleness: Idleness::Unknown,
        };
        engine.spawn(mover.work());
        Self(orders)
    }

    pub(crate) fn give(&self, order: Order) {
        if let Err(error) = self.0.try_send(order) {
            tracing::error!(%error, "gpulease: a notice is lost, the lease has too many at once");
        }
    }
}

type Drain = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Mover {
    lease: Weak<LeaseState>,
    /// The lease's own, which may be waited at without keeping the lease alive.
    gate: Arc<Gate>,
    orders: mpsc::Receiver<Order>,
    /// A suspension before its `SwapOut`.
    draining: Option<Drain>,
    course: Course,
    coming: JoinSet<(Errand, Arrival)>,
    /// Segments that are coming back, with the ticket of a second notice where there was one.
    again: BTreeMap<SegmentId, Option<Ticket>>,
    /// Where segments go that are to be got ready for a swap.
    preparing: mpsc::UnboundedSender<Weak<Body>>,
    one_by_one: Arc<Semaphore>,
    idleness: Idleness,
}

/// Which way the lease's memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Here,
    Out(Absence),
    /// Guards pass once all of it is back, or when the broker says so.
    Back(Absence, Opening),
}

/// What opens the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// `Resumed`, on the stream of who asked.
    Word,
    /// The last segment: the suspension was cancelled, and nobody asks.
    LastSegment,
}

/// What the broker was told of guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idleness {
    /// Nothing can move, so that nobody wants to know.
    Unknown,
    Busy,
    Idle,
}

impl Mover {
    async fn work(mut self) {
        loop {
            let idle_in = self.idle_in();
            tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => self.obey(order).await,
                    None => return,
                },
                () = step(&mut self.draining) => self.draining = None,
                Some(arrived) = self.coming.join_next() => self.arrived(arrived.ok()).await,
                () = watch(&self.gate, self.idleness, idle_in) => self.tell_idleness().await,
            }
        }
    }

    async fn obey(&mut self, order: Order) {
        let Some(lease) = self.lease.upgrade() else { return };
        match order {
            Order::Suspend(within) => self.suspend(&lease, within),
            Order::SwapOut => self.swap_out(&lease).await,
            Order::Cancelled(message) => {
                tracing::info!(lease = %lease.id(), message, "gpulease: a suspension is cancelled");
                self.cancelled(&lease);
            }
            Order::Whole => self.cancelled(&lease),
            Order::Back(segment, ticket) => self.back(&lease, segment, ticket).await,
            Order::Pinned => {
                let bodies = lease.bodies();
                let pinned = spawn_blocking(move || bodies.iter().for_each(|body| body.pin()));
                // An error means that unmapping panicked, which is said on standard error.
                let _ = pinned.await;
            }
            Order::Landed(body) => self.landed(&lease, body).await,
        }
    }

    fn suspend(&mut self, lease: &Arc<LeaseState>, within: Duration) {
        if lease.bodies().iter().any(|body| body.is_away()) {
            return; // It is suspended: the broker's own word of that has crossed.
        }
        // Nobody has to copy what nobody needs. Unmapping waits for the device, so not here.
        let spare = lease.spares().give_up_all();
        spawn_blocking(move || drop(spare));
        // All may be back, and the word that guards may pass still on its way: then it leaves again at once.
        lease.gate().close();
        lease.gate().resume_leaving();
        self.course = Course::Here;
        self.draining = Some(Box::pin(drain(Arc::clone(lease), within)));
    }

    async fn swap_out(&mut self, lease: &Arc<LeaseState>) {
        self.draining = None;
        let Some(absence) = lease.gate().depart() else {
            let why = "its guards were let in again, since the word to swap out came too late".to_owned();
            return lease.session().report_surely(lease.key(), &News::SwapFailed(why)).await;
        };
        self.course = Course::Out(absence);
        let (mut leaving, mut failed) = (JoinSet::new(), None);
        for body in lease.bodies() {
            if leaving.len() == MOVING {
                failed = failed.or(left(leaving.join_next().await));
            }
            if failed.is_some() {
                break;
            }
            leaving.spawn(leave(Arc::clone(lease), body));
        }
        while let Some(gone) = leaving.join_next().await {
            failed = failed.or(left(Some(gone)));
        }
        if let Some(why) = failed {
            lease.session().report_surely(lease.key(), &News::SwapFailed(why)).await;
        }
    }

    /// The suspension is off. What is out comes back by itself, and then the gate opens.
    fn cancelled(&mut self, lease: &Arc<LeaseState>) {
        self.draining = None;
        lease.gate().reopen();
        if let (Presence::Away, absence) = lease.gate().absence() {
            self.course = Course::Back(absence, Opening::LastSegment);
            self.open_when_whole(lease);
        }
    }

    async fn back(&mut self, lease: &Arc<LeaseState>, segment: SegmentId, ticket: Ticket) {
        let (presence, absence) = lease.gate().absence();
        if presence == Presence::Away && !matches!(self.course, Course::Back(..)) {
            self.course = Course::Back(absence, Opening::Word);
        }
        if let Some(again) = self.again.get_mut(&segment) {
            *again = Some(ticket);
            return;
        }
        let bodies = lease.bodies();
        let Some(body) = bodies.into_iter().find(|body| body.id() == segment) else { return };
        if !body.is_away() {
            // The first report was lost.
            return lease.session().report_surely(lease.key(), &News::Restored(segment)).await;
        }
        self.fetch(&body, Errand::new(segment, ticket));
    }

    fn fetch(&mut self, body: &Arc<Body>, errand: Errand) {
        self.again.insert(errand.segment, None);
        let (lease, body, turn) = (self.lease.clone(), Arc::downgrade(body), Arc::clone(&self.one_by_one));
        self.coming.spawn(async move { (errand, errand.run(lease, body, turn).await) });
    }

    /// What was not handed over, since the broker stood still or somebody had no descriptors left, is claimed again.
    fn fetch_again(&mut self, lease: &Arc<LeaseState>, errand: Errand) {
        let is_due = matches!(self.course, Course::Back(..)) && matches!(lease.standing(), Standing::Active);
        let body = lease.bodies().into_iter().find(|body| body.id() == errand.segment);
        if let Some(body) = body.filter(|body| is_due && body.is_away()) {
            self.fetch(&body, errand);
        }
    }

    async fn arrived(&mut self, arrived: Option<(Errand, Arrival)>) {
        // `None` where the task panicked, which is said on standard error.
        let (Some((errand, arrival)), Some(lease)) = (arrived, self.lease.upgrade()) else { return };
        let segment = errand.segment;
        let again = self.again.remove(&segment).flatten();
        match arrival {
            Arrival::Restored => self.open_when_whole(&lease),
            Arrival::NotHandedOver(error) => {
                let errand = errand.again();
                let pause = errand.pause;
                tracing::warn!(%error, %segment, "gpulease: a segment was not handed over; again in {pause:?}");
                if again.is_none() {
                    self.fetch_again(&lease, errand);
                }
            }
            Arrival::Failed(error) => {
                let why = error.to_string();
                tracing::error!(lease = %lease.id(), why, "gpulease: memory that was swapped out is lost");
                lease.lost_bytes(why.clone());
                lease.session().report_surely(lease.key(), &News::SwapFailed(why)).await;
            }
        }
        // Noticed once more meanwhile: since the first ticket was void, or since it has left again and is back.
        if let Some(ticket) = again {
            self.back(&lease, segment, ticket).await;
        }
    }

    fn open_when_whole(&mut self, lease: &Arc<LeaseState>) {
        if let Course::Back(absence, Opening::LastSegment) = self.course
            && lease.come_back(absence)
        {
            self.course = Course::Here;
        }
    }

    async fn landed(&mut self, lease: &Arc<LeaseState>, body: Weak<Body>) {
        if self.idleness == Idleness::Unknown {
            self.idleness = Idleness::Busy;
        }
        let (Some(landed), out_now) = (body.upgrade(), self.course) else { return };
        if let (Course::Out(absence), (Presence::Away, now)) = (out_now, lease.gate().absence())
            && absence == now
        {
            // It was on its way here when the others left.
            if let Err(why) = leave(Arc::clone(lease), landed).await {
                lease.session().report_surely(lease.key(), &News::SwapFailed(why)).await;
            }
            return;
        }
        // It listens for as long as there is this.
        let _ = self.preparing.send(body);
    }

    /// When the lease will have been without a guard for long enough to say so.
    fn idle_in(&self) -> Option<Instant> {
        if self.idleness != Idleness::Busy {
            return None;
        }
        let lease = self.lease.upgrade()?;
        let (after, quiet) = (lease.session().idle_after?, self.gate.quiet_for());
        Some(Instant::now() + after.saturating_sub(quiet.unwrap_or_default()))
    }

    async fn tell_idleness(&mut self) {
        let Some(lease) = self.lease.upgrade() else { return };
        let (news, idleness) = match self.idleness {
            Idleness::Busy => match lease.session().idle_after.and_then(|after| self.gate.fall_idle(after)) {
                Some(quiet) => (News::Idle(quiet), Idleness::Idle),
                None => return,
            },
            Idleness::Idle => (News::Busy, Idleness::Busy),
            Idleness::Unknown => return,
        };
        self.idleness = idleness;
        // Of use now or never, so that it is not said again to a broker that comes back.
        if let Err(error) = lease.session().report(lease.key(), &news).await {
            tracing::debug!(%error, "gpulease: the broker does not take a report");
        }
    }
}

/// Runs what is under way, or waits for ever.
async fn step(draining: &mut Option<Drain>) {
    match draining {
        Some(drain) => drain.await,
        None => std::future::pending().await,
    }
}

/// Until there is something to say of the lease's guards.
async fn watch(gate: &Gate, idleness: Idleness, idle_in: Option<Instant>) {
    match (idleness, idle_in) {
        (Idleness::Busy, Some(then)) => sleep_until(then).await,
        (Idleness::Idle, _) => gate.disturbed().await,
        (Idleness::Busy | Idleness::Unknown, _) => std::future::pending().await,
    }
}
