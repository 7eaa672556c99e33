//! Addresses of a device, and the memory behind them. Nothing here needs a context.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;

use cudarc::driver::sys::{CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc};
use gpulease_words::Bytes;

use crate::allocation::{Allocation, size};
use crate::device::Device;
use crate::driver::{Driver, call};
use crate::error::CudaError;

/// An address that a device can use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(CUdeviceptr);

impl DevicePtr {
    /// The pointer with this address, as CUDA and cudarc hand it out.
    #[must_use]
    pub const fn from_raw(address: CUdeviceptr) -> Self {
        Self(address)
    }

    /// Its address, as CUDA and cudarc take it.
    #[must_use]
    pub const fn raw(self) -> CUdeviceptr {
        self.0
    }

    /// The address so many bytes further on.
    ///
    /// # Panics
    /// Past the end of the address space.
    #[must_use]
    pub const fn offset(self, by: Bytes) -> Self {
        Self(self.0.checked_add(by.get()).expect("an address inside a reservation fits 64 bits"))
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// What a device may do at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Who reserved a range of addresses, and so gives it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    Ours,
    Others,
}

/// Lets devices use what was mapped in a range.
pub(crate) type Open<'a> = &'a dyn Fn(&Reservation) -> Result<(), CudaError>;

/// A range of addresses that stays this process's own while what is mapped in it comes and goes.
///
/// Memory mapped here stays alive after its [`Allocation`] is dropped, until it is unmapped.
/// Dropping the range unmaps everything and gives the addresses up; no pointer into it may be used
/// by running work then.
#[derive(Debug)]
pub struct Reservation {
    driver: &'static Driver,
    base: DevicePtr,
    addresses: Addresses,
    bytes: Bytes,
    /// Offset to size of each mapping: the driver unmaps only what was mapped as one.
    mapped: BTreeMap<Bytes, Bytes>,
}

impl Reservation {
    /// Reserves addresses; `bytes` is a multiple of the granularity. It takes no device memory.
    ///
    /// # Errors
    /// What the driver says: for example when the address space has no such range left.
    pub fn reserve(driver: &'static Driver, bytes: Bytes) -> Result<Self, CudaError> {
        let mut base = 0;
        // SAFETY: the pointer is to an address of ours; zeros leave alignment and place to the driver.
        unsafe { call!(driver, cuMemAddressReserve(&mut base, size(bytes), 0, 0, 0)) }?;
        Ok(Self { driver, base: DevicePtr(base), addresses: Addresses::Ours, bytes, mapped: BTreeMap::new() })
    }

    /// Its first address.
    #[must_use]
    pub fn base(&self) -> DevicePtr {
        self.base
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// How much memory is mapped in it.
    #[must_use]
    pub fn mapped(&self) -> Bytes {
        self.mapped.values().copied().sum()
    }

    /// Maps a whole allocation at this offset. It can't be touched before [`Self::set_access`].
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where something is mapped already and past the end of the range,
    /// `CUDA_ERROR_NOT_SUPPORTED` for an imported allocation whose size was told wrong.
    pub fn map(&mut self, allocation: &Allocation, at: Bytes) -> Result<(), CudaError> {
        let bytes = allocation.bytes();
        let inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        if !inside {
            return Err(self.driver.invalid_value("cuMemMap"));
        }
        let (at_address, handle) = (self.base.offset(at).raw(), allocation.handle());
        // SAFETY: the range lies inside our reservation and the handle is alive; the driver refuses
        // an address that is mapped. Offsets into a handle and flags must be zero.
        unsafe { call!(self.driver, cuMemMap(at_address, size(bytes), 0, handle, 0)) }?;
        self.mapped.insert(at, bytes);
        Ok(())
    }

    /// Lets a device use everything that is mapped now. What is mapped later needs it again.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_access(&self, device: Device, access: Access) -> Result<(), CudaError> {
        let flags = match access {
            Access::ReadOnly => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Access::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let right = CUmemAccessDesc { location: device.location(), flags };
        for (at, bytes) in self.runs() {
            // SAFETY: the range is mapped throughout; the pointer is to one descriptor of ours.
            unsafe {
                call!(self.driver, cuMemSetAccess(self.base.offset(at).raw(), size(bytes), &right, 1))
            }?;
        }
        Ok(())
    }

    /// Unmaps everything and keeps the addresses. Work that uses them must have finished.
    ///
    /// # Errors
    /// What the driver says first; the rest is tried all the same, and what could not be unmapped
    /// still counts as mapped.
    pub fn unmap(&mut self) -> Result<(), CudaError> {
        let mut first = Ok(());
        for (at, bytes) in mem::take(&mut self.mapped) {
            // SAFETY: exactly this range was mapped by one call and not unmapped since.
            let result = unsafe { call!(self.driver, cuMemUnmap(self.base.offset(at).raw(), size(bytes))) };
            if result.is_err() {
                self.mapped.insert(at, bytes);
            }
            first = first.and(result);
        }
        first
    }

    /// Moves what is mapped to other addresses, of the caller's own reservation, lets it be used there by `open`, and gives
    /// the present ones up.
    ///
    /// # Errors
    /// What the driver says; everything is as it was then.
    ///
    /// # Safety
    /// Nothing uses the present addresses. The new range is reserved, of this size, without a mapping, and stays
    /// reserved until the memory has left it.
    pub(crate) unsafe fn move_to(&mut self, base: DevicePtr, open: Open<'_>) -> Result<(), CudaError> {
        let there = Self { base, addresses: Addresses::Others, mapped: BTreeMap::new(), ..*self };
        // SAFETY: the caller's promise.
        unsafe { self.remap(there, open) }
    }

    /// Moves what is mapped to new addresses of its own, as [`Self::move_to`] does.
    ///
    /// # Errors
    /// What the driver says; everything is as it was then.
    ///
    /// # Safety
    /// Nothing uses the present addresses.
    pub(crate) unsafe fn move_home(&mut self, open: Open<'_>) -> Result<(), CudaError> {
        let home = Self::reserve(self.driver, self.bytes)?;
        // SAFETY: the caller's promise; the new range is ours and empty.
        unsafe { self.remap(home, open) }
    }

    /// # Safety
    /// As [`Self::move_to`].
    unsafe fn remap(&mut self, mut to: Self, open: Open<'_>) -> Result<(), CudaError> {
        for (&at, &bytes) in &self.mapped {
            let mut handle = 0;
            let address = std::ptr::without_provenance_mut(self.base.offset(at).raw() as usize);
            // SAFETY: there is a mapping at this address; the pointer is to a handle of ours, which is given up with
            // the allocation. A failure drops `to` and with it what was mapped there.
            unsafe { call!(self.driver, cuMemRetainAllocationHandle(&mut handle, address)) }?;
            to.map(&Allocation::adopt(self.driver, handle, bytes), at)?;
        }
        open(&to)?;
        // The old mappings and addresses go with it.
        drop(mem::replace(self, to));
        Ok(())
    }

    /// Unmaps everything and gives the addresses up, as dropping does, and says how it went.
    ///
    /// # Errors
    /// What the driver says first.
    pub fn release(mut self) -> Result<(), CudaError> {
        let result = self.give_up();
        drop(mem::take(&mut self.mapped));
        mem::forget(self);
        result
    }

    /// Neighbouring mappings as one range each: one call to the driver does for all of them.
    fn runs(&self) -> Vec<(Bytes, Bytes)> {
        let mut runs: Vec<(Bytes, Bytes)> = Vec::new();
        for (&at, &bytes) in &self.mapped {
            match runs.last_mut() {
                Some((start, length)) if start.checked_add(*length) == Some(at) => {
                    *length = [*length, bytes].into_iter().sum();
                }
                _ => runs.push((at, bytes)),
            }
        }
        runs
    }

    fn give_up(&mut self) -> Result<(), CudaError> {
        self.unmap()?;
        if self.addresses == Addresses::Others {
            return Ok(());
        }
        // SAFETY: the range was reserved by one call, nothing is mapped in it any more, and both
        // callers make sure that it is given up once.
        unsafe { call!(self.driver, cuMemAddressFree(self.base.raw(), size(self.bytes))) }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let result = self.give_up();
        self.driver.keep(result);
    }
}
