//! Looking at the broker's state without a session.

use std::env::var_os;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpulease_proto::v1::jobs_client::JobsClient;
use gpulease_proto::v1::observer_client::ObserverClient;
use gpulease_proto::v1::{self, why_reply, why_request::Subject};
use gpulease_proto::{MAX_MESSAGE_BYTES, refusal};
use gpulease_words::{AskId, Bytes, LeaseId};
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

use crate::engine::{Done, Engine, Share};
use crate::error::{AskError, Denied, Error};
use crate::link::{causes, channel};
use crate::place::{Place, candidates, find};

/// The state is answered from memory; who takes longer is stopped or overloaded.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A connection that looks and opens no session, so that it shows nowhere and holds nothing.
///
/// States come as the protocol's own messages ([`crate::proto`]).
#[derive(Clone, Debug)]
pub struct Observer {
    line: Share<Line>,
}

/// A connection without a session, and the thread that it lives on.
#[derive(Debug)]
pub(crate) struct Line {
    engine: Engine,
    place: Place,
    channel: Channel,
    /// Whether it has ever answered as a broker does: what breaks before is no broker that went away.
    answered: AtomicBool,
}

impl Observer {
    /// Connects where [`crate::Client::connect`] would.
    ///
    /// # Errors
    /// As there, but that no session is refused.
    pub async fn connect() -> Result<Self, Error> {
        Self::at(candidates(None, |name| var_os(name))).await
    }

    /// Connects to this job socket or operators' socket, whoever listens there.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        Self::at(vec![Place::named(socket.as_ref())]).await
    }

    pub(crate) async fn at(places: Vec<Place>) -> Result<Self, Error> {
        Ok(Self { line: Line::open(places).await? })
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.line.place.socket
    }

    /// The whole state, once.
    ///
    /// # Errors
    /// [`Error::NotABroker`], [`Error::Gone`], [`Error::Silent`], [`Error::Refused`].
    pub async fn status(&self) -> Result<v1::StatusReply, Error> {
        self.line.ask("the status", self.service().status(v1::StatusRequest {})).await
    }

    /// The whole state at once, and again whenever it changes, at most ten times a second.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn watch(&self) -> Result<Updates<v1::StatusReply>, Error> {
        let messages = self.line.ask("the status", self.service().watch(v1::WatchRequest {})).await?;
        Ok(Updates { messages, line: self.line.clone() })
    }

    /// What happens, as it happens, and what the request asks of the past.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn events(&self, request: v1::EventsRequest) -> Result<Updates<v1::EventMessage>, Error> {
        let messages = self.line.ask("the events", self.service().events(request)).await?;
        Ok(Updates { messages, line: self.line.clone() })
    }

    /// Why an ask waits.
    ///
    /// # Errors
    /// Denied where no such ask waits; else as [`Self::status`].
    pub async fn why_ask(&self, ask: AskId) -> Result<v1::Why, AskError> {
        self.why(Subject::AskId(ask.get())).await
    }

    /// Why a lease is as it is.
    ///
    /// # Errors
    /// Denied where there is no such lease; else as [`Self::status`].
    pub async fn why_lease(&self, lease: LeaseId) -> Result<v1::Why, AskError> {
        self.why(Subject::LeaseId(lease.get())).await
    }

    /// The budgets in force, each setting with its origin.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn budgets(&self) -> Result<v1::ListBudgetsReply, Error> {
        self.line.ask("the budgets", self.service().list_budgets(v1::ListBudgetsRequest {})).await
    }

    /// Gives a lease of this user back from outside of its session, as `gpulease release` does;
    /// returns what still drains. Over a job socket only.
    ///
    /// # Errors
    /// Denied where this user has no such lease; else as [`Self::status`].
    pub async fn release(&self, lease: LeaseId) -> Result<Bytes, AskError> {
        let request = v1::ReleaseRequest { session: None, lease_id: lease.get() };
        let mut jobs = JobsClient::new(self.line.channel.clone());
        let reply = self.line.ask("a release", jobs.release(request)).await?;
        match reply.denied {
            Some(denied) => Err(AskError::refused(denied)),
            None => Ok(Bytes::new(reply.draining_bytes)),
        }
    }

    async fn why(&self, subject: Subject) -> Result<v1::Why, AskError> {
        let request = v1::WhyRequest { subject: Some(subject) };
        match self.line.ask("the reason", self.service().why(request)).await?.outcome {
            Some(why_reply::Outcome::Why(why)) => Ok(why),
            Some(why_reply::Outcome::Denied(denied)) => Err(AskError::refused(denied)),
            None => Err(Error::Protocol("a reason without an outcome".to_owned()).into()),
        }
    }

    fn service(&self) -> ObserverClient<Channel> {
        ObserverClient::new(self.line.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

/// A stream of messages from the broker; dropping it ends the stream.
pub struct Updates<T> {
    messages: Streaming<T>,
    line: Share<Line>,
}

impl<T> Updates<T> {
    /// The next message; `None` at the stream's own end. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Error::Gone`] where the broker went away.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        self.line.engine.check()?;
        self.messages.message().await.map_err(|status| self.line.failure("the next message", &status))
    }
}

impl<T> fmt::Debug for Updates<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates").field("line", &self.line).finish_non_exhaustive()
    }
}

impl Line {
    pub(crate) async fn open(places: Vec<Place>) -> Result<Share<Self>, Error> {
        let (answer, opened) = oneshot::channel();
        let (engine, _) = Engine::start(None, move |done| serve(places, answer, done))?;
        let ended = |_| Error::Thread(io::Error::other("it ended"));
        let (place, channel) = opened.await.map_err(ended)??;
        Ok(Share::new(Arc::new(Self { engine, place, channel, answered: AtomicBool::new(false) })))
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Waits for an answer, or for the beginning of a stream.
    pub(crate) async fn ask<T>(
        &self,
        request: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        self.engine.check()?;
        match self.engine.within(ANSWER_WITHIN, answer).await {
            Ok(Ok(reply)) => {
                self.answered.store(true, Ordering::Relaxed);
                Ok(reply.into_inner())
            }
            Ok(Err(status)) => Err(self.failure(request, &status)),
            Err(_) => Err(Error::Silent { socket: self.socket(), request, waited: ANSWER_WITHIN }),
        }
    }

    fn failure(&self, request: &'static str, status: &Status) -> Error {
        let why = causes(status);
        match (refusal::reason(status), status.code()) {
            (Some(reason), _) => Error::Refused(Denied { reason, message: status.message().to_owned() }),
            (None, Code::Unimplemented) => {
                let why = format!("it has no service for {request}");
                Error::NotABroker { socket: self.socket(), why }
            }
            (None, _)
                if std::error::Error::source(status).is_some() && !self.answered.load(Ordering::Relaxed) =>
            {
                Error::NotABroker { socket: self.socket(), why }
            }
            (None, _) if std::error::Error::source(status).is_some() => {
                Error::Gone { socket: self.socket(), waited: Duration::ZERO, why }
            }
            (None, _) => Error::Broker { request, message: why },
        }
    }

    fn socket(&self) -> PathBuf {
        self.place.socket.clone()
    }
}

/// The whole life of an observer's thread.
async fn serve(places: Vec<Place>, answer: oneshot::Sender<Result<(Place, Channel), Error>>, mut done: Done) {
    let opened = find(places).await.map(|(place, first)| {
        let channel = channel(&place, Some(first), Endpoint::from_static("http://gpulease"));
        (place, channel)
    });
    // Nobody is left to tell where the connect was given up.
    let _ = answer.send(opened);
    done.recv().await;
}
