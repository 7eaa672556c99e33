//! Everything recomputed from what it is derived from.

use crate::Arbiter;

impl Arbiter {
    /// Panics when an invariant is broken (I1 and what the tables say of each other): the
    /// simulator calls it after every step, and `handle` checks the devices it touched.
    pub fn check(&self) {
        self.ledger.check();
        self.line.piles.check();
    }
}
