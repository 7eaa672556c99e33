//! Copies that have happened when the call returns.

use gpulease_words::Bytes;

use crate::allocation::size;
use crate::context::Context;
use crate::driver::call;
use crate::error::CudaError;
use crate::reservation::DevicePtr;

impl Context {
    /// Copies host bytes to the device.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The device range of `from`'s length at `to` is mapped for writing, and nothing else uses it
    /// meanwhile.
    pub unsafe fn copy_to_device(&self, to: DevicePtr, from: &[u8]) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the slice is readable for its length; the caller vouches for the device range.
        unsafe { call!(self.driver(), cuMemcpyHtoD_v2(to.raw(), from.as_ptr().cast(), from.len())) }
    }

    /// Copies bytes of the device to the host.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The device range of `to`'s length at `from` is mapped, and nothing writes to it meanwhile.
    pub unsafe fn copy_to_host(&self, to: &mut [u8], from: DevicePtr) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the slice is ours to write for its length; the caller vouches for the device range.
        unsafe { call!(self.driver(), cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from.raw(), to.len())) }
    }

    /// Copies within devices.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// Both ranges are mapped, the first for writing, and nothing else writes to them meanwhile.
    pub unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: Bytes,
    ) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for both ranges.
        unsafe { call!(self.driver(), cuMemcpyDtoD_v2(to.raw(), from.raw(), size(bytes))) }
    }

    /// Sets every byte of a device range.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The range is mapped for writing, and nothing else uses it meanwhile.
    pub unsafe fn fill(&self, at: DevicePtr, byte: u8, bytes: Bytes) -> Result<(), CudaError> {
        let _current = self.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { call!(self.driver(), cuMemsetD8_v2(at.raw(), byte, size(bytes))) }?;
        // A memset returns before it is done.
        // SAFETY: the call has no arguments; a context is current.
        unsafe { call!(self.driver(), cuCtxSynchronize()) }
    }
}
