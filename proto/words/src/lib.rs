//! The words every part of gpulease shares: amounts of memory, spans of time, ids and reasons.
//!
//! No dependencies, no I/O. An amount is [`Bytes`], never a bare integer; arithmetic is checked
//! and an overflow is the caller's to refuse.

mod bytes;
mod duration;
mod ids;
mod reason;

pub use bytes::{Bytes, GRANULARITY, ParseSizeError, Size, gib, mib};
pub use duration::{DurationText, ParseDurationError, parse_duration};
pub use ids::{AskId, DeviceId, Gid, LeaseId, Pid, ProcessId, SegmentId, SessionId, TooManyIds, Uid};
pub use reason::{Reason, UnknownReason};
