//! A segment that the broker charges to a lease.

use gpulease_words::{Bytes, SegmentId};

use crate::debts;
use crate::duty::Duty;
use crate::engine::Share;
use crate::error::AskError;
use crate::lease_state::LeaseState;

/// The duty to give a segment back, done in the background when dropped. Whoever maps the segment
/// drops the mapping first.
#[derive(Debug)]
pub(crate) struct Charge {
    lease: Share<LeaseState>,
    id: SegmentId,
    bytes: Bytes,
    owed: Owed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Free,
    Nothing,
}

impl Charge {
    pub(crate) fn new(lease: &Share<LeaseState>, id: SegmentId, bytes: Bytes) -> Self {
        Self { lease: lease.clone(), id, bytes, owed: Owed::Free }
    }

    pub(crate) fn lease(&self) -> &Share<LeaseState> {
        &self.lease
    }

    pub(crate) fn segment(&self) -> SegmentId {
        self.id
    }

    /// Gives the segment back; where that fails it stays owed.
    pub(crate) async fn give_back(&mut self) -> Result<(), AskError> {
        self.lease.session().free(self.lease.key(), self.id).await?;
        self.owed = Owed::Nothing;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.owed == Owed::Free && !self.lease.is_forked() {
            let duty = Duty::Free(self.lease.key(), self.id);
            duty.discharge_of(self.lease.session(), debts::Owed::Memory(self.bytes));
        }
    }
}
