//! Sessions: whose they are, and the stream on which they are told things.

use std::collections::BTreeMap;

use gpulease_words::{ProcessId, SessionId, Uid};
use tokio::sync::{mpsc, oneshot};

use super::command::{SessionNotice, Shown, StreamEnd};
use crate::credentials::Secret;
use crate::liveness::Caller;

/// Notices that a client may leave unread; one that reads none is cut off and may rejoin. Beside them segments on their
/// way back, of which a lease may have thousands at one time.
const NOTICES_UNREAD: usize = 64;

/// All that may be unread: a TiB in the smallest segments. Room is taken as it is used.
const UNREAD_MAX: usize = 1 << 19;

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) secret: Secret,
    pub(super) process: ProcessId,
    pub(super) uid: Uid,
    stream: Option<Stream>,
}

#[derive(Debug)]
struct Stream {
    number: u64,
    notices: mpsc::Sender<SessionNotice>,
    /// Segments on their way back, of those told since nothing was unread.
    returns: usize,
    end: oneshot::Sender<StreamEnd>,
}

impl Stream {
    /// Puts a notice on the stream, if it may become so much longer.
    fn tell(&mut self, notice: SessionNotice) -> Told {
        let unread = self.notices.max_capacity() - self.notices.capacity();
        if unread == 0 {
            self.returns = 0;
        }
        let most = NOTICES_UNREAD + self.returns;
        match notice {
            SessionNotice::SegmentBack { .. } => self.returns += 1,
            SessionNotice::Recall { .. }
            | SessionNotice::Ended { .. }
            | SessionNotice::Suspend { .. }
            | SessionNotice::SwapOut { .. }
            | SessionNotice::SuspendCancelled { .. }
            | SessionNotice::Pinned { .. }
            | SessionNotice::Resized(_) => {
                if unread >= most {
                    return Told::CutOff;
                }
            }
        }
        self.notices.try_send(notice).map_or(Told::CutOff, |()| Told::Done)
    }
}

impl Session {
    /// Ends the stream, if there is one.
    fn end_stream(&mut self, why: StreamEnd) {
        if let Some(stream) = self.stream.take() {
            // A reader that left does not need to know.
            let _ = stream.end.send(why);
        }
    }
}

/// The broker's end of a new stream, as its reader gets it.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) number: u64,
    pub(super) notices: mpsc::Receiver<SessionNotice>,
    pub(super) end: oneshot::Receiver<StreamEnd>,
}

/// What came of telling a session something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It is on its stream, or the session is away and will not hear it.
    Done,
    /// The stream was full or broken and is cut.
    CutOff,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: BTreeMap<SessionId, Session>,
    streams: u64,
}

impl Sessions {
    pub(super) fn insert(&mut self, id: SessionId, caller: &Caller) {
        let secret = Secret::random();
        let session = Session { secret, process: caller.process.id(), uid: caller.uid, stream: None };
        let before = self.open.insert(id, session);
        assert!(before.is_none(), "session {id} is opened twice");
    }

    /// The session that the caller names, if it is his own.
    pub(super) fn own(&self, shown: &Shown, caller: &Caller) -> Option<&Session> {
        let session = self.open.get(&shown.session)?;
        (session.secret.matches(&shown.secret) && session.process == caller.process.id()).then_some(session)
    }

    pub(super) fn get(&self, id: SessionId) -> Option<&Session> {
        self.open.get(&id)
    }

    /// All that are open.
    pub(super) fn ids(&self) -> Vec<SessionId> {
        self.open.keys().copied().collect()
    }

    /// A session that the process has open.
    pub(super) fn one_of(&self, process: ProcessId) -> Option<SessionId> {
        self.open.iter().find(|(_, session)| session.process == process).map(|(id, _)| *id)
    }

    /// Gives the session a new stream; an older one ends.
    pub(super) fn attach(&mut self, id: SessionId) -> Attached {
        self.streams += 1;
        let (notices, inbox) = mpsc::channel(UNREAD_MAX);
        let (end, ended) = oneshot::channel();
        let session = self.open.get_mut(&id).expect("a stream is attached to an open session");
        session.end_stream(StreamEnd::Replaced);
        session.stream = Some(Stream { number: self.streams, notices, returns: 0, end });
        Attached { number: self.streams, notices: inbox, end: ended }
    }

    /// Takes the stream away if it is still this one, and says whether it was.
    pub(super) fn detach(&mut self, id: SessionId, number: u64) -> bool {
        let session = self.open.get_mut(&id);
        let current = session.filter(|session| session.stream.as_ref().is_some_and(|s| s.number == number));
        current.is_some_and(|session| session.stream.take().is_some())
    }

    /// Tells a session something without waiting.
    pub(super) fn tell(&mut self, id: SessionId, notice: SessionNotice) -> Told {
        let Some(session) = self.open.get_mut(&id) else {
            return Told::Done;
        };
        let told = session.stream.as_mut().map_or(Told::Done, |stream| stream.tell(notice));
        if told == Told::CutOff {
            session.end_stream(StreamEnd::Unread);
        }
        told
    }

    pub(super) fn remove(&mut self, id: SessionId) {
        if let Some(mut session) = self.open.remove(&id) {
            session.end_stream(StreamEnd::Closed);
        }
    }

    /// Ends every stream: the broker is stopping.
    pub(super) fn end_streams(&mut self) {
        self.open.values_mut().for_each(|session| session.end_stream(StreamEnd::Stopping));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Descriptors;
    use crate::liveness::Liveness;
    use crate::tickets::{Parcel, Tickets};
    use gpulease_words::{LeaseId, Pid, SegmentId};
    use std::sync::Arc;

    const ID: SessionId = SessionId::new(1);
    const LEASE: LeaseId = LeaseId::new(1);

    fn open() -> (Sessions, mpsc::Receiver<SessionNotice>) {
        let caller = Arc::new(Liveness::new(|_| {})).find(Pid::new(std::process::id()));
        let mut sessions = Sessions::default();
        sessions.insert(ID, &caller.expect("it is this process"));
        let Attached { notices, .. } = sessions.attach(ID);
        (sessions, notices)
    }

    fn back(tickets: &Tickets, n: usize) -> SessionNotice {
        let segment = SegmentId::new(n as u64);
        let parcel = Parcel { chunks: Descriptors::default(), host_copy: None };
        let ticket = tickets.issue(segment, ProcessId::new(1), parcel);
        SessionNotice::SegmentBack { lease: LEASE, segment, ticket }
    }

    /// A lease of more than 64 segments was reminded of them when its session rejoined, and cut off by that.
    #[test]
    fn segments_on_their_way_back_cut_nobody_off() {
        let (mut sessions, mut notices) = open();
        let (tickets, other) = (Tickets::default(), || SessionNotice::SwapOut { lease: LEASE });
        for n in 0..1_000 {
            assert_eq!(sessions.tell(ID, back(&tickets, n)), Told::Done);
        }
        for _ in 0..NOTICES_UNREAD {
            assert_eq!(sessions.tell(ID, other()), Told::Done);
        }
        while notices.try_recv().is_ok() {}
        for _ in 0..NOTICES_UNREAD {
            assert_eq!(sessions.tell(ID, other()), Told::Done);
        }
        assert_eq!(sessions.tell(ID, other()), Told::CutOff, "what was read makes room no more");
    }
}
