//! Memory mapped here.

use gpulease_words::{DeviceId, LeaseId, SegmentId};

/// Why a segment could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// This process does not see the CUDA device.
    #[error("this process sees no GPU {uuid}; add it to CUDA_VISIBLE_DEVICES")]
    NotVisible {
        /// Its UUID.
        uuid: String,
    },
}

/// Why a segment can't be used this way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The guard is of another lease.
    #[error("segment {segment} is of lease {lease}, and the guard is of lease {guard}; enter lease {lease}")]
    OtherLease {
        /// The segment.
        segment: SegmentId,
        /// Its lease.
        lease: LeaseId,
        /// The guard's lease.
        guard: LeaseId,
    },
    /// It is on a device of another kind.
    #[error("segment {segment} is on device {device}, which is {kind}")]
    OtherKind {
        /// The segment.
        segment: SegmentId,
        /// Its device.
        device: DeviceId,
        /// What the device is.
        kind: &'static str,
    },
}
