//! What all handles and segments of one lease share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, LeaseId, Reason, SegmentId};
use tokio::sync::broadcast::{self, Receiver, Sender};

use crate::engine::Share;
use crate::error::{AskError, Denied, Error};
use crate::gate::{Absence, Gate};
use crate::lease::Standing;
use crate::leases::{Epoch, LeaseKey};
use crate::presence::Presence;
use crate::pressure::{NOTICES_KEPT, Recall};
use crate::segment::Segment;
use crate::session::Jobs;
use crate::spares::Spares;
use crate::suspension::{Body, Homecoming, Order, Orders};
use crate::token::Token;

/// A deadline beyond what a clock can count is none: ten years.
const LONG: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What the broker granted.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) id: LeaseId,
    pub(crate) name: String,
    pub(crate) devices: Vec<DeviceId>,
    pub(crate) token: Token,
    pub(crate) reserve: Bytes,
    pub(crate) limit: Bytes,
    pub(crate) waited: Duration,
}

/// What all handles and segments of one lease share.
#[derive(Debug)]
pub(crate) struct LeaseState {
    session: Share<Presence>,
    epoch: Epoch,
    terms: Terms,
    /// Reserve and limit, which a resize changes.
    sizes: Mutex<(Bytes, Bytes)>,
    gate: Arc<Gate>,
    /// What it has mapped here, by segment.
    bodies: Mutex<BTreeMap<SegmentId, Weak<Body>>>,
    orders: OnceLock<Orders>,
    homecoming: Homecoming,
    spares: Spares,
    /// Whether this process had it pinned for the sake of the preload library.
    pinned: AtomicBool,
    /// Why its memory could not be brought back.
    broken: Mutex<Option<String>>,
    standing: Mutex<Standing>,
    /// `None` once no notice can come any more.
    notices: Mutex<Option<Sender<Recall>>>,
}

impl LeaseState {
    /// The state of this lease: a new one, or the one that this process has already.
    pub(crate) fn admit(session: &Share<Presence>, epoch: Epoch, terms: Terms) -> Share<Self> {
        let state = Self {
            session: session.clone(),
            epoch,
            sizes: Mutex::new((terms.reserve, terms.limit)),
            terms,
            gate: Arc::new(Gate::new()),
            bodies: Mutex::default(),
            orders: OnceLock::new(),
            homecoming: Homecoming::default(),
            spares: Spares::default(),
            pinned: AtomicBool::new(false),
            broken: Mutex::default(),
            standing: Mutex::new(Standing::Active),
            notices: Mutex::new(Some(Sender::new(NOTICES_KEPT))),
        };
        Share::new(session.leases.admit(state))
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.terms.id
    }

    pub(crate) fn key(&self) -> LeaseKey {
        LeaseKey { epoch: self.epoch, id: self.terms.id }
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn session(&self) -> &Share<Presence> {
        &self.session
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(crate) fn homecoming(&self) -> &Homecoming {
        &self.homecoming
    }

    pub(crate) fn spares(&self) -> &Spares {
        &self.spares
    }

    /// What the lease has mapped here.
    pub(crate) fn bodies(&self) -> Vec<Arc<Body>> {
        lock(&self.bodies).values().filter_map(Weak::upgrade).collect()
    }

    /// A segment is mapped here from now on.
    pub(crate) fn add_body(&self, body: &Arc<Body>) {
        lock(&self.bodies).insert(body.id(), Arc::downgrade(body));
    }

    /// A segment is gone.
    pub(crate) fn remove_body(&self, segment: SegmentId) {
        lock(&self.bodies).remove(&segment);
    }

    /// Something to do about a suspension of it.
    pub(crate) fn order(self: &Arc<Self>, order: Order) {
        self.orders.get_or_init(|| Orders::start(self)).give(order);
    }

    /// As [`Self::order`], where it was ever suspended or could be.
    pub(crate) fn order_if_movable(&self, order: Order) {
        if let Some(orders) = self.orders.get() {
            orders.give(order);
        }
    }

    /// Lets guards pass after this absence, where all the memory is here again; says whether it is.
    pub(crate) fn come_back(&self, absence: Absence) -> bool {
        let whole = !self.bodies().iter().any(|body| body.is_away());
        if whole {
            self.gate.come_back(absence);
        }
        whole
    }

    /// The memory can't be brought back, for this reason.
    pub(crate) fn lost_bytes(&self, why: String) {
        lock(&self.broken).get_or_insert(why);
        self.gate.lose();
    }

    /// Why nobody can enter any more.
    pub(crate) fn loss(&self) -> Error {
        let lease = self.id();
        match (lock(&self.broken).clone(), self.standing()) {
            (Some(why), _) => Error::BytesLost { lease, why },
            (None, Standing::Ended { message, .. }) => {
                Error::Refused(Denied { reason: Reason::Ending, message })
            }
            (None, Standing::Active | Standing::Lost) => Error::Lost { lease },
        }
    }

    /// Asks the broker never to suspend it.
    pub(crate) async fn pin(&self) -> Result<(), AskError> {
        let key = self.key();
        let call = |mut jobs: Jobs, session| async move {
            jobs.pin(v1::PinRequest { session: Some(session), lease_id: key.id.get() }).await
        };
        let reply = self.session.request("a pin", Some(key), call).await?;
        reply.denied.map_or(Ok(()), |denied| Err(AskError::refused(denied)))
    }

    /// The same, unless it was done.
    pub(crate) async fn pin_once(&self) -> Result<(), AskError> {
        if !self.pinned.load(Ordering::Relaxed) {
            self.pin().await?;
            self.pinned.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.session.is_forked()
    }

    /// Reserve and limit.
    pub(crate) fn sizes(&self) -> (Bytes, Bytes) {
        *lock(&self.sizes)
    }

    pub(crate) fn resized(&self, reserve: Bytes, limit: Bytes) {
        *lock(&self.sizes) = (reserve, limit);
    }

    pub(crate) fn standing(&self) -> Standing {
        lock(&self.standing).clone()
    }

    /// Notices from now on; a channel that is closed already where none can come.
    pub(crate) fn notices(&self) -> Receiver<Recall> {
        lock(&self.notices).as_ref().map_or_else(|| broadcast::channel(1).1, Sender::subscribe)
    }

    /// Gives back what is spare, and tells the program of the rest.
    pub(crate) fn recalled(&self, notice: &v1::RecallNotice) {
        let (now, device) = (Instant::now(), DeviceId::new(notice.device_index));
        let asked = Bytes::new(notice.bytes);
        let spare = self.spares.give_up(device, asked);
        let bytes = asked.saturating_sub(spare.iter().map(Segment::bytes).sum());
        // Off the library's thread: unmapping waits for the device.
        self.session.engine.handle().spawn_blocking(move || drop(spare));
        if bytes.is_zero() {
            return;
        }
        let deadline = now.checked_add(Duration::from_millis(notice.deadline_in_ms)).unwrap_or(now + LONG);
        let recall = Recall { device, bytes, deadline };
        if let Some(notices) = &*lock(&self.notices) {
            // An error means that nobody listens, which is the program's choice.
            let _ = notices.send(recall);
        }
    }

    pub(crate) fn ended(&self, notice: v1::LeaseEnded) {
        self.end(Standing::Ended { reason: notice.reason, message: notice.message });
    }

    pub(crate) fn lost(&self) {
        self.end(Standing::Lost);
    }

    fn end(&self, standing: Standing) {
        *lock(&self.standing) = standing;
        *lock(&self.notices) = None;
        // Nobody waits for it to leave any more, nor brings it back.
        self.gate.reopen();
        self.gate.lose();
    }
}

impl Drop for LeaseState {
    fn drop(&mut self) {
        self.session.leases.forget(self.key());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
