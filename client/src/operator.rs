//! What operators may do, on their socket.

use std::env::var_os;
use std::path::Path;
use std::time::Duration;

use gpulease_proto::v1;
use gpulease_proto::v1::operators_client::OperatorsClient;
use gpulease_words::{Bytes, LeaseId};
use tonic::transport::Channel;

use crate::engine::Share;
use crate::error::{AskError, Error};
use crate::observer::Line;
use crate::place::{Place, candidates};

/// A connection to `admin.sock`, which root and the operators' group may use.
#[derive(Clone, Debug)]
pub struct Operator {
    line: Share<Line>,
}

impl Operator {
    /// Connects to the `admin.sock` beside the job socket that [`crate::Client::connect`] would use.
    ///
    /// # Errors
    /// As there; [`Error::Permission`] for who is no operator.
    pub async fn connect() -> Result<Self, Error> {
        let places = candidates(None, |name| var_os(name));
        Self::at(places.iter().map(Place::admin).collect()).await
    }

    /// Connects to this operators' socket, whoever listens there.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        Self::at(vec![Place::named(socket.as_ref())]).await
    }

    async fn at(places: Vec<Place>) -> Result<Self, Error> {
        Ok(Self { line: Line::open(places).await? })
    }

    /// Asks the holder of a lease for bytes above its reserve (`None`: all of them) by a deadline,
    /// past which the lease is overdue and gets no growth; returns what was asked for.
    ///
    /// # Errors
    /// Denied where there is no such lease or nothing above its reserve;
    /// [`AskError::Failed`] where the broker went away or does not answer.
    pub async fn recall(
        &self,
        lease: LeaseId,
        bytes: Option<Bytes>,
        within: Duration,
    ) -> Result<Bytes, AskError> {
        let request = v1::RecallRequest {
            lease_id: lease.get(),
            bytes: bytes.unwrap_or(Bytes::ZERO).get(),
            deadline_in_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
        };
        let reply = self.line.ask("a recall", self.service().recall(request)).await?;
        match reply.denied {
            Some(denied) => Err(AskError::refused(denied)),
            None => Ok(Bytes::new(reply.bytes)),
        }
    }

    /// Ends a lease of anybody; returns what is still mapped and drains.
    ///
    /// # Errors
    /// Denied where there is no such lease; [`AskError::Failed`] as [`Self::recall`].
    pub async fn end(&self, lease: LeaseId) -> Result<Bytes, AskError> {
        let request = v1::EndRequest { lease_id: lease.get() };
        let reply = self.line.ask("the end of a lease", self.service().end(request)).await?;
        match reply.denied {
            Some(denied) => Err(AskError::refused(denied)),
            None => Ok(Bytes::new(reply.draining_bytes)),
        }
    }

    /// Sets budget settings of an account (`host`, `group.NAME`, `user.NAME`, `user.*`, `job.PATTERN`) from now on and
    /// across restarts of the broker; each a key and a value as the broker's configuration has them. Returns all that the
    /// account has then.
    ///
    /// # Errors
    /// Denied where they make no sense or promise more than there is, with the sum; [`AskError::Failed`] as [`Self::recall`].
    pub async fn set_budget(
        &self,
        account: &str,
        settings: &[(String, String)],
    ) -> Result<v1::AccountBudget, AskError> {
        use v1::set_budget_reply::Outcome;
        let setting = |(key, value): &(String, String)| v1::BudgetSetting {
            key: key.clone(),
            value: value.clone(),
            ..v1::BudgetSetting::default()
        };
        let request = v1::SetBudgetRequest {
            account: account.to_owned(),
            settings: settings.iter().map(setting).collect(),
        };
        let reply = self.line.ask("the setting of a budget", self.service().set_budget(request)).await?;
        match reply.outcome {
            Some(Outcome::Budget(budget)) => Ok(budget),
            Some(Outcome::Denied(denied)) => Err(AskError::refused(denied)),
            None => Ok(v1::AccountBudget::default()),
        }
    }

    /// Forgets what was set for an account since the broker's configuration was written: one setting, or all (`None`).
    ///
    /// # Errors
    /// Denied where nothing was set; [`AskError::Failed`] as [`Self::recall`].
    pub async fn remove_budget(&self, account: &str, key: Option<&str>) -> Result<(), AskError> {
        let request =
            v1::RemoveBudgetRequest { account: account.to_owned(), key: key.unwrap_or_default().to_owned() };
        let reply = self.line.ask("the removal of a budget", self.service().remove_budget(request)).await?;
        reply.denied.map_or(Ok(()), |denied| Err(AskError::refused(denied)))
    }

    fn service(&self) -> OperatorsClient<Channel> {
        OperatorsClient::new(self.line.channel())
    }
}
