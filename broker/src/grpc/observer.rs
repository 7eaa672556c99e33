//! The service for everyone who wants to know.

use std::sync::Arc;

use gpulease_arbiter::{Denial, Time};
use gpulease_proto::v1;
use gpulease_proto::v1::observer_server::Observer;
use gpulease_words::{AskId, LeaseId};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::encode::{denied, event, users_of};
use super::{Services, encode, status, why};
use crate::driver::{Refusal, View};
use crate::event_log::From;

/// Messages made ahead of a reader: the state is large, and the next is better than an old one.
const STATES_AHEAD: usize = 1;
const EVENTS_AHEAD: usize = 64;

/// A state of fewer leases and asks is told within a fraction of a millisecond; a larger one is made where it delays
/// no grant.
const LARGE: usize = 256;

type Out<T> = mpsc::Sender<Result<T, Status>>;

#[tonic::async_trait]
impl Observer for Services {
    type WatchStream = ReceiverStream<Result<v1::StatusReply, Status>>;
    type EventsStream = ReceiverStream<Result<v1::EventMessage, Status>>;

    async fn status(&self, _: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        let (view, now) = self.desk.look().await.map_err(|refusal| status(&refusal))?;
        Ok(Response::new(self.state(&view, now).await?))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (out, stream) = mpsc::channel(STATES_AHEAD);
        tokio::spawn(self.clone().send_states(out));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn events(
        &self,
        request: Request<v1::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let (out, stream) = mpsc::channel(EVENTS_AHEAD);
        tokio::spawn(self.clone().send_events(request.into_inner(), out));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn why(&self, request: Request<v1::WhyRequest>) -> Result<Response<v1::WhyReply>, Status> {
        use v1::why_reply::Outcome;
        let (view, now) = self.desk.look().await.map_err(|refusal| status(&refusal))?;
        self.names.prepare(users_of(&view)).await;
        let outcome = match self.reason(&view, now, request.into_inner().subject) {
            Ok(why) => Outcome::Why(why),
            Err(denial) => Outcome::Denied(denied(&denial.into(), &self.names)),
        };
        Ok(Response::new(v1::WhyReply { outcome: Some(outcome) }))
    }

    async fn list_budgets(
        &self,
        _: Request<v1::ListBudgetsRequest>,
    ) -> Result<Response<v1::ListBudgetsReply>, Status> {
        Ok(Response::new(self.budget_list().await))
    }
}

impl Services {
    async fn state(&self, view: &Arc<View>, now: Time) -> Result<v1::StatusReply, Status> {
        self.names.prepare(users_of(view)).await;
        let encode = {
            let (services, view) = (self.clone(), view.clone());
            move || encode::status(&view, now, &services.about, &services.names)
        };
        if view.snapshot.leases.len() + view.snapshot.waiting.len() < LARGE {
            return Ok(encode());
        }
        // Only a runtime that ends cancels it.
        tokio::task::spawn_blocking(encode).await.map_err(|_| status(&Refusal::Stopping))
    }

    fn reason(
        &self,
        view: &View,
        now: Time,
        subject: Option<v1::why_request::Subject>,
    ) -> Result<v1::Why, Denial> {
        use v1::why_request::Subject;
        match subject {
            Some(Subject::AskId(ask)) => why::ask(view, now, AskId::new(ask), &self.names)
                .ok_or(Denial::Malformed("no ask of that id waits; it was granted, refused or withdrawn")),
            Some(Subject::LeaseId(lease)) => {
                why::lease(view, now, LeaseId::new(lease), &self.names).ok_or(Denial::NoSuchLease)
            }
            None => Err(Denial::Malformed("name an ask or a lease")),
        }
    }

    /// The state now, and whenever it changes, until the reader leaves.
    async fn send_states(self, out: Out<v1::StatusReply>) {
        // Subscribed before the first look, so that no change falls between both.
        let mut views = self.desk.views();
        let Ok((view, now)) = self.desk.look().await else {
            return;
        };
        let mut shown = view.snapshot.generation;
        let mut sent = out.send(self.state(&view, now).await).await;
        while sent.is_ok() {
            let view = tokio::select! {
                changed = views.changed() => match changed {
                    Ok(()) => views.borrow_and_update().clone(),
                    Err(_) => return,
                },
                () = out.closed() => return,
                () = self.stopping() => return self.say_stopping(&out).await,
            };
            if view.snapshot.generation < shown {
                continue;
            }
            shown = view.snapshot.generation;
            sent = out.send(self.state(&view, view.snapshot.at).await).await;
        }
    }

    async fn say_stopping<T>(&self, out: &Out<T>) {
        // A reader that left does not need to know.
        drop(out.send(Err(status(&Refusal::Stopping))).await);
    }

    async fn send_events(self, request: v1::EventsRequest, out: Out<v1::EventMessage>) {
        let from = match (request.from_start, request.after) {
            (true, _) => From::Start,
            (false, 0) => From::Now,
            (false, number) => From::After(number),
        };
        let (past, mut coming) = self.events.read(from);
        for entry in past {
            if out.send(Ok(event(&entry))).await.is_err() {
                return;
            }
        }
        if request.no_follow {
            return;
        }
        loop {
            let message = tokio::select! {
                entry = coming.recv() => match entry {
                    Ok(entry) => event(&entry),
                    Err(RecvError::Lagged(count)) => dropped(count),
                    Err(RecvError::Closed) => return,
                },
                () = out.closed() => return,
                () = self.stopping() => return self.say_stopping(&out).await,
            };
            if out.send(Ok(message)).await.is_err() {
                return;
            }
        }
    }
}

/// Stands where a slow reader lost events.
fn dropped(count: u64) -> v1::EventMessage {
    let message = format!("{count} events were not read in time and are left out here");
    v1::EventMessage { kind: "dropped".to_owned(), message, ..v1::EventMessage::default() }
}
