//! A file of host memory, mapped.

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A whole file, mapped for reading and writing until dropped.
pub(crate) struct FileMapping {
    at: *mut c_void,
    bytes: usize,
}

impl FileMapping {
    /// Maps it; the descriptor is closed.
    pub(crate) fn new(file: OwnedFd, bytes: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a range where nothing else is mapped.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { at, bytes })
    }

    /// Its byte, where all are alike.
    pub(crate) fn said(&self) -> String {
        // SAFETY: the range is mapped for reading while `self` lives; nobody writes to it meanwhile, as the test sees to.
        let all = unsafe { std::slice::from_raw_parts(self.at.cast::<u8>(), self.bytes) };
        match all.first() {
            Some(first) if all.iter().all(|byte| byte == first) => first.to_string(),
            Some(_) | None => "mixed".to_owned(),
        }
    }

    /// Writes this byte all over it.
    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: the range is mapped for writing while `self` lives; nobody reads it meanwhile, as the test sees to.
        unsafe { std::ptr::write_bytes(self.at.cast::<u8>(), byte, self.bytes) };
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: exactly this range was mapped, and no reference into it is left.
        let _unmapped = unsafe { munmap(self.at, self.bytes) };
    }
}
