//! What is asked back of holders, and whom a suspension may hit.

use gpulease_arbiter::{OnOverdue, Time};
use gpulease_words::{Bytes, DeviceId, LeaseId, ProcessId, SessionId};

use super::ledger::add;
use super::{Aim, AskFact, Broken, Journey, Model, Node, RecallFact, Standing, ensure};

impl Model {
    /// Whether the lease may be asked to leave now: it is movable, no guarantee protects it, it was not
    /// called in vain just now, everyone hears it, and somebody who is short may take its memory.
    pub(super) fn may_be_suspended(&self, id: LeaseId) -> Result<(), Broken> {
        let lease = &self.leases[&id];
        let active = !lease.ended && lease.journey == Journey::Active;
        ensure!(
            active && lease.movable,
            "{id} is to leave, and is {:?}, movable: {}",
            lease.journey,
            lease.movable
        );
        ensure!(!self.is_protected(id), "I7: {id} is to leave, and a guarantee covers it");
        ensure!(
            lease.not_before <= self.now,
            "{id} is to leave, and is left alone until {:?}",
            lease.not_before
        );
        let deaf = self.holders(id).into_iter().find(|holder| !self.hears(*holder));
        ensure!(deaf.is_none(), "{id} is to leave, and {deaf:?} does not hear it");
        let back = |other: &super::LeaseFact| other.asks_itself && !other.ended;
        let shares = |other: &super::LeaseFact| other.devices.iter().any(|on| lease.devices.contains(on));
        if self.standing_leases().any(|(other, fact)| other != id && back(fact) && shares(fact)) {
            return Ok(());
        }
        let mut askers = self.asks.iter().filter(|ask| ask.standing == Standing::Waiting);
        ensure!(
            askers.any(|ask| self.may_take(ask, id)),
            "{id} is to leave, and nobody waits who may take its memory: since {:?}, for {:?}, idle {}, gives {}, {:?}: {}",
            lease.since,
            self.residency(id),
            lease.idle,
            self.gives(id),
            self.path_of_lease(lease)
                .iter()
                .map(|n| (n.path(), self.tally().charged.get(n).copied(), self.budget(n).weight))
                .collect::<Vec<_>>(),
            self.describe_all()
        );
        Ok(())
    }

    fn may_take(&self, ask: &AskFact, id: LeaseId) -> bool {
        let lease = &self.leases[&id];
        let own = match ask.aim {
            Aim::Lease { .. } => false,
            Aim::Growth { lease, .. } | Aim::Resume { lease } => lease == id,
        };
        if own {
            return false;
        }
        if ask.returning || self.may_be_covered(ask) {
            return true;
        }
        let grows = matches!(ask.aim, Aim::Growth { .. });
        let barrier = ask.risen || ask.senior || ask.before.barrier;
        let fair = lease.idle || (!grows && (barrier || self.keeps_larger_share(ask, id)));
        fair && lease.since.plus(self.residency(id)) <= self.now
    }

    /// Whether the donor's account would have the larger share left, where its path and the asker's part.
    fn keeps_larger_share(&self, ask: &AskFact, id: LeaseId) -> bool {
        let (theirs, ours) = (self.path_of_lease(&self.leases[&id]), self.path_of(ask));
        let parted = theirs.iter().zip(&ours).find(|(a, b)| a != b);
        let Some((theirs, ours)) = parted else { return false };
        let tally = self.tally();
        let charged = |node: &Node| tally.charged.get(node).copied().unwrap_or(Bytes::ZERO);
        let left = charged(theirs).saturating_sub(self.gives(id));
        let least = self.least_need(ask);
        let then = add(charged(ours), least);
        let share = |node: &Node, bytes: Bytes| {
            (u128::from(bytes.get()) << 20) / u128::from(self.budget(node).weight.get())
        };
        share(theirs, left) > share(ours, then)
    }

    /// What an ask takes at least, wherever it is granted.
    fn least_need(&self, ask: &AskFact) -> Bytes {
        match &ask.aim {
            Aim::Lease { terms, .. } => {
                let wished = self.devices.iter().filter(|fact| match &terms.devices {
                    gpulease_arbiter::DeviceWish::Any(_) => !fact.lost,
                    gpulease_arbiter::DeviceWish::These(these) => these.contains(&fact.id),
                });
                let mut needs: Vec<Bytes> = wished.map(|fact| self.need(ask, fact.id)).collect();
                needs.sort();
                needs.into_iter().take(Self::devices_wanted(terms)).sum()
            }
            Aim::Growth { device, .. } => self.need(ask, *device),
            Aim::Resume { lease } => {
                self.leases[lease].devices.iter().map(|device| self.need(ask, *device)).sum()
            }
        }
    }

    /// The arbiter itself asks for surplus of a lease: of nothing else, and with its deadline. Who comes back hears what was
    /// asked for meanwhile.
    pub(super) fn hear_recall(
        &mut self,
        session: SessionId,
        id: LeaseId,
        device: DeviceId,
        bytes: Bytes,
        deadline: Time,
    ) -> Result<(), Broken> {
        let (held, now) = (self.charge_on(id, device).held, self.now);
        let due = now.plus(self.policy.recall_deadline);
        let most = held.saturating_sub(bytes);
        let reserve = self.leases[&id].reserve;
        if self.leases[&id].recall.as_ref().is_some_and(|recall| self.is_met(id, recall)) {
            self.leases.get_mut(&id).expect("it was judged").recall = None;
        }
        let away = self.sessions[&session].was_away.filter(|(_, until)| *until == now);
        let earliest = away.map_or(due, |(since, _)| since.plus(self.policy.recall_deadline));
        let lease = self.leases.get_mut(&id).expect("it was judged");
        let fresh = lease.recall.as_ref().is_none_or(|recall| recall.deadline != deadline);
        ensure!(
            !fresh || (earliest..=due).contains(&deadline),
            "{id} is asked for surplus by {deadline:?}, not by {due:?}"
        );
        let recall = lease.recall.get_or_insert_with(|| RecallFact {
            deadline,
            missed: deadline <= now,
            may_hold: std::collections::BTreeMap::new(),
            untold: std::collections::BTreeSet::new(),
        });
        recall.deadline = deadline;
        let ceiling = recall.may_hold.entry(device).or_insert(Bytes::MAX);
        ensure!(
            most >= reserve.min(*ceiling),
            "{bytes} of {id}, which holds {held} on device {device}, are wanted back, and it may hold {reserve}"
        );
        *ceiling = most.min(*ceiling);
        Ok(())
    }

    /// A holder that heard of no recall, because nobody of it was there, may be overdue all the same.
    pub(super) fn may_be_overdue_unheard(&self, id: LeaseId) -> bool {
        let lease = &self.leases[&id];
        let surplus = lease.devices.iter().any(|device| self.charge_on(id, *device).held > lease.reserve);
        self.binds() && !lease.ended && surplus
    }

    pub(super) fn see_terminated(&self, id: LeaseId) -> Result<(), Broken> {
        let path = self.path_of_lease(&self.leases[&id]);
        let policy = path.iter().rev().find_map(|node| self.budget(node).on_overdue);
        ensure!(
            matches!(policy, Some(OnOverdue::Terminate { .. })),
            "{id} is ended, and its account keeps what is overdue"
        );
        Ok(())
    }

    /// Sessions of a process that are open, present or not.
    pub(in crate::sim) fn sessions_of(&self, process: ProcessId) -> Vec<SessionId> {
        let open = self.sessions.iter().filter(|(_, s)| s.open && s.peer.process == process);
        open.map(|(id, _)| *id).collect()
    }
}
