//! What the broker says to an ask for a lease, update by update.

use std::task::{Context, Waker};
use std::time::Duration;

use gpulease_proto::v1::{self, acquire_update::Update};
use gpulease_words::LeaseId;
use tonic::{Response, Status, Streaming};

use crate::duty::Duty;
use crate::leases::{Epoch, LeaseKey};
use crate::link::Slot;
use crate::named::{Call, End, Pending, Unanswered};
use crate::reply::passing;
use crate::session::Session;

pub(crate) const REQUEST: &str = "an acquire";

/// The updates of one ask. They can be read on after the future that asked for them is gone.
pub(crate) struct Updates {
    epoch: Epoch,
    state: Following,
    _slot: Slot,
}

enum Following {
    Opening(Call<Result<Response<Streaming<v1::AcquireUpdate>>, Status>>),
    Open(Box<Streaming<v1::AcquireUpdate>>),
    Over,
}

impl Updates {
    pub(crate) fn open(epoch: Epoch, slot: Slot, request: v1::AcquireRequest) -> Self {
        let mut jobs = slot.jobs();
        let call = async move { jobs.acquire(request).await };
        Self { epoch, state: Following::Opening(Box::pin(call)), _slot: slot }
    }

    /// The next update, `None` at the end. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Option<Update>, Status> {
        let next = self.read().await;
        if !matches!(next, Ok(Some(_))) {
            self.state = Following::Over;
        }
        Ok(next?.and_then(|update| update.update))
    }

    async fn read(&mut self) -> Result<Option<v1::AcquireUpdate>, Status> {
        loop {
            match &mut self.state {
                Following::Opening(call) => self.state = Following::Open(Box::new(call.await?.into_inner())),
                Following::Open(messages) => return messages.message().await,
                Following::Over => return Ok(None),
            }
        }
    }

    /// The next update; `within` is `None` where none is owed.
    pub(crate) async fn next_within(
        &mut self,
        session: &Session,
        within: Option<Duration>,
    ) -> Result<Option<Update>, Unanswered> {
        let update = match within {
            None => self.next().await,
            Some(within) => {
                let silent = |_| Unanswered::failed(session.silent(REQUEST));
                session.engine.within(within, self.next()).await.map_err(silent)?
            }
        };
        update.map_err(|status| Unanswered::from_status(REQUEST, &status))
    }

    /// A stream that is dropped before its end is a broken one to the broker, and a grant over a
    /// broken one is taken back before long unless the lease is used.
    pub(crate) fn read_to_end(self, session: &Session) {
        let mut rest = Box::pin(self.rest());
        // Mostly the end came along with the grant.
        if rest.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            session.engine.handle().spawn(rest);
        }
    }

    async fn rest(mut self) {
        while let Ok(Some(_)) = self.next().await {}
    }
}

impl Pending for Updates {
    async fn end(mut self) -> End {
        loop {
            match self.next().await {
                Ok(Some(Update::Waiting(_))) => {}
                Ok(Some(Update::Granted(granted))) => {
                    let key = LeaseKey { epoch: self.epoch, id: LeaseId::new(granted.lease_id) };
                    return End::Brought(Duty::Release(key));
                }
                Ok(Some(Update::Denied(denied))) if passing(&denied).is_none() => return End::Nothing,
                Ok(Some(Update::Denied(_)) | None) | Err(_) => return End::Unknown,
            }
        }
    }
}
