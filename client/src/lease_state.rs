//! What all handles and segments of one lease share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, LeaseId};
use tokio::sync::broadcast::{self, Receiver, Sender};

use crate::engine::Share;
use crate::lease::Standing;
use crate::leases::{Epoch, LeaseKey};
use crate::presence::Presence;
use crate::pressure::{NOTICES_KEPT, Recall};
use crate::resident::Gate;
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
    gate: Gate,
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
            gate: Gate::new(),
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

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
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

    pub(crate) fn recalled(&self, notice: &v1::RecallNotice) {
        let now = Instant::now();
        let recall = Recall {
            device: DeviceId::new(notice.device_index),
            bytes: Bytes::new(notice.bytes),
            deadline: now.checked_add(Duration::from_millis(notice.deadline_in_ms)).unwrap_or(now + LONG),
        };
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
