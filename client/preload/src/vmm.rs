//! The program's own virtual memory management: its handles stand for segments of the lease.
//!
//! A segment comes mapped. When the program maps its handle into addresses that it reserved, the segment moves there,
//! and a suspension brings it back to just these addresses. It is given back when neither a handle nor a mapping is left,
//! as the driver does it.
//!
//! Memory that is to be exported, or of a kind that a segment can't be, is the driver's.

pub(crate) mod creation;
mod of_driver;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_client::Bytes;

use crate::budget::put;
use crate::charged::Given;
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, check, code_of};
use crate::entries::real;
use crate::heap::Range;
use crate::job::{self, Job};
use crate::peers::{self, Right};
use crate::piece::Piece;
use crate::report::Once;
use of_driver::OfDriver;

/// Handles of ours begin here: the driver's are small numbers or addresses.
const FIRST_HANDLE: u64 = 0x6c65_6173_6500_0000;

const PINNED: c_uint = 1;
const ON_DEVICE: c_uint = 1;

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: c_uint,
    device: c_int,
    windows: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

// SAFETY: the pointer in it is never followed.
unsafe impl Send for Properties {}

/// The handles and mappings of this process that are of the lease.
#[derive(Default)]
pub(crate) struct Vmm {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    made: u64,
    bodies: BTreeMap<u64, Body>,
    /// Handles by the address that they are mapped at.
    places: BTreeMap<u64, u64>,
    of_driver: OfDriver,
}

impl Inner {
    fn next_handle(&mut self) -> u64 {
        self.made += 1;
        FIRST_HANDLE + (self.made & 0x00ff_ffff)
    }
}

/// What a handle stands for.
struct Body {
    piece: Piece,
    properties: Properties,
    /// Handles that the program has not released yet.
    handles: u32,
    place: Option<u64>,
}

/// `cuMemRelease`
pub(crate) unsafe fn release(handle: u64) -> Code {
    let served = || match job::current()? {
        Some(job) if is_ours(handle) => job.vmm.release(handle),
        job => {
            // SAFETY: the caller's argument, passed on.
            check(unsafe { real::cuMemRelease(handle) })?;
            let over = job.and_then(|job| job.vmm.lock().of_driver.released(handle));
            forget(job, over);
            Ok(())
        }
    };
    code_of(served())
}

/// `cuMemMap`
pub(crate) unsafe fn map(at: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Code {
    let served = || match job::current()? {
        Some(_) if is_ours(handle) && (offset != 0 || flags != 0) => Err(INVALID_VALUE),
        Some(job) if is_ours(handle) => job.vmm.map(job, at, Bytes::new(bytes as u64), handle),
        job => {
            // SAFETY: the caller's arguments, passed on.
            check(unsafe { real::cuMemMap(at, bytes, offset, handle, flags) })?;
            job.into_iter().for_each(|job| job.vmm.lock().of_driver.mapped(at, handle));
            Ok(())
        }
    };
    code_of(served())
}

/// `cuMemUnmap`
pub(crate) unsafe fn unmap(at: u64, bytes: usize) -> Code {
    let served = || match job::current()? {
        Some(job) => job.vmm.unmap(job, at, bytes as u64),
        // SAFETY: the caller's arguments, passed on.
        None => check(unsafe { real::cuMemUnmap(at, bytes) }),
    };
    code_of(served())
}

/// `cuMemSetAccess`: after a suspension the lease's own device has access again, and those that were let in.
pub(crate) unsafe fn set_access(at: u64, bytes: usize, rights: *const Right, count: usize) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = crate::gate::pass(|| unsafe { real::cuMemSetAccess(at, bytes, rights, count) });
    if code == SUCCESS
        && let Some(job) = job::if_joined()
        && let Some(owner) = job.vmm.device_of(at)
    {
        // SAFETY: the driver has just read so many of them.
        return unsafe { peers::let_all_in(job, owner, rights, count) };
    }
    code
}

/// `cuMemRetainAllocationHandle`
pub(crate) unsafe fn retain(out: *mut u64, at: *mut c_void) -> Code {
    let served = || {
        if let Some(job) = job::current()?
            && let Some(handle) = job.vmm.retain(at as u64)
        {
            // SAFETY: the caller gives a pointer to a handle.
            return unsafe { put(out, handle) };
        }
        // SAFETY: the caller's arguments, passed on.
        check(unsafe { real::cuMemRetainAllocationHandle(out, at) })?;
        if let Some(job) = job::current()? {
            // SAFETY: the driver has written it.
            job.vmm.lock().of_driver.retained(unsafe { *out });
        }
        Ok(())
    };
    code_of(served())
}

/// `cuMemGetAllocationPropertiesFromHandle`
pub(crate) unsafe fn properties(out: *mut Properties, handle: u64) -> Code {
    let served = || match job::current()? {
        Some(job) if is_ours(handle) => {
            let properties = job.vmm.lock().bodies.get(&handle).map(|body| body.properties);
            // SAFETY: the caller gives a pointer to properties.
            unsafe { put(out, properties.ok_or(INVALID_VALUE)?) }
        }
        // SAFETY: the caller's arguments, passed on.
        _ => check(unsafe { real::cuMemGetAllocationPropertiesFromHandle(out, handle) }),
    };
    code_of(served())
}

/// `cuMemExportToShareableHandle`: a segment can't be exported.
pub(crate) unsafe fn export(out: *mut c_void, handle: u64, kind: c_uint, flags: u64) -> Code {
    static REFUSED: Once = Once::new();
    if is_ours(handle) {
        REFUSED.say(|| {
            "leased memory can't be exported to other processes; with GPULEASE_EXPORT=1 what could be exported is the \
             driver's own, and the lease stays on its device"
                .to_owned()
        });
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMemExportToShareableHandle(out, handle, kind, flags) }
}

/// Memory of the driver's that is gone counts no more.
fn forget(job: Option<&'static Job>, over: impl IntoIterator<Item = u64>) {
    if let Some(job) = job {
        over.into_iter().for_each(|handle| job.charges.give(Given::Handle(handle)));
    }
}

/// Whether a handle stands for a segment.
pub(crate) fn is_ours(handle: u64) -> bool {
    handle >> 24 == FIRST_HANDLE >> 24
}

impl Properties {
    /// Whether a segment can be that: plain memory of a device.
    fn is_plain(&self) -> bool {
        let plain = self.compression == 0 && self.usage == 0;
        self.kind == PINNED && plain
    }
}

impl Vmm {
    /// The mapping that an address is in.
    pub(crate) fn range_of(&self, at: u64) -> Option<Range> {
        let inner = self.lock();
        let (base, handle) = inner.places.range(..=at).next_back()?;
        let bytes = inner.bodies.get(handle)?.piece.bytes().get();
        (at - base < bytes).then_some(Range { base: *base, bytes: bytes as usize })
    }

    /// The device of what is mapped at an address.
    fn device_of(&self, at: u64) -> Option<c_int> {
        let base = self.range_of(at)?.base;
        let inner = self.lock();
        Some(inner.bodies.get(inner.places.get(&base)?)?.properties.device)
    }

    fn add(&self, piece: Piece, properties: Properties) -> u64 {
        let mut inner = self.lock();
        // Numbers come around, and what lives has its own.
        let mut handle = inner.next_handle();
        while inner.bodies.contains_key(&handle) {
            handle = inner.next_handle();
        }
        inner.bodies.insert(handle, Body { piece, properties, handles: 1, place: None });
        handle
    }

    fn release(&self, handle: u64) -> Result<(), Code> {
        let mut inner = self.lock();
        let body = inner.bodies.get_mut(&handle).filter(|body| body.handles > 0).ok_or(INVALID_VALUE)?;
        body.handles -= 1;
        let gone = if body.is_over() { inner.bodies.remove(&handle) } else { None };
        drop(inner);
        // Unlocked, since it waits for the device.
        drop(gone);
        Ok(())
    }

    /// Moves the segment to where the program wants it.
    fn map(&self, job: &'static Job, at: u64, bytes: Bytes, handle: u64) -> Result<(), Code> {
        let mut body = self.borrow_to_map(handle, bytes)?;
        // SAFETY: the program promises that the range is reserved, of this size, and the driver checks that nothing
        // is mapped there; where the segment was before nobody has been told of.
        let mapped = unsafe { body.piece.move_to(job, Some(at)) };
        let mut inner = self.lock();
        if mapped.is_ok() {
            body.place = Some(at);
            inner.places.insert(at, handle);
        }
        inner.bodies.insert(handle, body);
        mapped
    }

    /// Unmaps whole mappings in a range: ours, and else the driver's.
    fn unmap(&self, job: &'static Job, at: u64, bytes: u64) -> Result<(), Code> {
        let mut inner = self.lock();
        let end = at.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let ours: Vec<(u64, u64)> = inner.places.range(at..end).map(|(at, handle)| (*at, *handle)).collect();
        let covered: u64 = ours.iter().map(|(_, handle)| inner.bodies[handle].piece.bytes().get()).sum();
        if ours.is_empty() {
            drop(inner);
            // SAFETY: the caller's arguments, passed on.
            check(unsafe { real::cuMemUnmap(at, bytes as usize) })?;
            let over = self.lock().of_driver.unmapped(at..end);
            forget(Some(job), over);
            return Ok(());
        }
        if covered != bytes {
            return Err(INVALID_VALUE);
        }
        let bodies: Vec<(u64, Body)> = ours
            .iter()
            .map(|(place, handle)| {
                inner.places.remove(place);
                (*handle, inner.bodies.remove(handle).expect("what is mapped is known"))
            })
            .collect();
        drop(inner);
        // All of them, whatever befalls one; then the first failure is told.
        let came: Vec<Result<(), Code>> =
            bodies.into_iter().map(|(handle, body)| self.come_home(job, handle, body)).collect();
        came.into_iter().collect()
    }

    /// A segment that is not mapped any more goes, or waits for its next mapping at an address of its own. After a failure
    /// it is still mapped.
    fn come_home(&self, job: &'static Job, handle: u64, mut body: Body) -> Result<(), Code> {
        let place = body.place.take();
        if body.is_over() {
            drop(body);
            return Ok(());
        }
        // SAFETY: the program promises that nothing uses the mapping which it gives up.
        let moved = unsafe { body.piece.move_to(job, None) };
        let mut inner = self.lock();
        if let (Err(_), Some(at)) = (moved, place) {
            body.place = place;
            inner.places.insert(at, handle);
        }
        inner.bodies.insert(handle, body);
        moved
    }

    fn retain(&self, at: u64) -> Option<u64> {
        let base = self.range_of(at)?.base;
        let mut inner = self.lock();
        let handle = *inner.places.get(&base)?;
        inner.bodies.get_mut(&handle)?.handles += 1;
        Some(handle)
    }

    /// Takes a body that is not mapped out of the table for a call that must not hold the lock; nobody else finds it meanwhile.
    fn borrow_to_map(&self, handle: u64, bytes: Bytes) -> Result<Body, Code> {
        let mut inner = self.lock();
        let body =
            inner.bodies.get(&handle).filter(|body| body.piece.bytes() == bytes).ok_or(INVALID_VALUE)?;
        // One mapping a handle.
        if body.place.is_some() {
            return Err(NOT_SUPPORTED);
        }
        inner.bodies.remove(&handle).ok_or(INVALID_VALUE)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body {
    fn is_over(&self) -> bool {
        self.handles == 0 && self.place.is_none()
    }
}
