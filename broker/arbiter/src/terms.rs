//! What can be said of an ask before it waits: whether it makes sense, and whether it could ever be granted.

use gpulease_words::{Bytes, DeviceId, ProcessId};

use crate::accounts::NodeId;
use crate::lease::Lease;
use crate::ledger::Health;
use crate::line::ask::Right;
use crate::line::shape::Shape;
use crate::{Arbiter, Denial, DeviceWish, Pinning, Terms};

/// Letters of a lease's name: long enough for any job, short enough for a line of a table.
const NAME_LETTERS: usize = 64;

impl Arbiter {
    /// Whether the terms make sense on the devices that there are.
    pub(crate) fn sound(&self, terms: &Terms) -> Result<(), Denial> {
        speakable(&terms.name)?;
        sized(terms.reserve, terms.limit)?;
        self.present(&terms.devices)
    }

    /// Whether there are such devices, and so many.
    pub(crate) fn present(&self, wish: &DeviceWish) -> Result<(), Denial> {
        match wish {
            DeviceWish::Any(n) => {
                let present = u32::try_from(self.ledger.usable().count()).unwrap_or(u32::MAX);
                if n.get() > present {
                    return Err(Denial::TooManyDevices { asked: n.get(), present });
                }
                Ok(())
            }
            DeviceWish::These(devices) if devices.is_empty() => {
                Err(Denial::Malformed("no device is named; name one, or ask for any"))
            }
            DeviceWish::These(devices) => devices.iter().try_for_each(|device| self.usable(*device)),
        }
    }

    /// Whether there is such a device and it can be used.
    pub(crate) fn usable(&self, device: DeviceId) -> Result<(), Denial> {
        match self.ledger.get(device).map(|book| book.health) {
            Some(Health::Usable) => Ok(()),
            Some(Health::Lost) => Err(Denial::DeviceLost { device }),
            None => {
                Err(Denial::NoSuchDevice { device, devices: listed(self.ledger.usable().map(|(id, _)| id)) })
            }
        }
    }

    /// Whether the reserve could be granted if nothing else were leased, neither in its accounts nor on the devices.
    pub(crate) fn can_ever_fit(
        &self,
        process: ProcessId,
        account: NodeId,
        shape: &Shape,
        reserve: Bytes,
    ) -> Result<(), Denial> {
        let mut rooms: Vec<(Bytes, Bytes)> = Vec::new();
        for device in self.candidates(&shape.wish) {
            let overhead = self.overhead_alone(process, device);
            rooms.push((self.ledger.book(device).capacity.saturating_sub(overhead), overhead));
        }
        let count = shape.count();
        let mut overheads: Vec<Bytes> = rooms.iter().map(|(_, overhead)| *overhead).collect();
        overheads.sort_unstable();
        let overhead = overheads.into_iter().take(count as usize).sum();
        self.within_limits(account, reserve, count, overhead)?;
        rooms.sort_unstable_by(|a, b| b.cmp(a));
        let (largest, overhead) = rooms[count as usize - 1];
        if reserve > largest {
            return Err(Denial::TooLarge { asked: reserve, overhead, largest: largest.round_down() });
        }
        self.can_ever_be_held(process, account, shape, reserve)
    }

    /// Whether it could be held so if nothing else were leased: moved, covered by a guarantee, or pinned.
    fn can_ever_be_held(
        &self,
        process: ProcessId,
        account: NodeId,
        shape: &Shape,
        reserve: Bytes,
    ) -> Result<(), Denial> {
        if !self.accounts.stores.bind() {
            return Ok(());
        }
        let guarantee = self.accounts.coverable(account);
        let whole = |device| reserve.saturating_add(self.overhead_alone(process, device));
        let holds = |device: &DeviceId| {
            let (_, most) = self.accounts.pinned_figures(*device, self.ledger.book(*device).capacity);
            let pinned = match shape.hold {
                Pinning::Movable => self.overhead_alone(process, *device),
                Pinning::Pinned => whole(*device),
            };
            whole(*device) <= guarantee || pinned <= most
        };
        let candidates = self.candidates(&shape.wish);
        if candidates.iter().filter(|device| holds(device)).count() >= shape.count() as usize {
            return Ok(());
        }
        let device = candidates.into_iter().find(|device| !holds(device)).expect("not all of them hold it");
        Err(self.pinned_full(device, whole(device)))
    }

    /// The tightest limit on the path that the sum is over, if there is one.
    pub(crate) fn within_limits(
        &self,
        account: NodeId,
        each: Bytes,
        count: u32,
        overhead: Bytes,
    ) -> Result<(), Denial> {
        let asked = Bytes::new(each.get().saturating_mul(u64::from(count)));
        let sum = asked.saturating_add(overhead).get();
        let limits = self.accounts.path(account).filter_map(|(_, node)| Some((node.bytes.limit()?, node)));
        let broken = limits.filter(|(limit, _)| sum > *limit).min_by_key(|(limit, _)| *limit);
        broken.map_or(Ok(()), |(limit, node)| {
            Err(Denial::OverBudget {
                account: node.key.to_string(),
                limit: Bytes::new(limit),
                asked,
                overhead,
            })
        })
    }

    /// The most that a lease of the process may hold on each of its devices if nothing else were leased: what the smallest
    /// has beside the context, and what the tightest budget has beside the contexts and what is set aside on the others.
    pub(crate) fn most(
        &self,
        process: ProcessId,
        account: NodeId,
        devices: &[DeviceId],
        reserve: Bytes,
    ) -> Bytes {
        let context = |device: &DeviceId| self.overhead_alone(process, *device);
        let on_devices = devices.iter().map(|d| self.ledger.book(*d).capacity.saturating_sub(context(d)));
        let mut beside = devices.iter().map(context).fold(Bytes::ZERO, Bytes::saturating_add);
        for _ in devices.iter().skip(1) {
            beside = beside.saturating_add(reserve);
        }
        let limits = self.accounts.path(account).filter_map(|(_, node)| node.bytes.limit());
        let in_accounts = limits.map(|limit| Bytes::new(limit).saturating_sub(beside));
        let most = on_devices.chain(in_accounts).min().expect("a lease is on a device").round_down();
        most.max(reserve)
    }

    /// The most that the lease may hold on each of its devices by what may be pinned there, if it were held so by this
    /// right and nothing else were leased: all that guarantees could cover, or what is pinned beside them.
    pub(crate) fn most_pinned(&self, process: ProcessId, of: &Lease, how: Pinning, right: Right) -> Bytes {
        if how == Pinning::Movable || !self.accounts.stores.bind() {
            return Bytes::MAX;
        }
        let guarantee = self.accounts.coverable(of.account);
        let most = |device: &DeviceId| {
            let (_, may) = self.accounts.pinned_figures(*device, self.ledger.book(*device).capacity);
            let context = self.overhead_alone(process, *device);
            let pinned = match right {
                // Of what a guarantee covers only growth counts as pinned.
                Right::Guaranteed => of.reserve.saturating_add(may),
                Right::Lent | Right::Returning => may.saturating_sub(context),
            };
            pinned.max(guarantee.saturating_sub(context))
        };
        of.shares.keys().map(most).min().expect("a lease is on a device").round_down()
    }

    /// What the process's context costs on the device, whichever lease is charged for it.
    pub(crate) fn overhead_alone(&self, process: ProcessId, device: DeviceId) -> Bytes {
        let context = self.process(process).contexts.get(&device);
        context.map_or(self.ledger.book(device).overhead_estimate, |context| context.bytes)
    }

    fn candidates(&self, wish: &DeviceWish) -> Vec<DeviceId> {
        match wish {
            DeviceWish::Any(_) => self.ledger.usable().map(|(device, _)| device).collect(),
            DeviceWish::These(devices) => devices.iter().copied().collect(),
        }
    }
}

/// Whether a reserve and a limit make sense.
pub(crate) fn sized(reserve: Bytes, limit: Bytes) -> Result<(), Denial> {
    if reserve.is_zero() {
        return Err(Denial::Malformed("a lease of no memory makes no sense; ask for at least 2 MiB"));
    }
    if !reserve.is_granular() {
        return Err(Denial::Malformed("the reserve is not a multiple of 2 MiB; round it up"));
    }
    if limit < reserve {
        return Err(Denial::Malformed(
            "the limit is less than the reserve; raise it, or ask for a smaller reserve",
        ));
    }
    Ok(())
}

/// Device numbers for a sentence.
pub(crate) fn listed(devices: impl Iterator<Item = DeviceId>) -> String {
    let names: Vec<String> = devices.map(|device| device.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn speakable(name: &str) -> Result<(), Denial> {
    let letters = name.chars().take(NAME_LETTERS + 1).count();
    if letters == 0 || letters > NAME_LETTERS {
        return Err(Denial::Malformed("a lease's name has 1 to 64 letters"));
    }
    if name.chars().any(is_unseen) {
        return Err(Denial::Malformed(
            "a lease's name has only letters that can be seen in one line of text",
        ));
    }
    Ok(())
}

/// Control characters, and those that turn or hide the text around them.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}
