//! The state in words, for whoever has to find a mistake.

use gpulease_words::Bytes;

use super::Model;

impl Model {
    /// What each device has for an ask, for whoever has to find a mistake.
    pub(super) fn describe_rooms(&self, index: usize) -> String {
        let (tally, ask) = (self.tally(), &self.asks[index]);
        let kept = self.kept(&tally, |_| true);
        let describe = |fact: &super::DeviceFact| {
            let (room, need) = (self.room(&tally, &kept, fact.id), self.need(ask, fact.id));
            let (free, ceiling) = (tally.free[&fact.id], self.ceiling(&tally, fact.id));
            format!("device {}: free {free}, room {room}, need {need}, at most {ceiling}", fact.id)
        };
        let rooms = self.devices.iter().map(describe).collect::<Vec<_>>().join("; ");
        let nodes = self.path_of(ask).into_iter().map(|node| {
            let charged = tally.charged.get(&node).copied().unwrap_or(Bytes::ZERO);
            let keeps = kept.bytes.get(&node).copied().unwrap_or(Bytes::ZERO);
            let closed = kept.bytes_closed.contains(&node) || kept.leases_closed.contains(&node);
            let limit = self.budget(&node).limit;
            format!("{}: charged {charged}, kept {keeps}, limit {limit:?}, closed {closed}", node.path())
        });
        let stores = self.devices.iter().map(|fact| {
            let (used, most) = (self.pinned_used(fact.id), self.pinned_max(fact.id));
            format!("{used}/{most} closed {}", kept.pinned_closed.contains(&fact.id))
        });
        let stores = stores.collect::<Vec<_>>().join(", ");
        let arena = format!("{}+{}/{}", self.arena_used(), kept.arena, self.policy.arena);
        let nodes = nodes.collect::<Vec<_>>().join("; ");
        let right = (ask.guaranteed, ask.returning, kept.collecting.contains(&index));
        format!("{rooms}; {nodes}; pinned {stores}; arena {arena} {}; {right:?}", kept.arena_closed)
    }

    /// All that wait, with what they need and what there is for them.
    pub(in crate::sim) fn describe_all(&self) -> String {
        let all = self.hoping().map(|(i, ask)| {
            let barrier = if self.is_barrier(ask) { " barrier" } else { "" };
            format!(
                "\n{:?}{barrier} {:?} {:?} bound {:?}: {}",
                ask.id,
                ask.standing,
                ask.aim,
                ask.bound,
                self.describe_rooms(i)
            )
        });
        let leases = self.standing_leases().map(|(id, lease)| {
            let (charge, now) = (self.charge(id), &lease.journey);
            let (moves, owed) = (lease.movable, lease.guaranteed);
            let left = (lease.since, self.residency(id), lease.not_before);
            format!(
                "\n{id} of {} {now:?} reserve {} on {:?}, ended {}, movable {moves}, guaranteed {owed}, protected {}, idle {}, {left:?}: {charge:?}",
                lease.peer.uid,
                lease.reserve,
                lease.devices,
                lease.ended,
                self.is_protected(id),
                lease.idle,
            )
        });
        let users = self.budgets.users.iter().map(|(uid, budget)| (uid.to_string(), budget.guarantee));
        let groups = self.budgets.groups.iter().map(|(name, budget)| (name.clone(), budget.guarantee));
        let policy = format!(
            "\nguaranteed {:?}, arena {}, {:?}, residency {:?}, recall {:?}, drain {:?}",
            users.chain(groups).collect::<Vec<_>>(),
            self.policy.arena,
            self.budgets.memberships,
            self.policy.min_residency,
            self.policy.recall_deadline,
            self.policy.drain_deadline
        );
        all.chain(leases).chain([policy]).collect()
    }
}
