//! The older way to share: `cuMemAlloc` and a handle of 64 bytes.

use std::ffi::c_char;
use std::fmt;

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle};
use gpulease_words::Bytes;

use crate::allocation::size;
use crate::context::Context;
use crate::device::byte;
use crate::driver::call;
use crate::error::CudaError;
use crate::reservation::DevicePtr;

/// Memory of `cuMemAlloc`, freed when dropped. Consumers of its handle must be done before: what
/// they see after that is undefined.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    ptr: DevicePtr,
    bytes: Bytes,
}

impl DeviceMemory {
    /// Allocates device memory in a context.
    ///
    /// # Errors
    /// [`CudaError::is_out_of_memory`] where the card has too little left.
    pub fn allocate(context: &Context, bytes: Bytes) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let mut ptr = 0;
        // SAFETY: the pointer is to an address of ours; a context is current.
        unsafe { call!(context.driver(), cuMemAlloc_v2(&mut ptr, size(bytes))) }?;
        Ok(Self { context: context.clone(), ptr: DevicePtr::from_raw(ptr), bytes })
    }

    /// Its first address.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// The size that was asked for.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The handle with which **any** process of any user can map it. It opens the driver's whole
    /// underlying allocation, which may hold more than this memory: allocate multiples of 2 MiB.
    ///
    /// # Errors
    /// What the driver says.
    pub fn ipc_handle(&self) -> Result<IpcHandle, CudaError> {
        let _current = self.context.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a handle of ours; the address is alive.
        unsafe { call!(self.context.driver(), cuIpcGetMemHandle(&mut handle, self.ptr.raw())) }?;
        Ok(IpcHandle(handle.reserved.map(byte)))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: the address came from cuMemAlloc and is freed once.
            unsafe { call!(driver, cuMemFree_v2(self.ptr.raw())) }
        }));
    }
}

/// A CUDA IPC handle: a bearer secret, so that its bytes are never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct IpcHandle([u8; 64]);

impl IpcHandle {
    /// The handle of these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// Its bytes: a secret.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl fmt::Debug for IpcHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IpcHandle(secret)")
    }
}

/// Another process's memory, mapped here by its handle until dropped. Opened twice, it has one
/// address, and the driver counts.
#[derive(Debug)]
pub struct IpcMapping {
    context: Context,
    ptr: DevicePtr,
}

impl IpcMapping {
    /// Opens a handle. Its owner is another process: CUDA refuses one's own.
    ///
    /// # Errors
    /// What the driver says of a handle that is no longer good or never was.
    pub fn open(context: &Context, handle: &IpcHandle) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let raw = CUipcMemHandle { reserved: handle.0.map(|part| c_char::from_ne_bytes([part])) };
        let (mut ptr, flags) = (0, CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32);
        // SAFETY: the pointer is to an address of ours; a context is current.
        unsafe { call!(context.driver(), cuIpcOpenMemHandle_v2(&mut ptr, raw, flags)) }?;
        Ok(Self { context: context.clone(), ptr: DevicePtr::from_raw(ptr) })
    }

    /// Its first address here.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// How much the driver mapped from that address on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bytes(&self) -> Result<Bytes, CudaError> {
        let _current = self.context.enter()?;
        let (mut base, mut bytes): (CUdeviceptr, usize) = (0, 0);
        // SAFETY: both pointers are to values of ours; the address is mapped.
        unsafe {
            call!(self.context.driver(), cuMemGetAddressRange_v2(&mut base, &mut bytes, self.ptr.raw()))
        }?;
        let end = Bytes::new(base).saturating_add(Bytes::new(bytes as u64));
        Ok(end.saturating_sub(Bytes::new(self.ptr.raw())))
    }
}

impl Drop for IpcMapping {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: this closes one opening of the mapping, which `open` made.
            unsafe { call!(driver, cuIpcCloseMemHandle(self.ptr.raw())) }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_not_printed() {
        let handle =
            IpcHandle::from_bytes(*b"0123456789012345678901234567890123456789012345678901234567890123");
        assert_eq!(format!("{handle:?}"), "IpcHandle(secret)");
        assert_eq!(handle, IpcHandle::from_bytes(*handle.as_bytes()));
    }
}
