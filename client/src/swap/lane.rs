//! The way of bytes between a device and a host copy, in one direction at a time.

use std::convert::Infallible;

use gpulease_cuda::{Context, CudaError};
use gpulease_words::Bytes;

use crate::host::{HostSite, size};
use crate::swap::crew::{Pieces, work};
use crate::swap::crossing::Crossing;
use crate::swap::cuda_lane::{CudaLane, Way};
use crate::swap::host_copy::HostCopy;
use crate::swap::site::Site;
use crate::swap::sums::{PIECE, SumKind, Sums, SumsBeingMade};

/// A way between a device and host copies. Two lanes carry bytes out and in at the same time.
#[derive(Debug)]
pub enum Lane {
    /// Between host memory and host memory.
    Host,
    /// Between a GPU and host memory, on streams of its own.
    Cuda(CudaLane),
}

/// Why bytes did not get across.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// The driver failed.
    #[error("the copy failed: {0}")]
    Cuda(#[from] CudaError),
    /// What is in the host copy is not what was put there.
    #[error("the host copy was changed at {at} of {of}: its check sum is not the one it was made with")]
    Corrupt {
        /// Where the piece begins.
        at: Bytes,
        /// The segment's size.
        of: Bytes,
    },
    /// Site and host copy have different sizes, or the lane is for another kind of device.
    #[error("a segment of {site} does not go into a host copy of {copy} on this lane")]
    Mismatch {
        /// The segment's size.
        site: Bytes,
        /// The host copy's.
        copy: Bytes,
    },
}

impl Lane {
    /// A lane for a GPU, with streams of its own. Made ahead of time: the driver takes some 0.1 s for the kernel that
    /// makes check sums. Where it refuses that kernel (a card older than compute capability 7.5), host threads make
    /// them, and swaps may be slower than the link.
    ///
    /// # Errors
    /// What the driver says.
    pub fn cuda(context: &Context) -> Result<Self, CudaError> {
        CudaLane::new(context).map(Self::Cuda)
    }

    /// Another lane for the same device, for the other direction; made at once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn another(&self) -> Result<Self, CudaError> {
        match self {
            Self::Host => Ok(Self::Host),
            Self::Cuda(lane) => lane.another().map(Self::Cuda),
        }
    }

    /// Who makes the check sums of what goes out here.
    #[must_use]
    pub fn sum_kind(&self) -> SumKind {
        match self {
            Self::Host => SumKind::Host,
            Self::Cuda(lane) => lane.sum_kind(),
        }
    }

    /// Copies a segment's bytes out and sums them. `then` is called as soon as nobody reads them any more: the memory
    /// can be given up then. Where host threads make the sums, the last of them are made meanwhile. Blocks for as long
    /// as the link takes.
    ///
    /// # Errors
    /// What the driver says; `then` was not called, and the segment is as it was.
    ///
    /// # Safety
    /// There is memory at the site and nothing writes to it; nothing uses the host copy.
    pub unsafe fn out<R>(
        &self,
        site: &Site,
        copy: &HostCopy,
        then: impl FnOnce() -> R,
    ) -> Result<(Sums, R), SwapError> {
        match Course::new(self, site, copy)? {
            Course::Host(from) => {
                // SAFETY: the caller's promise.
                let sums = unsafe { out_here(from, copy) };
                Ok((sums, then()))
            }
            // SAFETY: the caller's promise.
            Course::Cuda(crossing) => unsafe { crossing.out(then) },
        }
    }

    /// Copies a segment's bytes back, and checks them on the way, by sums of the kind that they went out with. Blocks
    /// for as long as the link takes.
    ///
    /// # Errors
    /// [`SwapError::Corrupt`], or what the driver says: what is at the site is not to be used then. The host copy is
    /// as it was.
    ///
    /// # Safety
    /// There is memory at the site and nothing uses it; nothing writes to the host copy.
    pub unsafe fn back(&self, site: &Site, copy: &HostCopy, sums: &Sums) -> Result<(), SwapError> {
        // SAFETY: the caller's promise.
        unsafe {
            match Course::new(self, site, copy)? {
                Course::Host(to) => back_here(to, copy, sums),
                Course::Cuda(crossing) => crossing.back(sums),
            }
        }
    }
}

/// Between what the bytes of one segment go.
enum Course<'a> {
    Host(&'a HostSite),
    Cuda(Crossing<'a>),
}

impl<'a> Course<'a> {
    fn new(lane: &'a Lane, site: &'a Site, copy: &'a HostCopy) -> Result<Self, SwapError> {
        let mismatch = SwapError::Mismatch { site: site.bytes(), copy: copy.bytes() };
        if site.bytes() != copy.bytes() {
            return Err(mismatch);
        }
        match (lane, site) {
            (Lane::Host, Site::Host(site)) => Ok(Self::Host(site)),
            (Lane::Cuda(lane), Site::Cuda(site)) => Ok(Self::Cuda(Crossing { lane, at: site.ptr(), copy })),
            (Lane::Host, Site::Cuda(_)) | (Lane::Cuda(_), Site::Host(_)) => Err(mismatch),
        }
    }
}

/// Copies host memory out. Each piece is copied and then summed by the same thread.
///
/// # Safety
/// As [`Lane::out`].
unsafe fn out_here(from: &HostSite, copy: &HostCopy) -> Sums {
    let sums = SumsBeingMade::of(copy.bytes());
    let each = |piece| {
        // SAFETY: the caller's promise, for both ranges; each piece is copied by one thread.
        unsafe { copy_here(from, copy, piece, Way::Out) };
        // SAFETY: the piece is across, and the caller vouches that nothing else writes to the copy.
        sums.set(piece, unsafe { copy.bytes_of(piece) });
        Ok::<_, Infallible>(())
    };
    let (Ok(()), ()) = work(&Pieces::all(Sums::pieces(copy.bytes())), each, || ());
    sums.done()
}

/// # Safety
/// As [`Lane::back`].
unsafe fn back_here(to: &HostSite, copy: &HostCopy, sums: &Sums) -> Result<(), SwapError> {
    let each = |piece| {
        // SAFETY: as in `out_here`.
        unsafe { copy_here(to, copy, piece, Way::Back) };
        // SAFETY: the caller vouches that nothing writes to the copy.
        let found = sums.kind().of(unsafe { copy.bytes_of(piece) });
        sums.check(piece, found, copy.bytes())
    };
    work(&Pieces::all(Sums::pieces(copy.bytes())), each, || ()).0
}

/// Copies a piece between host memory and host memory.
///
/// # Safety
/// There is memory at the site; nothing writes to the source or uses the target meanwhile.
unsafe fn copy_here(site: &HostSite, copy: &HostCopy, piece: usize, way: Way) {
    let (there, bytes) = copy.piece(piece);
    // SAFETY: site and copy have the same size, so that the piece lies inside of both; the caller vouches for the rest.
    unsafe {
        let here = site.start().add(piece * size(PIECE));
        match way {
            Way::Out => there.copy_from_nonoverlapping(here, size(bytes)),
            Way::Back => here.copy_from_nonoverlapping(there, size(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};
    use std::ptr;

    use gpulease_words::mib;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// Three whole pieces and a rest.
    const SIZE: Bytes = mib(50);

    fn memory() -> OwnedFd {
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, SIZE.get()).unwrap();
        memory
    }

    fn write(to: &OwnedFd, at: u64, byte: u8) {
        rustix::io::pwrite(to, &[byte], at).unwrap();
    }

    fn read(from: &OwnedFd, at: u64) -> u8 {
        let mut byte = [0];
        rustix::io::pread(from, &mut byte, at).unwrap();
        byte[0]
    }

    /// Something at the edges of the pieces and of the whole.
    const PLACES: [(u64, u8); 5] =
        [(0, 1), ((16 << 20) - 1, 2), (16 << 20, 3), (48 << 20, 4), ((50 << 20) - 1, 5)];

    #[test]
    fn bytes_go_out_and_come_back_at_the_same_addresses() {
        let (first, second, arena) = (memory(), memory(), memory());
        let site = Site::host(&[(first.as_fd(), SIZE)]).unwrap();
        let copy = HostCopy::map(arena.as_fd(), SIZE).unwrap();
        let address = site.address();
        PLACES.iter().for_each(|(at, byte)| write(&first, *at, *byte));
        // SAFETY: nothing else uses the memory.
        let (sums, vacated) = unsafe { Lane::Host.out(&site, &copy, || site.vacate()) }.unwrap();
        vacated.unwrap();
        assert_eq!((sums.len(), sums.kind()), (4, SumKind::Host));
        PLACES.iter().for_each(|(at, byte)| assert_eq!(read(&arena, *at), *byte));
        site.occupy(&[(second.as_fd(), SIZE)]).unwrap();
        // SAFETY: as above.
        unsafe { Lane::Host.back(&site, &copy, &sums) }.unwrap();
        assert_eq!(site.address(), address);
        PLACES.iter().for_each(|(at, byte)| assert_eq!(read(&second, *at), *byte));
        let Site::Host(site) = &site else { panic!("it is host memory") };
        // SAFETY: it is mapped, and nothing writes to it.
        assert_eq!(unsafe { ptr::read(site.start().as_ptr().add(16 << 20)) }, 3);
    }

    #[test]
    fn a_byte_changed_in_the_host_copy_is_found_wherever_it_is() {
        let (first, arena) = (memory(), memory());
        let site = Site::host(&[(first.as_fd(), SIZE)]).unwrap();
        let copy = HostCopy::map(arena.as_fd(), SIZE).unwrap();
        // SAFETY: nothing else uses the memory.
        let (sums, ()) = unsafe { Lane::Host.out(&site, &copy, || ()) }.unwrap();
        for (at, piece) in [(0, 0), ((32 << 20) - 1, 16 << 20), ((50 << 20) - 1, 48 << 20)] {
            write(&arena, at, 1);
            // SAFETY: as above.
            let error = unsafe { Lane::Host.back(&site, &copy, &sums) }.unwrap_err();
            assert_eq!(error, SwapError::Corrupt { at: Bytes::new(piece), of: SIZE });
            write(&arena, at, 0);
        }
        // SAFETY: as above.
        unsafe { Lane::Host.back(&site, &copy, &sums) }.unwrap();
    }

    #[test]
    fn a_copy_of_another_size_is_refused() {
        let (first, arena) = (memory(), memory());
        let site = Site::host(&[(first.as_fd(), SIZE)]).unwrap();
        let copy = HostCopy::map(arena.as_fd(), mib(48)).unwrap();
        // SAFETY: nothing else uses the memory.
        let error = unsafe { Lane::Host.out(&site, &copy, || ()) }.unwrap_err();
        assert_eq!(error, SwapError::Mismatch { site: SIZE, copy: mib(48) });
        assert!(matches!(HostCopy::map(arena.as_fd(), mib(64)), Err(crate::MapError::Short { .. })));
    }
}
