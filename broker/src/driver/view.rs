//! What everyone who shows the state gets: the arbiter's snapshot and what the devices say, made
//! once and shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpulease_arbiter::{AskView, LeaseView, Snapshot};
use gpulease_words::{AskId, Bytes, DeviceId, LeaseId};

use crate::device::{Description, Device, Gauge, Kind};
use crate::witness::Stranger;

/// How many holders are named to one who waits: enough to know whom to ask.
const HOLDERS_NAMED: usize = 5;

/// The state at one time.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) snapshot: Snapshot,
    pub(crate) devices: Vec<DeviceFacts>,
    /// Places in the line, by ask.
    places: BTreeMap<AskId, usize>,
    /// The largest holders of each device, largest first.
    holders: BTreeMap<DeviceId, Vec<Holding>>,
}

/// The most outsiders that a sentence names.
const OUTSIDERS_NAMED: usize = 3;

/// What is known of a device beside its book.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFacts {
    pub(crate) id: DeviceId,
    pub(crate) description: Description,
    pub(crate) capacity: Bytes,
    /// What exists by the broker's hand.
    pub(crate) gauge: Arc<Gauge>,
    /// What the witness says is in use.
    pub(crate) used: Option<Bytes>,
    pub(crate) off_book: Option<Bytes>,
    /// What of that the witness names, and what of the device is neither that nor leased.
    pub(super) strangers_have: Option<Bytes>,
    pub(super) unmanaged: Bytes,
    pub(crate) strangers: Option<Vec<Stranger>>,
    pub(crate) trouble: Option<String>,
}

impl DeviceFacts {
    /// A device of which nobody has said anything yet.
    pub(crate) fn new(id: DeviceId, device: &dyn Device, capacity: Bytes) -> Self {
        Self {
            id,
            description: device.description().clone(),
            capacity,
            gauge: device.gauge(),
            used: None,
            off_book: None,
            strangers_have: None,
            unmanaged: Bytes::ZERO,
            strangers: None,
            trouble: None,
        }
    }

    /// The largest users of it that no lease covers, by this way to name one; empty where none is known.
    pub(crate) fn outsiders(&self, name: impl Fn(&Stranger) -> String) -> String {
        let mut strangers: Vec<_> = self.strangers.iter().flatten().collect();
        strangers.sort_by_key(|stranger| std::cmp::Reverse(stranger.bytes));
        let named: Vec<_> = strangers.iter().take(OUTSIDERS_NAMED).map(|stranger| name(stranger)).collect();
        let more = match strangers.len() - named.len() {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        named.join(", ") + &more
    }

    /// What the device itself says is in use; host memory is all the broker's own, so its gauge says it.
    pub(crate) fn used(&self) -> Option<Bytes> {
        match self.description.kind {
            Kind::Host => self.gauge.read().map(|made| made.bytes),
            Kind::Cuda => self.used,
        }
    }
}

/// A lease that holds bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Its place in the snapshot.
    place: usize,
    pub(crate) bytes: Bytes,
}

impl View {
    pub(super) fn new(snapshot: Snapshot, devices: Vec<DeviceFacts>) -> Self {
        let places = snapshot.waiting.iter().enumerate().map(|(place, ask)| (ask.id, place)).collect();
        let holders = snapshot.devices.iter().map(|d| (d.id, largest(&snapshot.leases, d.id))).collect();
        Self { snapshot, devices, places, holders }
    }

    /// An ask and its place in the line, the first being 1.
    pub(crate) fn ask(&self, ask: AskId) -> Option<(u32, &AskView)> {
        let place = *self.places.get(&ask)?;
        let position = u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1);
        Some((position, &self.snapshot.waiting[place]))
    }

    pub(crate) fn lease(&self, lease: LeaseId) -> Option<&LeaseView> {
        let place = self.snapshot.leases.binary_search_by_key(&lease, |view| view.id).ok()?;
        Some(&self.snapshot.leases[place])
    }

    /// The devices of which outsiders have something, with how much that is; only the one that is named, if any is.
    pub(crate) fn off_book(&self, device: Option<DeviceId>) -> impl Iterator<Item = (&DeviceFacts, Bytes)> {
        let facts = self.devices.iter().filter(move |facts| device.is_none_or(|device| device == facts.id));
        facts.filter_map(|facts| Some((facts, facts.off_book.filter(|bytes| !bytes.is_zero())?)))
    }

    /// The largest holders of a device; of all devices together where none is named.
    pub(crate) fn holders(&self, device: Option<DeviceId>) -> impl Iterator<Item = (&LeaseView, Bytes)> {
        let device = device.or_else(|| self.holders.keys().next().copied());
        let holdings = device.and_then(|device| self.holders.get(&device));
        let holdings = holdings.map(Vec::as_slice).unwrap_or_default();
        holdings.iter().map(|holding| (&self.snapshot.leases[holding.place], holding.bytes))
    }
}

fn largest(leases: &[LeaseView], device: DeviceId) -> Vec<Holding> {
    let on_it = leases.iter().enumerate().filter(|(_, lease)| lease.devices.contains(&device));
    let mut holdings: Vec<_> = on_it.map(|(place, lease)| Holding { place, bytes: on_each(lease) }).collect();
    holdings.sort_by_key(|holding| (std::cmp::Reverse(holding.bytes), holding.place));
    holdings.truncate(HOLDERS_NAMED);
    holdings
}

/// What the lease takes of each of its devices, on average where they differ.
fn on_each(lease: &LeaseView) -> Bytes {
    let parts = [lease.set_aside, lease.held, lease.overhead, lease.draining, lease.quarantined];
    let sum: Bytes = parts.into_iter().sum();
    let devices =
        u64::try_from(lease.devices.len().max(1)).expect("a list in memory has a length of 64 bits");
    Bytes::new(sum.get() / devices)
}
