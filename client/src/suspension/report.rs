//! What the broker is told of a suspension.

use std::time::Duration;

use gpulease_proto::v1::{self, report_request};
use gpulease_words::SegmentId;

use crate::error::{AskError, Error};
use crate::leases::LeaseKey;
use crate::session::{Jobs, Session};

/// Something that happened here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The guards are gone and the devices have done their work.
    Drained,
    /// The segment is in its host copy.
    SwappedOut(SegmentId),
    /// It could not be done; why.
    SwapFailed(String),
    /// The segment is back with its bytes.
    Restored(SegmentId),
    /// No guard for so long.
    Idle(Duration),
    /// A guard again.
    Busy,
}

impl Session {
    /// Tells it once, over as many connections as that takes within the session's patience.
    pub(crate) async fn report(&self, lease: LeaseKey, news: &News) -> Result<(), AskError> {
        let call = |mut jobs: Jobs, session| {
            let news = Some(news.clone().into());
            let request = v1::ReportRequest { session: Some(session), lease_id: lease.id.get(), news };
            async move { jobs.report(request).await }
        };
        let reply = self.request("a report", Some(lease), call).await?;
        reply.denied.map_or(Ok(()), |denied| Err(AskError::refused(denied)))
    }

    /// Tells it however long the broker is away: one that comes back with its records waits for it. What it refuses, or
    /// does not know any more, is told.
    pub(crate) async fn report_surely(&self, lease: LeaseKey, news: &News) {
        loop {
            match self.report(lease, news).await {
                Ok(()) => return,
                Err(AskError::Failed(Error::Gone { .. } | Error::Silent { .. })) => {}
                Err(error) => {
                    tracing::debug!(%error, ?news, "gpulease: the broker does not take a report");
                    return;
                }
            }
        }
    }
}

impl From<News> for report_request::News {
    fn from(news: News) -> Self {
        match news {
            News::Drained => Self::Drained(v1::Nothing {}),
            News::SwappedOut(segment) => Self::SwappedOutSegmentId(segment.get()),
            News::SwapFailed(why) => Self::SwapFailed(why),
            News::Restored(segment) => Self::RestoredSegmentId(segment.get()),
            News::Idle(quiet) => Self::IdleForMs(u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX)),
            News::Busy => Self::Busy(v1::Nothing {}),
        }
    }
}
