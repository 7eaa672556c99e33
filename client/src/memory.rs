//! Memory mapped into this process: host memory, or a GPU's.

use std::os::fd::AsFd;

use gpulease_cuda::{CudaError, IpcHandle, Mapping, Unavailable, ViewError};
use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId};

use crate::device::{Device, DeviceKind};
use crate::gpus::Gpus;
use crate::handover::Chunk;
use crate::host::HostMapping;

/// A segment's memory. Dropping it unmaps it.
#[derive(Debug)]
pub(crate) enum Memory {
    Host(HostMapping),
    Cuda(Mapping),
}

/// Why a segment could not be mapped. It is given back then.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The kernel refused the mapping.
    #[error(
        "could not map {bytes} of host memory: {source}; see `ulimit -v` and the memory limits of this process"
    )]
    Host {
        /// How much.
        bytes: Bytes,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A descriptor has less behind it than its chunk says: touching the rest would end the process.
    #[error(
        "a chunk of {chunk} came with {behind} behind its descriptor; are client and broker of the same version?"
    )]
    Short {
        /// What the chunk should have.
        chunk: Bytes,
        /// What it has.
        behind: Bytes,
    },
    /// There is no CUDA in this process.
    #[error(transparent)]
    NoCuda(#[from] Unavailable),
    /// This process does not see the GPU that the lease is on.
    #[error(
        "this process sees no GPU {uuid}, on which the lease is; add it to CUDA_VISIBLE_DEVICES, or ask for another device"
    )]
    NotVisible {
        /// Its UUID.
        uuid: String,
    },
    /// The driver refused the mapping.
    #[error("could not map the segment: {0}")]
    Cuda(#[from] CudaError),
    /// The handle is none.
    #[error(
        "the broker sent a CUDA IPC handle of {0} bytes, where one has 64; are client and broker of the same version?"
    )]
    Handle(usize),
    /// A CUDA IPC handle of host memory.
    #[error("device {0} is host memory and has no CUDA IPC handles")]
    NoIpc(DeviceId),
}

/// Why a segment can't be used this way.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// The guard is of another lease.
    #[error("segment {segment} is of lease {lease}, and the guard is of lease {guard}: enter lease {lease}")]
    OtherLease {
        /// The segment.
        segment: SegmentId,
        /// Its lease.
        lease: LeaseId,
        /// The guard's lease.
        guard: LeaseId,
    },
    /// It is on a device of another kind.
    #[error("segment {segment} is {}", kind_text(*.kind))]
    OtherKind {
        /// The segment.
        segment: SegmentId,
        /// What it is on.
        kind: DeviceKind,
    },
    /// This process was forked from the one that mapped it, and does not have the mapping.
    #[error(
        "segment {segment} was mapped before this process was forked and is not mapped here; join the lease here and allocate"
    )]
    Forked {
        /// The segment.
        segment: SegmentId,
    },
    /// A type of no size, or that must begin at addresses where the segment does not.
    #[error("a segment can't be seen as values of {size} bytes aligned to {align}")]
    Layout {
        /// The type's size.
        size: usize,
        /// Its alignment.
        align: usize,
    },
    /// The driver refused.
    #[error("segment {segment}: {error}")]
    Cuda {
        /// The segment.
        segment: SegmentId,
        /// What it said.
        error: CudaError,
    },
    /// The stream is of another GPU, or the driver failed.
    #[error("segment {segment} can't be seen on this stream: {error}")]
    View {
        /// The segment.
        segment: SegmentId,
        /// Why.
        error: ViewError,
    },
}

/// Maps what was handed over, chunks side by side; blocks.
pub(crate) fn map_chunks(gpus: &Gpus, device: &Device, chunks: &[Chunk]) -> Result<Memory, MapError> {
    let chunks: Vec<_> = chunks.iter().map(|chunk| (chunk.descriptor.as_fd(), chunk.bytes)).collect();
    match device.kind {
        DeviceKind::Host => HostMapping::of(&chunks).map(Memory::Host),
        DeviceKind::Cuda => Ok(Memory::Cuda(Mapping::of_descriptors(&gpus.context(device)?, &chunks)?)),
    }
}

/// Opens a CUDA IPC handle; blocks.
pub(crate) fn open_ipc(
    gpus: &Gpus,
    device: &Device,
    handle: &[u8],
    bytes: Bytes,
) -> Result<Memory, MapError> {
    match device.kind {
        DeviceKind::Host => Err(MapError::NoIpc(device.id)),
        DeviceKind::Cuda => {
            let handle = handle.try_into().map_err(|_| MapError::Handle(handle.len()))?;
            let handle = IpcHandle::from_bytes(handle);
            Ok(Memory::Cuda(Mapping::of_ipc_handle(&gpus.context(device)?, &handle, bytes)?))
        }
    }
}

fn kind_text(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Host => "host memory: use as_slice and as_mut_slice",
        DeviceKind::Cuda => "memory of a GPU: use device_ptr, view and view_mut",
    }
}
