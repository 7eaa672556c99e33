//! A segment's bytes, wherever they are.

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_cuda::moving;
use gpulease_words::{Bytes, SegmentId};

use crate::device::{Device, DeviceKind};
use crate::gpus::Gpus;
use crate::handover::Chunk;
use crate::memory::MapError;
use crate::suspension::lanes::Lanes;
use crate::swap::{HostCopy, Site, Sums, SwapError};

/// What a segment and the suspension of its lease share. The segment closes it before its own mapping goes.
#[derive(Debug)]
pub(crate) struct Body {
    id: SegmentId,
    device: Device,
    site: Site,
    /// Held for as long as bytes are moved, so that a segment that is dropped waits for that.
    place: Mutex<Place>,
    /// What `place` says, for who can't wait for a move to end.
    away: AtomicBool,
}

#[derive(Debug)]
enum Place {
    /// On the device. Without a host copy it can't move.
    Here(Option<HostCopy>),
    /// In the host copy, and nowhere else.
    Away(HostCopy, Sums),
    /// The segment was dropped.
    Closed,
}

/// What came of moving a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is where it should be.
    There,
    /// The segment was dropped, and the broker told of that.
    Closed,
}

/// Whether there is nothing more to prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    Ready,
    NotYet,
}

/// Why a body could not be moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoveError {
    #[error("segment {0} has no host copy, so that it can't be swapped out")]
    NoCopy(SegmentId),
    #[error("segment {segment}: {source}")]
    Map { segment: SegmentId, source: MapError },
    #[error("segment {segment}: {source}")]
    Swap { segment: SegmentId, source: SwapError },
}

impl Body {
    pub(crate) fn new(id: SegmentId, device: Device, site: Site, copy: Option<HostCopy>) -> Self {
        Self { id, device, site, place: Mutex::new(Place::Here(copy)), away: AtomicBool::new(false) }
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.site.bytes()
    }

    /// Whether its bytes are in the host copy only. Does not wait for a move that is under way.
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::SeqCst)
    }

    /// Makes the device's lanes ahead of time, and page-locks the host copy where the broker has had the kernel give its
    /// pages by now: else that would take seconds, in which the segment could be neither moved nor dropped. Blocks, for
    /// about 40 ms a GiB.
    pub(crate) fn prepare(&self, gpus: &Gpus, lanes: &Lanes) -> Result<Prepared, MoveError> {
        let prepared = self.try_prepare(gpus, lanes);
        if !matches!(prepared, Ok(Prepared::NotYet))
            && let Place::Here(Some(copy)) = &*self.place()
        {
            // Nobody asks again whether the pages are there.
            copy.close_file();
        }
        prepared
    }

    fn try_prepare(&self, gpus: &Gpus, lanes: &Lanes) -> Result<Prepared, MoveError> {
        // Before the lock is taken: the driver takes 0.1 s for the first.
        lanes.of(gpus, &self.device).map_err(|error| self.map(error))?;
        match &*self.place() {
            Place::Here(Some(copy)) => match self.device.kind {
                DeviceKind::Host => Ok(Prepared::Ready),
                DeviceKind::Cuda if !copy.is_touched() => Ok(Prepared::NotYet),
                DeviceKind::Cuda => self.register(gpus, copy).map(|()| Prepared::Ready),
            },
            Place::Here(None) | Place::Away(..) | Place::Closed => Ok(Prepared::Ready),
        }
    }

    /// Waits until the device has done all that was asked of it. Blocks.
    pub(crate) fn finish_work(&self) -> Result<(), MoveError> {
        match &self.site {
            Site::Host(_) => Ok(()),
            Site::Cuda(site) => site.context().synchronize().map_err(|error| self.swap(error.into())),
        }
    }

    /// Copies the bytes out and unmaps them. Blocks for as long as the link takes. After an error it is as it was.
    ///
    /// # Safety
    /// Nothing of this process uses the memory, and nothing does before [`Self::come_back`] has succeeded: the gate is
    /// closed, the guards are gone, and the device has done its work.
    pub(crate) unsafe fn leave(&self, gpus: &Gpus, lanes: &Lanes) -> Result<Moved, MoveError> {
        let mut place = self.place();
        let copy = match &*place {
            Place::Here(Some(copy)) => copy,
            Place::Here(None) => return Err(MoveError::NoCopy(self.id)),
            Place::Away(..) => return Ok(Moved::There),
            Place::Closed => return Ok(Moved::Closed),
        };
        if let Err(error) = self.register(gpus, copy) {
            // It works without, only slower.
            tracing::warn!(%error, "gpulease: a host copy could not be page-locked");
        }
        copy.close_file();
        let pair = lanes.of(gpus, &self.device).map_err(|error| self.map(error))?;
        // SAFETY: the caller's promise; the host copy is this body's own.
        let out = moving(|| unsafe { pair.out().out(&self.site, copy, || ()) });
        let (sums, ()) = out.map_err(|error| self.swap(error))?;
        // With the lane free again, so that the next segment's bytes go out meanwhile.
        // SAFETY: the caller's promise.
        moving(|| unsafe { self.site.vacate() }).map_err(|error| self.map(error))?;
        *place = match std::mem::replace(&mut *place, Place::Closed) {
            Place::Here(Some(copy)) => Place::Away(copy, sums),
            other @ (Place::Here(None) | Place::Away(..) | Place::Closed) => other,
        };
        self.away.store(true, Ordering::SeqCst);
        Ok(Moved::There)
    }

    /// Maps the chunks where it was. Blocks.
    pub(crate) fn settle(&self, chunks: &[Chunk]) -> Result<Moved, MoveError> {
        match *self.place() {
            Place::Here(_) => Ok(Moved::There),
            Place::Closed => Ok(Moved::Closed),
            Place::Away(..) => {
                let chunks: Vec<_> =
                    chunks.iter().map(|chunk| (chunk.descriptor.as_fd(), chunk.bytes)).collect();
                let occupied = moving(|| self.site.occupy(&chunks));
                occupied.map(|()| Moved::There).map_err(|error| self.map(error))
            }
        }
    }

    /// Copies the bytes back in, after [`Self::settle`]. Blocks for as long as the link takes.
    pub(crate) fn come_back(&self, gpus: &Gpus, lanes: &Lanes) -> Result<Moved, MoveError> {
        let mut place = self.place();
        let (copy, sums) = match &*place {
            Place::Away(copy, sums) => (copy, sums),
            Place::Here(_) => return Ok(Moved::There),
            Place::Closed => return Ok(Moved::Closed),
        };
        let pair = lanes.of(gpus, &self.device).map_err(|error| self.map(error))?;
        let lane = pair.back();
        // SAFETY: the memory was mapped by `settle`; nobody uses it before the gate opens, which waits for this.
        moving(|| unsafe { lane.back(&self.site, copy, sums) }).map_err(|error| self.swap(error))?;
        *place = match std::mem::replace(&mut *place, Place::Closed) {
            Place::Away(copy, _) => Place::Here(Some(copy)),
            other @ (Place::Here(_) | Place::Closed) => other,
        };
        self.away.store(false, Ordering::SeqCst);
        Ok(Moved::There)
    }

    /// The lease moves no more: gives the host copy up.
    pub(crate) fn pin(&self) {
        let mut place = self.place();
        if let Place::Here(copy) = &mut *place {
            drop(copy.take());
        }
    }

    /// The segment goes: nothing of it is moved any more, and the host copy is given up. Waits for a move under way.
    pub(crate) fn close(&self) {
        drop(std::mem::replace(&mut *self.place(), Place::Closed));
        self.away.store(false, Ordering::SeqCst);
    }

    fn register(&self, gpus: &Gpus, copy: &HostCopy) -> Result<(), MoveError> {
        if self.device.kind == DeviceKind::Host || copy.is_registered() {
            return Ok(());
        }
        let context = gpus.context(&self.device).map_err(|error| self.map(error))?;
        copy.register(&context).map_err(|error| self.swap(error.into()))
    }

    fn map(&self, source: MapError) -> MoveError {
        MoveError::Map { segment: self.id, source }
    }

    fn swap(&self, source: SwapError) -> MoveError {
        MoveError::Swap { segment: self.id, source }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
