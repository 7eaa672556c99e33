//! Sessions: whose they are, and the stream on which they are told things.

use std::collections::BTreeMap;

use gpulease_words::{ProcessId, SessionId, Uid};
use tokio::sync::{mpsc, oneshot};

use super::command::{SessionNotice, Shown, StreamEnd};
use crate::credentials::Secret;
use crate::liveness::Caller;

/// Notices that a client may leave unread; one that reads none is cut off and may rejoin.
const NOTICES_UNREAD: usize = 64;

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
    end: oneshot::Sender<StreamEnd>,
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

    /// A session that the process has open.
    pub(super) fn one_of(&self, process: ProcessId) -> Option<SessionId> {
        self.open.iter().find(|(_, session)| session.process == process).map(|(id, _)| *id)
    }

    /// Gives the session a new stream; an older one ends.
    pub(super) fn attach(&mut self, id: SessionId) -> Attached {
        self.streams += 1;
        let (notices, inbox) = mpsc::channel(NOTICES_UNREAD);
        let (end, ended) = oneshot::channel();
        let session = self.open.get_mut(&id).expect("a stream is attached to an open session");
        session.end_stream(StreamEnd::Replaced);
        session.stream = Some(Stream { number: self.streams, notices, end });
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
        match &session.stream {
            Some(stream) if stream.notices.try_send(notice).is_err() => {
                session.end_stream(StreamEnd::Unread);
                Told::CutOff
            }
            Some(_) | None => Told::Done,
        }
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
