//! What was given back or given up, and is not settled with the broker yet.
//!
//! It is told in the background and over another connection than an ask. An ask that overtook it
//! would be refused for want of what this process itself just gave back.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpulease_words::Bytes;
use tokio::sync::watch;

/// The debts of a session.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    open: Arc<watch::Sender<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    unsettled: BTreeMap<u64, Owed>,
}

/// What the broker is to have back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// So much of a lease.
    Memory(Bytes),
    /// A lease, a place in the line, or memory that nobody here knows the size of.
    Else,
}

/// One debt, settled when this is dropped.
#[derive(Debug)]
pub(crate) struct Debt {
    number: u64,
    open: Arc<watch::Sender<Open>>,
}

impl Debts {
    /// A new one.
    pub(crate) fn incur(&self, owed: Owed) -> Debt {
        let mut number = 0;
        self.open.send_modify(|open| {
            number = open.next;
            open.next += 1;
            open.unsettled.insert(number, owed);
        });
        Debt { number, open: Arc::clone(&self.open) }
    }

    /// Whether there are none.
    pub(crate) fn are_settled(&self) -> bool {
        self.open.borrow().unsettled.is_empty()
    }

    /// How much memory there is to give back; `None` where there is something else.
    pub(crate) fn memory(&self) -> Option<Bytes> {
        let of = |owed: &Owed| match owed {
            Owed::Memory(bytes) => Some(*bytes),
            Owed::Else => None,
        };
        self.open.borrow().unsettled.values().map(of).sum()
    }

    /// Waits for those that there are now; later ones do not count.
    pub(crate) async fn settled(&self) {
        let mut open = self.open.subscribe();
        let end = open.borrow().next;
        // It cannot fail: the sender is ours.
        let _ = open.wait_for(|open| open.unsettled.keys().next().is_none_or(|first| *first >= end)).await;
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

    use gpulease_words::mib;

    use super::*;

    #[test]
    fn older_debts_are_waited_for_and_later_ones_are_not() {
        let debts = Debts::default();
        assert!(debts.are_settled());
        let (first, second) = (debts.incur(Owed::Memory(mib(2))), debts.incur(Owed::Memory(mib(4))));
        assert_eq!(debts.memory(), Some(mib(6)));
        let mut settled = pin!(debts.settled());
        let mut poll = || settled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll(), Poll::Pending);
        let later = debts.incur(Owed::Else);
        assert_eq!(debts.memory(), None);
        drop(first);
        assert_eq!(poll(), Poll::Pending);
        drop(second);
        assert_eq!(poll(), Poll::Ready(()));
        assert!(!debts.are_settled());
        drop(later);
        assert!(debts.are_settled());
    }
}
