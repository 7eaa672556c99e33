//! What the broker tells an ask that waits.

use std::time::Duration;

use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, LeaseId, Pid, Reason, Uid};

/// Where an ask stands in the line, and why it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The broker's name for the ask, as `gpulease why` takes it.
    pub ask: AskId,
    /// Its place in the line; 1 is next.
    pub position: u32,
    /// What is missing on the device where least is missing.
    pub short_by: Bytes,
    /// Why; `None` for a word of a newer broker, which [`Self::message`] explains.
    pub reason: Option<Reason>,
    /// The same as a sentence with its numbers.
    pub message: String,
    /// Who has the memory.
    pub holders: Vec<Holder>,
    /// When it is granted or refused at the latest; `None`: no such time is known.
    pub at_latest: Option<Duration>,
    /// How long it has waited.
    pub waited: Duration,
}

/// A lease that has memory which an ask waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The lease.
    pub lease: LeaseId,
    /// Its name.
    pub name: String,
    /// Its user's name, empty where it has none.
    pub user: String,
    /// Its user.
    pub uid: Uid,
    /// The process that asked for it, as the broker sees it.
    pub pid: Pid,
    /// What it has.
    pub bytes: Bytes,
}

impl From<v1::Waiting> for Waiting {
    fn from(waiting: v1::Waiting) -> Self {
        Self {
            ask: AskId::new(waiting.ask_id),
            position: waiting.position,
            short_by: Bytes::new(waiting.short_by_bytes),
            reason: waiting.reason.parse().ok(),
            message: waiting.message,
            holders: waiting.holders.into_iter().map(Holder::from).collect(),
            at_latest: waiting.at_latest_ms.map(Duration::from_millis),
            waited: Duration::from_millis(waiting.waited_ms),
        }
    }
}

impl From<v1::Holder> for Holder {
    fn from(holder: v1::Holder) -> Self {
        Self {
            lease: LeaseId::new(holder.lease_id),
            name: holder.name,
            user: holder.user,
            uid: Uid::new(holder.uid),
            pid: Pid::new(holder.pid),
            bytes: Bytes::new(holder.bytes),
        }
    }
}
