//! Asking for a lease.

use std::fmt;
use std::time::{Duration, Instant};

use gpulease_proto::v1::acquire_request::Devices;
use gpulease_proto::v1::acquire_update::Update;
use gpulease_proto::v1::{self, wait_policy::Policy};
use gpulease_words::{Bytes, DeviceId, LeaseId, Uid};

use crate::client::Client;
use crate::error::{AcquireError, AskError, Error};
use crate::keeper::Pass;
use crate::lease::Lease;
use crate::lease_state::Terms;
use crate::link::Trouble;
use crate::named::{Named, Unanswered};
use crate::session::Patience;
use crate::token::Token;
use crate::updates::Updates;
use crate::waiting::Waiting;

/// An ask for a lease, put by [`Self::acquire`].
///
/// Where nothing else is said it is for any one device, may grow to its reserve and no further, and
/// waits without end.
#[must_use = "an ask is put by `acquire`"]
pub struct LeaseBuilder<'a> {
    client: &'a Client,
    reserve: Bytes,
    limit: Option<Bytes>,
    name: String,
    devices: Devices,
    wait: Wait,
    pinned: bool,
    guest: Option<Uid>,
    on_waiting: Box<dyn FnMut(&Waiting) + Send + 'a>,
}

/// How long an ask waits where there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Never,
    Until(Instant),
    Forever,
}

impl Wait {
    /// At most so long from now on; past what a clock can count it is for ever.
    pub(crate) fn at_most(wait: Duration) -> Self {
        Instant::now().checked_add(wait).map_or(Self::Forever, Self::Until)
    }

    pub(crate) fn policy(self) -> v1::WaitPolicy {
        let policy = match self {
            Self::Never => Policy::NoWait(true),
            Self::Until(end) => {
                let left = end.saturating_duration_since(Instant::now()).as_millis();
                Policy::AtMostMs(u64::try_from(left).unwrap_or(u64::MAX))
            }
            Self::Forever => Policy::Forever(true),
        };
        v1::WaitPolicy { policy: Some(policy) }
    }

    /// When it is over; `None`: never.
    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            Self::Never => Some(Instant::now()),
            Self::Until(end) => Some(end),
            Self::Forever => None,
        }
    }

    /// When an answer is overdue, where the broker takes so long to give one.
    pub(crate) fn answer_within(self, broker: Duration) -> Option<Duration> {
        match self {
            Self::Never => Some(broker),
            Self::Until(end) => Some(end.saturating_duration_since(Instant::now()).saturating_add(broker)),
            Self::Forever => None,
        }
    }
}

impl<'a> LeaseBuilder<'a> {
    pub(crate) fn new(client: &'a Client, reserve: Bytes) -> Self {
        Self {
            client,
            reserve,
            limit: None,
            name: String::new(),
            devices: Devices::AnyDevices(1),
            wait: Wait::Forever,
            pinned: false,
            guest: None,
            on_waiting: Box::new(|_| {}),
        }
    }

    /// How far the lease may grow on each device, as long as there is room; the reserve where
    /// nothing is said.
    pub fn up_to(self, limit: Bytes) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Its name, for people, which is also that of its job account; the program's where nothing is said.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// On each of these devices, on all or on none.
    pub fn on_devices(self, devices: impl IntoIterator<Item = DeviceId>) -> Self {
        let indices = devices.into_iter().map(DeviceId::get).collect();
        Self { devices: Devices::TheseDevices(v1::DeviceList { indices }), ..self }
    }

    /// On any so many devices, on all or on none.
    pub fn gpus(self, count: u32) -> Self {
        Self { devices: Devices::AnyDevices(count), ..self }
    }

    /// Wait at most so long, from this call on.
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self { wait: Wait::at_most(wait), ..self }
    }

    /// Be refused at once where there is no room.
    pub fn no_wait(self) -> Self {
        Self { wait: Wait::Never, ..self }
    }

    /// Wait until granted or refused for good (the default). Dropping the future of
    /// [`Self::acquire`] withdraws the ask.
    pub fn wait_forever(self) -> Self {
        Self { wait: Wait::Forever, ..self }
    }

    /// Never to be suspended.
    pub fn pinned(self) -> Self {
        Self { pinned: true, ..self }
    }

    /// Let processes of this other user join with the token.
    pub fn guest(self, uid: Uid) -> Self {
        Self { guest: Some(uid), ..self }
    }

    /// Called with each update while the ask waits.
    pub fn on_waiting(self, update: impl FnMut(&Waiting) + Send + 'a) -> Self {
        Self { on_waiting: Box::new(update), ..self }
    }

    /// Puts the ask and waits for its answer.
    ///
    /// Where the broker goes away meanwhile, the ask is put again when it is back, and keeps its
    /// place in the line if the broker still knows it.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the ask; a grant that crosses is given back.
    ///
    /// # Errors
    /// [`AskError::Denied`] with its reason: over budget, too large, no room in time, and others.
    /// [`AskError::Failed`] where the broker went away for longer than the client waits for it, or
    /// does not answer.
    pub async fn acquire(mut self) -> Result<Lease, AcquireError> {
        let session = self.client.session();
        session.settle().await?;
        let mut patience = Patience::new(session);
        let mut ask = Named::new(session);
        loop {
            let pass = session.pass().await?;
            let request = self.request(&pass, ask.name);
            ask.put(pass.epoch, Updates::open(pass.epoch, session.link.slot(), request));
            match self.answer(ask.pending(), &mut patience).await {
                Ok(terms) => {
                    let lease = Lease::granted(session, pass.epoch, terms);
                    ask.settle().into_iter().for_each(|updates| updates.read_to_end(session));
                    return Ok(lease);
                }
                Err(Unanswered::Denied(denied)) => {
                    ask.settle();
                    return Err(AskError::refused(denied));
                }
                Err(Unanswered::Trouble(trouble)) => {
                    if matches!(trouble, Trouble::Broken(_)) {
                        ask.cut_off();
                    }
                    patience.after(trouble).await?;
                }
            }
        }
    }

    /// Follows the ask, put once, to its answer.
    async fn answer(
        &mut self,
        updates: &mut Updates,
        patience: &mut Patience<'_>,
    ) -> Result<Terms, Unanswered> {
        let session = self.client.session();
        // The first update says that the ask has arrived, and is owed at once.
        let mut within = Some(session.wait());
        loop {
            match updates.next_within(session, within).await? {
                Some(Update::Waiting(waiting)) => {
                    patience.restored();
                    (self.on_waiting)(&waiting.into());
                }
                Some(Update::Granted(granted)) => return self.terms(granted).map_err(Unanswered::failed),
                Some(Update::Denied(denied)) => return Err(Unanswered::from_denied(denied)),
                None => {
                    return Err(Unanswered::Trouble(Trouble::Broken("it ended the ask's stream".to_owned())));
                }
            }
            within = self.wait.answer_within(session.wait());
        }
    }

    fn request(&self, pass: &Pass, name: u64) -> v1::AcquireRequest {
        v1::AcquireRequest {
            session: Some(pass.reference.clone()),
            ask_name: name,
            name: self.name.clone(),
            reserve_bytes: self.reserve.get(),
            limit_bytes: self.limit.unwrap_or(self.reserve).get(),
            devices: Some(self.devices.clone()),
            wait: Some(self.wait.policy()),
            pinned: self.pinned,
            guest_uid: self.guest.map(Uid::get),
        }
    }

    fn terms(&self, granted: v1::Granted) -> Result<Terms, Error> {
        let token = Token::try_from(granted.token.as_ref());
        Ok(Terms {
            id: LeaseId::new(granted.lease_id),
            name: self.name.clone(),
            devices: granted.device_indices.into_iter().map(DeviceId::new).collect(),
            token: token.map_err(|error| Error::Protocol(format!("a grant without a token: {error}")))?,
            reserve: Bytes::new(granted.reserve_bytes),
            limit: Bytes::new(granted.limit_bytes),
            waited: Duration::from_millis(granted.waited_ms),
        })
    }
}

impl fmt::Debug for LeaseBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseBuilder")
            .field("reserve", &self.reserve)
            .field("limit", &self.limit)
            .field("name", &self.name)
            .field("devices", &self.devices)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
