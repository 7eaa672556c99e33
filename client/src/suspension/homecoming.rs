//! Asking for the memory of a suspended lease, and waiting for it.

use gpulease_proto::v1::{self, resume_update::Update};
use tokio::sync::Mutex;
use tonic::{Response, Status, Streaming};

use crate::error::{AskError, Error};
use crate::gate::{Absence, Presence};
use crate::lease_state::LeaseState;
use crate::link::{Slot, Trouble};
use crate::named::Unanswered;
use crate::session::Patience;
use crate::waiting::Waiting;

const REQUEST: &str = "a resume";

/// One asks, and the others of this process wait for him: the broker gets one wish a lease.
#[derive(Debug, Default)]
pub(crate) struct Homecoming(Mutex<()>);

/// How one asking ended.
enum End {
    Resumed,
    /// In whatever way, the memory is not away any more, or is lost.
    Over,
}

impl LeaseState {
    /// Returns when this absence is over: the memory is here again, or lost. Dropping the future stops the wait, and
    /// not the wish.
    pub(crate) async fn bring_home(
        &self,
        absence: Absence,
        on_waiting: &mut (dyn FnMut(&Waiting) + Send),
    ) -> Result<(), Error> {
        let _asking = tokio::select! {
            () = self.gate().over(absence) => return Ok(()),
            asking = self.homecoming().0.lock() => asking,
        };
        let mut patience = Patience::new(self.session());
        while self.gate().absence() == (Presence::Away, absence) {
            match self.ask(Some(absence), &mut patience, on_waiting).await {
                Ok(End::Resumed) if self.come_back(absence) => return Ok(()),
                Ok(End::Over) => return Ok(()),
                Ok(End::Resumed) => {
                    let why = "it said that the memory is back, and not all of it is".to_owned();
                    patience.after(Trouble::Broken(why)).await?;
                }
                Err(Unanswered::Denied(denied)) => return Err(refused(denied)),
                Err(Unanswered::Trouble(trouble)) => patience.after(trouble).await?,
            }
        }
        Ok(())
    }

    /// As [`Self::bring_home`], for a process that holds no memory of the lease and so was never told to let it go.
    pub(crate) async fn bring_others_home(&self) -> Result<(), Error> {
        let mut patience = Patience::new(self.session());
        loop {
            match self.ask(None, &mut patience, &mut |_| {}).await {
                Ok(End::Resumed | End::Over) => return Ok(()),
                Err(Unanswered::Denied(denied)) => return Err(refused(denied)),
                Err(Unanswered::Trouble(trouble)) => patience.after(trouble).await?,
            }
        }
    }

    /// Asks once and follows the answer, until this absence is over.
    async fn ask(
        &self,
        absence: Option<Absence>,
        patience: &mut Patience<'_>,
        on_waiting: &mut (dyn FnMut(&Waiting) + Send),
    ) -> Result<End, Unanswered> {
        let session = self.session();
        let pass = session.pass_for(self.key()).await.map_err(Unanswered::failed)?;
        let slot = session.link.slot();
        let request = v1::ResumeRequest { session: Some(pass.reference), lease_id: self.id().get() };
        let opened = session.engine.within(session.wait(), open(&slot, request)).await;
        let opened = opened.map_err(|_| Unanswered::failed(session.silent(REQUEST)))?;
        let mut updates = opened.map_err(|status| Unanswered::from_status(REQUEST, &status))?.into_inner();
        loop {
            // In this order, so that the end of it is not taken for a broken stream.
            let update = tokio::select! {
                biased;
                () = self.over(absence) => return Ok(End::Over),
                update = updates.message() => update,
            };
            match update.map_err(|status| Unanswered::from_status(REQUEST, &status))?.and_then(|u| u.update) {
                Some(Update::Waiting(waiting)) => {
                    patience.restored();
                    on_waiting(&Waiting::from(waiting));
                }
                Some(Update::Resumed(_)) => return Ok(End::Resumed),
                Some(Update::Denied(denied)) => return Err(Unanswered::from_denied(denied)),
                None => {
                    let why = "it ended the wait without an answer".to_owned();
                    return Err(Unanswered::Trouble(Trouble::Broken(why)));
                }
            }
        }
    }

    async fn over(&self, absence: Option<Absence>) {
        match absence {
            Some(absence) => self.gate().over(absence).await,
            None => std::future::pending().await,
        }
    }
}

fn refused(denied: v1::Denied) -> Error {
    match AskError::refused(denied) {
        AskError::Denied(denied) => Error::Refused(denied),
        AskError::Failed(error) => error,
    }
}

async fn open(
    slot: &Slot,
    request: v1::ResumeRequest,
) -> Result<Response<Streaming<v1::ResumeUpdate>>, Status> {
    slot.jobs().resume(request).await
}
