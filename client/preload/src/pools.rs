//! Memory in the order of a stream: `cuMemAllocAsync` and the pools.
//!
//! What is taken may be used at once, which is more than is asked. What is freed waits behind an event for the work before
//! it; the same stream may have it again at once, others when that work is done. It is kept for that until memory is
//! short, others want it, or the program trims its pool.
//!
//! While a stream records a graph, memory of its own is the driver's; so is that of pools which are made to be exported.

mod figures;
mod home;
mod waiting;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_client::Bytes;

use crate::arrays;
use crate::budget::put;
use crate::capture;
use crate::charged;
use crate::code::{Code, INVALID_VALUE, SUCCESS, check, code_of};
use crate::driver;
use crate::entries::{Streams, real};
use crate::job::{self, Job};
use crate::memory;
use figures::Figures;
use home::Home;
pub(crate) use home::{Location, Properties, create, current_of, default_of};
use waiting::{Line, Order, Waiting};

const RELEASE_THRESHOLD: c_uint = 4;
const RESERVED_NOW: c_uint = 5;
const RESERVED_MOST: c_uint = 6;
const USED_NOW: c_uint = 7;
const USED_MOST: c_uint = 8;

/// What is taken and freed in the order of streams.
#[derive(Default)]
pub(crate) struct Pools {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By address.
    taken: BTreeMap<u64, Taken>,
    freed: Line,
    figures: BTreeMap<usize, Figures>,
    /// Of the pools that the program has made or asked for.
    homes: BTreeMap<usize, Home>,
}

/// An allocation.
#[derive(Clone, Copy)]
struct Taken {
    pool: usize,
    device: i32,
    bytes: Bytes,
}

/// `cuMemAllocAsync`
pub(crate) unsafe fn allocate(out: *mut u64, bytes: usize, stream: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let real = || unsafe { real::cuMemAllocAsync(out, bytes, stream) };
    // SAFETY: a pointer to an address, or null.
    unsafe { served(out, bytes, None, (stream, Streams::Shared), real) }
}

/// `cuMemAllocAsync` with threads' own default streams.
pub(crate) unsafe fn allocate_per_thread(out: *mut u64, bytes: usize, stream: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let real = || unsafe { real::cuMemAllocAsync_ptsz(out, bytes, stream) };
    // SAFETY: a pointer to an address, or null.
    unsafe { served(out, bytes, None, (stream, Streams::PerThread), real) }
}

/// `cuMemAllocFromPoolAsync`
pub(crate) unsafe fn allocate_from(
    out: *mut u64,
    bytes: usize,
    pool: *mut c_void,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let real = || unsafe { real::cuMemAllocFromPoolAsync(out, bytes, pool, stream) };
    // SAFETY: a pointer to an address, or null.
    unsafe { served(out, bytes, Some(pool), (stream, Streams::Shared), real) }
}

/// `cuMemAllocFromPoolAsync` with threads' own default streams.
pub(crate) unsafe fn allocate_from_per_thread(
    out: *mut u64,
    bytes: usize,
    pool: *mut c_void,
    stream: *mut c_void,
) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let real = || unsafe { real::cuMemAllocFromPoolAsync_ptsz(out, bytes, pool, stream) };
    // SAFETY: a pointer to an address, or null.
    unsafe { served(out, bytes, Some(pool), (stream, Streams::PerThread), real) }
}

/// # Safety
/// `out` is to an address, or null.
unsafe fn served(
    out: *mut u64,
    bytes: usize,
    pool: Option<*mut c_void>,
    (stream, streams): (*mut c_void, Streams),
    real: impl Fn() -> Code,
) -> Code {
    let take = || {
        let Some(job) = job::current()? else { return check(real()) };
        let here = driver::current_device()?;
        let from = pool.unwrap_or_else(|| pool_of(here));
        let home = match pool {
            Some(pool) => job.pools.home_of(job, pool),
            None => job.pools.lock().homes.get(&(from as usize)).copied(),
        };
        let device = match home.unwrap_or(Home::Lease(here)) {
            Home::Host => return check(real()),
            Home::Driver(_) | Home::Lease(_) if capture::is_of(stream) => {
                return check(arrays::recorded(job, bytes, real));
            }
            Home::Driver(device) => return check(arrays::pooled(job, device, bytes, real)),
            Home::Lease(device) => device,
        };
        if out.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let wanted = Taken { pool: from as usize, device, bytes: Bytes::new(bytes as u64) };
        let at = job.pools.take(job, wanted, Order::of(stream, streams))?;
        // SAFETY: it is not null.
        unsafe { put(out, at) }
    };
    code_of(take())
}

/// `cuMemFreeAsync`
pub(crate) unsafe fn free(at: u64, stream: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    given(at, stream, Streams::Shared, || unsafe { real::cuMemFreeAsync(at, stream) })
}

/// `cuMemFreeAsync` with threads' own default streams.
pub(crate) unsafe fn free_per_thread(at: u64, stream: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    given(at, stream, Streams::PerThread, || unsafe { real::cuMemFreeAsync_ptsz(at, stream) })
}

fn given(at: u64, stream: *mut c_void, streams: Streams, real: impl FnOnce() -> Code) -> Code {
    let give = || {
        let Some(job) = job::current()?.filter(|job| job.pools.lock().taken.contains_key(&at)) else {
            return check(real());
        };
        if capture::is_of(stream) {
            // What no graph has taken no graph can free.
            return Err(INVALID_VALUE);
        }
        job.pools.give(job, at, stream, streams)
    };
    code_of(give())
}

/// `cuMemPoolDestroy`
pub(crate) unsafe fn destroy(pool: *mut c_void) -> Code {
    if let Ok(Some(job)) = job::current() {
        let mut inner = job.pools.lock();
        inner.homes.remove(&(pool as usize));
        let kept = inner.freed.of_pool(pool as usize);
        drop(inner);
        job.pools.end(job, kept);
        job.pools.lock().figures.remove(&(pool as usize));
    }
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuMemPoolDestroy(pool) }
}

/// After a wait for the device or a stream pools give back what they keep beyond what the program lets them keep.
pub(crate) fn after_wait(code: Code) -> Code {
    if code == SUCCESS
        && let Some(job) = job::if_joined()
        && !capture::is_under_way()
    {
        let pools = job.pools.lock().freed.pools();
        for pool in pools {
            let keep = threshold(pool);
            let excess = job.pools.lock().freed.beyond(pool, keep);
            job.pools.end(job, excess);
        }
    }
    code
}

/// How much a pool keeps over a wait.
fn threshold(pool: usize) -> Bytes {
    let mut keep = 0_u64;
    // SAFETY: the value of this attribute is a number of 64 bits.
    let code = unsafe {
        real::cuMemPoolGetAttribute(pool as *mut c_void, RELEASE_THRESHOLD, (&raw mut keep).cast())
    };
    if code == SUCCESS { Bytes::new(keep) } else { Bytes::ZERO }
}

/// `cuMemPoolTrimTo`: all that is ready goes, which is what most programs ask for.
pub(crate) unsafe fn trim(pool: *mut c_void, keep: usize) -> Code {
    if let Ok(Some(job)) = job::current() {
        let excess = job.pools.lock().freed.beyond(pool as usize, Bytes::new(keep as u64));
        job.pools.end(job, excess);
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { real::cuMemPoolTrimTo(pool, keep) }
}

/// `cuMemPoolGetAttribute`
pub(crate) unsafe fn attribute(pool: *mut c_void, attribute: c_uint, value: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuMemPoolGetAttribute(pool, attribute, value) };
    let (true, Ok(Some(job))) = (code == SUCCESS, job::current()) else { return code };
    let figures = job.pools.lock().figures.get(&(pool as usize)).copied().unwrap_or_default();
    let ours = match attribute {
        RESERVED_NOW => figures.reserved,
        RESERVED_MOST => figures.reserved_most,
        USED_NOW => figures.used,
        USED_MOST => figures.used_most,
        _ => return code,
    };
    // SAFETY: the driver has just written a number of 64 bits there, of what it has itself.
    unsafe { *value.cast::<u64>() += ours.get() };
    code
}

/// `cuMemPoolSetAttribute`: the highest figures can be set back.
pub(crate) unsafe fn set_attribute(pool: *mut c_void, attribute: c_uint, value: *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    let code = unsafe { real::cuMemPoolSetAttribute(pool, attribute, value) };
    if code == SUCCESS
        && let Ok(Some(job)) = job::current()
        && let Some(figures) = job.pools.lock().figures.get_mut(&(pool as usize))
    {
        match attribute {
            RESERVED_MOST => figures.reserved_most = figures.reserved,
            USED_MOST => figures.used_most = figures.used,
            _ => {}
        }
    }
    code
}

/// The pool that a device takes memory from where none is named.
fn pool_of(device: c_int) -> *mut c_void {
    let mut pool = null_mut();
    // SAFETY: the pointer is to a handle of ours; where the driver has no pools it stays null.
    unsafe { driver::cuDeviceGetMemPool(&mut pool, device) };
    pool
}

impl Pools {
    fn take(&self, job: &'static Job, taken: Taken, order: Order) -> Result<u64, Code> {
        let mut inner = self.lock();
        if let Some(again) = inner.freed.again(taken.pool, taken.device, taken.bytes, order) {
            let taken = Taken { bytes: again.bytes, ..taken };
            inner.taken.insert(again.at, taken);
            inner.figures.entry(taken.pool).or_default().use_again(taken.bytes);
            return Ok(again.at);
        }
        drop(inner);
        let at = memory::on(job, taken.device, taken.bytes.get() as usize)?;
        let mut inner = self.lock();
        inner.taken.insert(at, taken);
        inner.figures.entry(taken.pool).or_default().take(taken.bytes);
        Ok(at)
    }

    fn give(&self, job: &'static Job, at: u64, stream: *mut c_void, streams: Streams) -> Result<(), Code> {
        let mut inner = self.lock();
        let Some(Taken { pool, device, bytes }) = inner.taken.remove(&at) else { return Err(INVALID_VALUE) };
        inner.figures.entry(pool).or_default().give(bytes);
        let spare = inner.freed.spare_event();
        // Unlocked, since a stream that is full of work takes the mark only when some of it is done.
        drop(inner);
        let marked = waiting::mark(spare, stream, streams);
        let mut inner = self.lock();
        match marked {
            Ok(event) => {
                inner.freed.add(Waiting {
                    at,
                    bytes,
                    pool,
                    device,
                    stream: Order::of(stream, streams),
                    event,
                });
                Ok(())
            }
            Err(unused) => {
                unused.into_iter().for_each(|event| inner.freed.take_back(event));
                // A stream of another context: then all of it is waited for.
                inner.figures.entry(pool).or_default().gone(bytes);
                drop(inner);
                let done = driver::synchronize_on(device);
                job.heap.free_unused(at);
                done
            }
        }
    }

    /// What the driver keeps for pools of its own on a device.
    pub(crate) fn of_driver(&self, device: c_int) -> Bytes {
        // Locked, so that no pool is destroyed meanwhile.
        let inner = self.lock();
        let here = inner.homes.iter().filter(|(_, home)| **home == Home::Driver(device));
        here.map(|(pool, _)| charged::of_pool(*pool as *mut c_void)).sum()
    }

    /// All memory of a device goes.
    pub(crate) fn let_go(&self, device: c_int) {
        let mut inner = self.lock();
        inner.taken.retain(|_, taken| taken.device != device);
        inner.freed.let_go(device);
        inner.figures.clear();
    }

    /// An allocation of ours that is freed out of the order of streams.
    pub(crate) fn forget(&self, at: u64) {
        let mut inner = self.lock();
        if let Some(Taken { pool, bytes, .. }) = inner.taken.remove(&at) {
            let figures = inner.figures.entry(pool).or_default();
            figures.give(bytes);
            figures.gone(bytes);
        }
    }

    /// Gives all back that is kept for later, after the work that uses it. Whether there was any.
    pub(crate) fn reclaim(&self, job: &'static Job) -> bool {
        if capture::is_under_way() {
            return false;
        }
        let all = self.lock().freed.all();
        let any = !all.is_empty();
        self.end(job, all);
        any
    }

    fn end(&self, job: &'static Job, freed: Vec<Waiting>) {
        for waiting in freed {
            let mut inner = self.lock();
            inner.figures.entry(waiting.pool).or_default().gone(waiting.bytes);
            drop(inner);
            // An error is of work that ran before, and somebody else's to see.
            let _ = waiting.wait();
            job.heap.free_unused(waiting.at);
            self.lock().freed.take_back(waiting.event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
