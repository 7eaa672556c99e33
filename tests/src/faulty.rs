//! A device that fails as devices do: creations that come to nothing, proofs that are late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gpulease_broker::device::{Cover, Description, Device, Gauge, HandleKind, Handover, Proof};
use gpulease_words::{Bytes, Pid, SegmentId};

/// How a [`Faulty`] device refuses; callers may try again.
pub const INJECTED: &str = "injected: the device failed";

/// Wraps a device: of four creations one fails before anything is made and one after it was, and
/// each proof is first late, then overdue with nobody to suspect.
#[derive(Debug)]
pub struct Faulty<D> {
    inner: D,
    creations: u64,
    /// How often a segment's proof was asked for.
    asked: BTreeMap<SegmentId, u32>,
}

impl<D: Device> Faulty<D> {
    /// The same device, with faults.
    pub fn new(inner: D) -> Self {
        Self { inner, creations: 0, asked: BTreeMap::new() }
    }
}

impl<D: Device> Device for Faulty<D> {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) -> Result<Handover, String> {
        self.creations += 1;
        match self.creations % 4 {
            1 => Err(format!("{INJECTED} before it made {bytes}")),
            2 => {
                drop(self.inner.create(segment, bytes, kind)?);
                self.inner.reclaim(segment);
                // Nobody was given it, so that its proof is a matter of moments.
                while self.inner.prove(segment) != Proof::Freed {}
                Err(format!("{INJECTED} after it made {bytes}"))
            }
            _ => self.inner.create(segment, bytes, kind),
        }
    }

    fn export(&mut self, segment: SegmentId) {
        self.inner.export(segment);
    }

    fn reclaim(&mut self, segment: SegmentId) {
        self.inner.reclaim(segment);
    }

    fn prove(&mut self, segment: SegmentId) -> Proof {
        let asked = self.asked.entry(segment).or_default();
        *asked += 1;
        match asked {
            1..=3 => Proof::NotYet,
            4 => Proof::Overdue(Vec::new()),
            _ => self.inner.prove(segment),
        }
    }

    fn gauge(&self) -> Arc<Gauge> {
        self.inner.gauge()
    }

    fn handed(&mut self, segment: SegmentId, process: Pid) {
        self.inner.handed(segment, process);
    }

    fn cover(&mut self, cover: Cover) {
        self.inner.cover(cover);
    }

    fn tend(&mut self) -> Option<Duration> {
        self.inner.tend()
    }
}
