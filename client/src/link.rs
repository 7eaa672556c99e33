//! The connections to one broker, and what a failed call means.

use std::error::Error as _;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpulease_proto::refusal;
use gpulease_proto::v1::jobs_client::JobsClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::error::{Denied, Error};
use crate::place::Place;
use crate::reply::is_passing;

/// So many asks wait over one connection at most: a waiting ask holds a stream, and the stream past
/// the broker's limit (256) would hold up all others.
const ASKS_PER_CONNECTION: usize = 64;

/// While an ask waits, a broker that hangs is noticed after twice this long. Nothing is sent over a
/// connection without asks.
const PING_EVERY: Duration = Duration::from_secs(15);

/// Two kinds of connections: one for what is answered at once, and as many as needed for asks,
/// so that no waiting ask holds up a release.
#[derive(Debug)]
pub(crate) struct Link {
    place: Place,
    handle: Handle,
    prompt: Channel,
    asks: Mutex<Vec<(Channel, Arc<()>)>>,
}

/// A place on a connection for one ask.
pub(crate) struct Slot {
    channel: Channel,
    _taken: Arc<()>,
}

impl Slot {
    pub(crate) fn jobs(&self) -> JobsClient<Channel> {
        JobsClient::new(self.channel.clone())
    }
}

impl Link {
    /// To be called on the library's thread; `first` is a connection that is open already.
    pub(crate) fn new(place: Place, first: UnixStream) -> Self {
        let prompt = channel(&place, Some(first), Endpoint::from_static("http://gpulease"));
        Self { place, handle: Handle::current(), prompt, asks: Mutex::default() }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// For requests that are answered at once.
    pub(crate) fn jobs(&self) -> JobsClient<Channel> {
        JobsClient::new(self.prompt.clone())
    }

    /// For a request that may wait.
    pub(crate) fn slot(&self) -> Slot {
        let mut asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        // The list's own share is one, each ask adds one. At most one connection stays open unused.
        let mut keep_one = true;
        asks.retain(|(_, taken)| Arc::strong_count(taken) > 1 || mem::take(&mut keep_one));
        let free = asks.iter().find(|(_, taken)| Arc::strong_count(taken) <= ASKS_PER_CONNECTION).cloned();
        let (channel, taken) = free.unwrap_or_else(|| {
            let opened = (self.ask_channel(), Arc::default());
            asks.push(opened.clone());
            opened
        });
        Slot { channel, _taken: taken }
    }

    fn ask_channel(&self) -> Channel {
        let _context = self.handle.enter();
        let endpoint = Endpoint::from_static("http://gpulease")
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .keep_alive_while_idle(false);
        channel(&self.place, None, endpoint)
    }
}

/// A channel that connects when it is used and again when its connection broke, each time with
/// the place's checks. To be called with the library's runtime as the context.
pub(crate) fn channel(place: &Place, first: Option<UnixStream>, endpoint: Endpoint) -> Channel {
    let (place, first) = (place.clone(), Arc::new(Mutex::new(first)));
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let (place, first) = (place.clone(), first.clone());
        async move {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            let stream = match first {
                Some(stream) => stream,
                None => place.dial().await.map_err(io::Error::other)?,
            };
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    }))
}

/// What became of a call that brought no reply.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection or the session is gone; the same call may succeed over the next one.
    Broken(String),
    /// It will not succeed.
    Failed(Error),
}

pub(crate) fn trouble(request: &'static str, status: &Status) -> Trouble {
    match refusal::reason(status) {
        Some(reason) if is_passing(reason) => Trouble::Broken(status.message().to_owned()),
        Some(reason) => {
            Trouble::Failed(Error::Refused(Denied { reason, message: status.message().to_owned() }))
        }
        None if status.source().is_some() || status.code() == Code::Unavailable => {
            Trouble::Broken(causes(status))
        }
        None => Trouble::Failed(Error::Broker { request, message: causes(status) }),
    }
}

/// A status with what is behind it, each said once.
pub(crate) fn causes(status: &Status) -> String {
    let mut said = status.message().to_owned();
    let mut next = status.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !said.contains(&text) {
            said = if said.is_empty() { text } else { format!("{said}: {text}") };
        }
        next = cause.source();
    }
    if said.is_empty() { status.code().description().to_owned() } else { said }
}
