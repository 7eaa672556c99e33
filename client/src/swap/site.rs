//! The addresses of a segment, of whatever kind of memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use gpulease_cuda::Mapping;
use gpulease_words::Bytes;

use crate::host::HostSite;
use crate::memory::{MapError, Memory};

/// The addresses of a segment: they stay while the memory behind them goes away and comes back.
#[derive(Clone, Debug)]
pub enum Site {
    /// Addresses of this process.
    Host(Arc<HostSite>),
    /// Addresses of a GPU.
    Cuda(Arc<gpulease_cuda::Site>),
}

impl Site {
    /// The addresses of a mapping on a GPU. They are given up with the mapping.
    #[must_use]
    pub fn of(mapping: &Mapping) -> Self {
        Self::Cuda(Arc::clone(mapping.site()))
    }

    /// Host memory, mapped from its chunks; given up with the last clone.
    ///
    /// # Errors
    /// [`MapError::Host`], [`MapError::Short`].
    pub fn host(chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<Self, MapError> {
        HostSite::of(chunks).map(|site| Self::Host(Arc::new(site)))
    }

    pub(crate) fn of_memory(memory: &Memory) -> Self {
        match memory {
            Memory::Host(mapping) => Self::Host(Arc::clone(mapping.site())),
            Memory::Cuda(mapping) => Self::of(mapping),
        }
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self {
            Self::Host(site) => site.start().as_ptr().addr() as u64,
            Self::Cuda(site) => site.ptr().raw(),
        }
    }

    /// The size.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Host(site) => site.bytes(),
            Self::Cuda(site) => site.bytes(),
        }
    }

    /// Takes the memory away and keeps the addresses.
    ///
    /// # Errors
    /// Where there is no memory, or kernel or driver refuse.
    ///
    /// # Safety
    /// Nothing uses the memory, and nothing does before [`Self::occupy`] has succeeded.
    pub unsafe fn vacate(&self) -> Result<(), MapError> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Host(site) => site.vacate(),
                Self::Cuda(site) => Ok(site.vacate()?),
            }
        }
    }

    /// Puts memory behind the addresses again: chunks side by side that fill them. The descriptors may be closed
    /// afterwards.
    ///
    /// # Errors
    /// Where there is memory already, the chunks do not fit, or kernel or driver refuse; nothing is mapped then.
    pub fn occupy(&self, chunks: &[(BorrowedFd<'_>, Bytes)]) -> Result<(), MapError> {
        match self {
            Self::Host(site) => site.occupy(chunks),
            Self::Cuda(site) => Ok(site.occupy(chunks)?),
        }
    }
}
