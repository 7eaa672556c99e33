//! Memory on a card, apart from any address. Nothing here needs a context.

use std::ffi::c_void;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use cudarc::driver::sys::{CUmemAllocationHandleType, CUmemGenericAllocationHandle};
use gpulease_words::Bytes;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::device::Device;
use crate::driver::{Driver, call};
use crate::error::CudaError;

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A handle to physical memory of a device.
///
/// Dropping it gives this handle up. The memory itself lives until every handle, mapping and
/// descriptor of it is gone, in every process.
#[derive(Debug)]
pub struct Allocation {
    driver: &'static Driver,
    handle: CUmemGenericAllocationHandle,
    bytes: Bytes,
}

impl Allocation {
    /// Creates memory on a device; `bytes` is a multiple of [`Device::granularity`].
    ///
    /// CUDA does not promise that it is zero.
    ///
    /// # Errors
    /// [`CudaError::is_out_of_memory`] where the card has too little left; `CUDA_ERROR_INVALID_VALUE`
    /// for zero or a size off the granularity.
    pub fn create(device: Device, bytes: Bytes) -> Result<Self, CudaError> {
        let driver = device.driver();
        let (mut handle, kind) = (0, device.kind_of_memory());
        // SAFETY: both pointers are to values of ours; no flag exists yet.
        unsafe { call!(driver, cuMemCreate(&mut handle, size(bytes), &kind, 0)) }?;
        Ok(Self { driver, handle, bytes })
    }

    /// Takes over memory that another process (or this one) exported; `bytes` is what its creator
    /// says, as the driver doesn't. A wrong size shows when it is mapped. The descriptor may be
    /// closed afterwards and used as often as wanted before.
    ///
    /// # Errors
    /// What the driver says of a descriptor that is none of its own.
    pub fn import(
        driver: &'static Driver,
        descriptor: BorrowedFd<'_>,
        bytes: Bytes,
    ) -> Result<Self, CudaError> {
        let mut handle = 0;
        let fd = usize::try_from(descriptor.as_raw_fd()).expect("an open descriptor is not negative");
        let fd = std::ptr::without_provenance_mut::<c_void>(fd);
        // SAFETY: for this handle type the driver reads the number itself out of the pointer.
        unsafe { call!(driver, cuMemImportFromShareableHandle(&mut handle, fd, DESCRIPTOR)) }?;
        Ok(Self { driver, handle, bytes })
    }

    /// A new descriptor of the memory, closed on exec (driver 580 makes it so; others are made to).
    /// It keeps the memory alive by itself.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an imported handle: pass its descriptor on instead.
    pub fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut fd: RawFd = -1;
        let out = (&raw mut fd).cast::<c_void>();
        // SAFETY: for this handle type the driver writes an int through the pointer.
        unsafe { call!(self.driver, cuMemExportToShareableHandle(out, self.handle, DESCRIPTOR, 0)) }?;
        // SAFETY: on success the driver has opened the descriptor for us and keeps no claim on it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        fcntl_setfd(&fd, FdFlags::CLOEXEC).expect("an open descriptor takes its close-on-exec flag");
        Ok(fd)
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Gives this handle up, as dropping does, and says how it went. It takes milliseconds when it
    /// was the last claim on the memory.
    ///
    /// # Errors
    /// What the driver says; the handle is gone in any case.
    pub fn release(self) -> Result<(), CudaError> {
        let result = self.give_up();
        mem::forget(self);
        result
    }

    /// Takes over a handle that is the caller's to give up.
    pub(crate) fn adopt(driver: &'static Driver, handle: CUmemGenericAllocationHandle, bytes: Bytes) -> Self {
        Self { driver, handle, bytes }
    }

    pub(crate) fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    fn give_up(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is ours, and both callers make sure that it is given up once.
        unsafe { call!(self.driver, cuMemRelease(self.handle)) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.driver.keep(self.give_up());
    }
}

/// The size as the driver takes it.
pub(crate) fn size(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).expect("CUDA's hosts have 64-bit addresses")
}
