//! The guard under which a lease's memory may be used.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpulease_words::LeaseId;

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
