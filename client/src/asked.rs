//! An ask for a segment, on its way.

use gpulease_proto::v1::{self, allocate_reply::Outcome};
use gpulease_words::SegmentId;
use tonic::{Response, Status};

use crate::duty::Duty;
use crate::leases::LeaseKey;
use crate::link::Slot;
use crate::named::{Call, End, Pending};
use crate::reply::passing;
use crate::session::Jobs;

/// An allocate on its way. It can be waited for after the future that asked is gone.
pub(crate) struct Asked {
    lease: LeaseKey,
    /// `None` once it is answered.
    call: Option<Call<Result<Response<v1::AllocateReply>, Status>>>,
    _slot: Option<Slot>,
}

impl Asked {
    pub(crate) fn new(
        lease: LeaseKey,
        mut jobs: Jobs,
        slot: Option<Slot>,
        request: v1::AllocateRequest,
    ) -> Self {
        let call: Call<_> = Box::pin(async move { jobs.allocate(request).await });
        Self { lease, call: Some(call), _slot: slot }
    }

    /// The answer. Dropping the future loses nothing.
    pub(crate) async fn outcome(&mut self) -> Result<Option<Outcome>, Status> {
        let Some(call) = &mut self.call else { return Ok(None) };
        let answer = call.await;
        self.call = None;
        Ok(answer?.into_inner().outcome)
    }
}

impl Pending for Asked {
    async fn end(mut self) -> End {
        match self.outcome().await {
            Ok(Some(Outcome::Allocated(allocated))) => {
                End::Brought(Duty::Free(self.lease, SegmentId::new(allocated.segment_id)))
            }
            Ok(Some(Outcome::Denied(denied))) if passing(&denied).is_none() => End::Nothing,
            Ok(Some(Outcome::Denied(_)) | None) | Err(_) => End::Unknown,
        }
    }
}
