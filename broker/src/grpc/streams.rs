//! The two streams of a job: its session's, and that of an ask.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use gpulease_proto::refusal::refusal;
use gpulease_proto::v1;
use gpulease_proto::v1::session_message::Message;
use gpulease_proto::v1::{acquire_update, resume_update};
use gpulease_words::{AskId, Reason, SegmentId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::Stream;
use tonic::{Code, Status};

use super::encode::{denied, indices, millis};
use super::waiting::{self, Standing};
use super::{About, Services};
use crate::driver::{
    Ask, AskUpdate, Departure, Grant, LeaseSizes, LeaseStanding, Opened, Refusal, SessionNotice, StreamEnd,
    View,
};

/// Between two updates of one ask.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// A session's stream. The session is adrift when this is dropped.
#[derive(Debug)]
pub(crate) struct SessionStream {
    first: Option<v1::Opened>,
    notices: mpsc::Receiver<SessionNotice>,
    end: Option<oneshot::Receiver<StreamEnd>>,
    _departure: Departure,
}

impl SessionStream {
    pub(super) fn new(opened: Opened, about: &About) -> Self {
        let reference = v1::SessionRef {
            session_id: opened.session.get(),
            secret: opened.secret.bytes().to_vec().into(),
        };
        let first = v1::Opened {
            session: Some(reference),
            broker_version: env!("CARGO_PKG_VERSION").to_owned(),
            broker_pid: std::process::id(),
            handoff_socket: about.handoff.display().to_string(),
            devices: about.devices.clone(),
            unattended_grace_ms: millis(about.unattended_grace),
            adrift_grace_ms: millis(about.adrift_grace),
            idle_after_ms: millis(about.idle_after),
            standings: opened.standings.into_iter().map(standing).collect(),
            sizes: opened.sizes.into_iter().map(sizes).collect(),
        };
        Self {
            first: Some(first),
            notices: opened.notices,
            end: Some(opened.end),
            _departure: opened.departure,
        }
    }
}

impl Stream for SessionStream {
    type Item = Result<v1::SessionMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(message(Message::Opened(first)))));
        }
        if let Some(notice) = std::task::ready!(self.notices.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message(notice_message(notice)))));
        }
        let Some(end) = &mut self.end else {
            return Poll::Ready(None);
        };
        // The driver says why before it lets go of the notices; without a word it is gone itself.
        let why = std::task::ready!(Pin::new(end).poll(cx)).unwrap_or(StreamEnd::Stopping);
        self.end = None;
        Poll::Ready(last_word(why).map(Err))
    }
}

fn standing(standing: LeaseStanding) -> v1::LeaseStanding {
    v1::LeaseStanding {
        lease_id: standing.lease.get(),
        state: standing.state.word().to_owned(),
        away_segment_ids: standing.away.into_iter().map(SegmentId::get).collect(),
    }
}

fn sizes(sizes: LeaseSizes) -> v1::LeaseSizes {
    v1::LeaseSizes {
        lease_id: sizes.lease.get(),
        reserve_bytes: sizes.reserve.get(),
        limit_bytes: sizes.limit.get(),
    }
}

fn message(message: Message) -> v1::SessionMessage {
    v1::SessionMessage { message: Some(message) }
}

fn last_word(why: StreamEnd) -> Option<Status> {
    match why {
        StreamEnd::Closed => None,
        StreamEnd::Replaced => Some(Status::aborted("the session has a newer stream")),
        StreamEnd::Unread => Some(refusal(
            Code::ResourceExhausted,
            Reason::TooMany,
            "too many notices were left unread; rejoin the session, and read its stream",
        )),
        StreamEnd::Stopping => Some(super::status(&Refusal::Stopping)),
    }
}

fn notice_message(notice: SessionNotice) -> Message {
    match notice {
        SessionNotice::Recall { lease, device, bytes, within } => Message::Recall(v1::RecallNotice {
            lease_id: lease.get(),
            device_index: device.get(),
            bytes: bytes.get(),
            deadline_in_ms: millis(within),
        }),
        SessionNotice::Ended { lease, denial } => Message::LeaseEnded(v1::LeaseEnded {
            lease_id: lease.get(),
            reason: denial.reason().word().to_owned(),
            message: denial.to_string(),
        }),
        SessionNotice::Suspend { lease, within } => {
            Message::Suspend(v1::Suspend { lease_id: lease.get(), deadline_in_ms: millis(within) })
        }
        SessionNotice::SwapOut { lease } => Message::SwapOut(v1::SwapOut { lease_id: lease.get() }),
        SessionNotice::SuspendCancelled { lease, why } => {
            Message::SuspendCancelled(v1::SuspendCancelled { lease_id: lease.get(), message: why })
        }
        SessionNotice::SegmentBack { lease, segment, ticket } => Message::SegmentBack(v1::SegmentBack {
            lease_id: lease.get(),
            segment_id: segment.get(),
            ticket: ticket.bytes().to_vec().into(),
        }),
        SessionNotice::Pinned { lease } => Message::Pinned(v1::Pinned { lease_id: lease.get() }),
        SessionNotice::Resized(now) => Message::Resized(sizes(now)),
    }
}

/// What the stream of an ask carries: of one for a lease, or for the return of one.
pub(crate) trait Word: Send + Unpin + 'static {
    fn waiting(waiting: v1::Waiting) -> Self;
    fn denied(denied: v1::Denied) -> Self;
    /// What the ask came to; `None` where that is no answer to it.
    fn outcome(update: AskUpdate, services: &Services) -> Option<Self>
    where
        Self: Sized;
}

impl Word for v1::AcquireUpdate {
    fn waiting(waiting: v1::Waiting) -> Self {
        Self { update: Some(acquire_update::Update::Waiting(waiting)) }
    }

    fn denied(denied: v1::Denied) -> Self {
        Self { update: Some(acquire_update::Update::Denied(denied)) }
    }

    fn outcome(update: AskUpdate, services: &Services) -> Option<Self> {
        match update {
            AskUpdate::Granted(grant) => {
                Some(Self { update: Some(acquire_update::Update::Granted(granted(grant))) })
            }
            AskUpdate::Refused(refusal) => Some(Self::denied(denied(&refusal, &services.names))),
            AskUpdate::Resumed(..) | AskUpdate::Queued(_) => None,
        }
    }
}

impl Word for v1::ResumeUpdate {
    fn waiting(waiting: v1::Waiting) -> Self {
        Self { update: Some(resume_update::Update::Waiting(waiting)) }
    }

    fn denied(denied: v1::Denied) -> Self {
        Self { update: Some(resume_update::Update::Denied(denied)) }
    }

    fn outcome(update: AskUpdate, services: &Services) -> Option<Self> {
        match update {
            AskUpdate::Resumed(lease, waited) => {
                let resumed = v1::Resumed { lease_id: lease.get(), waited_ms: millis(waited) };
                Some(Self { update: Some(resume_update::Update::Resumed(resumed)) })
            }
            AskUpdate::Refused(refusal) => Some(Self::denied(denied(&refusal, &services.names))),
            AskUpdate::Granted(_) | AskUpdate::Queued(_) => None,
        }
    }
}

/// An ask's stream. Dropping it before its end tells the driver that it broke.
#[derive(Debug)]
pub(crate) struct AskStream<T> {
    ready: Option<T>,
    following: Option<mpsc::Receiver<Result<T, Status>>>,
    departure: Option<Departure>,
}

impl<T: Word> AskStream<T> {
    pub(super) fn refused(denied: v1::Denied) -> Self {
        Self { ready: Some(T::denied(denied)), following: None, departure: None }
    }

    /// Waits for the first word on the ask, which comes at once, and follows it from there on.
    pub(super) async fn follow(ask: Ask, services: &Services) -> Self {
        let (departure, mut updates) = ask.into_parts();
        let first = updates.recv().await;
        let departure = Some(departure);
        match first {
            Some(AskUpdate::Queued(ask)) => {
                let (sender, following) = mpsc::channel(1);
                tokio::spawn(
                    Follower { ask, services: services.clone(), told: None, out: sender }.run(updates),
                );
                Self { ready: None, following: Some(following), departure }
            }
            Some(AskUpdate::Refused(refusal)) => Self::refused(denied(&refusal, &services.names)),
            Some(outcome @ (AskUpdate::Granted(_) | AskUpdate::Resumed(..))) => {
                Self { ready: T::outcome(outcome, services), following: None, departure }
            }
            None => Self { ready: None, following: None, departure: None },
        }
    }
}

impl<T: Word> Stream for AskStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(ready) = self.ready.take() {
            return Poll::Ready(Some(Ok(ready)));
        }
        let next = match &mut self.following {
            Some(following) => std::task::ready!(following.poll_recv(cx)),
            None => None,
        };
        if next.is_none() {
            // All is told: the stream ends in good order.
            self.departure.iter_mut().for_each(Departure::disarm);
        }
        Poll::Ready(next)
    }
}

fn granted(grant: Grant) -> v1::Granted {
    v1::Granted {
        lease_id: grant.terms.lease.get(),
        token: grant.token.bytes().to_vec().into(),
        device_indices: indices(&grant.terms.devices),
        reserve_bytes: grant.terms.reserve.get(),
        limit_bytes: grant.terms.limit.get(),
        waited_ms: millis(grant.waited),
    }
}

/// Tells a waiting asker how it stands, whenever that changes, until there is an outcome.
struct Follower<T> {
    ask: AskId,
    services: Services,
    told: Option<Standing>,
    out: mpsc::Sender<Result<T, Status>>,
}

type Updates = mpsc::UnboundedReceiver<AskUpdate>;

impl<T: Word> Follower<T> {
    async fn run(mut self, mut updates: Updates) {
        let mut views = self.services.desk.views();
        views.mark_unchanged();
        let desk = self.services.desk.clone();
        let out = self.out.clone();
        let outcome = tokio::select! {
            biased;
            outcome = outcome(&mut updates) => outcome,
            () = out.closed() => return,
            () = async {
                if let Ok((view, _)) = desk.look().await {
                    self.show(&view).await;
                }
                self.keep_showing(&mut views).await;
            } => return,
        };
        let last = outcome.and_then(|outcome| T::outcome(outcome, &self.services));
        let replaced = || Status::aborted("a newer call of the same name follows this ask");
        drop(self.out.send(last.ok_or_else(replaced)).await);
    }

    async fn keep_showing(&mut self, views: &mut watch::Receiver<Arc<View>>) {
        loop {
            tokio::time::sleep(UPDATE_INTERVAL).await;
            if views.changed().await.is_err() {
                return;
            }
            let view = views.borrow_and_update().clone();
            self.show(&view).await;
        }
    }

    async fn show(&mut self, view: &Arc<View>) {
        self.services.names.prepare(waiting::users_of(view, self.ask)).await;
        let Some(standing) = Standing::of(view, self.ask, &self.services.names) else {
            return;
        };
        if self.told.as_ref() != Some(&standing) {
            let message = standing.message(view, view.snapshot.at);
            self.told = Some(standing);
            drop(self.out.send(Ok(T::waiting(message))).await);
        }
    }
}

/// The word that ends the waiting; `None` where a newer call took the ask over.
async fn outcome(updates: &mut Updates) -> Option<AskUpdate> {
    loop {
        match updates.recv().await {
            Some(AskUpdate::Queued(_)) => {}
            other => return other,
        }
    }
}
