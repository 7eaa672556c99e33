//! The plain alternatives: the driver's calls without a broker.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use gpulease_cuda::{Access, Allocation, Context, CudaError, DeviceMemory, Reservation};
use gpulease_words::Bytes;

/// The bare sequence that brokered memory needs: create, export, import, reserve, map, set access.
pub(super) fn sequence(context: &Context, bytes: Bytes) -> Result<Duration, CudaError> {
    let device = context.device();
    let start = Instant::now();
    let made = Allocation::create(device, bytes)?;
    let descriptor = made.export()?;
    let imported = Allocation::import(device.driver(), descriptor.as_fd(), bytes)?;
    let mut range = Reservation::reserve(device.driver(), bytes)?;
    range.map(&imported, Bytes::ZERO)?;
    range.set_access(device, Access::ReadWrite)?;
    let elapsed = start.elapsed();
    touch(context, range.base(), bytes)?;
    range.release()?;
    Ok(elapsed)
}

/// `cuMemAlloc`.
pub(super) fn plain(context: &Context, bytes: Bytes) -> Result<Duration, CudaError> {
    let start = Instant::now();
    let memory = DeviceMemory::allocate(context, bytes)?;
    let elapsed = start.elapsed();
    touch(context, memory.ptr(), bytes)?;
    Ok(elapsed)
}

/// Writes the memory's first and last 2 MiB, so that what was timed is proven usable.
pub(super) fn touch(context: &Context, at: gpulease_cuda::DevicePtr, bytes: Bytes) -> Result<(), CudaError> {
    let edge = gpulease_words::GRANULARITY;
    let last = at.offset(bytes.saturating_sub(edge));
    // SAFETY: the memory of this size at `at` was just mapped by this thread, which alone uses it.
    unsafe {
        context.fill(at, 0xA5, edge)?;
        context.fill(last, 0x5A, edge)
    }
}
