//! A session, for blocking callers.

use std::ops::Deref;
use std::path::Path;

use gpulease_words::{Bytes, LeaseId, Pid};

use super::park::block_on;
use super::{Lease, LeaseBuilder};
use crate::client::Options;
use crate::error::{AskError, Error};
use crate::token::Token;

/// [`crate::Client`] for callers without a runtime. What does not wait is reached through it.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// See [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect() -> Result<Self, Error> {
        block_on(crate::Client::connect()).map(Self)
    }

    /// See [`crate::Client::connect_to`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        block_on(crate::Client::connect_to(socket)).map(Self)
    }

    /// See [`crate::Client::connect_with`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_with(options: Options) -> Result<Self, Error> {
        block_on(crate::Client::connect_with(options)).map(Self)
    }

    /// See [`crate::Client::join_from_env`].
    ///
    /// # Errors
    /// As there.
    pub fn join_from_env() -> Result<Lease, AskError> {
        block_on(crate::Client::join_from_env()).map(Lease::from)
    }

    /// See [`crate::Client::lease`].
    pub fn lease(&self, reserve: Bytes) -> LeaseBuilder<'_> {
        LeaseBuilder::from(self.0.lease(reserve))
    }

    /// See [`crate::Client::join`].
    ///
    /// # Errors
    /// As there.
    pub fn join(&self, lease: LeaseId, token: Token) -> Result<Lease, AskError> {
        block_on(self.0.join(lease, token)).map(Lease::from)
    }

    /// See [`crate::Client::admit`].
    ///
    /// # Errors
    /// As there.
    pub fn admit(&self, lease: &Lease, pid: Pid) -> Result<(), AskError> {
        block_on(self.0.admit(lease.face(), pid))
    }

    /// See [`crate::Client::admit_in_my_place`].
    ///
    /// # Errors
    /// As there.
    pub fn admit_in_my_place(&self, lease: &Lease, pid: Pid) -> Result<(), AskError> {
        block_on(self.0.admit_in_my_place(lease.face(), pid))
    }

    /// See [`crate::Client::observe`].
    ///
    /// # Errors
    /// As there.
    pub fn observe(&self) -> Result<super::Observer, Error> {
        block_on(self.0.observe()).map(super::Observer::from)
    }

    /// The async face of this session.
    #[must_use]
    pub fn face(&self) -> &crate::Client {
        &self.0
    }
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}

impl Deref for Client {
    type Target = crate::Client;

    fn deref(&self) -> &crate::Client {
        &self.0
    }
}
