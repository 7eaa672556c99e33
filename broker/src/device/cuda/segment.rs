//! A segment of a GPU.

use std::time::Instant;

use gpulease_words::{Bytes, Pid};

use super::drain::Tenants;
use super::piece::Piece;
use super::standing::Standing;
use crate::device::Promise;
use crate::device::holders::{Identity, Search};

/// One that exists, or is on its way back.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) bytes: Bytes,
    pub(super) memory: Memory,
    /// Descriptors that are owed.
    pub(super) promise: Option<Promise>,
    /// When it was taken back.
    pub(super) since: Option<Instant>,
    pub(super) search: Option<Search>,
    pub(super) tenants: Tenants,
    /// What was made anew for it when its handles were given up.
    pub(super) anew: Bytes,
    /// By how much the hold was too small then.
    pub(super) short: Bytes,
    /// Since when nobody has it any more.
    pub(super) back: Option<Instant>,
}

impl Segment {
    pub(super) fn new(bytes: Bytes, memory: Memory) -> Self {
        let (promise, since, search, tenants, anew, short, back) = Default::default();
        Self { bytes, memory, promise, since, search, tenants, anew, short, back }
    }
}

/// Where its memory is.
#[derive(Debug)]
pub(super) enum Memory {
    /// Ours, with what its first descriptor is known by in `/proc`.
    Chunks(Vec<Piece>, Option<Identity>),
    /// Of the exporter with this pid.
    Exported(Pid),
    /// The exporter was told to free it, at this standing.
    Ordered(Pid, Option<Standing>),
    /// Given up.
    Released(Option<Identity>),
}
