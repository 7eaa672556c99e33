//! The addresses of a mapping, which stay while the memory behind them goes away and comes back.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_words::Bytes;

use crate::allocation::Allocation;
use crate::context::Context;
use crate::device::Device;
use crate::error::CudaError;
use crate::ipc::IpcMapping;
use crate::peers;
use crate::reservation::{Access, DevicePtr, Open, Reservation};

/// Addresses of a device with memory behind them, or, while it is swapped out, without.
///
/// Pointers, cudarc's slices and captured graphs that name these addresses are good again once
/// there is memory behind them again.
#[derive(Debug)]
pub struct Site {
    context: Context,
    /// Changes only while nothing uses the memory.
    ptr: AtomicU64,
    bytes: Bytes,
    held: Mutex<Held>,
}

#[derive(Debug)]
pub(crate) enum Held {
    Chunks(Reservation),
    Ipc {
        _mapping: IpcMapping,
    },
    /// Addresses and all are given up.
    Nothing,
}

impl Site {
    pub(crate) fn new(context: &Context, ptr: DevicePtr, bytes: Bytes, held: Held) -> Self {
        let ptr = AtomicU64::new(ptr.raw());
        Self { context: context.clone(), ptr, bytes, held: Mutex::new(held) }
    }

    /// Its first address, the same for its whole life but for [`Self::move_to`] and [`Self::move_home`].
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr::from_raw(self.ptr.load(Ordering::Acquire))
    }

    /// Moves the memory to addresses that the caller has reserved, where it stays through suspensions. Access for the
    /// context's device, and for those that were [let in](crate::let_in), is set there.
    ///
    /// # Errors
    /// What the driver says; the memory is where it was then. `CUDA_ERROR_INVALID_VALUE` for memory of an IPC handle and
    /// after the mapping was dropped.
    ///
    /// # Safety
    /// Nothing uses the present addresses, and nothing moves the memory meanwhile. The new range is reserved, of this
    /// size, without a mapping, and stays reserved until the memory has left it.
    pub unsafe fn move_to(&self, to: DevicePtr) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        self.relocate(|range, open| unsafe { range.move_to(to, open) })
    }

    /// Moves the memory to addresses of its own, as before [`Self::move_to`] but not the same ones.
    ///
    /// # Errors
    /// As [`Self::move_to`].
    ///
    /// # Safety
    /// Nothing uses the present addresses, and nothing moves the memory meanwhile.
    pub unsafe fn move_home(&self) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        self.relocate(|range, open| unsafe { range.move_home(open) })
    }

    fn relocate(
        &self,
        relocate: impl FnOnce(&mut Reservation, Open<'_>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.range(|range| {
            relocate(range, &|there| open(&self.context, there))?;
            self.ptr.store(range.base().raw(), Ordering::Release);
            Ok(())
        })
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The context that the memory is used in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Unmaps the memory and keeps the addresses. What came by an IPC handle can't be moved.
    ///
    /// # Errors
    /// What the driver says; what could not be unmapped is still mapped then. `CUDA_ERROR_INVALID_VALUE` for memory
    /// of an IPC handle and after the mapping was dropped.
    ///
    /// # Safety
    /// No work that uses the memory is queued or running, and none is queued before [`Self::occupy`] has succeeded.
    pub unsafe fn vacate(&self) -> Result<(), CudaError> {
        self.range(|range| range.unmap())
    }

    /// Puts memory behind the addresses again: the chunks side by side, as [`crate::Mapping::of_descriptors`] does.
    ///
    /// # Errors
    /// What the driver says; nothing is mapped then. `CUDA_ERROR_INVALID_VALUE` where the chunks do not fill the
    /// addresses, where there is memory already, for memory of an IPC handle, and after the mapping was dropped.
    pub fn occupy(&self, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<(), CudaError> {
        self.range(|range| {
            let fits = chunks.iter().map(|(_, bytes)| *bytes).sum::<Bytes>() == range.bytes();
            if !fits || !range.mapped().is_zero() {
                return Err(self.context.driver().invalid_value("cuMemMap"));
            }
            let occupied = place(&self.context, range, chunks);
            if occupied.is_err() {
                // The first failure is told; what stays mapped shows in `mapped`.
                self.context.driver().keep(range.unmap());
            }
            occupied
        })
    }

    /// How much memory is behind the addresses now; zero for memory of an IPC handle.
    #[must_use]
    pub fn mapped(&self) -> Bytes {
        match &*self.held() {
            Held::Chunks(range) => range.mapped(),
            Held::Ipc { .. } | Held::Nothing => Bytes::ZERO,
        }
    }

    /// Gives memory and addresses up.
    pub(crate) fn close(&self) {
        drop(std::mem::replace(&mut *self.held(), Held::Nothing));
    }

    /// Lets another device use the memory that is here now. Later it finds its way by [`peers`].
    pub(crate) fn let_in(&self, guest: Device) -> Result<(), CudaError> {
        match &*self.held() {
            Held::Chunks(range) => range.set_access(guest, Access::ReadWrite),
            // Memory of a handle is open to whom the driver lets in.
            Held::Ipc { .. } | Held::Nothing => Ok(()),
        }
    }

    fn range<T>(
        &self,
        change: impl FnOnce(&mut Reservation) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        match &mut *self.held() {
            Held::Chunks(range) => change(range),
            Held::Ipc { .. } | Held::Nothing => Err(self.context.driver().invalid_value("cuMemUnmap")),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Imports the chunks, maps them side by side into the range and lets the context's device use them, and its peers.
fn place(
    context: &Context,
    range: &mut Reservation,
    chunks: &[(BorrowedFd<'_>, Bytes)],
) -> Result<(), CudaError> {
    let mut at = Bytes::ZERO;
    for (descriptor, bytes) in chunks {
        // The mapping alone keeps the memory, so that the handle can go at once.
        range.map(&Allocation::import(context.driver(), *descriptor, *bytes)?, at)?;
        at = [at, *bytes].into_iter().sum();
    }
    open(context, range)
}

fn open(context: &Context, range: &Reservation) -> Result<(), CudaError> {
    let owner = context.device();
    range.set_access(owner, Access::ReadWrite)?;
    peers::of(owner).into_iter().try_for_each(|guest| range.set_access(guest, Access::ReadWrite))
}
