//! What operators may do, on their socket.

use std::path::Path;
use std::time::Duration;

use gpulease_words::{Bytes, LeaseId};

use crate::error::{AskError, Error};

/// A connection to `admin.sock`.
#[derive(Clone, Debug)]
pub struct Operator {}

impl Operator {
    /// Connects to `admin.sock` beside the job socket that [`crate::Client::connect`] would use.
    pub async fn connect() -> Result<Self, Error> {
        unimplemented!()
    }
    /// Connects to this operators' socket.
    pub async fn connect_to(_socket: impl AsRef<Path>) -> Result<Self, Error> {
        unimplemented!()
    }
    /// Asks the holder of a lease for surplus bytes (`None`: all of it) within so long; returns what was asked for.
    pub async fn recall(
        &self,
        _lease: LeaseId,
        _bytes: Option<Bytes>,
        _within: Duration,
    ) -> Result<Bytes, AskError> {
        unimplemented!()
    }
    /// Ends a lease of anybody; returns what still drains.
    pub async fn end(&self, _lease: LeaseId) -> Result<Bytes, AskError> {
        unimplemented!()
    }
}
