//! A GPU's way to host copies: streams, and how much is queued in them.

use std::collections::VecDeque;
use std::ptr::NonNull;

use gpulease_cuda::{Context, CudaError, DevicePtr, Event, Stream};
use gpulease_words::Bytes;

use crate::host::size;
use crate::swap::host_copy::HostCopy;
use crate::swap::sums::{PIECE, Sums};

/// Two, so that one's copy runs while the next one's is being started.
const STREAMS: usize = 2;

/// How many pieces are queued at a time: 5 ms of the link's work, far more than a thread needs to wake up.
const QUEUED: usize = 16;

/// The streams of a lane.
#[derive(Debug)]
pub struct CudaLane {
    context: Context,
    streams: [Stream; STREAMS],
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    Back,
}

impl CudaLane {
    /// A lane with streams of its own.
    pub(crate) fn new(context: &Context) -> Result<Self, CudaError> {
        let streams = [Stream::new(context)?, Stream::new(context)?];
        Ok(Self { context: context.clone(), streams })
    }

    /// Carries all pieces, and says of each, in order, that it is across. No copy is under way when it returns.
    ///
    /// # Safety
    /// As [`Lane::out`](crate::swap::Lane::out) and [`Lane::back`](crate::swap::Lane::back); the copy is registered.
    pub(crate) unsafe fn carry(
        &self,
        at: DevicePtr,
        copy: &HostCopy,
        way: Way,
        across: impl Fn(),
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        let carried = unsafe { self.carry_pieces(at, copy, way, across) };
        // What was queued before a failure still runs, and must not when the caller gives the memory up.
        let ended = self.streams.iter().map(Stream::synchronize).fold(Ok(()), Result::and);
        carried.and(ended)
    }

    /// # Safety
    /// As [`Self::carry`].
    unsafe fn carry_pieces(
        &self,
        at: DevicePtr,
        copy: &HostCopy,
        way: Way,
        across: impl Fn(),
    ) -> Result<(), CudaError> {
        let mut queued = VecDeque::with_capacity(QUEUED);
        for piece in 0..Sums::pieces(copy.bytes()) {
            if queued.len() == QUEUED {
                wait_for_first(&mut queued)?;
                across();
            }
            let (there, bytes) = copy.piece(piece);
            // SAFETY: the caller's promise; `carry` waits for the streams before it returns.
            queued.push_back(unsafe { self.queue(piece, offset(at, piece), there, bytes, way) }?);
        }
        while !queued.is_empty() {
            wait_for_first(&mut queued)?;
            across();
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::carry`], until the event has come.
    unsafe fn queue(
        &self,
        piece: usize,
        here: DevicePtr,
        there: NonNull<u8>,
        bytes: Bytes,
        way: Way,
    ) -> Result<Event, CudaError> {
        let stream = &self.streams[piece % STREAMS];
        // SAFETY: the caller's promise, for both ranges.
        unsafe {
            match way {
                Way::Out => stream.copy_to_host(there, here, bytes),
                Way::Back => stream.copy_to_device(here, there, bytes),
            }
        }?;
        stream.mark()
    }

    /// Copies one piece of pageable memory; it has happened when this returns.
    ///
    /// # Safety
    /// As [`Lane::out`](crate::swap::Lane::out) and [`Lane::back`](crate::swap::Lane::back).
    pub(crate) unsafe fn copy(
        &self,
        at: DevicePtr,
        copy: &HostCopy,
        piece: usize,
        way: Way,
    ) -> Result<(), CudaError> {
        let ((there, bytes), here) = (copy.piece(piece), offset(at, piece));
        let (there, length) = (there.as_ptr(), size(bytes));
        // SAFETY: the piece is mapped for as long as `copy` lives and used by this thread alone; the caller vouches
        // for the rest.
        unsafe {
            match way {
                Way::Out => self.context.copy_to_host(std::slice::from_raw_parts_mut(there, length), here),
                Way::Back => self.context.copy_to_device(here, std::slice::from_raw_parts(there, length)),
            }
        }
    }
}

fn wait_for_first(queued: &mut VecDeque<Event>) -> Result<(), CudaError> {
    queued.pop_front().map_or(Ok(()), |first| first.synchronize())
}

fn offset(at: DevicePtr, piece: usize) -> DevicePtr {
    at.offset(Bytes::new(piece as u64 * PIECE.get()))
}
