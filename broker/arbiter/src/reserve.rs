//! The reserve: what is set aside for a lease, and the allocations that wait for its own bytes.

use gpulease_words::{AskId, DeviceId, LeaseId, ProcessId, SessionId};

use crate::acquire::deadline;
use crate::allocate::{Fits, Wanted, within_lease};
use crate::lease::{Lease, Share};
use crate::ledger::{minus, plus};
use crate::line::ask::Stage;
use crate::line::shape::Shape;
use crate::{Arbiter, Denial, RequestId};

impl Arbiter {
    pub(crate) fn wait_for_own_drain(
        &mut self,
        request: RequestId,
        session: SessionId,
        process: ProcessId,
        wanted: Wanted,
    ) -> Result<(), Denial> {
        let id = self.wait_for_segment(request, session, process, wanted, Stage::OwnDrain)?;
        let share = self.lease_mut(wanted.lease).share_mut(wanted.device);
        share.promised = plus(share.promised, wanted.bytes);
        share.waits.insert(id);
        // What is promised now is not there for the lease's growth.
        self.refit(wanted.lease, wanted.device);
        Ok(())
    }

    /// Serves the allocations that waited for the lease's own bytes, as far as those are back; and
    /// those that they can't suffice for any more are growth from now on.
    pub(crate) fn review(&mut self, lease: LeaseId, device: DeviceId) {
        loop {
            let Some(of) = self.leases.get(&lease) else {
                return;
            };
            let share = of.share(device);
            let Some((first, last)) = share.waits.first().copied().zip(share.waits.last().copied()) else {
                break;
            };
            let bytes = self.wanted(first).bytes;
            if !self.leases[&lease].covers_waits(device) {
                self.turn_into_growth(last);
            } else if bytes <= share.charge.set_aside {
                self.serve(first);
            } else {
                break;
            }
        }
        self.trim(lease, device);
        self.refit(lease, device);
    }

    fn serve(&mut self, id: AskId) {
        let wanted = self.wanted(id);
        // Taken first, so that the bytes it was promised are spare when it is made.
        let ask = self.take_ask(id);
        let request = ask.request.expect("an ask for a segment leaves with its asker");
        if let Err(denial) = self.make(Some(request), ask.process, &wanted) {
            self.deny(request, denial);
        }
    }

    /// What the lease waits for of its own can't come back any more: this allocation needs free bytes.
    fn turn_into_growth(&mut self, id: AskId) {
        let wanted = self.wanted(id);
        let share = self.lease_mut(wanted.lease).share_mut(wanted.device);
        share.waits.remove(&id);
        share.promised = minus(share.promised, wanted.bytes);
        let amount = share.beyond(wanted.bytes);
        let ask = self.line.get_mut(id);
        (ask.stage, ask.amount) = (Stage::InLine, amount);
        ask.deadline = deadline(wanted.patience, ask.since);
        let ask = ask.clone();
        self.line.enroll(id, &mut self.accounts);
        self.promote(id);
        self.set_ask_timers(&ask);
        let lease = &self.leases[&wanted.lease];
        if let Err(denial) = within_lease(lease, &wanted) {
            self.refuse_ask(id, denial);
        } else if lease.is_overdue() {
            self.refuse_ask(id, Denial::Overdue);
        }
    }

    /// The lease's asks for growth on the device take what it now lacks out of what is free, or stand aside until its
    /// limit allows them.
    pub(crate) fn refit(&mut self, lease: LeaseId, device: DeviceId) {
        for id in self.leases[&lease].growing.clone() {
            let wanted = self.wanted(id);
            if wanted.device == device {
                let amount = self.leases[&lease].share(device).beyond(wanted.bytes);
                let shape = Shape::growth(device, self.growth_hold(lease));
                self.reshape(id, shape, amount);
                self.place_growth(id, &wanted);
            }
        }
    }

    fn place_growth(&mut self, id: AskId, wanted: &Wanted) {
        let (of, stage) = (&self.leases[&wanted.lease], &self.line.get(id).stage);
        match (stage, within_lease(of, wanted)) {
            (Stage::OwnDrain, _) => return,
            (Stage::AtLimit, Ok(Fits::Now)) => {
                self.line.stand_in(id, &mut self.accounts, &self.ledger);
                self.promote(id);
            }
            (Stage::AtLimit, Err(denial)) => return self.refuse_ask(id, denial),
            (Stage::InLine | Stage::Barrier { .. }, Ok(Fits::OnceDrained)) => {
                self.demote(id);
                self.line.wait_aside(id, Stage::AtLimit, &mut self.accounts);
            }
            // What can't fit any more is refused in its turn.
            (Stage::InLine | Stage::Barrier { .. }, Ok(Fits::Now) | Err(_))
            | (Stage::AtLimit, Ok(Fits::OnceDrained)) => {}
            (Stage::Leaving, _) => unreachable!("only a resume waits for its lease to leave"),
        }
        self.hasty.push(id);
    }
}

impl Lease {
    /// Whether what is set aside and what drains suffices for what was promised.
    fn covers_waits(&self, device: DeviceId) -> bool {
        let share: &Share = self.share(device);
        let coming = share.charge.set_aside.saturating_add(share.charge.draining);
        coming >= share.promised
    }
}
