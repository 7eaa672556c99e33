//! What guarantees cover, added up from the facts.

use std::collections::BTreeMap;

use gpulease_arbiter::Peer;
use gpulease_words::{Bytes, DeviceId, LeaseId, Uid};

use super::ledger::add;
use super::{Aim, AskFact, DeviceFact, Journey, LeaseFact, Model};

/// Whether what is on its way out of an account still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departing {
    Counts,
    IsGone,
}

impl Model {
    pub(super) fn guarantees_anything(&self) -> bool {
        !self.guaranteed_in_all().is_zero()
    }

    /// All that is guaranteed on each device: to groups, and to users whose group has no budget.
    pub(super) fn guaranteed_in_all(&self) -> Bytes {
        let groups: Bytes = self.budgets.groups.values().map(|budget| budget.guarantee).sum();
        let single = self.budgets.users.iter().filter(|(uid, _)| self.budgeted_group(**uid).is_none());
        add(groups, single.map(|(_, budget)| budget.guarantee).sum())
    }

    fn budgeted_group(&self, uid: Uid) -> Option<&str> {
        let group = self.budgets.memberships.get(&uid)?;
        self.budgets.groups.contains_key(group).then_some(group)
    }

    fn user_guarantee(&self, uid: Uid) -> Bytes {
        self.budgets.users.get(&uid).map_or(Bytes::ZERO, |budget| budget.guarantee)
    }

    fn group_guarantee(&self, group: &str) -> Bytes {
        self.budgets.groups.get(group).map_or(Bytes::ZERO, |budget| budget.guarantee)
    }

    /// What of a group's guarantee its users have for themselves.
    fn kept_of(&self, group: &str) -> Bytes {
        let members = self.budgets.users.keys().filter(|uid| self.budgeted_group(**uid) == Some(group));
        members.map(|uid| self.user_guarantee(*uid)).sum()
    }

    /// The most that guarantees could cover of a user if he had nothing else, nor anyone of his group.
    pub(super) fn coverable(&self, uid: Uid, group: Option<&str>) -> Bytes {
        let rest = group.map(|group| self.group_guarantee(group).saturating_sub(self.kept_of(group)));
        add(self.user_guarantee(uid), rest.unwrap_or(Bytes::ZERO))
    }

    /// What is guaranteed on each device to others than this user and his group.
    pub(super) fn guaranteed_to_others(&self, uid: Uid, group: Option<&str>) -> Bytes {
        let own = group.map(|group| self.group_guarantee(group)).filter(|own| !own.is_zero());
        self.guaranteed_in_all().saturating_sub(own.unwrap_or_else(|| self.user_guarantee(uid)))
    }

    /// What counts of a user on a device: what is charged to him, and what his asks that are covered are due.
    fn counted(
        &self,
        uid: Uid,
        device: DeviceId,
        departing: Departing,
        asks: &dyn Fn(&AskFact) -> bool,
    ) -> Bytes {
        let here = |lease: &LeaseFact| lease.peer.uid == uid && lease.devices.contains(&device);
        let leases = self.standing_leases().filter(|(_, lease)| here(lease));
        let left = |id: LeaseId, lease: &LeaseFact| {
            let charge = self.charge_on(id, device);
            let leaves = departing == Departing::IsGone && lease.is_on_its_way_out();
            if leaves { add(charge.overhead, charge.quarantined) } else { charge.total() }
        };
        let charged: Bytes = leases.map(|(id, lease)| left(id, lease)).sum();
        let due = self.waiting().filter(|(_, ask)| self.account_of(ask).0 == uid && asks(ask));
        let due: Bytes = due.map(|(i, _)| self.covered_need(i, device)).sum();
        add(charged, due)
    }

    /// Whose account an ask is in.
    pub(super) fn account_of<'a>(&'a self, ask: &'a AskFact) -> (Uid, Option<&'a str>) {
        let peer = match ask.aim {
            Aim::Lease { .. } => &ask.peer,
            Aim::Growth { lease, .. } | Aim::Resume { lease } => &self.leases[&lease].peer,
        };
        (peer.uid, peer.group.as_deref())
    }

    fn covered_need(&self, index: usize, device: DeviceId) -> Bytes {
        let on = self.barrier_devices(index).contains(&device);
        if on { self.need(&self.asks[index], device) } else { Bytes::ZERO }
    }

    /// Whether a guarantee of the account covers all that is counted there and `more`, where asks that
    /// are covered count as `asks` says.
    fn covers(
        &self,
        (uid, group): (Uid, Option<&str>),
        device: DeviceId,
        more: Bytes,
        departing: Departing,
        asks: &dyn Fn(&AskFact) -> bool,
    ) -> bool {
        if !self.binds() {
            return false;
        }
        let counted = |uid| self.counted(uid, device, departing, asks);
        let (before, own) = (counted(uid), self.user_guarantee(uid));
        let after = before.saturating_add(more);
        if !own.is_zero() && after <= own {
            return true;
        }
        let Some(group) = group else { return false };
        let adds = after.saturating_sub(own).saturating_sub(before.saturating_sub(own));
        let whole = self.group_guarantee(group);
        let beyond = |uid: &Uid| counted(*uid).saturating_sub(self.user_guarantee(*uid));
        let counted: Bytes = self.users_of(group).iter().map(beyond).sum();
        !whole.is_zero() && add(self.kept_of(group), counted).saturating_add(adds) <= whole
    }

    fn users_of(&self, group: &str) -> std::collections::BTreeSet<Uid> {
        let peers = self.processes.values().map(|fact| &fact.peer);
        peers.filter(|peer| peer.group.as_deref() == Some(group)).map(|peer| peer.uid).collect()
    }

    /// Whether an ask that is said to be lent may be one that a guarantee covers, at a moment at which
    /// nobody says which others are. It may have been covered before leases of this step turned out dearer.
    pub(super) fn may_be_covered(&self, ask: &AskFact) -> bool {
        let account = self.account_of(ask);
        let covers = |fact: &DeviceFact| {
            let need = self.need_there(ask, fact.id).saturating_sub(self.dearer(account, fact));
            self.covers(account, fact.id, need, Departing::Counts, &|_| false)
        };
        ask.guaranteed || ask.before.guaranteed || self.devices.iter().any(covers)
    }

    /// What leases of the account that were granted now cost more than they were estimated to: contexts count by
    /// their estimate while an ask waits, even where they were measured before.
    fn dearer(&self, (uid, group): (Uid, Option<&str>), device: &DeviceFact) -> Bytes {
        let alike = |peer: &Peer| peer.uid == uid || group.is_some() && peer.group.as_deref() == group;
        let paid = self.contexts.iter().filter(|((_, on), lease)| {
            let lease = &self.leases[lease];
            *on == device.id && lease.granted_at == self.now && alike(&lease.peer)
        });
        let more = paid.map(|((process, on), _)| self.context(*process, *on).saturating_sub(device.estimate));
        more.sum()
    }

    fn need_there(&self, ask: &AskFact, device: DeviceId) -> Bytes {
        match &ask.aim {
            Aim::Growth { lease, .. } | Aim::Resume { lease }
                if !self.leases[lease].devices.contains(&device) =>
            {
                Bytes::MAX
            }
            Aim::Lease { .. } | Aim::Growth { .. } | Aim::Resume { .. } => self.need(ask, device),
        }
    }

    /// Whether no recall but of surplus may touch a lease, whichever of the asks are covered, once what is
    /// on its way out is gone.
    pub(super) fn is_protected(&self, id: LeaseId) -> bool {
        let lease = &self.leases[&id];
        let sure = lease.guaranteed && lease.guaranteed_before;
        !has_missed(lease) && (sure || self.is_covered(id, Departing::IsGone, &|_| true))
    }

    /// Whether it is so now, as the arbiter says which of the asks are covered.
    fn is_protected_now(&self, id: LeaseId) -> bool {
        let lease = &self.leases[&id];
        let covered = || self.is_covered(id, Departing::Counts, &|ask| ask.guaranteed);
        !has_missed(lease) && (lease.guaranteed || covered())
    }

    /// Whether guarantees cover all that counts for the lease's account on its devices.
    fn is_covered(&self, id: LeaseId, departing: Departing, asks: &dyn Fn(&AskFact) -> bool) -> bool {
        let lease = &self.leases[&id];
        let account = (lease.peer.uid, lease.peer.group.as_deref());
        let mut devices = lease.devices.iter();
        devices.all(|device| self.covers(account, *device, Bytes::ZERO, departing, asks))
    }

    /// Whether a lease that was just granted must be marked as one that a guarantee covers, whichever asks are.
    pub(super) fn is_within_guarantee(&self, id: LeaseId) -> bool {
        self.is_covered(id, Departing::Counts, &|_| true)
    }

    /// Whether guarantees cover a lease that takes so much more, beside the others that they cover.
    pub(super) fn stays_covered(&self, id: LeaseId, takes: &BTreeMap<DeviceId, Bytes>) -> bool {
        let peer = &self.leases[&id].peer;
        takes.iter().all(|(device, more)| {
            let of = |uid: Uid| {
                let here = |lease: &LeaseFact| {
                    lease.guaranteed && lease.peer.uid == uid && lease.devices.contains(device)
                };
                let leases = self.standing_leases().filter(|(_, lease)| here(lease));
                let charged: Bytes = leases.map(|(id, _)| self.charge_on(id, *device).total()).sum();
                if uid == peer.uid { add(charged, *more) } else { charged }
            };
            let own = self.user_guarantee(peer.uid);
            let Some(group) = peer.group.as_deref().filter(|_| own.is_zero() || of(peer.uid) > own) else {
                return !own.is_zero() && of(peer.uid) <= own;
            };
            let beyond = |user: Uid| of(user).saturating_sub(self.user_guarantee(user));
            let beyond: Bytes = self.users_of(group).into_iter().map(beyond).sum();
            let whole = self.group_guarantee(group);
            !whole.is_zero() && add(self.kept_of(group), beyond) <= whole
        })
    }

    /// What guarantees keep out of an ask's reach on a device: all that is or may be protected of others, and what
    /// is of its own user.
    pub(super) fn kept_from(&self, ask: &AskFact, device: DeviceId) -> Bytes {
        let (uid, group) = self.account_of(ask);
        let group = group.filter(|group| !self.group_guarantee(group).is_zero());
        let mut all = self.protected_of(uid, device);
        if let Some(group) = group {
            let own = self.user_guarantee(uid);
            all = add(all, self.kept_of(group).saturating_sub(own));
            let others = self.users_of(group).into_iter().filter(|user| *user != uid);
            let beyond =
                |user: Uid| self.protected_of(user, device).saturating_sub(self.user_guarantee(user));
            all = add(all, others.map(beyond).sum());
        }
        add(add(all, self.guaranteed_to_others(uid, group)), self.excess_of_others(uid, group, device))
    }

    /// What is protected beyond the guarantees of other groups, and of other users who stand for themselves.
    fn excess_of_others(&self, uid: Uid, group: Option<&str>, device: DeviceId) -> Bytes {
        let owed = |group: &&str| !self.group_guarantee(group).is_zero();
        let beyond = |user: Uid| self.protected_of(user, device).saturating_sub(self.user_guarantee(user));
        let groups = self.budgets.groups.keys().map(String::as_str).filter(owed);
        let groups = groups.filter(|name| Some(*name) != group).map(|name| {
            let beyond: Bytes = self.users_of(name).into_iter().map(beyond).sum();
            add(self.kept_of(name), beyond).saturating_sub(self.group_guarantee(name))
        });
        let single = self.processes.values().filter(|fact| fact.peer.group.as_deref().filter(owed).is_none());
        let single: std::collections::BTreeSet<Uid> = single.map(|fact| fact.peer.uid).collect();
        let single = single.into_iter().filter(|user| group.is_some() || *user != uid).map(beyond);
        add(groups.sum(), single.sum())
    }

    /// What is protected of a user's leases, and what his asks are due that guarantees cover.
    fn protected_of(&self, uid: Uid, device: DeviceId) -> Bytes {
        let here =
            |lease: &LeaseFact| !lease.ended && lease.peer.uid == uid && lease.devices.contains(&device);
        let leases = self.standing_leases().filter(|(_, lease)| here(lease));
        // Nothing moves what is pinned, protected or not.
        let stays = |lease: &LeaseFact| !lease.movable && lease.guaranteed;
        let leases = leases.filter(|(id, lease)| stays(lease) || self.is_protected_now(*id));
        let leases = leases.map(|(id, lease)| {
            let charge = self.charge_on(id, device);
            let own = add(add(charge.set_aside, charge.held), charge.draining);
            let in_store = !lease.movable && !lease.guaranteed;
            if in_store { Bytes::ZERO } else { own.min(lease.reserve) }
        });
        let due = self.waiting().filter(|(_, ask)| ask.guaranteed && self.account_of(ask).0 == uid);
        add(leases.sum(), due.map(|(i, _)| self.covered_need(i, device)).sum())
    }
}

fn has_missed(lease: &LeaseFact) -> bool {
    lease.recall.as_ref().is_some_and(|recall| recall.missed)
}

impl LeaseFact {
    /// Whether its memory is about to be another's, as far as anyone can say.
    fn is_on_its_way_out(&self) -> bool {
        !self.ended
            && !self.late
            && matches!(self.journey, Journey::Draining { .. } | Journey::Leaving { .. })
    }
}
