//! Memory inside a lease, mapped here.

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use gpulease_cuda::{DevicePtr, IpcHandle, ViewError};
use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId};

use crate::charge::Charge;
use crate::device::{Device, DeviceKind};
use crate::engine::{Own, Share};
use crate::error::AskError;
use crate::lease_state::LeaseState;
use crate::memory::{AccessError, Memory};
use crate::resident::Resident;
use crate::suspension::{Body, Order};
use crate::swap::{HostCopy, Site};

/// Memory of a lease, mapped into this process at an address that stays the same for its life.
///
/// It is used under a guard of its lease ([`Lease::enter`](crate::Lease::enter)), which every access
/// borrows. Dropping it unmaps it and then tells the broker, in the background; for memory of a GPU
/// it waits for all work in the device's context first.
///
/// What is used after it was freed, or outside of a guard, does not compile:
///
/// ```compile_fail,E0505
/// # async fn f(lease: gpulease_client::Lease) -> Result<(), Box<dyn std::error::Error>> {
/// let segment = lease.allocate(gpulease_client::mib(2)).await?;
/// let resident = lease.enter().await?;
/// let bytes = segment.as_slice::<u8>(&resident)?;
/// segment.free().await?;
/// println!("{}", bytes[0]); // the memory is gone
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0505
/// # async fn f(lease: gpulease_client::Lease) -> Result<(), Box<dyn std::error::Error>> {
/// let segment = lease.allocate(gpulease_client::mib(2)).await?;
/// let resident = lease.enter().await?;
/// let bytes = segment.as_slice::<u8>(&resident)?;
/// drop(resident);
/// println!("{}", bytes[0]); // it may have been suspended
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0505
/// # use std::sync::Arc;
/// # use gpulease_client::cudarc::driver::CudaStream;
/// # async fn f(lease: gpulease_client::Lease, stream: Arc<CudaStream>) -> Result<(), Box<dyn std::error::Error>> {
/// let segment = lease.allocate(gpulease_client::mib(2)).await?;
/// let resident = lease.enter().await?;
/// let view = segment.view::<f32>(&resident, &stream)?;
/// drop(segment);
/// let numbers = stream.clone_dtoh(&view)?; // the memory is gone
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0502
/// # async fn f(lease: gpulease_client::Lease) -> Result<(), Box<dyn std::error::Error>> {
/// let mut segment = lease.allocate(gpulease_client::mib(2)).await?;
/// let resident = lease.enter().await?;
/// let before = segment.as_slice::<u8>(&resident)?;
/// segment.as_mut_slice::<u8>(&resident)?[0] = 1; // `before` would change
/// println!("{}", before[0]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Segment {
    // Dropped in this order: nothing of it is moved any more, then it is unmapped, then that is told.
    grip: Own<Grip>,
    memory: Own<Memory>,
    charge: Charge,
    bytes: Bytes,
    device: DeviceId,
    ipc_handle: Option<IpcHandle>,
}

/// The segment's share in what moves it: when it goes, nothing moves it any more.
#[derive(Debug)]
struct Grip {
    body: Arc<Body>,
    lease: Share<LeaseState>,
}

impl Drop for Grip {
    fn drop(&mut self) {
        self.body.close();
        self.lease.remove_body(self.body.id());
    }
}

impl Segment {
    /// Memory that is mapped here, with the host copy that it came with.
    pub(crate) fn new(
        charge: Charge,
        bytes: Bytes,
        device: &Device,
        memory: Memory,
        copy: Option<HostCopy>,
    ) -> Self {
        let lease = charge.lease().clone();
        let movable = copy.is_some();
        let body = Body::new(charge.segment(), device.clone(), Site::of_memory(&memory), copy);
        let body = Arc::new(body);
        lease.add_body(&body);
        if movable {
            lease.order(Order::Landed(Arc::downgrade(&body)));
        }
        let grip = Own::new(Grip { body, lease });
        Self { grip, memory: Own::new(memory), charge, bytes, device: device.id, ipc_handle: None }
    }

    pub(crate) fn with_ipc_handle(self, ipc_handle: Option<IpcHandle>) -> Self {
        Self { ipc_handle, ..self }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SegmentId {
        self.charge.segment()
    }

    /// The lease that it is charged to.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.charge.lease().id()
    }

    /// Its size, a multiple of 2 MiB.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// What its device is, which says how it is used.
    #[must_use]
    pub fn kind(&self) -> DeviceKind {
        match &*self.memory {
            Memory::Host(_) => DeviceKind::Host,
            Memory::Cuda(_) => DeviceKind::Cuda,
        }
    }

    /// The handle for `cuIpcOpenMemHandle` in another process, where the memory was asked for by
    /// [`Allocation::cuda_ipc`](crate::Allocation::cuda_ipc); here it is open already. A secret: any process of any
    /// user that knows it can map the memory.
    #[must_use]
    pub fn ipc_handle(&self) -> Option<&IpcHandle> {
        self.ipc_handle.as_ref()
    }

    /// Host memory as values of `T`, as many as fit.
    ///
    /// # Errors
    /// For memory of a GPU, a guard of another lease, a type of no size, and in a forked child.
    pub fn as_slice<'a, T: Pod>(&'a self, resident: &'a Resident<'_>) -> Result<&'a [T], AccessError> {
        self.check(resident)?;
        match &*self.memory {
            Memory::Host(host) => host.as_slice().ok_or(layout::<T>()),
            Memory::Cuda(_) => Err(self.other_kind()),
        }
    }

    /// Host memory as values of `T`, as many as fit, to be changed.
    ///
    /// # Errors
    /// As [`Self::as_slice`].
    pub fn as_mut_slice<'a, T: Pod>(
        &'a mut self,
        resident: &'a Resident<'_>,
    ) -> Result<&'a mut [T], AccessError> {
        self.check(resident)?;
        let other_kind = self.other_kind();
        match &mut *self.memory {
            Memory::Host(host) => host.as_mut_slice().ok_or(layout::<T>()),
            Memory::Cuda(_) => Err(other_kind),
        }
    }

    /// The first address on the GPU, for unsafe code: what it launches with it has to be queued
    /// while the guard lives and must not touch the memory after this segment is dropped.
    ///
    /// # Errors
    /// For host memory, a guard of another lease, and in a forked child.
    pub fn device_ptr(&self, resident: &Resident<'_>) -> Result<u64, AccessError> {
        self.check(resident)?;
        match &*self.memory {
            Memory::Cuda(mapping) => Ok(mapping.ptr().raw()),
            Memory::Host(_) => Err(self.other_kind()),
        }
    }

    /// Moves memory of a GPU to addresses that the program has reserved (`cuMemAddressReserve`); suspensions bring it
    /// back to them. `None`: to addresses of its own again.
    ///
    /// # Errors
    /// For host memory, a guard of another lease, in a forked child, and what the driver says; it is where it was then.
    ///
    /// # Safety
    /// Nothing uses the present addresses any more. The new range has the segment's size and no mapping, and stays
    /// reserved until the segment is moved again or dropped.
    pub unsafe fn move_to(&mut self, resident: &Resident<'_>, to: Option<u64>) -> Result<(), AccessError> {
        self.check(resident)?;
        let site = match &*self.memory {
            Memory::Cuda(mapping) => mapping.site(),
            Memory::Host(_) => return Err(self.other_kind()),
        };
        // SAFETY: the caller's promise; the guard keeps the memory from being moved by others.
        let moved = unsafe {
            match to {
                Some(address) => site.move_to(DevicePtr::from_raw(address)),
                None => site.move_home(),
            }
        };
        moved.map_err(|error| AccessError::Cuda { segment: self.id(), error })
    }

    /// Memory of a GPU as cudarc takes it, for launches, cuBLAS and copies: as values of `T`, as
    /// many as fit. Work on other streams of the same GPU is ordered as for cudarc's own slices.
    ///
    /// # Errors
    /// For host memory, a guard of another lease, a stream of another GPU, and in a forked child.
    pub fn view<'a, T: Pod>(
        &'a self,
        resident: &'a Resident<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<CudaView<'a, T>, AccessError> {
        self.check(resident)?;
        match &*self.memory {
            Memory::Cuda(mapping) => mapping.view(stream).map_err(|error| self.no_view(error)),
            Memory::Host(_) => Err(self.other_kind()),
        }
    }

    /// As [`Self::view`], to be written.
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn view_mut<'a, T: Pod>(
        &'a mut self,
        resident: &'a Resident<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<CudaViewMut<'a, T>, AccessError> {
        self.check(resident)?;
        let (segment, other_kind) = (self.id(), self.other_kind());
        match &mut *self.memory {
            Memory::Cuda(mapping) => {
                mapping.view_mut(stream).map_err(|error| AccessError::View { segment, error })
            }
            Memory::Host(_) => Err(other_kind),
        }
    }

    /// Unmaps it, gives it back, and returns when the broker knows. For memory of a GPU it waits
    /// for all work in the device's context first, off this thread.
    ///
    /// # Errors
    /// Where the broker refuses or cannot be reached; the memory is unmapped all the same, and given
    /// back in the background when the broker is there again.
    pub async fn free(self) -> Result<(), AskError> {
        let Self { grip, memory, mut charge, .. } = self;
        let session = charge.lease().session().clone();
        session.engine.check()?;
        let unmapped = session.engine.handle().spawn_blocking(move || {
            drop(grip);
            drop(memory);
        });
        // An error means that unmapping panicked; the memory is not here then either.
        let _ = unmapped.await;
        charge.give_back().await
    }

    /// Keeps the memory, mapped, for the next allocation of this size in its lease, which then asks nobody. What is in
    /// it by then is whatever was there. The library gives it back by itself when the broker wants bytes of the lease
    /// back, and with the lease's last handle. At most 64 are kept; memory of an IPC handle is given back at once.
    pub fn spare(self) {
        let lease = self.charge.lease().clone();
        let goes = if self.ipc_handle.is_some() { Some(self) } else { lease.spares().keep(self) };
        drop(goes);
    }

    fn check(&self, resident: &Resident<'_>) -> Result<(), AccessError> {
        let (segment, guard) = (self.id(), resident.state());
        if self.memory.is_forked() {
            return Err(AccessError::Forked { segment });
        }
        if std::ptr::eq(guard, &***self.charge.lease()) {
            return Ok(());
        }
        Err(AccessError::OtherLease { segment, lease: self.lease(), guard: guard.id() })
    }

    fn other_kind(&self) -> AccessError {
        AccessError::OtherKind { segment: self.id(), kind: self.kind() }
    }

    fn no_view(&self, error: ViewError) -> AccessError {
        AccessError::View { segment: self.id(), error }
    }
}

fn layout<T>() -> AccessError {
    AccessError::Layout { size: size_of::<T>(), align: align_of::<T>() }
}
