//! Host memory that copies run to and from at the link's full speed.

use std::ptr::NonNull;

use cudarc::driver::sys::{CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE};
use gpulease_words::Bytes;

use crate::allocation::size;
use crate::context::Context;
use crate::driver::call;
use crate::error::CudaError;

/// Page-locked host memory of the driver. Making it costs about half a second a GiB.
#[derive(Debug)]
pub struct PinnedMemory {
    context: Context,
    start: NonNull<u8>,
    bytes: Bytes,
}

// SAFETY: it is plain memory that this value owns.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates page-locked memory, good for every context of the process.
    ///
    /// # Errors
    /// What the driver says: out of memory is the host's here.
    pub fn allocate(context: &Context, bytes: Bytes) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of ours; a context is current.
        unsafe {
            call!(context.driver(), cuMemHostAlloc(&mut start, size(bytes), CU_MEMHOSTALLOC_PORTABLE))
        }?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| context.driver().invalid_value("cuMemHostAlloc"))?;
        // SAFETY: the range is ours and writable; setting it makes the bytes of a later slice defined.
        unsafe { start.write_bytes(0, size(bytes)) };
        Ok(Self { context: context.clone(), start, bytes })
    }

    /// Its first byte, for copies in a [`crate::Stream`].
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its bytes. No copy in a stream may be writing to them.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is ours, initialised, and lives as long as we; `Stream::copy_to_host`
        // leaves it to its caller that nothing reads while a copy writes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), size(self.bytes)) }
    }

    /// Its bytes, to write. No copy in a stream may be using them.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and we are borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), size(self.bytes)) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: the range came from cuMemHostAlloc and is freed once.
            unsafe { call!(driver, cuMemFreeHost(self.start.as_ptr().cast())) }
        }));
    }
}

/// Host memory of somebody else, page-locked while this lives: a memfd that is already touched is
/// locked ten times faster than new memory is made.
#[derive(Debug)]
pub struct HostRegistration {
    context: Context,
    start: NonNull<u8>,
}

// SAFETY: it only names a range; the driver allows unlocking from any thread.
unsafe impl Send for HostRegistration {}
// SAFETY: as above; there is nothing to do through a shared reference.
unsafe impl Sync for HostRegistration {}

impl HostRegistration {
    /// Page-locks a range of this process for every context of it.
    ///
    /// # Errors
    /// What the driver says: for example `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
    ///
    /// # Safety
    /// The range is mapped, and stays so until this is dropped.
    pub unsafe fn register(context: &Context, start: NonNull<u8>, bytes: Bytes) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let (driver, flags) = (context.driver(), CU_MEMHOSTREGISTER_PORTABLE);
        // SAFETY: the caller vouches for the range; a context is current.
        unsafe { call!(driver, cuMemHostRegister_v2(start.as_ptr().cast(), size(bytes), flags)) }?;
        Ok(Self { context: context.clone(), start })
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: the range was registered by us and is unregistered once.
            unsafe { call!(driver, cuMemHostUnregister(self.start.as_ptr().cast())) }
        }));
    }
}
