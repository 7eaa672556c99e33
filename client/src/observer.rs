//! Looking at the broker's state without a session.

use std::marker::PhantomData;
use std::path::Path;

use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, LeaseId};

use crate::error::{AskError, Error};

/// A connection that looks and opens no session.
#[derive(Clone, Debug)]
pub struct Observer {}

/// A stream of messages from the broker.
pub struct Updates<T> {
    _of: PhantomData<T>,
}

impl<T> Updates<T> {
    /// The next message; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        unimplemented!()
    }
}

impl Observer {
    /// Connects as [`crate::Client::connect`] does.
    pub async fn connect() -> Result<Self, Error> {
        unimplemented!()
    }
    /// Connects to this socket (job or operators').
    pub async fn connect_to(_socket: impl AsRef<Path>) -> Result<Self, Error> {
        unimplemented!()
    }
    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        unimplemented!()
    }
    /// The whole state, once.
    pub async fn status(&self) -> Result<v1::StatusReply, Error> {
        unimplemented!()
    }
    /// The whole state whenever it changes, at most ten times a second.
    pub async fn watch(&self) -> Result<Updates<v1::StatusReply>, Error> {
        unimplemented!()
    }
    /// What happens, as it happens.
    pub async fn events(&self, _request: v1::EventsRequest) -> Result<Updates<v1::EventMessage>, Error> {
        unimplemented!()
    }
    /// Why an ask waits.
    pub async fn why_ask(&self, _ask: AskId) -> Result<v1::Why, AskError> {
        unimplemented!()
    }
    /// Why a lease is as it is.
    pub async fn why_lease(&self, _lease: LeaseId) -> Result<v1::Why, AskError> {
        unimplemented!()
    }
    /// Gives a lease of the same user back, from outside its session; returns what still drains.
    pub async fn release(&self, _lease: LeaseId) -> Result<Bytes, AskError> {
        unimplemented!()
    }
}
