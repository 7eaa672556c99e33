//! What is due to an ask for a lease: whether it makes sense, could ever be granted, may wait.

use gpulease_arbiter::{DeviceWish, RequestId, Terms};
use gpulease_words::{Bytes, DeviceId, ProcessId, Reason, SessionId, Uid};

use super::{Aim, AskFact, Model, Standing, Verdict};

impl Model {
    pub(super) fn judge_acquire(
        &mut self,
        request: RequestId,
        session: SessionId,
        name: u64,
        terms: &Terms,
    ) -> Verdict {
        let Some(peer) = self.open_session(session).map(|fact| fact.peer.clone()) else {
            return Verdict::No(vec![Reason::NoSuchSession]);
        };
        if let Some(verdict) = self.take_up(request, session, name, terms) {
            return verdict;
        }
        let ask = AskFact {
            patience: terms.patience,
            request: Some(request),
            ..AskFact::new(session, peer, Aim::Lease { name, terms: terms.clone() }, self.now)
        };
        let refusals = self.refusals(&ask, terms);
        if !refusals.is_empty() {
            return Verdict::No(refusals);
        }
        self.asks.push(ask);
        Verdict::InLine
    }

    /// The same name is the same ask, under a new request; only how long to wait may be said
    /// differently.
    fn take_up(
        &mut self,
        request: RequestId,
        session: SessionId,
        name: u64,
        terms: &Terms,
    ) -> Option<Verdict> {
        let index = self.named(session, name)?;
        let Aim::Lease { terms: before, .. } = &self.asks[index].aim else { return None };
        let same = *before == Terms { patience: before.patience, ..terms.clone() };
        let stands = match self.asks[index].standing {
            Standing::Waiting => true,
            Standing::Granted(lease) => !self.leases[&lease].ended,
            Standing::Made(_)
            | Standing::OwnDrain
            | Standing::AtLimit
            | Standing::Leaving
            | Standing::Left => false,
        };
        if stands && !same {
            return Some(Verdict::No(vec![Reason::Malformed]));
        }
        let old = self.asks[index].request;
        match self.asks[index].standing {
            Standing::Waiting => {
                if let Some(fact) = old.and_then(|old| self.requests.get_mut(&old)) {
                    fact.verdict = Verdict::Superseded;
                }
                self.asks[index].request = Some(request);
                self.asks[index].unattended_since = None;
                Some(Verdict::InLine)
            }
            Standing::Granted(lease) if !self.leases[&lease].ended => {
                self.asks[index].request = Some(request);
                self.asks[index].unattended_since = None;
                Some(Verdict::GrantedAlready(lease))
            }
            Standing::Granted(_)
            | Standing::Made(_)
            | Standing::OwnDrain
            | Standing::AtLimit
            | Standing::Leaving
            | Standing::Left => None,
        }
    }

    /// Why an ask for a lease can't even join the line; none: it can.
    fn refusals(&self, ask: &AskFact, terms: &Terms) -> Vec<Reason> {
        let mut refusals = Vec::new();
        let (reserve, limit) = (terms.reserve, terms.limit);
        let granular = reserve.is_granular() && !reserve.is_zero();
        if !granular || limit < reserve {
            refusals.push(Reason::Malformed);
        }
        match &terms.devices {
            DeviceWish::These(these) if these.is_empty() => refusals.push(Reason::Malformed),
            DeviceWish::These(these) => {
                let facts: Vec<_> = these.iter().map(|device| self.device(*device)).collect();
                if facts.iter().any(Option::is_none) {
                    refusals.push(Reason::NoSuchDevice);
                }
                if facts.iter().flatten().any(|fact| fact.lost) {
                    refusals.push(Reason::DeviceLost);
                }
            }
            DeviceWish::Any(_) => {}
        }
        if granular && limit >= reserve && self.is_too_large(ask) {
            refusals.extend([Reason::TooLarge, Reason::DeviceLost]);
        }
        if granular && limit >= reserve && self.is_over_budget(ask) {
            refusals.push(Reason::OverBudget);
        }
        if self.binds() && !self.can_ever_be_held(ask, terms) {
            refusals.push(Reason::PinnedFull);
        }
        if self.path_of(ask).iter().any(|node| self.leases_max(node) == Some(0)) {
            refusals.push(Reason::OverBudget);
        }
        if self.line_is_full(ask.peer.uid) {
            refusals.push(Reason::TooMany);
        }
        refusals
    }

    /// Whether it could be held if nothing else were leased: moved, covered by a guarantee, or pinned.
    fn can_ever_be_held(&self, ask: &AskFact, terms: &Terms) -> bool {
        self.could_be_held(ask, terms, &|fact| self.context_alone(ask.peer.process, fact.id))
    }

    /// The same if its process's context took so much.
    fn could_be_held(
        &self,
        ask: &AskFact,
        terms: &Terms,
        context: &dyn Fn(&super::DeviceFact) -> Bytes,
    ) -> bool {
        let guarantee = self.coverable(ask.peer.uid, ask.peer.group.as_deref());
        let moves = self.would_move(ask);
        let holds = |fact: &&super::DeviceFact| {
            let whole = terms.reserve.saturating_add(context(fact));
            let pinned = if moves { context(fact) } else { whole };
            whole <= guarantee || pinned <= self.pinned_max(fact.id)
        };
        let usable = self.wished(terms).filter(|fact| !fact.lost);
        usable.filter(holds).count() >= Self::devices_wanted(terms)
    }

    /// The devices an ask could ever be granted on, each with what it would cost there.
    fn candidates(&self, ask: &AskFact) -> Vec<(DeviceId, Bytes)> {
        let Aim::Lease { terms, .. } = &ask.aim else { return Vec::new() };
        let usable = self.wished(terms).filter(|fact| !fact.lost);
        let costs = usable.map(|fact| (fact.id, self.cost(ask, terms, fact.id), fact.capacity));
        costs.filter(|(_, cost, capacity)| cost <= capacity).map(|(id, cost, _)| (id, cost)).collect()
    }

    /// The devices that an ask would take.
    fn wished<'a>(&'a self, terms: &'a Terms) -> impl Iterator<Item = &'a super::DeviceFact> + 'a {
        self.devices.iter().filter(|fact| match &terms.devices {
            DeviceWish::Any(_) => true,
            DeviceWish::These(these) => these.contains(&fact.id),
        })
    }

    fn cost(&self, ask: &AskFact, terms: &Terms, device: DeviceId) -> Bytes {
        terms.reserve.saturating_add(self.context_alone(ask.peer.process, device))
    }

    /// The most that a lease could ever hold on each of these devices: the smallest without the context, and each limit
    /// of the path without all contexts and the other devices' reserves.
    pub(super) fn most(
        &self,
        process: ProcessId,
        path: &[super::Node],
        devices: &[DeviceId],
        reserve: Bytes,
    ) -> Bytes {
        let contexts: u64 = devices.iter().map(|device| self.context_alone(process, *device).get()).sum();
        let others = (devices.len() as u64 - 1) * reserve.get();
        let mut most = u64::MAX;
        for device in devices {
            let capacity = self.device(*device).map_or(0, |fact| fact.capacity.get());
            most = most.min(capacity.saturating_sub(self.context_alone(process, *device).get()));
        }
        for limit in path.iter().filter_map(|node| self.budget(node).limit) {
            most = most.min(limit.get().saturating_sub(contexts + others));
        }
        Bytes::new(most >> 21 << 21).max(reserve)
    }

    /// The most that a lease could hold on each of its devices by what may be pinned there, if it stays where it is.
    pub(super) fn most_pinned(&self, process: ProcessId, lease: &super::LeaseFact) -> Bytes {
        if lease.movable || !self.binds() {
            return Bytes::MAX;
        }
        let guarantee = self.coverable(lease.peer.uid, lease.peer.group.as_deref());
        let mut most = u64::MAX;
        for device in &lease.devices {
            let (may, context) = (self.pinned_max(*device).get(), self.context_alone(process, *device).get());
            let pinned =
                if lease.guaranteed { lease.reserve.get() + may } else { may.saturating_sub(context) };
            most = most.min(pinned.max(guarantee.get().saturating_sub(context)));
        }
        Bytes::new(most >> 21 << 21).max(lease.reserve)
    }

    pub(super) fn devices_wanted(terms: &Terms) -> usize {
        match &terms.devices {
            DeviceWish::Any(count) => count.get() as usize,
            DeviceWish::These(these) => these.len(),
        }
    }

    /// Whether too few devices could give it even if they were empty.
    fn is_too_large(&self, ask: &AskFact) -> bool {
        let Aim::Lease { terms, .. } = &ask.aim else { return false };
        self.candidates(ask).len() < Self::devices_wanted(terms)
    }

    /// Whether some account could not be charged for it even if it had nothing else.
    fn is_over_budget(&self, ask: &AskFact) -> bool {
        let Aim::Lease { terms, .. } = &ask.aim else { return false };
        let usable = self.wished(terms).filter(|fact| !fact.lost);
        let mut costs: Vec<Bytes> = usable.map(|fact| self.cost(ask, terms, fact.id)).collect();
        costs.sort();
        let least = costs
            .iter()
            .take(Self::devices_wanted(terms))
            .fold(Bytes::ZERO, |sum, cost| sum.saturating_add(*cost));
        let path = self.path_of(ask);
        path.iter().any(|node| self.budget(node).limit.is_some_and(|limit| least > limit))
    }

    /// Whether an ask could be granted if nothing else were there, by what contexts cost now and by what they are taken to
    /// cost anew: a lease that pays for the context may end before the ask is granted.
    pub(in crate::sim) fn fits_alone(&self, ask: &AskFact) -> bool {
        let Aim::Lease { terms, .. } = &ask.aim else { return true };
        let process = ask.peer.process;
        let context = |fact: &super::DeviceFact| self.context(process, fact.id).max(fact.estimate);
        let cost = |fact: &super::DeviceFact| terms.reserve.saturating_add(context(fact));
        if self.binds() && !self.could_be_held(ask, terms, &context) {
            return false;
        }
        let usable = self.wished(terms).filter(|fact| !fact.lost && cost(fact) <= fact.capacity);
        let mut costs: Vec<Bytes> = usable.map(cost).collect();
        costs.sort();
        let wanted = Self::devices_wanted(terms);
        let sum = costs.iter().take(wanted).fold(Bytes::ZERO, |sum, cost| sum.saturating_add(*cost));
        let path = self.path_of(ask);
        costs.len() >= wanted
            && path.iter().all(|node| self.budget(node).limit.is_none_or(|limit| sum <= limit))
    }

    /// Whether the user, or all users together, have as many asks as may wait, this one included.
    pub(super) fn line_is_full(&self, uid: Uid) -> bool {
        let (mut mine, mut all) = (0_u32, 0_u32);
        for (_, ask) in self.hoping() {
            mine += u32::from(ask.peer.uid == uid);
            all += 1;
        }
        mine >= self.policy.asks_per_uid || all >= self.policy.asks_max
    }

    /// Whether an ask that waits can't be granted any more, whatever comes back.
    pub(super) fn can_never_be(&self, ask: &AskFact) -> bool {
        match &ask.aim {
            Aim::Lease { terms, .. } => {
                let held = !self.binds() || self.can_ever_be_held(ask, terms);
                self.is_too_large(ask) || self.is_over_budget(ask) || !held
            }
            Aim::Growth { device, .. } => self.device(*device).is_none_or(|fact| fact.lost),
            // It waits for the device to come back: it has nowhere else to go.
            Aim::Resume { .. } => false,
        }
    }

    pub(super) fn judge_withdraw(&mut self, session: SessionId, name: u64) -> Verdict {
        if self.open_session(session).is_none() {
            return Verdict::No(vec![Reason::NoSuchSession]);
        }
        if let Some(index) = self.named(session, name) {
            match self.asks[index].standing {
                Standing::Waiting => self.leave(index, &[Reason::Withdrawn]),
                Standing::Granted(lease) if !self.leases[&lease].ended => self.end_lease(lease),
                Standing::Granted(_)
                | Standing::Made(_)
                | Standing::OwnDrain
                | Standing::AtLimit
                | Standing::Leaving
                | Standing::Left => {}
            }
        }
        Verdict::Yes
    }
}
