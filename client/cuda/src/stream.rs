//! Work in order, and points in time within it.

use std::ptr::NonNull;
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream, CUstream_flags};
use gpulease_words::Bytes;

use crate::allocation::size;
use crate::context::Context;
use crate::driver::call;
use crate::error::CudaError;
use crate::reservation::DevicePtr;

/// A queue of work in a context, independent of the default stream.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    raw: CUstream,
}

// SAFETY: the driver allows a stream to be used from any thread, and its handle is only a name.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver orders calls from several threads.
unsafe impl Sync for Stream {}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let (mut raw, flags) = (std::ptr::null_mut(), CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: the pointer is to a handle of ours; a context is current.
        unsafe { call!(context.driver(), cuStreamCreate(&mut raw, flags)) }?;
        Ok(Self { context: context.clone(), raw })
    }

    /// Its handle, as CUDA and cudarc take it; good while the stream lives.
    #[must_use]
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until all work in it is done.
    ///
    /// # Errors
    /// What the driver says, which includes errors of work that ran before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { call!(self.context.driver(), cuStreamSynchronize(self.raw)) }
    }

    /// Queues a copy of host bytes to the device. It is asynchronous only from pinned memory.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Context::copy_to_device`], until the stream has been waited for; the host range is
    /// readable and unchanged until then.
    pub unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: NonNull<u8>,
        bytes: Bytes,
    ) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        let (driver, from) = (self.context.driver(), from.as_ptr().cast_const().cast());
        // SAFETY: the caller vouches for both ranges.
        unsafe { call!(driver, cuMemcpyHtoDAsync_v2(to.raw(), from, size(bytes), self.raw)) }
    }

    /// Queues a copy of device bytes to the host. It is asynchronous only to pinned memory.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Context::copy_to_host`], until the stream has been waited for; the host range is
    /// writable and used by nothing else until then.
    pub unsafe fn copy_to_host(
        &self,
        to: NonNull<u8>,
        from: DevicePtr,
        bytes: Bytes,
    ) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        let (driver, to) = (self.context.driver(), to.as_ptr().cast());
        // SAFETY: the caller vouches for both ranges.
        unsafe { call!(driver, cuMemcpyDtoHAsync_v2(to, from.raw(), size(bytes), self.raw)) }
    }

    /// Queues a copy within devices.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Context::copy_on_device`], until the stream has been waited for.
    pub unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: Bytes,
    ) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        let driver = self.context.driver();
        // SAFETY: the caller vouches for both ranges.
        unsafe { call!(driver, cuMemcpyDtoDAsync_v2(to.raw(), from.raw(), size(bytes), self.raw)) }
    }

    /// Queues setting every byte of a device range.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Context::fill`], until the stream has been waited for.
    pub unsafe fn fill(&self, at: DevicePtr, byte: u8, bytes: Bytes) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the caller vouches for the range.
        unsafe { call!(self.context.driver(), cuMemsetD8Async(at.raw(), byte, size(bytes), self.raw)) }
    }

    /// Marks the present end of the queue.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self) -> Result<Event, CudaError> {
        self.event(CUevent_flags::CU_EVENT_DEFAULT as u32)
    }

    /// As [`Self::record`], for a thread that sleeps while it waits: without a time, and the wait takes no core but
    /// some 50 us more.
    ///
    /// # Errors
    /// What the driver says.
    pub fn mark(&self) -> Result<Event, CudaError> {
        let flags = [CUevent_flags::CU_EVENT_BLOCKING_SYNC, CUevent_flags::CU_EVENT_DISABLE_TIMING];
        self.event(flags.into_iter().fold(0, |all, flag| all | flag as u32))
    }

    fn event(&self, flags: u32) -> Result<Event, CudaError> {
        let _current = self.context.enter()?;
        let (driver, mut raw) = (self.context.driver(), std::ptr::null_mut());
        // SAFETY: the pointer is to a handle of ours; a context is current.
        unsafe { call!(driver, cuEventCreate(&mut raw, flags)) }?;
        let event = Event { context: self.context.clone(), raw };
        // SAFETY: event and stream are alive and of the same context.
        unsafe { call!(driver, cuEventRecord(event.raw, self.raw)) }?;
        Ok(event)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: the stream is ours and is destroyed once; queued work still runs to its end.
            unsafe { call!(driver, cuStreamDestroy_v2(self.raw)) }
        }));
    }
}

/// A point in the work of a stream.
#[derive(Debug)]
pub struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: the driver allows an event to be used from any thread, and its handle is only a name.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Waits until the work before it is done.
    ///
    /// # Errors
    /// What the driver says, which includes errors of that work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        // SAFETY: the event is alive.
        unsafe { call!(self.context.driver(), cuEventSynchronize(self.raw)) }
    }

    /// The device's time between an earlier event and this one, to about half a microsecond; waits
    /// for both.
    ///
    /// # Errors
    /// What the driver says: for example for events of different devices.
    pub fn since(&self, earlier: &Self) -> Result<Duration, CudaError> {
        earlier.synchronize()?;
        self.synchronize()?;
        let _current = self.context.enter()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: both events are alive and recorded; the pointer is to a float of ours.
        unsafe {
            call!(self.context.driver(), cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw))
        }?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: the event is ours and is destroyed once.
            unsafe { call!(driver, cuEventDestroy_v2(self.raw)) }
        }));
    }
}
