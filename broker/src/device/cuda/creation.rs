//! How a segment of a GPU is made, and its descriptors.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use gpulease_cuda::CudaError;
use gpulease_words::{Bytes, SegmentId};

use super::piece::{self, Piece};
use super::segment::{Memory, Segment};
use super::{CudaDevice, chunks};
use crate::device::holders::Identity;
use crate::device::{Chunks, Descriptors, Handover};

impl CudaDevice {
    /// Refuses what makes no sense or does not fit, before anything is made.
    pub(super) fn admit(&self, bytes: Bytes) -> Result<(), String> {
        let (total, existing) = (self.description.total, self.existing);
        if bytes.is_zero() || !bytes.is_granular() {
            return Err(format!("{bytes} is no positive multiple of 2 MiB"));
        }
        match existing.checked_add(bytes) {
            Some(sum) if sum <= total => Ok(()),
            Some(_) | None => {
                Err(format!("{bytes} more than the {existing} that exist is over the {total} of this device"))
            }
        }
    }

    /// Makes a segment and its descriptors.
    pub(super) fn create_chunks(&mut self, id: SegmentId, bytes: Bytes) -> Result<Handover, String> {
        let gauge = Arc::clone(&self.gauge);
        let _changing = gauge.changing();
        let pieces = self.pieces(bytes).map_err(|why| self.not_made(bytes, &why))?;
        self.hand_over(id, bytes, pieces)
    }

    /// The same without the descriptors, unless they are there.
    pub(super) fn create_unexported(&mut self, id: SegmentId, bytes: Bytes) -> Result<Handover, String> {
        let gauge = Arc::clone(&self.gauge);
        let _changing = gauge.changing();
        let pieces = self.pieces(bytes).map_err(|why| self.not_made(bytes, &why))?;
        if pieces.iter().all(Piece::is_exported) {
            return self.hand_over(id, bytes, pieces);
        }
        let (promise, owed) = Descriptors::owed();
        self.add_chunks(id, bytes, pieces, None);
        self.segments.get_mut(&id).expect("it was added").promise = Some(promise);
        Ok(Handover::Descriptors(owed))
    }

    fn hand_over(&mut self, id: SegmentId, bytes: Bytes, mut pieces: Vec<Piece>) -> Result<Handover, String> {
        match piece::export_all(&mut pieces) {
            Ok(descriptors) => {
                self.add_chunks(id, bytes, pieces, identity(&descriptors));
                Ok(Handover::Descriptors(descriptors.into()))
            }
            Err(why) => {
                pieces.into_iter().for_each(Piece::release);
                self.settle();
                Err(self.not_made(bytes, &why))
            }
        }
    }

    fn add_chunks(&mut self, id: SegmentId, bytes: Bytes, pieces: Vec<Piece>, identity: Option<Identity>) {
        self.handled = self.handled.saturating_add(bytes);
        self.add(id, bytes, Memory::Chunks(pieces, identity));
    }

    /// Makes the descriptors that are owed.
    pub(super) fn export_promised(&mut self, id: SegmentId) {
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let (Some(promise), Memory::Chunks(pieces, known_by)) = (segment.promise.take(), &mut segment.memory)
        else {
            return;
        };
        match piece::export_all(pieces) {
            Ok(descriptors) => {
                *known_by = identity(&descriptors);
                promise.keep(Ok(descriptors));
            }
            Err(why) => promise.keep(Err(not_exported(segment.bytes, &self.description.name, &why))),
        }
    }

    pub(super) fn add(&mut self, id: SegmentId, bytes: Bytes, memory: Memory) {
        let known = self.segments.insert(id, Segment::new(bytes, memory));
        assert!(known.is_none(), "segment {id} is made twice");
        self.existing = self.existing.checked_add(bytes).expect("it was admitted");
        self.show();
    }

    /// Whether so much is free that it only needs other pieces, as far as anybody can tell.
    pub(super) fn may_be_in_pieces(&self, bytes: Bytes) -> bool {
        self.reading().is_none_or(|reading| reading.free() >= bytes)
    }

    pub(super) fn not_made(&self, bytes: Bytes, why: &CudaError) -> String {
        chunks::not_made(bytes, &self.description.name, why, self.reading().as_ref(), self.existing)
    }
}

/// What a segment's first descriptor is known by.
fn identity(descriptors: &Chunks) -> Option<Identity> {
    descriptors.first().and_then(|(descriptor, _)| Identity::of(descriptor.as_fd()))
}

fn not_exported(bytes: Bytes, name: &str, why: &CudaError) -> String {
    format!(
        "{bytes} were made on {name} and can't be shared: {why}; free them, and see whether the broker has descriptors left (`gpulease doctor`)"
    )
}
