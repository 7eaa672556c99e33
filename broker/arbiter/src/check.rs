//! Everything that is kept twice, recomputed from what it is derived from. Costs as much as there
//! is: for tests and the simulator, after each step.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{Bytes, DeviceId, LeaseId};

use crate::allocate::{Fits, within_lease};
use crate::lease::Lease;
use crate::ledger::Charge;
use crate::line::ask::Stage;
use crate::process::Named;
use crate::segment::State;
use crate::{Arbiter, LeaseState, Why};

impl Arbiter {
    /// Panics when an invariant is broken (I1 and what the tables say of each other): the
    /// simulator calls it after every step, and `handle` checks the devices it touched.
    pub fn check(&self) {
        self.ledger.check();
        self.check_devices();
        for (id, lease) in &self.leases {
            self.check_segments(lease);
            self.check_reserve(lease);
            assert!(!lease.is_spent(), "{id} is spent and still there");
            assert!(lease.state == LeaseState::Draining || !lease.members.is_empty(), "{id} has no member");
        }
        self.check_processes();
        self.check_accounts();
        self.check_timers();
        self.check_moves();
        self.check_stores();
        self.line.check(&self.accounts, &self.ledger);
    }

    fn check_devices(&self) {
        let mut sums: BTreeMap<DeviceId, Charge> = BTreeMap::new();
        for (device, share) in self.leases.values().flat_map(|lease| &lease.shares) {
            sums.entry(*device).or_default().add(&share.charge);
        }
        for (device, book) in self.ledger.all() {
            let sum = sums.remove(&device).unwrap_or_default();
            assert_eq!(sum, book.charge, "the leases of device {device} and its book");
        }
    }

    fn check_segments(&self, lease: &Lease) {
        let mut sums: BTreeMap<DeviceId, Charge> = BTreeMap::new();
        for segment in lease.segments.iter().map(|id| &self.segments[id]) {
            let sum = sums.entry(segment.device).or_default();
            if let Some(bucket) = segment.state.bucket() {
                sum.put(bucket, segment.bytes);
            }
        }
        for (device, share) in &lease.shares {
            let away = lease.segments.iter().map(|id| &self.segments[id]);
            let away = away.filter(|segment| segment.state == State::Away && segment.device == *device);
            assert_eq!(away.map(|segment| segment.bytes).sum::<Bytes>(), share.away, "away from {device}");
        }
        for (device, share) in &lease.shares {
            let sum = sums.remove(device).unwrap_or_default();
            let (set_aside, overhead) = (share.charge.set_aside, share.charge.overhead);
            assert_eq!(Charge { set_aside, overhead, ..sum }, share.charge, "segments on device {device}");
        }
    }

    fn check_reserve(&self, lease: &Lease) {
        for (device, share) in &lease.shares {
            let owed = lease.owed(*device);
            assert_eq!(share.charge.set_aside, owed, "set aside on device {device}");
            let waits = share.waits.iter().map(|id| self.wanted(*id).bytes);
            assert_eq!(waits.sum::<Bytes>(), share.promised, "promised on device {device}");
            assert!(share.waits.is_subset(&lease.growing));
            for id in lease.growing.difference(&share.waits).filter(|id| self.wanted(**id).device == *device)
            {
                let (ask, wanted) = (&self.line.asks[id], self.wanted(*id));
                assert_eq!(ask.amount, share.beyond(wanted.bytes), "what {id} takes of free");
                let drains = within_lease(lease, &wanted) == Ok(Fits::OnceDrained);
                assert_eq!(ask.stage == Stage::AtLimit, drains, "{id} stands aside for its lease's limit");
                assert_eq!(self.impatience(*id), None, "{id} waits");
            }
            let contexts =
                lease.members.iter().filter_map(|member| self.processes[member].contexts.get(device));
            let of_lease = contexts.filter(|context| std::ptr::eq(&self.leases[&context.lease], lease));
            assert_eq!(of_lease.map(|context| context.bytes).sum::<Bytes>(), share.charge.overhead);
        }
    }

    fn check_processes(&self) {
        for (id, process) in &self.processes {
            assert!(process.is_needed(), "{id} is not needed");
            assert!(process.sessions.iter().all(|session| self.sessions[session].process == *id));
            assert!(process.leases.iter().all(|lease| self.leases[lease].members.contains(id)));
            assert!(process.asks.iter().all(|ask| self.line.asks[ask].process == *id));
            for segment in &process.segments {
                assert_eq!(self.segments[segment].process, *id);
                assert!(self.segments[segment].state.is_of_process());
            }
        }
        for (id, session) in &self.sessions {
            let granted = session.asks.values().filter_map(|named| match named {
                Named::Waiting(ask) => self.line.asks[ask].grows(),
                Named::Granted(lease) => Some(*lease),
            });
            assert_eq!(granted.collect::<BTreeSet<_>>(), session.leases, "the leases of {id}");
            assert!(session.leases.iter().all(|lease| self.leases[lease].owner.session == Some(*id)));
        }
        for (uid, tally) in &self.users {
            let sessions =
                self.sessions.values().filter(|s| self.processes[&s.process].peer.uid == *uid).count();
            let asks =
                self.line.asks.values().filter(|ask| self.processes[&ask.process].peer.uid == *uid).count();
            assert_eq!((tally.sessions as usize, tally.asks as usize), (sessions, asks), "what {uid} has");
        }
        let creating = self.segments.values().filter(|s| matches!(s.state, State::Creating(Some(_)))).count();
        assert_eq!(creating, self.creating.len(), "who waits for segments in the making");
        let waiting = self.line.asks.values().filter(|ask| ask.grows().is_some()).count();
        assert_eq!(waiting, self.waiting.len(), "who waits for growth");
    }

    fn check_accounts(&self) {
        for (id, node) in self.accounts.all().filter(|(_, node)| !node.is_store()) {
            let below = |account| self.accounts.path(account).any(|(on_path, _)| on_path == id);
            let leases = self.leases.values().filter(|lease| below(lease.account));
            let charged: Bytes = leases.clone().map(|lease| lease.charge().total()).sum();
            assert_eq!(charged.get(), node.bytes.used(), "charged to {}", node.key);
            assert_eq!(leases.count() as u64, node.slots.used(), "leases of {}", node.key);
        }
    }

    fn check_timers(&self) {
        for why in self.timers.reasons() {
            let owned = match why {
                Why::PatienceEnds(ask) | Why::BarrierRises(ask) | Why::UnattendedTooLong(ask) => {
                    self.line.asks.contains_key(&ask)
                }
                Why::GrantUnclaimed(lease) => self.leases.contains_key(&lease),
                Why::AdriftTooLong(session) => self.sessions.contains_key(&session),
                Why::RecallDue(lease) => self.leases.get(&lease).is_some_and(|lease| lease.recall.is_some()),
                Why::DrainDue(lease) => self.leases.get(&lease).is_some_and(Lease::is_draining_out),
                Why::SwapDue(lease) => self.leases.get(&lease).is_some_and(Lease::is_leaving),
                Why::RestoreAgain(lease) | Why::GraceEnds(lease) => self.leases.contains_key(&lease),
                Why::LookAgain => true,
            };
            assert!(owned, "{why:?} has no owner");
        }
    }

    /// Those who move, are recalled, or are waited for are known as such; nothing is away of a lease that is active.
    fn check_moves(&self) {
        let moves = |lease: &&Lease| matches!(lease.state, LeaseState::Suspending | LeaseState::Resuming);
        let moving: BTreeSet<LeaseId> =
            self.leases.iter().filter(|(_, lease)| moves(lease)).map(|(id, _)| *id).collect();
        assert_eq!(moving, self.moving, "who moves");
        let recalled = self.leases.iter().filter(|(_, lease)| lease.recall.is_some()).map(|(id, _)| *id);
        assert_eq!(recalled.collect::<BTreeSet<_>>(), self.recalled, "who is recalled");
        let mut resumers = 0;
        for (id, lease) in &self.leases {
            let copied = lease.segments.iter().any(|segment| self.segments[segment].state.is_copied());
            let away = match lease.state {
                LeaseState::Active | LeaseState::Draining => false,
                LeaseState::Suspending | LeaseState::Suspended | LeaseState::Resuming => true,
            };
            let back = lease.segments.iter().all(|segment| {
                matches!(self.segments[segment].state, State::Back(_))
                    || !self.segments[segment].state.is_copied()
            });
            assert!(
                away || !copied || (lease.state == LeaseState::Draining && back),
                "{id} is {:?} and has copies",
                lease.state
            );
            resumers += lease.residence.resumers.len();
            let ask = lease.residence.ask.map(|ask| self.line.get(ask).lease());
            assert!(ask.is_none_or(|of| of == Some(*id)), "{id} waits with another's ask");
        }
        assert_eq!(resumers, self.resuming.len(), "who waits for leases");
    }

    /// Stores, guarantees and who could give, recomputed.
    fn check_stores(&self) {
        if !self.accounts.stores.bind() {
            return;
        }
        let shares =
            self.leases.iter().flat_map(|(id, lease)| lease.shares.keys().map(move |d| (*id, lease, *d)));
        let (mut copies, mut pinned) = (Bytes::ZERO, BTreeMap::new());
        let mut counted: BTreeMap<_, BTreeMap<DeviceId, Bytes>> = BTreeMap::new();
        for (id, lease, device) in shares.clone() {
            let (stock, share) = (lease.stock(device), lease.share(device));
            assert_eq!(stock, share.stock, "how {id} is counted on device {device}");
            copies = copies.saturating_add(stock.copies);
            let sum: &mut Bytes = pinned.entry(device).or_default();
            *sum = sum.saturating_add(stock.pinned);
            let sum = counted.entry(lease.account).or_default().entry(device).or_default();
            *sum = sum.saturating_add(share.charge.total());
        }
        for ask in self.line.asks.values() {
            for (device, bytes) in &ask.covered {
                let sum = counted.entry(ask.account).or_default().entry(*device).or_default();
                *sum = sum.saturating_add(*bytes);
            }
        }
        assert_eq!(self.accounts.arena_figures().0, copies, "what of the arena is used");
        for (device, book) in self.ledger.all() {
            let sum = pinned.get(&device).copied().unwrap_or_default();
            assert_eq!(
                self.accounts.pinned_figures(device, book.capacity).0,
                sum,
                "pinned of device {device}"
            );
        }
        self.accounts.check_counted(&counted);
        self.holders.check(
            shares.map(|(id, lease, device)| ((id, lease.residence.since), device, lease.stock(device))),
        );
    }
}
