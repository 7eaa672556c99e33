//! A device's primary context, which kernels, streams and copies run in.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUcontext;
use gpulease_words::Bytes;

use crate::device::Device;
use crate::driver::{Driver, call};
use crate::error::CudaError;

/// A claim on the primary context of a device, shared by its clones. It costs the card hundreds
/// of MiB from the first claim of a process to the last.
///
/// It is the same context that cudarc and the CUDA runtime use on this device. Calls here make it
/// current for their own time and leave the thread as they found it.
#[derive(Clone, Debug)]
pub struct Context(Arc<Claim>);

#[derive(Debug)]
struct Claim {
    device: Device,
    raw: CUcontext,
}

// SAFETY: the driver allows a context to be used from any thread, and its handle is only a name.
unsafe impl Send for Claim {}
// SAFETY: as above; driver calls in one context from several threads are allowed.
unsafe impl Sync for Claim {}

/// What a device says of its memory; all processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What could be allocated.
    pub free: Bytes,
    /// All of it.
    pub total: Bytes,
}

impl Context {
    /// Claims the primary context of a device; it is made where this process has none (0.1 s).
    ///
    /// # Errors
    /// [`CudaError::is_out_of_memory`] where the card has no room for a context.
    pub fn retain(device: Device) -> Result<Self, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle of ours.
        unsafe { call!(device.driver(), cuDevicePrimaryCtxRetain(&mut raw, device.raw())) }?;
        Ok(Self(Arc::new(Claim { device, raw })))
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// Makes it the current context of this thread, and leaves it so: for code that expects one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is alive while we hold our claim.
        unsafe { call!(self.driver(), cuCtxSetCurrent(self.0.raw)) }
    }

    /// Waits until all work in the context is done, on every stream.
    ///
    /// # Errors
    /// What the driver says, which includes errors of work that ran before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the call has no arguments; a context is current.
        unsafe { call!(self.driver(), cuCtxSynchronize()) }
    }

    /// Free and total memory of the device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory_info(&self) -> Result<MemoryInfo, CudaError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to sizes of ours; a context is current.
        unsafe { call!(self.driver(), cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(MemoryInfo { free: Bytes::new(free as u64), total: Bytes::new(total as u64) })
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.0.device.driver()
    }

    /// Makes it current until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Current, CudaError> {
        let (driver, mut before) = (self.driver(), std::ptr::null_mut());
        // SAFETY: the pointer is to a handle of ours.
        unsafe { call!(driver, cuCtxGetCurrent(&mut before)) }?;
        if before == self.0.raw {
            return Ok(Current { restore: None, not_send: PhantomData });
        }
        self.make_current()?;
        Ok(Current { restore: Some((driver, before)), not_send: PhantomData })
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }
}

impl Eq for Context {}

impl Drop for Claim {
    fn drop(&mut self) {
        let driver = self.device.driver();
        // SAFETY: this gives back the one claim that `retain` made.
        driver.keep(unsafe { call!(driver, cuDevicePrimaryCtxRelease_v2(self.device.raw())) });
    }
}

/// While it lives, the context is current on this thread; then the former one is again.
pub(crate) struct Current {
    restore: Option<(&'static Driver, CUcontext)>,
    not_send: PhantomData<*const ()>,
}

impl Drop for Current {
    fn drop(&mut self) {
        let _ = self.not_send;
        if let Some((driver, before)) = self.restore {
            // SAFETY: it was current on this thread a moment ago, or is null, which means none.
            driver.keep(unsafe { call!(driver, cuCtxSetCurrent(before)) });
        }
    }
}
