//! The program's part in its session: while one of its handles lives, the session is wanted.

use std::ops::Deref;

use crate::engine::{End, Share};
use crate::session::Session;

/// What the program's handles share. What the library has still to do for them holds the session by itself.
///
/// The last handle to go waits a moment until the broker has heard what is owed to it and the good-bye: often
/// the program ends next, and a process that ends without a good-bye looks to the broker like one that crashed.
#[derive(Debug)]
pub(crate) struct Presence {
    /// `None` only while it is dropped.
    session: Option<Share<Session>>,
    end: End,
}

impl Presence {
    pub(crate) fn new(session: Share<Session>, end: End) -> Self {
        Self { session: Some(session), end }
    }
}

impl Deref for Presence {
    type Target = Share<Session>;

    fn deref(&self) -> &Share<Session> {
        self.session.as_ref().expect("it is there until the drop")
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.session.take());
        self.end.wait();
    }
}
