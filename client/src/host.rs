//! Host memory that stands in for a GPU's, mapped from the broker's descriptors.

use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::slice;

use bytemuck::Pod;
use gpulease_words::Bytes;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::handover::Chunk;
use crate::memory::MapError;

/// Chunks side by side at consecutive addresses. Dropping it unmaps them.
///
/// A forked child does not inherit the mapping (`MADV_DONTFORK`): it would keep the memory from
/// everybody else without knowing, long after this process gave it back. What the child needs it
/// allocates itself, as a member of the lease.
#[derive(Debug)]
pub(crate) struct HostMapping {
    base: NonNull<c_void>,
    length: usize,
}

// SAFETY: the range belongs to this value alone, wherever it goes; it is memory and no handle.
unsafe impl Send for HostMapping {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for HostMapping {}

impl HostMapping {
    /// Maps the chunks; their descriptors may be closed afterwards.
    pub(crate) fn of(chunks: &[Chunk]) -> Result<Self, MapError> {
        let bytes = chunks.iter().map(|chunk| chunk.bytes).sum();
        let failed = |source: io::Error| MapError::Host { bytes, source };
        // Ours from here on, so that an error below gives the range back.
        let mapping = Self::reserve(size(bytes)).map_err(failed)?;
        let mut at = 0;
        for chunk in chunks {
            let behind = rustix::fs::fstat(&chunk.descriptor).map_err(|errno| failed(errno.into()))?.st_size;
            let behind = Bytes::new(u64::try_from(behind).unwrap_or(0));
            if behind < chunk.bytes {
                return Err(MapError::Short { chunk: chunk.bytes, behind });
            }
            mapping.place(chunk, at).map_err(failed)?;
            at += size(chunk.bytes);
        }
        // SAFETY: the range is ours; the advice changes nothing for this process.
        unsafe { madvise(mapping.base.as_ptr(), mapping.length, Advice::LinuxDontFork) }
            .map_err(|errno| failed(errno.into()))?;
        Ok(mapping)
    }

    /// All of it as values of `T`, as many as fit; `None` where `T` has no size or is aligned to
    /// more than a page.
    pub(crate) fn as_slice<T: Pod>(&self) -> Option<&[T]> {
        let length = self.values::<T>()?;
        // SAFETY: the range is mapped and readable while `self` lives, aligned for `T`, and `T` takes
        // any bytes. Writers need `&mut self`: the broker maps nothing that is lent, and a segment is
        // handed to one process.
        Some(unsafe { slice::from_raw_parts(self.base.as_ptr().cast(), length) })
    }

    /// As [`Self::as_slice`], to be written.
    pub(crate) fn as_mut_slice<T: Pod>(&mut self) -> Option<&mut [T]> {
        let length = self.values::<T>()?;
        // SAFETY: as above; `&mut self` makes it the only reference of this process.
        Some(unsafe { slice::from_raw_parts_mut(self.base.as_ptr().cast(), length) })
    }

    fn values<T>(&self) -> Option<usize> {
        let aligned = self.base.as_ptr().cast::<T>().is_aligned();
        self.length.checked_div(size_of::<T>()).filter(|_| aligned)
    }

    /// Addresses without memory.
    fn reserve(length: usize) -> io::Result<Self> {
        // SAFETY: a null hint lets the kernel choose a range that nothing else uses.
        let base = unsafe { mmap_anonymous(null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        let base = NonNull::new(base).expect("the kernel maps nothing at address zero unasked");
        Ok(Self { base, length })
    }

    /// Puts a chunk over the reserved addresses at this offset.
    fn place(&self, chunk: &Chunk, at: usize) -> io::Result<()> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        assert!(at + size(chunk.bytes) <= self.length, "the range was reserved for all chunks");
        // SAFETY: the addresses lie inside the range that `reserve` took for this mapping, and
        // nothing refers to them yet; MAP_FIXED replaces the reservation there.
        unsafe {
            let to = self.base.as_ptr().cast::<u8>().add(at).cast();
            mmap(to, size(chunk.bytes), access, flags, &chunk.descriptor, 0)?;
        }
        Ok(())
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and every reference into it borrowed `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr(), self.length) };
        unmapped.expect("a range that was mapped can be unmapped");
    }
}

fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).expect("hosts of GPUs have 64-bit addresses")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulease_words::mib;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn chunk(bytes: Bytes, behind: Bytes) -> Chunk {
        let descriptor = memfd_create("chunk", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&descriptor, behind.get()).unwrap();
        Chunk { descriptor, bytes }
    }

    #[test]
    fn chunks_lie_side_by_side_and_are_the_memory_itself() {
        let chunks = [chunk(mib(2), mib(2)), chunk(mib(4), mib(4))];
        let mut mapping = HostMapping::of(&chunks).unwrap();
        let words = mapping.as_mut_slice::<u64>().unwrap();
        assert_eq!(words.len(), 6 << 17);
        words[(2 << 17) - 1] = 1;
        words[2 << 17] = 2;
        let mut word = [0; 8];
        rustix::io::pread(&chunks[0].descriptor, &mut word, (2 << 20) - 8).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 1);
        rustix::io::pread(&chunks[1].descriptor, &mut word, 0).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 2);
    }

    #[test]
    fn a_short_descriptor_is_refused_before_it_can_end_the_process() {
        let error = HostMapping::of(&[chunk(mib(2), mib(2)), chunk(mib(4), mib(2))]).unwrap_err();
        assert!(matches!(error, MapError::Short { chunk, behind } if chunk == mib(4) && behind == mib(2)));
    }

    #[test]
    fn a_type_without_size_is_refused() {
        let mapping = HostMapping::of(&[chunk(mib(2), mib(2))]).unwrap();
        assert!(mapping.as_slice::<()>().is_none());
        assert_eq!(mapping.as_slice::<[u8; 3]>().unwrap().len(), (2 << 20) / 3);
    }
}
