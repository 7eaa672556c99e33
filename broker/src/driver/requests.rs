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
    /// Whose name the last named request took: it has it again if that is refused.
    displaced: Option<(RequestId, RequestId)>,
    /// How many segments of each user are asked for.
    segments: BTreeMap<Uid, u32>,
    /// The last request of a session for a suspended lease, while it waits.
    resumes: BTreeMap<(SessionId, LeaseId), RequestId>,
}

impl Requests {
    /// Notes who waits.
    pub(super) fn insert(&mut self, request: RequestId, pending: Pending) {
        if let Pending::Segment { uid, .. } = &pending {
            *self.segments.entry(*uid).or_insert(0) += 1;
        }
        let before = self.pending.insert(request, pending);
        assert!(before.is_none(), "request {request:?} was handed in twice");
    }

    /// Gives a request its client's name; one that had it before is not the named ask's any more.
    pub(super) fn name(&mut self, request: RequestId, key: AskKey) {
        let earlier = self.latest.insert(key, request);
        self.displaced = earlier.map(|earlier| (request, earlier));
        if let Some(earlier) = earlier {
            self.keys.remove(&earlier);
        }
        self.keys.insert(request, key);
    }

    /// A request is refused: its name is free again, or that of the one from whom it was taken just now.
    pub(super) fn refused(&mut self, request: RequestId) {
        let Some(key) = self.keys.remove(&request) else {
            return;
        };
        self.latest.remove(&key);
        if let Some((_, earlier)) = self.displaced.take_if(|(new, _)| *new == request) {
            self.latest.insert(key, earlier);
            self.keys.insert(earlier, key);
        }
    }

    /// Whether the request that took its name just now is taken up in its place.
    pub(super) fn is_superseded(&self, request: RequestId) -> bool {
        self.displaced.is_some_and(|(_, earlier)| earlier == request)
    }

    /// What a name was taken for is settled.
    pub(super) fn keep_names(&mut self) {
        self.displaced = None;
    }

    /// How many segments of a user are asked for, waiting or being made.
    pub(super) fn segments_of(&self, uid: Uid) -> u32 {
        self.segments.get(&uid).copied().unwrap_or(0)
    }

    /// Notes that this request is the session's for a suspended lease; the earlier one that it takes the place of.
    pub(super) fn resume(&mut self, request: RequestId, key: (SessionId, LeaseId)) -> Option<RequestId> {
        self.resumes.insert(key, request)
    }

    /// The one who waits, who is then answered.
    pub(super) fn take(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.pending.remove(&request)?;
        if let Pending::Segment { uid, .. } = &pending {
            self.count_segment_out(*uid);
        }
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

    fn count_segment_out(&mut self, uid: Uid) {
        let count = self.segments.get_mut(&uid).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            self.segments.remove(&uid);
        }
    }

    /// A session is gone: whoever still waits in its name hears it, and the names of its asks are forgotten. The
    /// requests for segments that are still being made, which nobody wants any more.
    pub(super) fn end_session(&mut self, session: SessionId) -> Vec<RequestId> {
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
        let mut in_the_making = Vec::new();
        for request in left {
            let Some(pending) = self.take(request) else { continue };
            if matches!(pending, Pending::Segment { .. }) {
                in_the_making.push(request);
            }
            pending.deny(Denial::NoSuchSession);
        }
        let range = AskKey { session, name: 0 }..=AskKey { session, name: u64::MAX };
        let keys: Vec<_> = self.latest.range(range).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(key));
        in_the_making
    }

    /// Everyone who waits, and leaves the table empty.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Pending> + use<> {
        self.resumes.clear();
        self.segments.clear();
        std::mem::take(&mut self.pending).into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    const SESSION: SessionId = SessionId::new(2);
    const UID: Uid = Uid::new(1_000);
    const KEY: AskKey = AskKey { session: SESSION, name: 5 };
    const FIRST: RequestId = RequestId(1);
    const SECOND: RequestId = RequestId(2);

    fn ask(requests: &mut Requests, request: RequestId) -> mpsc::UnboundedReceiver<AskUpdate> {
        let (updates, told) = mpsc::unbounded_channel();
        let what = Asked { name: "job".to_owned(), reserve: Bytes::ZERO };
        requests.insert(request, Pending::Ask { key: KEY, what, updates });
        requests.name(request, KEY);
        told
    }

    /// An ask that was put again under its name in other terms was refused, and the first one's answer was lost.
    #[test]
    fn who_is_refused_leaves_the_name_to_the_one_who_had_it() {
        let mut requests = Requests::default();
        let _first = ask(&mut requests, FIRST);
        requests.keep_names();
        let mut second = ask(&mut requests, SECOND);
        requests.refused(SECOND);
        requests.take(SECOND).expect("it waits").deny(Denial::NoSuchLease);
        assert!(matches!(second.try_recv(), Ok(AskUpdate::Refused(_))));
        assert_eq!((requests.latest(KEY), requests.key_of(FIRST)), (Some(FIRST), Some(KEY)));
        assert!(requests.find(FIRST).is_some(), "it is still answered");
        // Once one was taken up its later refusal gives nothing back.
        let _third = ask(&mut requests, RequestId(3));
        requests.keep_names();
        requests.refused(RequestId(3));
        assert_eq!(requests.latest(KEY), None);
    }

    #[test]
    fn segments_that_are_asked_for_are_counted_until_they_are_answered_or_their_session_ends() {
        let mut requests = Requests::default();
        for n in 1..=3 {
            let reply = oneshot::channel().0;
            requests.insert(RequestId(n), Pending::Segment { session: SESSION, uid: UID, reply });
        }
        assert_eq!(requests.segments_of(UID), 3);
        assert!(requests.take(FIRST).is_some());
        assert_eq!(requests.segments_of(UID), 2);
        assert_eq!(requests.end_session(SESSION), [SECOND, RequestId(3)], "nobody wants them any more");
        assert_eq!(requests.segments_of(UID), 0);
    }
}
