//! A GPU's way to host copies: streams, and how much is queued in them.

use std::collections::VecDeque;
use std::ops::Range;

use gpulease_cuda::{Context, CudaError, DevicePtr, Event, PieceSums, Stream};
use gpulease_words::Bytes;

use crate::host::size;
use crate::swap::host_copy::HostCopy;
use crate::swap::sums::{PIECE, SumKind, Sums};

/// Two, so that one's copy runs while the next one's is being started.
const STREAMS: usize = 2;

/// How many copies are queued at a time: 5 ms of the link's work or more, far more than a thread needs to wake up.
const QUEUED: usize = 16;

/// The streams of a lane, and who makes its check sums.
#[derive(Debug)]
pub struct CudaLane {
    context: Context,
    streams: [Stream; STREAMS],
    /// `None` where the driver does not take the kernel.
    summer: Option<PieceSums>,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Out,
    Back,
}

/// How much one copy carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stride {
    /// One piece, for who works on each as soon as it is across.
    Piece,
    /// Four: between two copies the link rests for some microseconds, 1 % of a piece's time.
    Pieces,
}

impl Stride {
    const fn pieces(self) -> usize {
        match self {
            Self::Piece => 1,
            Self::Pieces => 4,
        }
    }
}

impl CudaLane {
    /// A lane with streams of its own. Takes the driver some 0.1 s, for the kernel that makes the sums.
    pub(crate) fn new(context: &Context) -> Result<Self, CudaError> {
        Self::with(context, PieceSums::new(context, PIECE))
    }

    /// Another one for the same GPU, with the same kernel.
    pub(crate) fn another(&self) -> Result<Self, CudaError> {
        match &self.summer {
            Some(summer) => Self::with(&self.context, summer.another()),
            None => {
                Ok(Self { context: self.context.clone(), streams: streams(&self.context)?, summer: None })
            }
        }
    }

    fn with(context: &Context, summer: Result<PieceSums, CudaError>) -> Result<Self, CudaError> {
        let say = |error: &CudaError| {
            tracing::debug!(%error, "gpulease: this GPU makes no check sums, host threads do, and slow swaps down");
        };
        let summer = summer.inspect_err(say).ok();
        Ok(Self { context: context.clone(), streams: streams(context)?, summer })
    }

    pub(crate) fn summer(&self) -> Option<&PieceSums> {
        self.summer.as_ref()
    }

    /// Who makes the sums of what goes out.
    pub(crate) fn sum_kind(&self) -> SumKind {
        self.summer.as_ref().map_or(SumKind::Host, |_| SumKind::Gpu)
    }

    /// Carries all pieces, and says of them, in order, that they are across. No copy is under way when it returns.
    ///
    /// # Safety
    /// As [`Lane::out`](crate::swap::Lane::out) and [`Lane::back`](crate::swap::Lane::back); the copy is registered.
    pub(crate) unsafe fn carry(
        &self,
        at: DevicePtr,
        copy: &HostCopy,
        (way, stride): (Way, Stride),
        across: impl FnMut(Range<usize>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        let carried = unsafe { self.carry_pieces(at, copy, (way, stride), across) };
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
        (way, stride): (Way, Stride),
        mut across: impl FnMut(Range<usize>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let (count, mut queued) = (Sums::pieces(copy.bytes()), VecDeque::with_capacity(QUEUED));
        let mut first_across = |queued: &mut VecDeque<(Range<usize>, Event)>| {
            let Some((pieces, event)) = queued.pop_front() else { return Ok(()) };
            event.synchronize()?;
            across(pieces)
        };
        for (first, stream) in (0..count).step_by(stride.pieces()).zip(self.streams.iter().cycle()) {
            if queued.len() == QUEUED {
                first_across(&mut queued)?;
            }
            let pieces = first..count.min(first + stride.pieces());
            // SAFETY: the caller's promise; `carry` waits for the streams before it returns.
            let event = unsafe { queue(stream, at, copy, pieces.clone(), way) }?;
            queued.push_back((pieces, event));
        }
        while !queued.is_empty() {
            first_across(&mut queued)?;
        }
        Ok(())
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
        let ((there, bytes), here) = (copy.piece(piece), address(at, piece));
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

/// # Safety
/// As [`CudaLane::carry`], until the event has come.
unsafe fn queue(
    stream: &Stream,
    at: DevicePtr,
    copy: &HostCopy,
    pieces: Range<usize>,
    way: Way,
) -> Result<Event, CudaError> {
    let (here, (there, bytes)) = (address(at, pieces.start), copy.pieces(pieces));
    // SAFETY: the caller's promise, for both ranges.
    unsafe {
        match way {
            Way::Out => stream.copy_to_host(there, here, bytes),
            Way::Back => stream.copy_to_device(here, there, bytes),
        }
    }?;
    stream.mark()
}

fn streams(context: &Context) -> Result<[Stream; STREAMS], CudaError> {
    Ok([Stream::new(context)?, Stream::new(context)?])
}

/// Where a piece of what begins here lies.
pub(crate) fn address(at: DevicePtr, piece: usize) -> DevicePtr {
    at.offset(Bytes::new(piece as u64 * PIECE.get()))
}
