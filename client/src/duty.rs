//! What has to be told to the broker although nobody waits for the answer.

use gpulease_proto::v1;
use gpulease_words::{Bytes, Reason, SegmentId};

use crate::debts::Owed;
use crate::engine::Share;
use crate::error::{AskError, Error};
use crate::leases::{Epoch, LeaseKey};
use crate::session::{Jobs, Session};

/// Something given back by `Drop`, or an ask that was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Duty {
    Release(LeaseKey),
    Free(LeaseKey, SegmentId),
    /// The ask with this name.
    Withdraw(Epoch, u64),
}

impl Duty {
    /// Does it on the library's thread, which stays for it. Asks put after this wait until it is done.
    pub(crate) fn discharge(self, session: &Share<Session>) {
        self.discharge_of(session, Owed::Else);
    }

    /// As [`Self::discharge`], where it is known what the broker is to have back.
    pub(crate) fn discharge_of(self, session: &Share<Session>, owed: Owed) {
        let (session, debt) = (session.clone(), session.debts.incur(owed));
        let handle = session.engine.handle().clone();
        handle.spawn(async move {
            self.perform(&session).await;
            drop(debt);
        });
    }

    /// As long as it takes, since a broker that comes back with its records still has the bytes charged.
    pub(crate) async fn perform(self, session: &Session) {
        loop {
            match self.attempt(session).await {
                Ok(()) => return,
                Err(AskError::Failed(Error::Gone { .. } | Error::Silent { .. })) => {}
                Err(AskError::Failed(error)) => return session.keep(error),
                Err(AskError::Denied(denied)) => return session.keep(Error::Refused(denied)),
            }
        }
    }

    async fn attempt(self, session: &Session) -> Result<(), AskError> {
        let result = match self {
            Self::Release(lease) => session.release(lease).await.map(drop),
            Self::Free(lease, segment) => session.free(lease, segment).await,
            Self::Withdraw(epoch, name) => session.withdraw(epoch, name).await.map_err(AskError::Failed),
        };
        match result {
            // Gone already, in whatever way, or to go with this process: nothing is owed.
            Err(AskError::Failed(Error::Lost { .. } | Error::Parted)) => Ok(()),
            Err(AskError::Denied(denied))
                if matches!(denied.reason, Reason::NoSuchLease | Reason::NoSuchSegment | Reason::Ending) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

impl Session {
    /// Gives a lease back; returns what still drains.
    pub(crate) async fn release(&self, lease: LeaseKey) -> Result<Bytes, AskError> {
        let call = |mut jobs: Jobs, session| async move {
            jobs.release(v1::ReleaseRequest { session: Some(session), lease_id: lease.id.get() }).await
        };
        let reply = self.request("a release", Some(lease), call).await?;
        match reply.denied {
            Some(denied) => Err(AskError::refused(denied)),
            None => Ok(Bytes::new(reply.draining_bytes)),
        }
    }

    /// Gives a segment back that is not mapped any more.
    pub(crate) async fn free(&self, lease: LeaseKey, segment: SegmentId) -> Result<(), AskError> {
        let call = |mut jobs: Jobs, session| async move {
            let (lease_id, segment_id) = (lease.id.get(), segment.get());
            jobs.free(v1::FreeRequest { session: Some(session), lease_id, segment_id }).await
        };
        let reply = self.request("a free", Some(lease), call).await?;
        reply.denied.map_or(Ok(()), |denied| Err(AskError::refused(denied)))
    }

    /// Withdraws an ask of this session; one that is over has none.
    pub(crate) async fn withdraw(&self, epoch: Epoch, ask_name: u64) -> Result<(), Error> {
        if self.pass().await?.epoch != epoch {
            return Ok(());
        }
        let call = |mut jobs: Jobs, session| async move {
            jobs.withdraw(v1::WithdrawRequest { session: Some(session), ask_name }).await
        };
        self.request("a withdrawal", None, call).await.map(drop)
    }
}
