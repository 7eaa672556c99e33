//! What was given back or given up, and is not settled with the broker yet.
//!
//! It is told in the background and over another connection than an ask. An ask that overtook it
//! would be refused for want of what this process itself just gave back.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// The debts of a session.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    open: Arc<watch::Sender<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    unsettled: BTreeSet<u64>,
}

/// One debt, settled when this is dropped.
#[derive(Debug)]
pub(crate) struct Debt {
    number: u64,
    open: Arc<watch::Sender<Open>>,
}

impl Debts {
    /// A new one.
    pub(crate) fn incur(&self) -> Debt {
        let mut number = 0;
        self.open.send_modify(|open| {
            number = open.next;
            open.next += 1;
            open.unsettled.insert(number);
        });
        Debt { number, open: Arc::clone(&self.open) }
    }

    /// Whether there are none.
    pub(crate) fn are_settled(&self) -> bool {
        self.open.borrow().unsettled.is_empty()
    }

    /// Waits for those that there are now; later ones do not count.
    pub(crate) async fn settled(&self) {
        let mut open = self.open.subscribe();
        let end = open.borrow().next;
        // It cannot fail: the sender is ours.
        let _ = open.wait_for(|open| open.unsettled.first().is_none_or(|first| *first >= end)).await;
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.open.send_modify(|open| {
            open.unsettled.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn older_debts_are_waited_for_and_later_ones_are_not() {
        let debts = Debts::default();
        assert!(debts.are_settled());
        let (first, second) = (debts.incur(), debts.incur());
        let mut settled = pin!(debts.settled());
        let mut poll = || settled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(), Poll::Pending);
        let later = debts.incur();
        drop(first);
        assert_eq!(poll(), Poll::Pending);
        drop(second);
        assert_eq!(poll(), Poll::Ready(()));
        assert!(!debts.are_settled());
        drop(later);
        assert!(debts.are_settled());
    }
}
