//! Host memory that stands in for a GPU's, mapped from the broker's descriptors.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use gpulease_words::Bytes;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::memory::MapError;

/// Chunks side by side at consecutive addresses. Dropping it unmaps them.
///
/// A forked child does not inherit the mapping (`MADV_DONTFORK`): it would keep the memory from
/// everybody else without knowing, long after this process gave it back. What the child needs it
/// allocates itself, as a member of the lease.
#[derive(Debug)]
pub(crate) struct HostMapping {
    site: Arc<HostSite>,
}

impl HostMapping {
    /// Maps the chunks; their descriptors may be closed afterwards.
    pub(crate) fn of(chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<Self, MapError> {
        Ok(Self { site: Arc::new(HostSite::of(chunks)?) })
    }

    /// Its addresses, for who moves the memory behind them. They are given up with the mapping.
    pub(crate) fn site(&self) -> &Arc<HostSite> {
        &self.site
    }

    /// All of it as values of `T`, as many as fit; `None` where `T` has no size or is aligned to
    /// more than a page.
    pub(crate) fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        let length = self.values::<T>()?;
        // SAFETY: the range is mapped and readable while `self` lives and a guard keeps the memory here, which the
        // caller borrows as well; it is aligned for `T`, and `T` takes any bytes. Writers need `&mut self`: the broker
        // maps nothing that is lent, and a segment is handed to one process.
        Some(unsafe { slice::from_raw_parts(self.site.base.as_ptr().cast(), length) })
    }

    /// As [`Self::as_slice`], to be written.
    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> Option<&mut [T]> {
        let length = self.values::<T>()?;
        // SAFETY: as above; `&mut self` makes it the only reference of this process.
        Some(unsafe { slice::from_raw_parts_mut(self.site.base.as_ptr().cast(), length) })
    }

    fn values<T>(&self) -> Option<usize> {
        let aligned = self.site.base.as_ptr().cast::<T>().is_aligned();
        self.site.length.checked_div(size_of::<T>()).filter(|_| aligned)
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        self.site.close();
    }
}

/// Addresses of this process with host memory behind them, or, while it is swapped out, without.
#[derive(Debug)]
pub struct HostSite {
    base: NonNull<c_void>,
    length: usize,
    behind: Mutex<Behind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    /// Addresses only: touching them is a fault.
    Nothing,
    Memory,
    /// The addresses are given up, too.
    Closed,
}

// SAFETY: the range belongs to this value alone, wherever it goes; it is memory and no handle.
unsafe impl Send for HostSite {}
// SAFETY: through a shared reference it is only read but for what is unsafe or under the lock.
unsafe impl Sync for HostSite {}

impl HostSite {
    /// Maps the chunks side by side; their descriptors may be closed afterwards.
    ///
    /// # Errors
    /// [`MapError::Host`], [`MapError::Short`].
    pub fn of(chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<Self, MapError> {
        // Ours from here on, so that an error below gives the range back.
        let site = Self::reserve(chunks.iter().map(|(_, bytes)| *bytes).sum())?;
        site.occupy(chunks)?;
        Ok(site)
    }

    /// Addresses without memory.
    fn reserve(bytes: Bytes) -> Result<Self, MapError> {
        // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
        let base = unsafe { mmap_anonymous(null_mut(), size(bytes), ProtFlags::empty(), MapFlags::PRIVATE) };
        let base = base.map_err(|errno| failed(bytes, errno.into()))?;
        let base = NonNull::new(base).expect("the kernel maps nothing at address zero unasked");
        Ok(Self { base, length: size(bytes), behind: Mutex::new(Behind::Nothing) })
    }

    /// Its first byte, the same for its whole life.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.base.cast()
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.length as u64)
    }

    /// Takes the memory away and keeps the addresses: nobody else of this process gets them, and touching them is a
    /// fault until [`Self::occupy`].
    ///
    /// # Errors
    /// Where there is no memory to take away, or the kernel refuses.
    ///
    /// # Safety
    /// Nothing refers to the memory, and nothing does before there is memory again.
    pub unsafe fn vacate(&self) -> Result<(), MapError> {
        let mut behind = self.behind();
        if *behind != Behind::Memory {
            return Err(failed(self.bytes(), io::ErrorKind::NotFound.into()));
        }
        self.hide().map_err(|error| failed(self.bytes(), error))?;
        *behind = Behind::Nothing;
        Ok(())
    }

    /// Puts chunks side by side behind the addresses.
    ///
    /// # Errors
    /// As [`Self::of`], and where there is memory already or the chunks do not fill the addresses.
    pub fn occupy(&self, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<(), MapError> {
        let mut behind = self.behind();
        let fits = chunks.iter().map(|(_, bytes)| size(*bytes)).sum::<usize>() == self.length;
        if *behind != Behind::Nothing || !fits {
            return Err(failed(self.bytes(), io::ErrorKind::InvalidInput.into()));
        }
        if let Err(error) = self.place(chunks) {
            // What is there by now goes again; where even that fails the kernel is out of memory for maps.
            let _ = self.hide();
            return Err(error);
        }
        *behind = Behind::Memory;
        Ok(())
    }

    fn place(&self, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<(), MapError> {
        let whole = self.bytes();
        let mut at = 0;
        for (descriptor, bytes) in chunks {
            check_length(*descriptor, *bytes)?;
            self.show(*descriptor, *bytes, at).map_err(|error| failed(whole, error))?;
            at += size(*bytes);
        }
        // SAFETY: the range is ours; the advice changes nothing for this process.
        unsafe { madvise(self.base.as_ptr(), self.length, Advice::LinuxDontFork) }
            .map_err(|errno| failed(whole, errno.into()))
    }

    /// Puts a chunk over the reserved addresses at this offset.
    fn show(&self, descriptor: BorrowedFd<'_>, bytes: Bytes, at: usize) -> io::Result<()> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        assert!(at + size(bytes) <= self.length, "the range was reserved for all chunks");
        // SAFETY: the addresses lie inside the range that `reserve` took for this mapping, and
        // nothing refers to them yet; MAP_FIXED replaces the reservation there.
        unsafe {
            let to = self.base.as_ptr().cast::<u8>().add(at).cast();
            mmap(to, size(bytes), access, flags, descriptor, 0)?;
        }
        Ok(())
    }

    /// Addresses without memory again, in one step, so that nothing else gets in between.
    fn hide(&self) -> io::Result<()> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: exactly this range is ours; the callers vouch that nothing refers to the memory in it.
        unsafe { mmap_anonymous(self.base.as_ptr(), self.length, ProtFlags::empty(), flags) }?;
        Ok(())
    }

    fn close(&self) {
        let mut behind = self.behind();
        if *behind == Behind::Closed {
            return;
        }
        *behind = Behind::Closed;
        // SAFETY: the range is ours, and every reference into it borrowed the mapping that is going.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.length) };
        unmapped.expect("a range that was mapped can be unmapped");
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostSite {
    fn drop(&mut self) {
        self.close();
    }
}

/// A descriptor with less behind it than it should have is refused: touching the rest would end the process.
pub(crate) fn check_length(descriptor: BorrowedFd<'_>, wanted: Bytes) -> Result<(), MapError> {
    let found = rustix::fs::fstat(descriptor).map_err(|errno| failed(wanted, errno.into()))?.st_size;
    let behind = Bytes::new(u64::try_from(found).unwrap_or(0));
    if behind < wanted { Err(MapError::Short { chunk: wanted, behind }) } else { Ok(()) }
}

pub(crate) fn failed(bytes: Bytes, source: io::Error) -> MapError {
    MapError::Host { bytes, source }
}

pub(crate) fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).expect("hosts of GPUs have 64-bit addresses")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};

    use gpulease_words::mib;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn chunk(behind: Bytes) -> OwnedFd {
        let descriptor = memfd_create("chunk", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&descriptor, behind.get()).unwrap();
        descriptor
    }

    #[test]
    fn chunks_lie_side_by_side_and_are_the_memory_itself() {
        let (first, second) = (chunk(mib(2)), chunk(mib(4)));
        let mut mapping = HostMapping::of(&[(first.as_fd(), mib(2)), (second.as_fd(), mib(4))]).unwrap();
        let words = mapping.as_mut_slice::<u64>().unwrap();
        assert_eq!(words.len(), 6 << 17);
        words[(2 << 17) - 1] = 1;
        words[2 << 17] = 2;
        let mut word = [0; 8];
        rustix::io::pread(&first, &mut word, (2 << 20) - 8).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 1);
        rustix::io::pread(&second, &mut word, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 2);
    }

    #[test]
    fn a_short_descriptor_is_refused_before_it_can_end_the_process() {
        let (whole, short) = (chunk(mib(2)), chunk(mib(2)));
        let error = HostMapping::of(&[(whole.as_fd(), mib(2)), (short.as_fd(), mib(4))]).unwrap_err();
        assert!(matches!(error, MapError::Short { chunk, behind } if chunk == mib(4) && behind == mib(2)));
    }

    #[test]
    fn a_type_without_size_is_refused() {
        let memory = chunk(mib(2));
        let mapping = HostMapping::of(&[(memory.as_fd(), mib(2))]).unwrap();
        assert!(mapping.as_slice::<()>().is_none());
        assert_eq!(mapping.as_slice::<[u8; 3]>().unwrap().len(), (2 << 20) / 3);
    }

    #[test]
    fn addresses_stay_while_the_memory_goes_and_comes_back() {
        let (before, after) = (chunk(mib(2)), chunk(mib(2)));
        let mut mapping = HostMapping::of(&[(before.as_fd(), mib(2))]).unwrap();
        let at = mapping.as_mut_slice::<u8>().unwrap().as_ptr();
        let site = Arc::clone(mapping.site());
        let occupied = [(after.as_fd(), mib(2))];
        assert!(site.occupy(&occupied).is_err(), "there is memory already");
        // SAFETY: no slice of it is used below before it is occupied again.
        unsafe { site.vacate() }.unwrap();
        // SAFETY: as above.
        assert!(unsafe { site.vacate() }.is_err(), "there is none to take away");
        assert!(site.occupy(&[(after.as_fd(), mib(2)), (after.as_fd(), mib(2))]).is_err(), "too much");
        site.occupy(&occupied).unwrap();
        mapping.as_mut_slice::<u8>().unwrap()[5] = 7;
        assert_eq!(mapping.as_slice::<u8>().unwrap().as_ptr(), at);
        let mut byte = [0];
        rustix::io::pread(&after, &mut byte, 5).unwrap();
        assert_eq!(byte, [7]);
        drop(mapping);
        assert!(site.occupy(&occupied).is_err(), "its addresses went with the mapping");
    }
}
