//! Another process's memory, mapped in a context, and seen through cudarc's own types.

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DriverError};
use gpulease_words::Bytes;

use crate::allocation::size;
use crate::context::Context;
use crate::error::CudaError;
use crate::ipc::{IpcHandle, IpcMapping};
use crate::peers;
use crate::reservation::{DevicePtr, Reservation};
use crate::site::{Held, Site};

/// Memory that came by descriptors or by an IPC handle, mapped for one device until dropped.
///
/// Dropping it waits for all work in the context, on every stream, and unmaps.
#[derive(Debug)]
pub struct Mapping {
    slice: OnceLock<Borrowed>,
    site: Arc<Site>,
}

/// Why a mapping can't be seen on a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// The stream is of another device.
    #[error("the memory is on CUDA device {memory} of this process and the stream is on {stream}")]
    OtherDevice {
        /// CUDA's number of the memory's device.
        memory: usize,
        /// CUDA's number of the stream's device.
        stream: usize,
    },
    /// A type of no size.
    #[error("a type of no size can't be counted")]
    NoSize,
    /// The driver failed, or work failed before.
    #[error("the driver said {0}")]
    Cuda(String),
}

impl Mapping {
    /// Imports the chunks, maps them side by side and lets the context's device use them. The
    /// descriptors may be closed afterwards.
    ///
    /// # Errors
    /// What the driver says; nothing stays mapped then.
    pub fn of_descriptors(context: &Context, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<Self, CudaError> {
        let bytes = chunks.iter().map(|(_, bytes)| *bytes).sum();
        let range = Reservation::reserve(context.driver(), bytes)?;
        let site = Arc::new(Site::new(context, range.base(), bytes, Held::Chunks(range)));
        // Known before there is memory, so that no device is let in between the two.
        peers::note(&site);
        site.occupy(chunks)?;
        Ok(Self { slice: OnceLock::new(), site })
    }

    /// Opens an IPC handle whose memory is said to have so many bytes.
    ///
    /// # Errors
    /// What the driver says; `CUDA_ERROR_INVALID_VALUE` where the handle opens less than that.
    pub fn of_ipc_handle(context: &Context, handle: &IpcHandle, bytes: Bytes) -> Result<Self, CudaError> {
        let mapping = IpcMapping::open(context, handle)?;
        if mapping.bytes()? < bytes {
            return Err(context.driver().invalid_value("cuIpcOpenMemHandle_v2"));
        }
        Ok(Self::over(context, mapping.ptr(), bytes, Held::Ipc { _mapping: mapping }))
    }

    fn over(context: &Context, ptr: DevicePtr, bytes: Bytes, held: Held) -> Self {
        Self { slice: OnceLock::new(), site: Arc::new(Site::new(context, ptr, bytes, held)) }
    }

    /// Its first address, the same for its whole life.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.site.ptr()
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.site.bytes()
    }

    /// Its addresses, for who moves the memory behind them. They are given up with the mapping.
    #[must_use]
    pub fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// All of it as values of `T`, as many as fit, in cudarc's own type.
    ///
    /// The first stream that is given stays its home stream, and alive, as long as the mapping;
    /// on others cudarc orders the work by its events, as for its own slices.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn view<T: Pod>(&self, stream: &Arc<CudaStream>) -> Result<CudaView<'_, T>, ViewError> {
        let length = self.values::<T>()?;
        let slice = self.slice(stream)?;
        // SAFETY: `T` takes any bytes, and the mapping begins at a multiple of 2 MiB.
        let view = unsafe { slice.0.transmute(length) };
        Ok(view.expect("so many values fit"))
    }

    /// As [`Self::view`], to be written.
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn view_mut<T: Pod>(&mut self, stream: &Arc<CudaStream>) -> Result<CudaViewMut<'_, T>, ViewError> {
        let length = self.values::<T>()?;
        self.slice(stream)?;
        let slice = self.slice.get_mut().expect("it was made a line above");
        // SAFETY: as in `view`.
        let view = unsafe { slice.0.transmute_mut(length) };
        Ok(view.expect("so many values fit"))
    }

    fn values<T>(&self) -> Result<usize, ViewError> {
        size(self.bytes()).checked_div(size_of::<T>()).ok_or(ViewError::NoSize)
    }

    fn slice(&self, stream: &Arc<CudaStream>) -> Result<&Borrowed, ViewError> {
        let (memory, other) = (self.site.context().device(), stream.context());
        if memory.raw() != other.cu_device() {
            return Err(ViewError::OtherDevice { memory: memory.ordinal(), stream: other.ordinal() });
        }
        if self.slice.get().is_none() {
            // Another thread may be first; then this one goes again, and frees nothing.
            let _ = self.slice.set(self.borrowed(stream)?);
        }
        Ok(self.slice.get().expect("it was set a line above"))
    }

    fn borrowed(&self, stream: &Arc<CudaStream>) -> Result<Borrowed, ViewError> {
        let failed = |error: DriverError| ViewError::Cuda(error.to_string());
        // Made and dropped to learn of a failure: `upgrade_device_ptr` would panic at it.
        stream.context().new_event(None).map_err(failed)?;
        // SAFETY: the range is mapped and readable and writable for the context's device, which is
        // the stream's. `Borrowed` goes before the mapping does and never frees the memory.
        let slice = unsafe { stream.upgrade_device_ptr(self.ptr().raw(), size(self.bytes())) };
        Ok(Borrowed(ManuallyDrop::new(slice)))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let context = self.site.context();
        context.driver().keep(context.synchronize());
        // What points into the memory goes before it does.
        drop(self.slice.take());
        self.site.close();
    }
}

/// A slice whose memory is not its own.
#[derive(Debug)]
struct Borrowed(ManuallyDrop<CudaSlice<u8>>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this, as the struct itself goes away.
        let slice = unsafe { ManuallyDrop::take(&mut self.0) };
        // Gives up events and stream, and leaves the memory to the mapping.
        slice.leak();
    }
}
