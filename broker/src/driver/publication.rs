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

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_arbiter::{Arbiter, Budgets, Policy};

    fn view(generation: u64) -> View {
        let mut snapshot = Arbiter::new(Policy::default(), Budgets::default(), &[]).snapshot(Time::START);
        snapshot.generation = generation;
        View::new(snapshot, Vec::new())
    }

    const fn at(ms: u64) -> Time {
        Time::after_start(Duration::from_millis(ms))
    }

    fn shown(publication: &Publication) -> u64 {
        publication.views.borrow().snapshot.generation
    }

    #[test]
    fn nothing_is_made_while_nobody_looks() {
        let mut publication = Publication::new(view(0));
        publication.advance(at(0), 5, || panic!("for nobody"));
        assert_eq!(publication.due(), None);
    }

    #[test]
    fn the_first_is_made_at_once_and_the_next_when_it_is_time() {
        let mut publication = Publication::new(view(0));
        let _reader = publication.views().subscribe();
        publication.advance(at(7), 1, || view(1));
        assert_eq!((shown(&publication), publication.due()), (1, None));
        publication.advance(at(8), 2, || panic!("too soon"));
        assert_eq!(publication.due(), Some(at(107)));
        publication.advance(at(106), 3, || panic!("too soon"));
        publication.advance(at(107), 3, || view(3));
        assert_eq!((shown(&publication), publication.due()), (3, None));
        publication.advance(at(500), 3, || panic!("nothing changed"));
    }

    #[test]
    fn who_looks_sees_no_older_state_than_when_he_asked() {
        let mut publication = Publication::new(view(0));
        let (reply, mut answer) = oneshot::channel();
        publication.look(reply);
        publication.advance(at(0), 1, || view(1));
        assert_eq!(answer.try_recv().expect("at once").0.snapshot.generation, 1);
        let (reply, mut answer) = oneshot::channel();
        publication.look(reply);
        publication.advance(at(50), 2, || panic!("too soon"));
        assert!(answer.try_recv().is_err());
        publication.advance(at(100), 2, || view(2));
        let (seen, now) = answer.try_recv().expect("when it is time");
        assert_eq!((seen.snapshot.generation, now), (2, at(100)));
    }

    #[test]
    fn what_the_arbiter_does_not_know_is_shown_too() {
        let mut publication = Publication::new(view(0));
        let _reader = publication.views().subscribe();
        publication.advance(at(0), 0, || panic!("nothing changed"));
        publication.mark_stale();
        publication.advance(at(1), 0, || view(0));
        assert_eq!(publication.last, Some(at(1)));
    }
}
