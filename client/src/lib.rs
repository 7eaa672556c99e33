//! The library with which a program leases GPU memory from `gpuleased`.

mod allocation;
mod ask;
pub mod blocking;
mod client;
mod device;
mod error;
mod handover;
mod lease;
mod memory;
mod observer;
mod operator;
mod pressure;
mod resident;
mod segment;
mod token;
mod waiting;

pub use allocation::Allocation;
pub use ask::LeaseBuilder;
pub use client::{Client, Options};
pub use device::{Device, DeviceKind};
pub use error::{AcquireError, AskError, Denied, Error};
pub use handover::HandOverError;
pub use lease::{Lease, Standing};
pub use memory::{AccessError, MapError};
pub use observer::{Observer, Updates};
pub use operator::Operator;
pub use pressure::{Pressure, Recall};
pub use resident::Resident;
pub use segment::Segment;
pub use token::{ParseTokenError, Token};
pub use waiting::{Holder, Waiting};

pub use bytemuck;
pub use cudarc;
pub use gpulease_proto::v1 as proto;
pub use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, Reason, SegmentId, Uid, gib, mib};
