//! A process's standing with the broker.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpulease_words::{Bytes, LeaseId, Pid};

use crate::ask::LeaseBuilder;
use crate::device::Device;
use crate::error::{AskError, Error};
use crate::lease::Lease;
use crate::observer::Observer;
use crate::token::Token;

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) socket: Option<PathBuf>,
    pub(crate) broker_wait: Option<Duration>,
}

impl Options {
    /// The job socket to use, without a check of who listens there.
    #[must_use]
    pub fn socket(self, socket: impl Into<PathBuf>) -> Self {
        Self { socket: Some(socket.into()), ..self }
    }

    /// How long a request waits for a broker that went away, and for an answer; 30 s where nothing is said.
    #[must_use]
    pub fn broker_wait(self, wait: Duration) -> Self {
        Self { broker_wait: Some(wait), ..self }
    }
}

/// A session with the broker. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {}

impl Client {
    /// Connects to `$GPULEASE_SOCKET`, else the system's broker, else the user's own, and opens a session.
    pub async fn connect() -> Result<Self, Error> {
        Self::connect_with(Options::default()).await
    }

    /// Connects to the broker at this job socket.
    pub async fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(Options::default().socket(socket.as_ref())).await
    }

    /// Connects with options.
    pub async fn connect_with(_options: Options) -> Result<Self, Error> {
        unimplemented!()
    }

    /// Connects and joins the lease that `gpulease run` put this process into.
    pub async fn join_from_env() -> Result<Lease, AskError> {
        unimplemented!()
    }

    /// The broker's devices.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        unimplemented!()
    }

    /// The job socket of this session.
    #[must_use]
    pub fn socket(&self) -> &Path {
        unimplemented!()
    }

    /// An ask for a lease with this much set aside on each device.
    pub fn lease(&self, reserve: Bytes) -> LeaseBuilder<'_> {
        LeaseBuilder::new(self, reserve)
    }

    /// Makes this process a member of a lease.
    pub async fn join(&self, _lease: LeaseId, _token: Token) -> Result<Lease, AskError> {
        unimplemented!()
    }

    /// Makes another process (a child about to exec) a member of a lease of this session.
    pub async fn admit(&self, _lease: &Lease, _pid: Pid) -> Result<(), AskError> {
        unimplemented!()
    }

    /// The broker's state, over the same socket.
    pub async fn observe(&self) -> Result<Observer, Error> {
        unimplemented!()
    }

    /// The failures that `Drop` met since the last call (at most 16 are kept).
    #[must_use]
    pub fn take_kept_errors(&self) -> Vec<Error> {
        unimplemented!()
    }
}
