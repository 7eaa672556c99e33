//! One segment's way over a GPU's lane, with whoever makes its check sums.
//!
//! ```text
//! GPU sums   out    sums  [= all, at 4 TB/s]                    back   copies [==========================]
//!                   copies[==========================] then            sums        [= = = = = = = = = = =]compare
//! host sums  out    copies[==========================] then     back   copies [==========================]
//!                   sums     [==========================]              sums   [==========================]
//! ```

use std::ops::Range;

use gpulease_cuda::{CudaError, DevicePtr, PieceSums};

use crate::swap::crew::{Pieces, work};
use crate::swap::cuda_lane::{CudaLane, Stride, Way, address};
use crate::swap::host_copy::HostCopy;
use crate::swap::lane::SwapError;
use crate::swap::sums::{SumKind, Sums, SumsBeingMade};

/// A segment at these addresses, and its host copy, which has the same size.
///
/// Pinned memory is read and written by the device itself. The driver stages pageable memory, slowly, so that several
/// threads help.
pub(crate) struct Crossing<'a> {
    pub(crate) lane: &'a CudaLane,
    pub(crate) at: DevicePtr,
    pub(crate) copy: &'a HostCopy,
}

impl Crossing<'_> {
    /// # Safety
    /// As [`Lane::out`](crate::swap::Lane::out).
    pub(crate) unsafe fn out<R>(&self, then: impl FnOnce() -> R) -> Result<(Sums, R), SwapError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.lane.summer() {
                // Nothing may be given up before the GPU has read it for the sums too.
                Some(summer) => Ok((self.out_summed_there(summer)?, then())),
                None => self.out_summed_here(then),
            }
        }
    }

    /// # Safety
    /// As [`Lane::back`](crate::swap::Lane::back).
    pub(crate) unsafe fn back(&self, sums: &Sums) -> Result<(), SwapError> {
        // SAFETY: the caller's promise.
        unsafe {
            match (sums.kind(), self.lane.summer()) {
                (SumKind::Gpu, Some(summer)) => self.back_summed_there(summer, sums),
                // What a GPU has summed can be summed here too.
                (SumKind::Gpu, None) | (SumKind::Host, Some(_) | None) => self.back_summed_here(sums),
            }
        }
    }

    /// # Safety
    /// As [`Self::out`].
    unsafe fn out_summed_there(&self, summer: &PieceSums) -> Result<Sums, SwapError> {
        let mut sums = summer.begin();
        // SAFETY: nobody writes to the segment before this returns, and then all sums are made.
        unsafe { sums.add(self.at, self.copy.bytes()) }?;
        // SAFETY: the caller's promise.
        unsafe { self.carry(Way::Out, |_| Ok(())) }?;
        Ok(Sums::new(SumKind::Gpu, sums.wait()?))
    }

    /// # Safety
    /// As [`Self::back`].
    unsafe fn back_summed_there(&self, summer: &PieceSums, sums: &Sums) -> Result<(), SwapError> {
        let mut found = summer.begin();
        let across = |pieces: Range<usize>| {
            let (at, (_, bytes)) = (address(self.at, pieces.start), self.copy.pieces(pieces));
            // SAFETY: these pieces are across, and nobody writes to them before this returns.
            unsafe { found.add(at, bytes) }
        };
        // SAFETY: the caller's promise.
        unsafe { self.carry(Way::Back, across) }?;
        let mut found = found.wait()?.into_iter().enumerate();
        found.try_for_each(|(piece, found)| sums.check(piece, found, self.copy.bytes()))
    }

    /// Carries everything, and says in order what is across.
    ///
    /// # Safety
    /// As [`Self::out`] and [`Self::back`].
    unsafe fn carry(
        &self,
        way: Way,
        mut across: impl FnMut(Range<usize>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if self.copy.is_registered() {
            // SAFETY: the caller's promise.
            return unsafe { self.lane.carry(self.at, self.copy, (way, Stride::Pieces), across) };
        }
        // SAFETY: the caller's promise; each piece is copied by one thread.
        let copy = |piece| unsafe { self.lane.copy(self.at, self.copy, piece, way) };
        work(&Pieces::all(self.count()), copy, || ()).0?;
        across(0..self.count())
    }

    /// # Safety
    /// As [`Self::out`].
    unsafe fn out_summed_here<R>(&self, then: impl FnOnce() -> R) -> Result<(Sums, R), SwapError> {
        let sums = SumsBeingMade::of(self.copy.bytes());
        let add = |piece| {
            // SAFETY: the piece is across, and the caller vouches that nothing else writes to the copy.
            sums.set(piece, unsafe { self.copy.bytes_of(piece) });
            Ok::<_, SwapError>(())
        };
        let then = if self.copy.is_registered() {
            let pieces = Pieces::coming(self.count());
            // SAFETY: the caller's promise.
            let (summed, crossed) =
                work(&pieces, add, || unsafe { self.carry_for(&pieces) }.map(|()| then()));
            let then = crossed?;
            summed?;
            then
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.stage(Way::Out, add) }?;
            then()
        };
        Ok((sums.done(), then))
    }

    /// # Safety
    /// As [`Self::back`].
    unsafe fn back_summed_here(&self, sums: &Sums) -> Result<(), SwapError> {
        let check = |piece| {
            // SAFETY: the caller vouches that nothing writes to the copy.
            let found = sums.kind().of(unsafe { self.copy.bytes_of(piece) });
            sums.check(piece, found, self.copy.bytes())
        };
        if !self.copy.is_registered() {
            // SAFETY: the caller's promise.
            return unsafe { self.stage(Way::Back, check) };
        }
        // The host copy only is summed, so that nobody waits for the other.
        let carry = || {
            // SAFETY: the caller's promise.
            unsafe { self.lane.carry(self.at, self.copy, (Way::Back, Stride::Piece), |_| Ok(())) }
        };
        let (checked, crossed) = work(&Pieces::all(self.count()), check, carry);
        checked.and(crossed.map_err(SwapError::Cuda))
    }

    /// Carries the pieces out, for the crew that sums them; it goes home where they stop coming.
    ///
    /// # Safety
    /// As [`Self::out`].
    unsafe fn carry_for(&self, pieces: &Pieces) -> Result<(), SwapError> {
        let across = |across: Range<usize>| {
            across.for_each(|_| pieces.arrived());
            Ok(())
        };
        // SAFETY: the caller's promise.
        let carried = unsafe { self.lane.carry(self.at, self.copy, (Way::Out, Stride::Piece), across) };
        carried.inspect_err(|_| pieces.over()).map_err(SwapError::Cuda)
    }

    /// Each piece is copied and then summed by the same thread.
    ///
    /// # Safety
    /// As [`Self::out`] and [`Self::back`].
    unsafe fn stage(
        &self,
        way: Way,
        sum: impl Fn(usize) -> Result<(), SwapError> + Sync,
    ) -> Result<(), SwapError> {
        let each = |piece| {
            // SAFETY: the caller's promise; each piece is copied by one thread.
            unsafe { self.lane.copy(self.at, self.copy, piece, way) }?;
            sum(piece)
        };
        work(&Pieces::all(self.count()), each, || ()).0
    }

    fn count(&self) -> usize {
        Sums::pieces(self.copy.bytes())
    }
}
