//! How large leases are, for the processes that did not change it themselves.

use gpulease_arbiter::LeaseView;
use gpulease_words::{LeaseId, SessionId};

use super::Driver;
use super::command::{LeaseSizes, SessionNotice};

impl Driver {
    /// Tells the processes of a lease its new sizes; its owner asked for them and has an answer.
    pub(super) fn tell_sizes(&mut self, lease: LeaseId) {
        let view = self.view(lease);
        for session in self.sessions.ids() {
            if Some(session) != view.session && self.is_member(session, &view) {
                self.tell(session, SessionNotice::Resized(sizes(&view)));
            }
        }
    }

    /// The sizes of the leases of which the session's process is a member.
    pub(super) fn sizes(&self, session: SessionId) -> Vec<LeaseSizes> {
        let views = self.leases.keys().filter_map(|lease| self.arbiter.lease(*lease));
        views.filter(|view| self.is_member(session, view)).map(|view| sizes(&view)).collect()
    }
}

fn sizes(view: &LeaseView) -> LeaseSizes {
    LeaseSizes { lease: view.id, reserve: view.reserve, limit: view.limit }
}
