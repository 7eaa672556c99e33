//! The guard under which a lease's memory may be used, and the gate it passes.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpulease_words::LeaseId;
use tokio::sync::watch;

use crate::lease_state::LeaseState;

/// Guards of this process, of whatever lease: while there is one, an allocation must not wait, for
/// the wait could be for memory that this very process keeps.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread of this process is inside a guard.
pub(crate) fn inside_a_guard() -> bool {
    INSIDE.load(Ordering::SeqCst) > 0
}

/// While it lives, the lease's memory stays where it is: pointers and slices of its segments may be
/// used, and a suspension waits for it.
///
/// Guards are counted per process: while one lives, more are handed out at once, on any thread.
/// Keep one for a step or a batch, and not over a wait for something else.
#[derive(Debug)]
#[must_use = "the memory may only be used while the guard lives"]
pub struct Resident<'l> {
    lease: &'l LeaseState,
}

impl<'l> Resident<'l> {
    /// The lease that it is of.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.lease.id()
    }

    pub(crate) fn state(&self) -> &'l LeaseState {
        self.lease
    }

    pub(crate) fn try_enter(lease: &'l LeaseState) -> Option<Self> {
        lease.gate().try_pass().then(|| {
            INSIDE.fetch_add(1, Ordering::SeqCst);
            Self { lease }
        })
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        // A forked child counts for itself, and a lock may be held there for ever.
        if !self.lease.is_forked() {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            self.lease.gate().leave();
        }
    }
}

/// Where guards are counted, and where a suspension will keep new ones out.
///
/// ```text
///   open --close--> closed, residents > 0 --last leaves--> drained --reopen--> open
///         nested guards still pass ^            nobody passes ^
/// ```
#[derive(Debug)]
pub(crate) struct Gate {
    state: watch::Sender<Passage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passage {
    closed: bool,
    residents: usize,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { state: watch::Sender::new(Passage { closed: false, residents: 0 }) }
    }

    /// Counts a guard, unless the gate is closed and nobody is inside.
    fn try_pass(&self) -> bool {
        let mut passed = false;
        self.state.send_if_modified(|passage| {
            passed = !passage.closed || passage.residents > 0;
            passage.residents += usize::from(passed);
            false
        });
        passed
    }

    fn leave(&self) {
        self.state.send_if_modified(|passage| {
            passage.residents = passage.residents.checked_sub(1).expect("who leaves had entered");
            passage.closed && passage.residents == 0
        });
    }

    /// Returns when the gate is open, which by then it may not be any more.
    pub(crate) async fn opened(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as we do.
        let _ = state.wait_for(|passage| !passage.closed).await;
    }

    /// Lets only nested guards pass from now on.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first step of a suspension"))]
    pub(crate) fn close(&self) {
        self.state.send_modify(|passage| passage.closed = true);
    }

    /// Lets everyone pass again.
    #[cfg_attr(not(test), expect(dead_code, reason = "the last step of a suspension, or its cancellation"))]
    pub(crate) fn reopen(&self) {
        self.state.send_modify(|passage| passage.closed = false);
    }

    /// Returns when the gate is closed and nobody is inside.
    #[cfg_attr(not(test), expect(dead_code, reason = "the second step of a suspension"))]
    pub(crate) async fn drained(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|passage| passage.closed && passage.residents == 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_closed_gate_passes_nested_guards_and_drains_with_the_last() {
        let gate = Arc::new(Gate::new());
        assert!(gate.try_pass());
        gate.close();
        assert!(gate.try_pass(), "a nested guard passes, or the process would wait for itself");
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.drained().await }
        });
        gate.leave();
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        gate.leave();
        waiting.await.unwrap();
        assert!(!gate.try_pass(), "nobody is inside, so nobody passes");
        let entering = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move {
                gate.opened().await;
                gate.try_pass()
            }
        });
        gate.reopen();
        assert!(entering.await.unwrap());
    }
}
