//! Devices: memory that the broker owns.
//!
//! A device knows nothing of leases, budgets or the line. One OS thread owns each device and is
//! the only one that calls it, since the calls can take milliseconds; the driver sends it
//! [`Order`]s and receives [`Completion`]s.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpulease_words::{Bytes, DeviceId, Pid, SegmentId};

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
    /// One descriptor per chunk, in address order. They are this segment's only way to a client: whoever drops them
    /// ends every claim that was not made yet.
    Descriptors(Vec<(OwnedFd, Bytes)>),
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
/// - `prove` says `Freed` once and only when every other holder has let go; until then the bytes stay in the gauge;
/// - dropping the device leaves no process, thread or file behind.
pub trait Device: Send {
    /// What it is.
    fn description(&self) -> &Description;

    /// Makes a segment of `bytes`, a positive multiple of the granularity.
    ///
    /// # Errors
    /// A sentence, where the device cannot.
    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) -> Result<Handover, String>;

    /// Begins to take a segment back.
    fn reclaim(&mut self, segment: SegmentId);

    /// Whether a segment that is being taken back is free.
    fn prove(&mut self, segment: SegmentId) -> Proof;

    /// How much exists: made and not proven free. Shared with the witness.
    fn gauge(&self) -> Arc<Gauge>;

    /// Processes of the broker's own that hold memory for this device.
    fn helpers(&self) -> Vec<Pid> {
        Vec::new()
    }
}

/// How many bytes of a device exist by the broker's hand, readable from any thread.
#[derive(Debug, Default)]
pub struct Gauge {
    bytes: AtomicU64,
    changes: AtomicU64,
}

impl Gauge {
    /// The bytes, and how often they have changed: a reader who sees the same count before and
    /// after another measurement knows that both belong together.
    #[must_use]
    pub fn read(&self) -> (Bytes, u64) {
        let changes = self.changes.load(Ordering::SeqCst);
        (Bytes::new(self.bytes.load(Ordering::SeqCst)), changes)
    }

    /// Sets the bytes. Called by the device alone: before memory is made and after it is proven free.
    pub fn set(&self, bytes: Bytes) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.bytes.store(bytes.get(), Ordering::SeqCst);
        self.changes.fetch_add(1, Ordering::SeqCst);
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
}
