//! What no recall brings of a device.
//!
//! ```text
//! of an ask of user u in group g:
//!   others' guarantees, and what those protect beyond them
//! + guarantees of others in g, and what is protected of them beyond those
//! + what is protected of u
//! + what is still mapped of leases that were given back
//! ```
//!
//! Protected is what a guarantee covers of leases, and what asks are due that it covers. One that is pinned counts even
//! where it kept surplus too long: it can't be suspended. A group that has no guarantee is left out: then `u` stands
//! for himself.

use std::collections::BTreeMap;

use gpulease_words::{Bytes, DeviceId};

use crate::accounts::NodeId;
use crate::lease::Lease;
use crate::ledger::plus;
use crate::line::ask::{Ask, Right};
use crate::shortage::Pool;
use crate::{Arbiter, LeaseState, Pinning};

/// So many bytes of an account's on a device.
type Sums = BTreeMap<(NodeId, DeviceId), Bytes>;

/// Of all devices.
#[derive(Debug, Default)]
pub(crate) struct Bedrock {
    /// What is still mapped of leases that were given back: nobody can ask for it.
    lingering: Pool,
    /// By user.
    protected: Sums,
    /// What of that is beyond the users' own guarantees, by group.
    beyond: Sums,
    /// What is protected beyond the guarantee it comes out of: by who has that, and in all.
    excess: Sums,
    excess_in_all: Pool,
}

impl Arbiter {
    /// What no recall brings now.
    pub(crate) fn bedrock(&self) -> Bedrock {
        let mut bedrock = Bedrock::default();
        for lease in self.leases.values() {
            // What is pinned within a guarantee stays, protected or not.
            let stays = lease.pinning == Pinning::Pinned && lease.right == Right::Guaranteed;
            let protected = stays || self.is_protected(lease);
            for (device, share) in &lease.shares {
                if lease.state == LeaseState::Draining {
                    add_to(&mut bedrock.lingering, *device, share.charge.held);
                } else if protected {
                    let user = self.accounts.guarantors(lease.account).0;
                    add_to(&mut bedrock.protected, (user, *device), lease.keeps(*device));
                }
            }
        }
        for ask in self.line.asks.values().filter(|ask| ask.right == Right::Guaranteed) {
            let user = self.accounts.guarantors(ask.account).0;
            ask.covered.iter().for_each(|(device, need)| {
                add_to(&mut bedrock.protected, (user, *device), *need);
            });
        }
        self.sum_up(&mut bedrock);
        bedrock
    }

    fn sum_up(&self, bedrock: &mut Bedrock) {
        for ((user, device), bytes) in &bedrock.protected {
            let node = self.accounts.node(*user);
            let beyond = bytes.saturating_sub(node.guarantee());
            match self.guaranteed_group(*user) {
                Some(group) => add_to(&mut bedrock.beyond, (group, *device), beyond),
                None => add_to(&mut bedrock.excess, (*user, *device), beyond),
            }
        }
        for ((group, device), beyond) in &bedrock.beyond {
            let node = self.accounts.node(*group);
            let excess = plus(node.kept(), *beyond).saturating_sub(node.guarantee());
            add_to(&mut bedrock.excess, (*group, *device), excess);
        }
        for ((_, device), excess) in &bedrock.excess {
            add_to(&mut bedrock.excess_in_all, *device, *excess);
        }
    }

    fn guaranteed_group(&self, user: NodeId) -> Option<NodeId> {
        let group = self.accounts.node(user).parent.filter(|up| *up != NodeId::HOST);
        group.filter(|group| !self.accounts.node(*group).guarantee().is_zero())
    }

    /// What no recall brings of the device for the ask.
    pub(crate) fn out_of_reach(&self, bedrock: &Bedrock, ask: &Ask, device: DeviceId) -> Bytes {
        let user = self.accounts.guarantors(ask.account).0;
        let of = |sums: &Sums, node| sums.get(&(node, device)).copied().unwrap_or_default();
        let (own, guarantee) = (of(&bedrock.protected, user), self.accounts.node(user).guarantee());
        let (top, kin) = match self.guaranteed_group(user) {
            None => (user, Bytes::ZERO),
            Some(group) => {
                let kept = self.accounts.node(group).kept().saturating_sub(guarantee);
                let beyond = of(&bedrock.beyond, group).saturating_sub(own.saturating_sub(guarantee));
                (group, plus(kept, beyond))
            }
        };
        let excess = bedrock.excess_in_all.get(&device).copied().unwrap_or_default();
        let others = self.accounts.guaranteed_to_others(ask.account);
        let lingers = bedrock.lingering.get(&device).copied().unwrap_or_default();
        let all = [others, excess.saturating_sub(of(&bedrock.excess, top)), kin, own, lingers];
        all.into_iter().fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

impl Lease {
    /// What it keeps of the device while a guarantee protects it: surplus is asked back all the same, and what
    /// is counted as pinned is no guarantee's.
    fn keeps(&self, device: DeviceId) -> Bytes {
        let charge = &self.share(device).charge;
        let own = plus(plus(charge.set_aside, charge.held), charge.draining);
        match (self.pinning, self.right) {
            (Pinning::Pinned, Right::Lent | Right::Returning) => Bytes::ZERO,
            (Pinning::Pinned, Right::Guaranteed) | (Pinning::Movable, _) => own.min(self.reserve),
        }
    }
}

fn add_to<K: Ord>(sums: &mut BTreeMap<K, Bytes>, key: K, bytes: Bytes) {
    let sum = sums.entry(key).or_default();
    *sum = sum.saturating_add(bytes);
}
