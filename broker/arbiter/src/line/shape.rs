//! Shapes: what asks have in common but for their size.
//!
//! Whether an ask of a shape fits, on the devices and in an account, depends on its size alone, and
//! a smaller one fits wherever a larger one does. So of thousands of asks below an account only the
//! smallest of each shape has to be known to say whether any of them can be granted: that is a
//! [`Summary`]. The most that a shape may ask for now is its [`Bounds`] entry.

use std::collections::{BTreeMap, BTreeSet};

use gpulease_words::{AskId, Bytes, DeviceId};

use crate::accounts::Node;
use crate::ledger::{Ledger, plus};
use crate::line::gate::{Gate, Standing};
use crate::{DeviceWish, Pinning};

/// What an ask is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// A lease: it takes a slot of its accounts.
    Lease,
    /// More for a lease that is there.
    Growth,
    /// The memory of a suspended lease.
    Resume,
}

/// Where an ask wants memory and on which devices its process has a context already.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) wish: DeviceWish,
    pub(crate) contexts: BTreeSet<DeviceId>,
    pub(crate) purpose: Use,
    /// Whether its lease may be suspended; pinned where nothing can be.
    pub(crate) hold: Pinning,
    /// What a resume needs on a device beyond what it needs on each.
    pub(crate) extra: BTreeMap<DeviceId, Bytes>,
}

impl Shape {
    /// Growth on a device: its member has a context there.
    pub(crate) fn growth(device: DeviceId, hold: Pinning) -> Self {
        let one = BTreeSet::from([device]);
        let (wish, purpose) = (DeviceWish::These(one.clone()), Use::Growth);
        Self { wish, contexts: one, purpose, hold, extra: BTreeMap::new() }
    }

    /// A resume that needs so much on these devices, with what it needs on each.
    pub(crate) fn resume(needs: &BTreeMap<DeviceId, Bytes>) -> (Self, Bytes) {
        let each = needs.values().copied().min().unwrap_or_default();
        let devices: BTreeSet<DeviceId> = needs.keys().copied().collect();
        let extra = needs.iter().map(|(device, need)| (*device, need.saturating_sub(each)));
        let extra = extra.filter(|(_, more)| !more.is_zero()).collect();
        let (contexts, wish) = (devices.clone(), DeviceWish::These(devices));
        (Self { wish, contexts, purpose: Use::Resume, hold: Pinning::Movable, extra }, each)
    }

    /// The ways to hold what it asks for, the better one first.
    pub(crate) fn routes(&self) -> &'static [Pinning] {
        match (self.purpose, self.hold) {
            (Use::Lease, Pinning::Movable) => &[Pinning::Movable, Pinning::Pinned],
            (Use::Growth | Use::Resume, Pinning::Movable) => &[Pinning::Movable],
            (Use::Lease | Use::Growth | Use::Resume, Pinning::Pinned) => &[Pinning::Pinned],
        }
    }

    /// How many devices.
    pub(crate) fn count(&self) -> u32 {
        match &self.wish {
            DeviceWish::Any(n) => n.get(),
            DeviceWish::These(devices) => u32::try_from(devices.len()).expect("devices have 32-bit numbers"),
        }
    }

    /// What it takes beyond what it asks for on each device: a context that the process does not have
    /// yet, or more that a lease had here than elsewhere.
    pub(crate) fn overhead(&self, device: DeviceId, ledger: &Ledger) -> Bytes {
        if self.contexts.contains(&device) {
            self.extra.get(&device).copied().unwrap_or_default()
        } else {
            ledger.book(device).overhead_estimate
        }
    }

    /// What the contexts cost at least, wherever it is granted.
    pub(crate) fn least_overhead(&self, ledger: &Ledger) -> Bytes {
        match &self.wish {
            DeviceWish::These(devices) => devices.iter().map(|device| self.overhead(*device, ledger)).sum(),
            DeviceWish::Any(n) => {
                let mut each: Vec<Bytes> = ledger.usable().map(|(id, _)| self.overhead(id, ledger)).collect();
                each.sort_unstable();
                each.into_iter().take(n.get() as usize).sum()
            }
        }
    }

    /// The devices that leave the most beyond the context, best first, and what they leave: all of
    /// the named ones, or as many of any as are wanted. `None` where there are not so many.
    pub(crate) fn best(
        &self,
        ledger: &Ledger,
        give: impl Fn(DeviceId) -> Option<Bytes>,
    ) -> Option<Vec<(DeviceId, Bytes)>> {
        let room =
            |device| give(device)?.checked_sub(self.overhead(device, ledger)).map(|room| (device, room));
        match &self.wish {
            DeviceWish::These(devices) => devices.iter().map(|device| room(*device)).collect(),
            DeviceWish::Any(n) => {
                let mut rooms: Vec<_> = ledger.usable().filter_map(|(device, _)| room(device)).collect();
                rooms.sort_by_key(|(device, room)| (std::cmp::Reverse(*room), *device));
                rooms.truncate(n.get() as usize);
                (rooms.len() == n.get() as usize).then_some(rooms)
            }
        }
    }

    /// The most it may ask for on each device, by what the devices have to give.
    pub(crate) fn bound_on_devices(
        &self,
        ledger: &Ledger,
        give: impl Fn(DeviceId) -> Option<Bytes>,
    ) -> Option<Bytes> {
        self.best(ledger, give)?.into_iter().map(|(_, room)| room).min()
    }

    /// The most it may ask for on each device, by what an account has left.
    fn bound_in(&self, node: &Node, ledger: &Ledger) -> Option<Bytes> {
        self.bound_by(node, ledger, |gate| gate.room(Standing::Newcomer))
    }

    /// The same, by what gates have in this sense.
    fn bound_by(&self, node: &Node, ledger: &Ledger, room: impl Fn(&Gate) -> u64) -> Option<Bytes> {
        if self.purpose == Use::Lease && room(&node.slots) == 0 {
            return None;
        }
        let left = room(&node.bytes).checked_sub(self.least_overhead(ledger).get())?;
        Some(Bytes::new(left / u64::from(self.count())))
    }
}

/// A shape's number while asks of it wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ShapeId(u64);

/// The shapes of the asks that wait.
#[derive(Debug, Default)]
pub(crate) struct Shapes {
    by_shape: BTreeMap<Shape, ShapeId>,
    /// With how many asks have it.
    by_id: BTreeMap<ShapeId, (Shape, u64)>,
    last: u64,
}

impl Shapes {
    /// The number of the shape, for one ask more.
    pub(crate) fn enter(&mut self, shape: Shape) -> ShapeId {
        if let Some(id) = self.by_shape.get(&shape) {
            self.by_id.get_mut(id).expect("both maps have it").1 += 1;
            return *id;
        }
        self.last += 1;
        let id = ShapeId(self.last);
        self.by_shape.insert(shape.clone(), id);
        self.by_id.insert(id, (shape, 1));
        id
    }

    /// One ask fewer has the shape.
    pub(crate) fn leave(&mut self, id: ShapeId) {
        let (shape, asks) = self.by_id.get_mut(&id).expect("a shape stays while an ask has it");
        *asks -= 1;
        if *asks == 0 {
            self.by_shape.remove(shape);
            self.by_id.remove(&id);
        }
    }

    /// Every shape, with how many asks have it.
    pub(crate) fn all(&self) -> impl Iterator<Item = (ShapeId, u64)> {
        self.by_id.iter().map(|(id, (_, asks))| (*id, *asks))
    }

    pub(crate) fn get(&self, id: ShapeId) -> &Shape {
        &self.by_id.get(&id).expect("a shape stays while an ask has it").0
    }
}

/// Whether what barriers pledged at a gate hides the asks behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pledges {
    Bar,
    Yield,
}

/// Of the asks in a part of the line: the oldest, and the smallest of each shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) oldest: AskId,
    /// In order of the shapes.
    pub(crate) least: Vec<(ShapeId, Bytes)>,
}

impl Summary {
    /// Of one ask.
    pub(crate) fn of(ask: AskId, shape: ShapeId, amount: Bytes) -> Self {
        Self { oldest: ask, least: vec![(shape, amount)] }
    }

    /// Takes another part's asks in.
    pub(crate) fn join(&mut self, other: &Self) {
        self.oldest = self.oldest.min(other.oldest);
        for (shape, amount) in &other.least {
            match self.least.binary_search_by_key(shape, |(s, _)| *s) {
                Ok(at) => self.least[at].1 = self.least[at].1.min(*amount),
                Err(at) => self.least.insert(at, (*shape, *amount)),
            }
        }
    }

    /// Becomes a copy of another, in the memory that it has.
    pub(crate) fn assign(&mut self, other: &Self) {
        self.oldest = other.oldest;
        self.least.clone_from(&other.least);
    }

    /// What is left of it behind an account's own limits: a shape whose smallest ask does not pass has none that does.
    ///
    /// Where there are guarantees what barriers pledged is no obstacle to be seen from above: an ask that a guarantee
    /// comes to cover goes before them.
    pub(crate) fn behind(&self, node: &Node, shapes: &Shapes, ledger: &Ledger, pledges: Pledges) -> Self {
        let room = |gate: &Gate| match pledges {
            Pledges::Bar => gate.room(Standing::Newcomer),
            Pledges::Yield => gate.left(),
        };
        let passes = |(shape, amount): &&(ShapeId, Bytes)| {
            shapes.get(*shape).bound_by(node, ledger, room).is_some_and(|bound| *amount <= bound)
        };
        Self { oldest: self.oldest, least: self.least.iter().filter(passes).copied().collect() }
    }
}

/// The most that an ask of each shape may be to fit now.
#[derive(Clone, Debug)]
pub(crate) struct Bounds(Vec<(ShapeId, Bytes)>);

impl Bounds {
    /// By what the devices have to give, for the shapes of the summary.
    pub(crate) fn on_devices(
        summary: &Summary,
        shapes: &Shapes,
        ledger: &Ledger,
        give: impl Fn(&Shape, DeviceId) -> Option<Bytes>,
    ) -> Self {
        let bound = |(id, least): &(ShapeId, Bytes)| {
            let shape = shapes.get(*id);
            let bound = shape.bound_on_devices(ledger, |device| give(shape, device))?;
            (*least <= bound).then_some((*id, bound))
        };
        Self(summary.least.iter().filter_map(bound).collect())
    }

    /// Lowered to what the account has left.
    pub(crate) fn within(&self, node: &Node, shapes: &Shapes, ledger: &Ledger) -> Self {
        let lower = |(id, bound): &(ShapeId, Bytes)| {
            shapes.get(*id).bound_in(node, ledger).map(|here| (*id, here.min(*bound)))
        };
        Self(self.0.iter().filter_map(lower).collect())
    }

    /// Whether any of the asks summed up may fit.
    pub(crate) fn admit(&self, summary: &Summary) -> bool {
        let mut least = summary.least.iter().peekable();
        self.0.iter().any(|(shape, bound)| {
            while least.next_if(|(s, _)| s < shape).is_some() {}
            least.peek().is_some_and(|(s, amount)| s == shape && amount <= bound)
        })
    }
}

/// `amount` on each of the devices, and the contexts there.
pub(crate) fn cost(shape: &Shape, amount: Bytes, devices: &[DeviceId], ledger: &Ledger) -> Bytes {
    devices.iter().fold(Bytes::ZERO, |sum, device| plus(sum, plus(amount, shape.overhead(*device, ledger))))
}
