//! When the state is made into a view: at once where the last one is old enough, else as soon as
//! it is, and only while somebody looks.

use std::sync::Arc;
use std::time::Duration;

use gpulease_arbiter::Time;
use tokio::sync::{oneshot, watch};

use super::view::View;

/// Between two views: a view of a full table costs milliseconds.
const INTERVAL: Duration = Duration::from_millis(100);

type Look = oneshot::Sender<(Arc<View>, Time)>;

/// The views and who waits for one.
#[derive(Debug)]
pub(super) struct Publication {
    views: watch::Sender<Arc<View>>,
    last: Option<Time>,
    facts: Facts,
    lookers: Vec<Look>,
    due: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Facts {
    Shown,
    Changed,
}

impl Publication {
    pub(super) fn new(first: View) -> Self {
        let views = watch::Sender::new(Arc::new(first));
        Self { views, last: None, facts: Facts::Shown, lookers: Vec::new(), due: None }
    }

    /// Where to subscribe to the views.
    pub(super) fn views(&self) -> watch::Sender<Arc<View>> {
        self.views.clone()
    }

    /// Somebody wants to see the state as it is now or later.
    pub(super) fn look(&mut self, reply: Look) {
        self.lookers.push(reply);
    }

    /// Something that the arbiter does not know has changed.
    pub(super) fn mark_stale(&mut self) {
        self.facts = Facts::Changed;
    }

    /// When to call [`advance`](Self::advance) though nothing happens.
    pub(super) const fn due(&self) -> Option<Time> {
        self.due
    }

    /// Publishes if somebody looks, something changed and it is time; answers those who look.
    pub(super) fn advance(&mut self, now: Time, generation: u64, make: impl FnOnce() -> View) {
        self.due = None;
        let stale = self.facts == Facts::Changed || self.views.borrow().snapshot.generation != generation;
        if stale && (self.views.receiver_count() > 0 || !self.lookers.is_empty()) {
            let next = self.last.map(|last| last.plus(INTERVAL)).filter(|next| now < *next);
            if next.is_some() {
                self.due = next;
                return;
            }
            self.views.send_replace(Arc::new(make()));
            (self.last, self.facts) = (Some(now), Facts::Shown);
        }
        if !self.lookers.is_empty() {
            let view = self.views.borrow().clone();
            self.lookers.drain(..).for_each(|looker| drop(looker.send((view.clone(), now))));
        }
    }
}
