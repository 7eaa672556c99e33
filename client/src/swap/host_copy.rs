//! Host memory of the broker's arena, in which a segment's bytes stay while they are not on the device.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_cuda::{Context, CudaError, HostRegistration};
use gpulease_words::Bytes;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::host::{check_length, failed, size};
use crate::memory::MapError;
use crate::swap::own_file::OwnFile;
use crate::swap::sums::PIECE;

/// The kernel's unit of what a file has, in bytes.
const BLOCK: u64 = 512;

/// A mapped memory file that takes one segment's bytes. Dropping it unmaps it.
///
/// Copies to and from a GPU reach the link's speed once it is registered with the driver (page-locked), which takes
/// about 40 ms a GiB and so is done ahead of time.
#[derive(Debug)]
pub struct HostCopy {
    // Given up before the memory that it locks.
    registration: Mutex<Option<HostRegistration>>,
    memory: Memory,
    /// Until it is registered, or that was tried in vain.
    file: Mutex<Option<OwnFile>>,
}

/// Unmapped when dropped.
#[derive(Debug)]
struct Memory {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: the range belongs to this value alone, wherever it goes; who writes to it orders that by itself.
unsafe impl Send for Memory {}
// SAFETY: through a shared reference only addresses are handed out, and slices by unsafe calls.
unsafe impl Sync for Memory {}

impl HostCopy {
    /// Maps a memory file of at least so many bytes. A forked child inherits neither mapping nor descriptor.
    ///
    /// # Errors
    /// [`MapError::Host`], [`MapError::Short`].
    pub fn map(descriptor: BorrowedFd<'_>, bytes: Bytes) -> Result<Self, MapError> {
        check_length(descriptor, bytes)?;
        let (access, length) = (ProtFlags::READ | ProtFlags::WRITE, size(bytes));
        // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
        let start = unsafe { mmap(null_mut(), length, access, MapFlags::SHARED, descriptor, 0) };
        let start = start.map_err(|errno| failed(bytes, errno.into()))?;
        let start = NonNull::new(start).expect("the kernel maps nothing at address zero unasked");
        let memory = Memory { start, length };
        // SAFETY: the range is ours; the advice changes nothing for this process.
        unsafe { madvise(start.as_ptr(), length, Advice::LinuxDontFork) }
            .map_err(|errno| failed(bytes, errno.into()))?;
        let file = descriptor.try_clone_to_owned().map_err(|error| failed(bytes, error))?;
        Ok(Self { registration: Mutex::default(), memory, file: Mutex::new(Some(OwnFile::new(file))) })
    }

    /// Page-locks it for every context of this process, and touches it by that; once is enough. Blocks.
    ///
    /// # Errors
    /// What the driver says. Without it copies still work, several times slower.
    pub fn register(&self, context: &Context) -> Result<(), CudaError> {
        let mut registration = self.registration();
        if registration.is_none() {
            // SAFETY: the range is mapped as long as `self` lives, and the registration goes before it.
            let locked =
                unsafe { HostRegistration::register(context, self.memory.start.cast(), self.bytes()) };
            *registration = Some(locked?);
            self.close_file();
        }
        Ok(())
    }

    /// Whether the kernel has given all its pages, as the broker has it do ahead of time; page-locking is quick then.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Where nobody needs to know any more, or the kernel does not tell, it is.
        let given = file.as_ref().and_then(|file| rustix::fs::fstat(file).ok());
        given.is_none_or(|given| {
            let bytes = u64::try_from(given.st_blocks).unwrap_or(0).saturating_mul(BLOCK);
            bytes >= self.bytes().get()
        })
    }

    /// Keeps the mapping alone: the descriptor is only there to ask by it.
    pub(crate) fn close_file(&self) {
        drop(self.file.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Whether it is page-locked.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration().is_some()
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.memory.length as u64)
    }

    /// Where a piece begins, and how much it has.
    pub(crate) fn piece(&self, piece: usize) -> (NonNull<u8>, Bytes) {
        self.pieces(piece..piece + 1)
    }

    /// Where pieces that lie side by side begin, and how much they have together.
    pub(crate) fn pieces(&self, pieces: Range<usize>) -> (NonNull<u8>, Bytes) {
        let (at, end) = (pieces.start * size(PIECE), pieces.end * size(PIECE));
        assert!(at < end.min(self.memory.length), "who asks for pieces has counted them");
        // SAFETY: it lies inside the range, as was just checked.
        let start = unsafe { self.memory.start.cast::<u8>().add(at) };
        (start, Bytes::new((end.min(self.memory.length) - at) as u64))
    }

    /// A piece's bytes.
    ///
    /// # Safety
    /// Nothing writes to the piece meanwhile.
    pub(crate) unsafe fn bytes_of(&self, piece: usize) -> &[u8] {
        let (start, bytes) = self.piece(piece);
        // SAFETY: the range is mapped while `self` lives, and file memory is always initialised; the caller vouches
        // that nothing writes.
        unsafe { slice::from_raw_parts(start.as_ptr(), size(bytes)) }
    }

    fn registration(&self) -> MutexGuard<'_, Option<HostRegistration>> {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and every reference into it borrowed the copy that is going.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.length) };
        unmapped.expect("a range that was mapped can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    use gpulease_words::mib;
    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    #[test]
    fn it_is_touched_once_all_its_pages_are_there() {
        let memory = memfd_create("copy", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, mib(6).get()).unwrap();
        let copy = HostCopy::map(memory.as_fd(), mib(6)).unwrap();
        assert!(!copy.is_touched());
        fallocate(&memory, FallocateFlags::empty(), 0, mib(5).get()).unwrap();
        assert!(!copy.is_touched());
        fallocate(&memory, FallocateFlags::empty(), 0, mib(6).get()).unwrap();
        assert!(copy.is_touched());
    }
}
