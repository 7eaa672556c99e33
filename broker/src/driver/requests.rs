//! Requests that were handed to the arbiter and are not answered yet.

use std::collections::BTreeMap;

use gpulease_arbiter::{Denial, RequestId, Time};
use gpulease_words::{Bytes, LeaseId, SessionId, Uid};
use tokio::sync::mpsc;

use super::command::{AskUpdate, LeaseTerms, Opened, Refusal, Reply, Segment};
use crate::liveness::Caller;

/// Who waits for what.
#[derive(Debug)]
pub(super) enum Pending {
    Open {
        caller: Caller,
        reply: Reply<Opened>,
    },
    /// Its answer is "done".
    Plain(Reply<()>),
    /// Its answer is "done", and the process is then a member.
    Admit {
        guest: Caller,
        reply: Reply<()>,
    },
    Ask {
        key: AskKey,
        what: Asked,
        updates: mpsc::UnboundedSender<AskUpdate>,
    },
    /// Its answer is "done", and these are then the groups.
    Budgets {
        groups: BTreeMap<Uid, String>,
        reply: Reply<()>,
    },
    Lease(Reply<LeaseTerms>),
    Amount(Reply<Bytes>),
    Segment {
        session: SessionId,
        uid: Uid,
        reply: Reply<Segment>,
    },
    /// A suspended lease's memory is wanted.
    Resume {
        session: SessionId,
        lease: LeaseId,
        since: Time,
        updates: mpsc::UnboundedSender<AskUpdate>,
    },
    /// The driver itself asked.
    Unheard,
}

/// What an ask is for, for people.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) name: String,
    /// Per device.
    pub(super) reserve: Bytes,
}

/// An ask as its client names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AskKey {
    pub(super) session: SessionId,
    pub(super) name: u64,
}

impl Pending {
    /// Says no. A caller who left does not hear it.
    pub(super) fn refuse(self, refusal: Refusal) {
        match self {
            Self::Open { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Plain(reply) | Self::Admit { reply, .. } | Self::Budgets { reply, .. } => {
                drop(reply.send(Err(refusal)));
            }
            Self::Ask { updates, .. } | Self::Resume { updates, .. } => {
                drop(updates.send(AskUpdate::Refused(refusal)));
            }
            Self::Lease(reply) => drop(reply.send(Err(refusal))),
            Self::Amount(reply) => drop(reply.send(Err(refusal))),
            Self::Segment { reply, .. } => drop(reply.send(Err(refusal))),
            Self::Unheard => {}
        }
    }

    /// Says no, for the arbiter.
    pub(super) fn deny(self, denial: Denial) {
        self.refuse(Refusal::Denied(denial));
    }
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Requests {
    pending: BTreeMap<RequestId, Pending>,
    /// The last request of each named ask, answered or not, and the other way round.
    latest: BTreeMap<AskKey, RequestId>,
    keys: BTreeMap<RequestId, AskKey>,
    /// The last request of a session for a suspended lease, while it waits.
    resumes: BTreeMap<(SessionId, LeaseId), RequestId>,
}

impl Requests {
    /// Notes who waits.
    pub(super) fn insert(&mut self, request: RequestId, pending: Pending) {
        let before = self.pending.insert(request, pending);
        assert!(before.is_none(), "request {request:?} was handed in twice");
    }

    /// Gives a request its client's name. One who waited for the same ask hears no more of it.
    pub(super) fn name(&mut self, request: RequestId, key: AskKey) {
        if let Some(earlier) = self.latest.insert(key, request) {
            self.keys.remove(&earlier);
            self.pending.remove(&earlier);
        }
        self.keys.insert(request, key);
    }

    /// Notes that this request is the session's for a suspended lease; the earlier one that it takes the place of.
    pub(super) fn resume(&mut self, request: RequestId, key: (SessionId, LeaseId)) -> Option<RequestId> {
        self.resumes.insert(key, request)
    }

    /// The one who waits, who is then answered.
    pub(super) fn take(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.pending.remove(&request)?;
        if let Pending::Resume { session, lease, .. } = &pending
            && self.resumes.get(&(*session, *lease)) == Some(&request)
        {
            self.resumes.remove(&(*session, *lease));
        }
        Some(pending)
    }

    /// The one who waits, if he still does.
    pub(super) fn find(&self, request: RequestId) -> Option<&Pending> {
        self.pending.get(&request)
    }

    /// The last request of a named ask, answered or not.
    pub(super) fn latest(&self, key: AskKey) -> Option<RequestId> {
        self.latest.get(&key).copied()
    }

    /// The named ask of this request, if it is the last of that name.
    pub(super) fn key_of(&self, request: RequestId) -> Option<AskKey> {
        self.keys.get(&request).copied()
    }

    /// The name is free again.
    pub(super) fn forget(&mut self, key: AskKey) {
        if let Some(request) = self.latest.remove(&key) {
            self.keys.remove(&request);
        }
    }

    /// The name that this request has is free again.
    pub(super) fn forget_request(&mut self, request: RequestId) {
        if let Some(key) = self.keys.remove(&request) {
            self.latest.remove(&key);
        }
    }

    /// A session is gone: whoever still waits in its name hears it, and the names of its asks are forgotten.
    pub(super) fn end_session(&mut self, session: SessionId) {
        let of_session = |pending: &Pending| match pending {
            Pending::Ask { key, .. } => key.session == session,
            Pending::Segment { session: own, .. } | Pending::Resume { session: own, .. } => *own == session,
            Pending::Open { .. }
            | Pending::Plain(_)
            | Pending::Admit { .. }
            | Pending::Budgets { .. }
            | Pending::Lease(_)
            | Pending::Amount(_)
            | Pending::Unheard => false,
        };
        let left: Vec<_> = self
            .pending
            .iter()
            .filter(|(_, pending)| of_session(pending))
            .map(|(request, _)| *request)
            .collect();
        left.into_iter()
            .filter_map(|request| self.take(request))
            .for_each(|pending| pending.deny(Denial::NoSuchSession));
        let range = AskKey { session, name: 0 }..=AskKey { session, name: u64::MAX };
        let keys: Vec<_> = self.latest.range(range).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(key));
    }

    /// Everyone who waits, and leaves the table empty.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Pending> + use<> {
        self.resumes.clear();
        std::mem::take(&mut self.pending).into_values()
    }
}
