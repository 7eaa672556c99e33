//! Devices: memory that the broker owns.
//!
//! A device knows nothing of leases, budgets or the line. One OS thread owns each device and is
//! the only one that calls it, since the calls can take milliseconds; the driver sends it
//! [`Order`]s and receives [`Completion`]s.

pub mod choice;
pub(crate) mod claim;
pub mod cuda;
mod descriptors;
mod holders;
pub mod host;
pub(crate) mod thread;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, Pid, SegmentId};

pub use self::descriptors::{Chunks, Descriptors, Promise};

/// The most chunks a segment has, as many as one hand-over frame takes.
pub const CHUNKS_MAX: usize = 240;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Host memory or a CUDA device.
    pub kind: Kind,
    /// "GPU-..." of a CUDA device, "host-0" and so on of host memory.
    pub uuid: String,
    /// Its name, for people.
    pub name: String,
    /// What it has.
    pub total: Bytes,
    /// What a process that uses it is taken to cost it in context and libraries until measured.
    pub overhead_estimate: Bytes,
}

/// The kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Host memory, in memfds.
    Host,
    /// A GPU, through the CUDA driver.
    Cuda,
}

/// What a segment is handed over as.
#[derive(Debug)]
pub enum Handover {
    /// The device's own descriptors, one per chunk.
    Descriptors(Descriptors),
    /// A CUDA IPC handle. Who knows it can map the memory.
    CudaIpc(IpcHandle),
}

/// 64 bytes that open a CUDA allocation in another process; its debug form hides them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcHandle(..)")
    }
}

/// Which handle a segment is wanted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleKind {
    /// The device's own descriptors.
    Descriptor,
    /// The same, which may follow: [`Device::export`] is called as soon as the driver was told that the segment is made.
    DescriptorToFollow,
    /// A CUDA IPC handle.
    CudaIpc,
}

/// Whether a segment's bytes are back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The device has them again: no other process maps or holds them.
    Freed,
    /// Not yet; ask again.
    NotYet,
    /// Nobody has it any more, and the device has less than the books promise: somebody was faster. It is free when the
    /// books know; ask again.
    Missing,
    /// Not after a time in which they should have come; these processes are suspected. Ask again, less often.
    Overdue(Vec<Pid>),
}

/// A device, as its owner thread sees it.
///
/// Obligations of every implementation, which the conformance suite checks:
/// - what `create` hands over no other process can reach, and no byte of it was written by another tenant;
/// - a failed `create` leaves nothing behind, and its message says what happened in numbers and who may have taken the room;
/// - `create` never makes more than `total` at one time;
/// - `reclaim` drops all that the broker itself holds of the segment and returns without waiting;
/// - `prove` says `Freed` once and only when every other holder has let go, on a GPU without a hold as far as the card
///   tells; until then the bytes stay in the gauge;
/// - dropping the device leaves no process, thread or file behind, but for an exporter that still has consumers.
pub trait Device: Send {
    /// What it is.
    fn description(&self) -> &Description;

    /// Makes a segment of `bytes`, a positive multiple of the granularity.
    ///
    /// # Errors
    /// A sentence, where the device cannot.
    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) -> Result<Handover, String>;

    /// Makes the descriptors that [`Self::create`] promised.
    fn export(&mut self, _segment: SegmentId) {}

    /// Begins to take a segment back.
    fn reclaim(&mut self, segment: SegmentId);

    /// Whether a segment that is being taken back is free.
    fn prove(&mut self, segment: SegmentId) -> Proof;

    /// What exists. Shared with the witness, and with whoever wants to know the broker's own processes.
    fn gauge(&self) -> Arc<Gauge>;

    /// This process was given the segment. An exporter keeps it alive for those, should the broker die.
    fn handed(&mut self, _segment: SegmentId, _process: Pid) {}

    /// What a hold is to cover from now on; a device without one has nothing to do.
    fn cover(&mut self, _cover: Cover) {}

    /// Sees to its hold; says after which time it wants to do so again. `None`: there is no hold.
    fn tend(&mut self) -> Option<Duration> {
        None
    }
}

/// What a hold is to cover, by the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cover {
    /// What segments and the hold may take together: the capacity less contexts and what outsiders have of it.
    pub room: Bytes,
    /// What segments have and what is set aside for leases. For these bytes the hold goes into the headroom.
    pub promised: Bytes,
    /// Members' contexts that are charged and that the card does not show yet.
    pub expected: Bytes,
}

/// What exists on a device by the broker's hand, readable from any thread: the device's owner writes, the witness reads.
#[derive(Debug, Default)]
pub struct Gauge(Mutex<Level>);

#[derive(Debug, Default)]
struct Level {
    made: Made,
    under_way: u32,
}

/// What a [`Gauge`] shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Made and not proven free.
    pub bytes: Bytes,
    /// Kept by the broker beside all segments; `None`: it keeps nothing.
    pub hold: Option<Bytes>,
    /// Memory on its way back that the card counts as these processes' own use, so that nobody counts it twice.
    pub attributed: BTreeMap<Pid, Bytes>,
    /// Processes of the broker's own that hold memory for the device.
    pub helpers: BTreeSet<Pid>,
    /// How often it has changed: a reader who sees the same count before and after another measurement knows that both belong together.
    pub changes: u64,
}

impl Gauge {
    /// What exists; `None` while a change is under way, which takes milliseconds.
    #[must_use]
    pub fn read(&self) -> Option<Made> {
        let level = self.level();
        (level.under_way == 0).then(|| level.made.clone())
    }

    /// What the broker keeps beside all segments, perhaps in the middle of a change; `None`: it keeps nothing.
    #[must_use]
    pub fn hold(&self) -> Option<Bytes> {
        self.level().made.hold
    }

    /// Sets the bytes. Called by the device alone: before memory is made and after it is proven free.
    pub fn set(&self, bytes: Bytes) {
        self.change(|made| made.bytes = bytes);
    }

    /// Sets what the broker keeps beside all segments. Called by the device alone.
    pub fn set_hold(&self, bytes: Bytes) {
        self.change(|made| made.hold = Some(bytes));
    }

    /// Sets what the card counts as processes' own use. Called by the device alone.
    pub fn set_attributed(&self, attributed: BTreeMap<Pid, Bytes>) {
        self.change(|made| made.attributed = attributed);
    }

    /// Adds a process of the broker's own. Called by the device alone.
    pub fn helper_started(&self, helper: Pid) {
        self.change(|made| {
            made.helpers.insert(helper);
        });
    }

    /// Takes away a process of the broker's own, which has ended. Called by the device alone.
    pub fn helper_ended(&self, helper: Pid) {
        self.change(|made| {
            made.helpers.remove(&helper);
        });
    }

    /// While the guard lives, what exists and what is shown need not agree.
    pub fn changing(&self) -> Changing<'_> {
        self.level().under_way += 1;
        Changing(self)
    }

    fn change(&self, change: impl FnOnce(&mut Made)) {
        let mut level = self.level();
        change(&mut level.made);
        level.made.changes += 1;
    }

    fn level(&self) -> MutexGuard<'_, Level> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change of what exists, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Changing<'a>(&'a Gauge);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut level = self.0.level();
        level.under_way -= 1;
        level.made.changes += 1;
    }
}

/// What the driver orders from a device's thread.
#[derive(Debug)]
pub enum Order {
    /// Make a segment.
    Create {
        /// Which.
        segment: SegmentId,
        /// How large.
        bytes: Bytes,
        /// With which handle.
        kind: HandleKind,
    },
    /// A process was given the segment.
    Handed(SegmentId, Pid),
    /// What the hold is to cover.
    Cover(Cover),
    /// Take a segment back and prove it.
    Reclaim(SegmentId),
}

/// What a device's thread tells the driver.
#[derive(Debug)]
pub struct Completion {
    /// Whose thread.
    pub device: DeviceId,
    /// What is done.
    pub done: Done,
}

/// What is done.
#[derive(Debug)]
pub enum Done {
    /// The segment is made.
    Created(SegmentId, Handover),
    /// It could not be made, and why.
    CreateFailed(SegmentId, String),
    /// Its bytes are back.
    Freed(SegmentId),
    /// They are not, after a time in which they should be; who is suspected.
    Unproven(SegmentId, Vec<Pid>),
    /// They are with somebody who was faster, and the books are to know.
    Missing,
    /// Its hold has another size, which the gauge shows.
    Kept,
    /// The device is lost, and why: nothing more is made on it, and nothing that exists can be proven free.
    Lost(String),
}
