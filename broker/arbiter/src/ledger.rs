//! The book of each device, in exact integers.
//!
//! ```text
//! capacity + unbacked = free + set aside + overhead + held + draining + quarantined + off-book
//! ```
//!
//! `unbacked` is our extension of invariant I1. Without a hold an outsider can take memory that was
//! promised to a lease, and a context can turn out larger than what is left: the sum on the right
//! then exceeds the capacity, and the excess stands here. It is never negative room: `free` and
//! `unbacked` are not both above zero, and bytes that come back repay `unbacked` before they are
//! free. Bytes that are held stay held, whatever outsiders do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use gpulease_words::{Bytes, DeviceId};

use crate::{DeviceSpec, DeviceView};

/// What charged bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bucket {
    /// Promised and not yet held.
    SetAside,
    /// A member's context and libraries.
    Overhead,
    /// In a segment.
    Held,
    /// Given back and not yet proven free.
    Draining,
    /// Could not be proven free.
    Quarantined,
}

/// Charged bytes by what they are: of a lease on a device, or of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) set_aside: Bytes,
    pub(crate) overhead: Bytes,
    pub(crate) held: Bytes,
    pub(crate) draining: Bytes,
    pub(crate) quarantined: Bytes,
}

impl Charge {
    /// All of it.
    pub(crate) fn total(&self) -> Bytes {
        [self.set_aside, self.overhead, self.held, self.draining, self.quarantined].into_iter().sum()
    }

    /// What segments take, whatever their state.
    pub(crate) fn in_segments(&self) -> Bytes {
        [self.held, self.draining, self.quarantined].into_iter().sum()
    }

    /// Puts bytes in.
    pub(crate) fn put(&mut self, bucket: Bucket, bytes: Bytes) {
        let slot = self.slot(bucket);
        *slot = plus(*slot, bytes);
    }

    /// Takes bytes out.
    ///
    /// # Panics
    /// When they are not there.
    pub(crate) fn take(&mut self, bucket: Bucket, bytes: Bytes) {
        let slot = self.slot(bucket);
        let Some(rest) = slot.checked_sub(bytes) else {
            panic!("{bytes} are to leave {bucket:?}, which has {slot}");
        };
        *slot = rest;
    }

    /// Adds another's figures to these.
    pub(crate) fn add(&mut self, other: &Self) {
        self.set_aside = plus(self.set_aside, other.set_aside);
        self.overhead = plus(self.overhead, other.overhead);
        self.held = plus(self.held, other.held);
        self.draining = plus(self.draining, other.draining);
        self.quarantined = plus(self.quarantined, other.quarantined);
    }

    const fn slot(&mut self, bucket: Bucket) -> &mut Bytes {
        match bucket {
            Bucket::SetAside => &mut self.set_aside,
            Bucket::Overhead => &mut self.overhead,
            Bucket::Held => &mut self.held,
            Bucket::Draining => &mut self.draining,
            Bucket::Quarantined => &mut self.quarantined,
        }
    }
}

/// Whether a device can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It can.
    Usable,
    /// Nothing more is granted on it.
    Lost,
}

/// One device's book.
#[derive(Clone, Debug)]
pub(crate) struct DeviceBook {
    pub(crate) capacity: Bytes,
    pub(crate) overhead_estimate: Bytes,
    pub(crate) health: Health,
    pub(crate) free: Bytes,
    pub(crate) charge: Charge,
    pub(crate) off_book: Option<Bytes>,
    pub(crate) unbacked: Bytes,
    peak_charged: Bytes,
}

impl DeviceBook {
    /// What leases could be given if all of them gave back: outsiders' and unproven bytes don't come back with a lease.
    pub(crate) fn ceiling(&self) -> Bytes {
        if self.health == Health::Lost {
            return Bytes::ZERO;
        }
        self.capacity
            .saturating_sub(self.off_book.unwrap_or_default())
            .saturating_sub(self.charge.quarantined)
    }

    fn seize(&mut self, bytes: Bytes) {
        let from_free = self.free.min(bytes);
        self.free = minus(self.free, from_free);
        self.unbacked = plus(self.unbacked, minus(bytes, from_free));
    }

    fn give_back(&mut self, bytes: Bytes) {
        let repaid = self.unbacked.min(bytes);
        self.unbacked = minus(self.unbacked, repaid);
        self.free = plus(self.free, minus(bytes, repaid));
    }

    fn assert_balanced(&self, device: DeviceId) {
        let left = u128::from(self.capacity.get()) + u128::from(self.unbacked.get());
        let off_book = self.off_book.unwrap_or_default();
        let right =
            u128::from(self.free.get()) + u128::from(self.charge.total().get()) + u128::from(off_book.get());
        assert!(left == right, "device {device} is out of balance: {left} != {right} in {self}");
        assert!(
            self.free.is_zero() || self.unbacked.is_zero(),
            "device {device} has free and unbacked bytes: {self}"
        );
    }
}

impl fmt::Display for DeviceBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.charge;
        write!(
            f,
            "capacity {} + unbacked {}; free {}, set aside {}, overhead {}, held {}, draining {}, quarantined {}, off-book {}",
            self.capacity.get(),
            self.unbacked.get(),
            self.free.get(),
            c.set_aside.get(),
            c.overhead.get(),
            c.held.get(),
            c.draining.get(),
            c.quarantined.get(),
            self.off_book.unwrap_or_default().get(),
        )
    }
}

/// The books of all devices, and which of them the current mutation touched.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    devices: BTreeMap<DeviceId, DeviceBook>,
    touched: BTreeSet<DeviceId>,
}

impl Ledger {
    /// Books in which everything is free.
    ///
    /// # Panics
    /// When two devices have one id.
    pub(crate) fn new(specs: &[DeviceSpec]) -> Self {
        let devices: BTreeMap<_, _> = specs.iter().map(|spec| (spec.id, opened(spec))).collect();
        assert!(devices.len() == specs.len(), "two devices have one id");
        Self { devices, touched: BTreeSet::new() }
    }

    /// The book of a device, if there is such a device.
    pub(crate) fn get(&self, device: DeviceId) -> Option<&DeviceBook> {
        self.devices.get(&device)
    }

    /// The book of a device that is known to exist.
    pub(crate) fn book(&self, device: DeviceId) -> &DeviceBook {
        self.devices.get(&device).expect("asks and leases name only devices that were checked")
    }

    /// All books, in order of their ids.
    pub(crate) fn all(&self) -> impl Iterator<Item = (DeviceId, &DeviceBook)> {
        self.devices.iter().map(|(id, book)| (*id, book))
    }

    /// Devices that can be used, in order of their ids.
    pub(crate) fn usable(&self) -> impl Iterator<Item = (DeviceId, &DeviceBook)> {
        self.all().filter(|(_, book)| book.health == Health::Usable)
    }

    /// Free bytes become charged.
    ///
    /// # Panics
    /// When they are not free: who grants has looked.
    pub(crate) fn charge(&mut self, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        let book = self.touch(device);
        assert!(book.free >= bytes, "{bytes} of device {device} are to become {bucket:?}: {book}");
        book.seize(bytes);
        book.charge.put(bucket, bytes);
        book.peak_charged = book.peak_charged.max(book.charge.total());
    }

    /// Bytes are charged that are already taken on the device, whether they were free or not.
    pub(crate) fn charge_taken(&mut self, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        let book = self.touch(device);
        book.seize(bytes);
        book.charge.put(bucket, bytes);
        book.peak_charged = book.peak_charged.max(book.charge.total());
    }

    /// Charged bytes become free.
    ///
    /// # Panics
    /// When they are not there.
    pub(crate) fn credit(&mut self, device: DeviceId, bucket: Bucket, bytes: Bytes) {
        let book = self.touch(device);
        book.charge.take(bucket, bytes);
        book.give_back(bytes);
    }

    /// Charged bytes become something else.
    ///
    /// # Panics
    /// When they are not there.
    pub(crate) fn shift(&mut self, device: DeviceId, from: Bucket, to: Bucket, bytes: Bytes) {
        let book = self.touch(device);
        book.charge.take(from, bytes);
        book.charge.put(to, bytes);
    }

    /// What outsiders have, at most the capacity; `None` counts as nothing.
    pub(crate) fn set_off_book(&mut self, device: DeviceId, bytes: Option<Bytes>) {
        let book = self.touch(device);
        let bytes = bytes.map(|b| b.min(book.capacity));
        book.give_back(book.off_book.unwrap_or_default());
        book.seize(bytes.unwrap_or_default());
        book.off_book = bytes;
    }

    /// Nothing more is granted on the device.
    pub(crate) fn lose(&mut self, device: DeviceId) {
        self.touch(device).health = Health::Lost;
    }

    /// The devices touched since the last settling.
    pub(crate) fn touched(&self) -> Vec<DeviceId> {
        self.touched.iter().copied().collect()
    }

    /// Checks I1 for the devices touched since the last call.
    pub(crate) fn settle(&mut self) {
        while let Some(device) = self.touched.pop_first() {
            self.book(device).assert_balanced(device);
        }
    }

    /// Checks I1 for every device.
    pub(crate) fn check(&self) {
        for (device, book) in &self.devices {
            book.assert_balanced(*device);
        }
    }

    /// What is shown of each device.
    pub(crate) fn views(&self) -> Vec<DeviceView> {
        self.devices.iter().map(|(id, book)| view(*id, book)).collect()
    }

    fn touch(&mut self, device: DeviceId) -> &mut DeviceBook {
        self.touched.insert(device);
        self.devices.get_mut(&device).expect("asks and leases name only devices that were checked")
    }
}

fn opened(spec: &DeviceSpec) -> DeviceBook {
    DeviceBook {
        capacity: spec.capacity,
        overhead_estimate: spec.overhead_estimate,
        health: Health::Usable,
        free: spec.capacity,
        charge: Charge::default(),
        off_book: None,
        unbacked: Bytes::ZERO,
        peak_charged: Bytes::ZERO,
    }
}

fn view(id: DeviceId, book: &DeviceBook) -> DeviceView {
    DeviceView {
        id,
        usable: book.health == Health::Usable,
        capacity: book.capacity,
        free: book.free,
        set_aside: book.charge.set_aside,
        overhead: book.charge.overhead,
        held: book.charge.held,
        draining: book.charge.draining,
        quarantined: book.charge.quarantined,
        off_book: book.off_book,
        unbacked: book.unbacked,
        peak_charged: book.peak_charged,
        pinned: Bytes::ZERO,
        pinned_max: book.capacity,
    }
}

/// The sum of amounts that are both in one book.
pub(crate) fn plus(a: Bytes, b: Bytes) -> Bytes {
    a.checked_add(b).unwrap_or_else(|| panic!("{} + {} bytes do not fit a book", a.get(), b.get()))
}

/// What is left of an amount after a part of it is taken.
pub(crate) fn minus(a: Bytes, b: Bytes) -> Bytes {
    a.checked_sub(b).unwrap_or_else(|| panic!("{} bytes are taken out of {}", b.get(), a.get()))
}
