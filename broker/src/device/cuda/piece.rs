//! A piece of a segment, or of the hold.

use std::os::fd::OwnedFd;

use gpulease_cuda::{Allocation, CudaError};
use gpulease_words::Bytes;

use crate::device::Chunks;

/// Memory that the broker has a handle of.
#[derive(Debug)]
pub(super) struct Piece {
    memory: Allocation,
    /// Made ahead of time; no other process has seen it.
    descriptor: Option<OwnedFd>,
}

impl Piece {
    pub(super) fn bytes(&self) -> Bytes {
        self.memory.bytes()
    }

    /// Whether to hand it over costs no time.
    pub(super) fn is_exported(&self) -> bool {
        self.descriptor.is_some()
    }

    /// Makes a descriptor ahead of time.
    pub(super) fn export_ahead(&mut self) -> Result<(), CudaError> {
        self.descriptor = Some(self.memory.export()?);
        Ok(())
    }

    /// A descriptor to hand over, and its size.
    pub(super) fn export(&mut self) -> Result<(OwnedFd, Bytes), CudaError> {
        let descriptor = self.descriptor.take().map_or_else(|| self.memory.export(), Ok)?;
        Ok((descriptor, self.memory.bytes()))
    }

    /// Gives the handle up. Its descriptor goes first, so that the bytes are back when this returns.
    pub(super) fn release(self) {
        let Self { memory, descriptor } = self;
        drop(descriptor);
        if let Err(error) = memory.release() {
            tracing::warn!("a handle was not given up cleanly: {error}");
        }
    }
}

impl From<Allocation> for Piece {
    fn from(memory: Allocation) -> Self {
        Self { memory, descriptor: None }
    }
}

/// Descriptors of all, or none.
pub(super) fn export_all(pieces: &mut [Piece]) -> Result<Chunks, CudaError> {
    pieces.iter_mut().map(Piece::export).collect()
}
