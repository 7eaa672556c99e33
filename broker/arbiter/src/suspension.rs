//! Leases leave their device for a while.

use gpulease_words::{LeaseId, SegmentId, SessionId};

use crate::{Arbiter, Budgets, Denial, Effect, Idleness, RequestId};

impl Arbiter {
    pub(crate) fn drained(&mut self, _: SessionId, _: LeaseId) {}

    pub(crate) fn swapped_out(&mut self, _: SessionId, _: LeaseId, _: SegmentId) {}

    pub(crate) fn swap_failed(&mut self, _: SessionId, _: LeaseId, _: String) {}

    pub(crate) fn restored(&mut self, _: SessionId, _: LeaseId, _: SegmentId) {}

    pub(crate) fn idle(&mut self, _: SessionId, _: LeaseId, _: Idleness) {}

    /// Nothing is suspended yet, so an active lease has its memory.
    pub(crate) fn resume(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        self.lease_of_member(process, lease)?.active()?;
        self.emit(Effect::Resumed { request, lease });
        Ok(())
    }

    /// Nothing moves yet, so every lease is pinned.
    pub(crate) fn pin(
        &mut self,
        request: RequestId,
        session: SessionId,
        lease: LeaseId,
    ) -> Result<(), Denial> {
        let process = self.session(session)?.process;
        self.lease_of_member(process, lease)?.active()?;
        self.emit(Effect::Done { request });
        Ok(())
    }

    pub(crate) fn set_budgets(&mut self, _: RequestId, _: Budgets) -> Result<(), Denial> {
        Err(Denial::NotAllowed(
            "budgets can't be changed while this broker runs; write them into its file and restart it",
        ))
    }
}
