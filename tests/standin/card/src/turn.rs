//! A counter in memory that all processes of a card share.

use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::card::shared_file;

/// How often something of the card was changed.
#[derive(Debug)]
pub(crate) struct Turn(NonNull<AtomicU64>);

// SAFETY: what it points to is shared between processes anyway, and atomic.
unsafe impl Send for Turn {}

impl Turn {
    /// The counter in a card's directory.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let file = shared_file(&directory.join("faults.turn"))?;
        file.set_len(size_of::<u64>() as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice harms nobody; the file is never cut.
        let at = unsafe { mmap(std::ptr::null_mut(), size_of::<u64>(), access, MapFlags::SHARED, &file, 0) }?;
        NonNull::new(at.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// The count.
    pub(crate) fn number(&self) -> u64 {
        self.counter().load(Ordering::Acquire)
    }

    /// Counts one more.
    pub(crate) fn pass(&self) {
        self.counter().fetch_add(1, Ordering::Release);
    }

    fn counter(&self) -> &AtomicU64 {
        // SAFETY: it is mapped until this is dropped, at a page's start, and only ever used as an atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: exactly this was mapped, and nobody can use it any more. What the kernel says of it changes nothing.
        let _ended = unsafe { munmap(self.0.as_ptr().cast(), size_of::<u64>()) };
    }
}
