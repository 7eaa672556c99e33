//! Looking and operating, for blocking callers.

use std::path::Path;
use std::time::Duration;

use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, LeaseId};

use super::park::block_on;
use crate::error::{AskError, Error};

/// [`crate::Observer`] for callers without a runtime.
#[derive(Clone, Debug)]
pub struct Observer(crate::Observer);

/// [`crate::Updates`] as an iterator.
pub struct Updates<T>(crate::Updates<T>);

impl<T> Iterator for Updates<T> {
    type Item = Result<T, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next()).transpose()
    }
}

impl Observer {
    /// See [`crate::Observer::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect() -> Result<Self, Error> {
        block_on(crate::Observer::connect()).map(Self)
    }

    /// See [`crate::Observer::connect_to`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        block_on(crate::Observer::connect_to(socket)).map(Self)
    }

    /// See [`crate::Observer::status`].
    ///
    /// # Errors
    /// As there.
    pub fn status(&self) -> Result<v1::StatusReply, Error> {
        block_on(self.0.status())
    }

    /// See [`crate::Observer::watch`].
    ///
    /// # Errors
    /// As there.
    pub fn watch(&self) -> Result<Updates<v1::StatusReply>, Error> {
        block_on(self.0.watch()).map(Updates)
    }

    /// See [`crate::Observer::events`].
    ///
    /// # Errors
    /// As there.
    pub fn events(&self, request: v1::EventsRequest) -> Result<Updates<v1::EventMessage>, Error> {
        block_on(self.0.events(request)).map(Updates)
    }

    /// See [`crate::Observer::why_ask`].
    ///
    /// # Errors
    /// As there.
    pub fn why_ask(&self, ask: AskId) -> Result<v1::Why, AskError> {
        block_on(self.0.why_ask(ask))
    }

    /// See [`crate::Observer::why_lease`].
    ///
    /// # Errors
    /// As there.
    pub fn why_lease(&self, lease: LeaseId) -> Result<v1::Why, AskError> {
        block_on(self.0.why_lease(lease))
    }

    /// See [`crate::Observer::budgets`].
    ///
    /// # Errors
    /// As there.
    pub fn budgets(&self) -> Result<v1::ListBudgetsReply, Error> {
        block_on(self.0.budgets())
    }

    /// See [`crate::Observer::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&self, lease: LeaseId) -> Result<Bytes, AskError> {
        block_on(self.0.release(lease))
    }
}

impl From<crate::Observer> for Observer {
    fn from(observer: crate::Observer) -> Self {
        Self(observer)
    }
}

/// [`crate::Operator`] for callers without a runtime.
#[derive(Clone, Debug)]
pub struct Operator(crate::Operator);

impl Operator {
    /// See [`crate::Operator::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect() -> Result<Self, Error> {
        block_on(crate::Operator::connect()).map(Self)
    }

    /// See [`crate::Operator::connect_to`].
    ///
    /// # Errors
    /// As there.
    pub fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        block_on(crate::Operator::connect_to(socket)).map(Self)
    }

    /// See [`crate::Operator::recall`].
    ///
    /// # Errors
    /// As there.
    pub fn recall(&self, lease: LeaseId, bytes: Option<Bytes>, within: Duration) -> Result<Bytes, AskError> {
        block_on(self.0.recall(lease, bytes, within))
    }

    /// See [`crate::Operator::set_budget`].
    ///
    /// # Errors
    /// As there.
    pub fn set_budget(
        &self,
        account: &str,
        settings: &[(String, String)],
    ) -> Result<v1::AccountBudget, AskError> {
        block_on(self.0.set_budget(account, settings))
    }

    /// See [`crate::Operator::remove_budget`].
    ///
    /// # Errors
    /// As there.
    pub fn remove_budget(&self, account: &str, key: Option<&str>) -> Result<(), AskError> {
        block_on(self.0.remove_budget(account, key))
    }

    /// See [`crate::Operator::end`].
    ///
    /// # Errors
    /// As there.
    pub fn end(&self, lease: LeaseId) -> Result<Bytes, AskError> {
        block_on(self.0.end(lease))
    }
}
