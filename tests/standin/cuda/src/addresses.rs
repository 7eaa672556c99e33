//! Addresses of devices: what is reserved, what is mapped, and how it may be used.
//!
//! A device address is a host address here. Reserved and not mapped, mapped and not allowed: both
//! are pages that nobody may touch, so that a stray access faults as it would on the device.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use gpulease_words::GRANULARITY;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::code::{Code, Outcome};
use crate::driver::{Held, system};

const UNIT: u64 = GRANULARITY.get();

/// The addresses of this process.
#[derive(Default)]
pub(crate) struct Addresses {
    /// First address to size of what `cuMemAddressReserve` gave.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
}

/// Memory at an address.
pub(crate) struct Mapping {
    pub(crate) size: u64,
    pub(crate) access: Access,
    /// Other devices that may read and write it.
    pub(crate) guests: Vec<u32>,
    pub(crate) origin: Origin,
    /// The handle of the context in which it was allocated; zero where that does not matter.
    pub(crate) context: usize,
    pub(crate) held: Arc<Held>,
}

/// What may be done at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    None,
    Read,
    Write,
}

/// Which call made a mapping, and so which may end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemMap`.
    Vmm,
    /// `cuMemAlloc`, of so many bytes.
    Allocated { asked: u64 },
    /// `cuMemAllocManaged`.
    Managed { asked: u64 },
    /// `cuMemAllocAsync`, of the pool with this handle. It has no IPC handles.
    Pooled { asked: u64, pool: usize },
    /// A pool keeps it for its next allocation.
    Cached { pool: usize },
    /// `cuIpcOpenMemHandle`, so many times.
    Opened { times: u32, asked: u64 },
    /// An array, which has no address that programs know.
    Array,
    /// A variable of a module.
    Variable { asked: u64 },
    /// An allocation of a graph.
    Graph { asked: u64 },
}

impl Origin {
    /// The size that was asked for, where it is not that of the mapping.
    pub(crate) fn asked(self) -> Option<u64> {
        match self {
            Self::Allocated { asked }
            | Self::Managed { asked }
            | Self::Pooled { asked, .. }
            | Self::Opened { asked, .. }
            | Self::Variable { asked }
            | Self::Graph { asked } => Some(asked),
            Self::Vmm | Self::Cached { .. } | Self::Array => None,
        }
    }
}

impl Addresses {
    /// Reserves a range; the caller has checked the size.
    pub(crate) fn reserve(&mut self, size: u64) -> Result<u64, Code> {
        let base = aligned(size)?;
        self.reserved.insert(base, size);
        Ok(base)
    }

    /// Gives a reserved range up.
    pub(crate) fn free(&mut self, base: u64, size: u64) -> Outcome {
        if self.reserved.get(&base) != Some(&size) || self.overlaps(base, size) {
            return Err(Code::INVALID_VALUE);
        }
        self.reserved.remove(&base);
        unmap(base, size)
    }

    /// Maps memory into a reserved range.
    pub(crate) fn map(&mut self, at: u64, size: u64, held: Arc<Held>) -> Outcome {
        if !self.is_reserved(at, size) || self.overlaps(at, size) {
            return Err(Code::INVALID_VALUE);
        }
        show(at, size, &held, ProtFlags::empty())?;
        self.mapped.insert(
            at,
            Mapping { size, access: Access::None, guests: Vec::new(), origin: Origin::Vmm, context: 0, held },
        );
        Ok(())
    }

    /// Maps memory of a graph into a reserved range, ready to use.
    pub(crate) fn back(&mut self, at: u64, asked: u64, held: Arc<Held>) -> Outcome {
        let size = held.memory().bytes().get();
        show(at, size, &held, ProtFlags::READ | ProtFlags::WRITE)?;
        let origin = Origin::Graph { asked };
        self.mapped.insert(
            at,
            Mapping { size, access: Access::Write, guests: Vec::new(), origin, context: 0, held },
        );
        Ok(())
    }

    /// Takes memory of a graph out of its range.
    pub(crate) fn unback(&mut self, at: u64) -> Result<Arc<Held>, Code> {
        let mapping = self.mapped.remove(&at).ok_or(Code::INVALID_VALUE)?;
        hide(at, mapping.size)?;
        Ok(mapping.held)
    }

    /// Unmaps whole mappings and keeps the range. Where nothing is mapped there is nothing to do.
    pub(crate) fn unmap(&mut self, at: u64, size: u64) -> Outcome {
        if self.is_reserved(at, size) && !self.overlaps(at, size) {
            return Ok(());
        }
        let whole = self.whole(at, size)?;
        if !whole.iter().all(|at| self.mapped[at].origin == Origin::Vmm) {
            return Err(Code::INVALID_VALUE);
        }
        for at in whole {
            let mapping = self.mapped.remove(&at).expect("it was found a moment ago");
            hide(at, mapping.size)?;
        }
        Ok(())
    }

    /// Sets what a device may do in whole mappings. Who else has access to device memory than its own device the host
    /// does not see.
    pub(crate) fn set_access(&mut self, at: u64, size: u64, device: u32, access: Access) -> Outcome {
        let flags = match access {
            Access::None => MprotectFlags::empty(),
            Access::Read => MprotectFlags::READ,
            Access::Write => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        for at in self.whole(at, size)? {
            let mapping = self.mapped.get_mut(&at).expect("it was found a moment ago");
            if mapping.held.memory().device() != device {
                mapping.guests.retain(|guest| *guest != device);
                mapping.guests.extend((access == Access::Write).then_some(device));
                continue;
            }
            // SAFETY: exactly this range is a mapping of ours; device memory has no Rust references.
            unsafe { mprotect(pointer(at), length(mapping.size), flags) }.map_err(|e| system(e.into()))?;
            mapping.access = access;
        }
        Ok(())
    }

    /// Maps memory somewhere, ready to use: as `cuMemAlloc` and IPC do.
    pub(crate) fn place(&mut self, origin: Origin, context: usize, held: Arc<Held>) -> Result<u64, Code> {
        let size = held.memory().bytes().get();
        let at = aligned(size)?;
        show(at, size, &held, ProtFlags::READ | ProtFlags::WRITE)?;
        self.mapped
            .insert(at, Mapping { size, access: Access::Write, guests: Vec::new(), origin, context, held });
        Ok(at)
    }

    /// Ends a mapping that [`Self::place`] made.
    pub(crate) fn take(&mut self, at: u64) -> Outcome {
        let mapping = self.mapped.remove(&at).ok_or(Code::INVALID_VALUE)?;
        unmap(at, mapping.size)
    }

    /// Ends what was allocated in a context.
    pub(crate) fn take_of_context(&mut self, context: usize) -> Outcome {
        let all = self.mapped.iter().filter(|(_, mapping)| mapping.context == context);
        let starts: Vec<u64> = all.map(|(&at, _)| at).collect();
        starts.into_iter().try_for_each(|at| self.take(at))
    }

    /// The mapping that starts here.
    pub(crate) fn starting(&mut self, at: u64) -> Option<&mut Mapping> {
        self.mapped.get_mut(&at)
    }

    /// The mapping around an address, and where it starts.
    pub(crate) fn around(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mapped.range(..=at).next_back()?;
        (at - start < mapping.size).then_some((start, mapping))
    }

    /// Everything that is mapped.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, &Mapping)> {
        self.mapped.iter().map(|(&at, mapping)| (at, mapping))
    }

    /// Whether all of a range is mapped with at least this access.
    pub(crate) fn allows(&self, at: u64, size: u64, access: Access) -> bool {
        let Some(end) = at.checked_add(size) else { return false };
        let mut next = at;
        while next < end {
            match self.around(next) {
                Some((start, mapping)) if mapping.access >= access => next = start + mapping.size,
                Some(_) | None => return false,
            }
        }
        true
    }

    fn is_reserved(&self, at: u64, size: u64) -> bool {
        let around = self.reserved.range(..=at).next_back();
        around.is_some_and(|(base, length)| at.checked_add(size).is_some_and(|end| end <= base + length))
    }

    fn overlaps(&self, at: u64, size: u64) -> bool {
        let before =
            self.mapped.range(..at).next_back().is_some_and(|(start, mapping)| start + mapping.size > at);
        before || self.mapped.range(at..at.saturating_add(size)).next().is_some()
    }

    /// The starts of the mappings that fill a range exactly.
    fn whole(&self, at: u64, size: u64) -> Result<Vec<u64>, Code> {
        let end = at.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let (mut next, mut starts) = (at, Vec::new());
        while next < end {
            let mapping = self.mapped.get(&next).ok_or(Code::INVALID_VALUE)?;
            starts.push(next);
            next += mapping.size;
        }
        if next == end && !starts.is_empty() { Ok(starts) } else { Err(Code::INVALID_VALUE) }
    }
}

/// Fresh addresses that nobody may touch, at a multiple of the granularity.
fn aligned(size: u64) -> Result<u64, Code> {
    let wide = size.checked_add(UNIT).ok_or(Code::OUT_OF_MEMORY)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice harms nobody.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length(wide), ProtFlags::empty(), flags) }
        .map_err(|_| Code::OUT_OF_MEMORY)? as u64;
    let base = start.next_multiple_of(UNIT);
    for (at, size) in [(start, base - start), (base + size, start + wide - (base + size))] {
        if size > 0 {
            unmap(at, size)?;
        }
    }
    Ok(base)
}

fn show(at: u64, size: u64, held: &Held, access: ProtFlags) -> Outcome {
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range is reserved by us and unused; it is replaced by the memory's own pages.
    unsafe { mmap(pointer(at), length(size), access, flags, held.memory(), 0) }
        .map_err(|e| system(e.into()))?;
    Ok(())
}

fn hide(at: u64, size: u64) -> Outcome {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the range is a mapping of ours; nobody may use it after it is unmapped.
    unsafe { mmap_anonymous(pointer(at), length(size), ProtFlags::empty(), flags) }
        .map_err(|e| system(e.into()))?;
    Ok(())
}

fn unmap(at: u64, size: u64) -> Outcome {
    // SAFETY: the range is ours, and nobody may use it after it is given up.
    unsafe { munmap(pointer(at), length(size)) }.map_err(|e| system(e.into()))
}

pub(crate) fn pointer(at: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(length(at))
}

fn length(size: u64) -> usize {
    usize::try_from(size).expect("the stand-in runs on 64-bit hosts")
}
