//! Memory inside a lease, mapped here.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId};

use crate::device::DeviceKind;
use crate::error::AskError;
use crate::memory::AccessError;
use crate::resident::Resident;

/// Memory of a lease, mapped into this process.
#[derive(Debug)]
pub struct Segment {}

impl Segment {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        unimplemented!()
    }
    /// Its lease.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        unimplemented!()
    }
    /// Its size, a multiple of 2 MiB.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        unimplemented!()
    }
    /// Where it is.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        unimplemented!()
    }
    /// What its device is.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        unimplemented!()
    }
    /// Host memory as values of `T`.
    pub fn as_slice<'a, T: Pod>(&'a self, _resident: &'a Resident<'_>) -> Result<&'a [T], AccessError> {
        unimplemented!()
    }
    /// Host memory as values of `T`, to be changed.
    pub fn as_mut_slice<'a, T: Pod>(
        &'a mut self,
        _resident: &'a Resident<'_>,
    ) -> Result<&'a mut [T], AccessError> {
        unimplemented!()
    }
    /// The device pointer.
    pub fn device_ptr(&self, _resident: &Resident<'_>) -> Result<u64, AccessError> {
        unimplemented!()
    }
    /// Device memory as cudarc takes it (launches, cuBLAS, copies), as values of `T`.
    pub fn view<'a, T: Pod>(
        &'a self,
        _resident: &'a Resident<'_>,
        _stream: &Arc<CudaStream>,
    ) -> Result<CudaView<'a, T>, AccessError> {
        unimplemented!()
    }
    /// As [`Self::view`], to be written.
    pub fn view_mut<'a, T: Pod>(
        &'a mut self,
        _resident: &'a Resident<'_>,
        _stream: &Arc<CudaStream>,
    ) -> Result<CudaViewMut<'a, T>, AccessError> {
        unimplemented!()
    }
    /// Unmaps it and gives it back.
    pub async fn free(self) -> Result<(), AskError> {
        unimplemented!()
    }
}
