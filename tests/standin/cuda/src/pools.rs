//! Memory pools and stream-ordered allocation.
//!
//! A pool keeps what is freed for its next allocation of the same size. What it keeps beyond its
//! threshold goes back to the card when a stream, an event or a context is waited for.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use gpulease_words::Bytes;

use crate::addresses::{Addresses, Origin};
use crate::capture::Step;
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::pointer::put;
use crate::pool_properties::Properties;
use crate::vmm::create;

/// The pools of this process, by the number that their handle is.
#[derive(Default)]
pub(crate) struct Pools {
    made: usize,
    pub(crate) pools: BTreeMap<usize, Pool>,
    /// The handle of each device's default pool and of its current one.
    of_device: BTreeMap<u32, (usize, usize)>,
}

pub(crate) struct Pool {
    pub(crate) device: u32,
    /// What it keeps even when somebody waits.
    pub(crate) threshold: u64,
    pub(crate) reserved: Gauge,
    pub(crate) used: Gauge,
    /// `REUSE_*`, which change nothing here.
    pub(crate) reuse: [u32; 3],
}

/// A figure and the highest that it was.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gauge {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

impl Gauge {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }
}

impl Pools {
    fn make(&mut self, device: u32) -> usize {
        self.made += 1;
        let handle = 0x30_0000 + self.made * 16;
        let (reserved, used) = (Gauge::default(), Gauge::default());
        self.pools.insert(handle, Pool { device, threshold: 0, reserved, used, reuse: [1; 3] });
        handle
    }

    /// The handle of the default pool and of the current one.
    pub(crate) fn of(&mut self, device: u32) -> (usize, usize) {
        if let Some(&both) = self.of_device.get(&device) {
            return both;
        }
        let first = self.make(device);
        self.of_device.insert(device, (first, first));
        (first, first)
    }

    /// Counts out what ends with a context.
    pub(crate) fn forget_context(&mut self, addresses: &Addresses, context: usize) {
        for (_, mapping) in addresses.all().filter(|(_, mapping)| mapping.context == context) {
            let (pool, used) = match mapping.origin {
                Origin::Pooled { pool, .. } => (pool, mapping.size),
                Origin::Cached { pool } => (pool, 0),
                _ => continue,
            };
            if let Some(pool) = self.pools.get_mut(&pool) {
                pool.reserved.now = pool.reserved.now.saturating_sub(mapping.size);
                pool.used.now = pool.used.now.saturating_sub(used);
            }
        }
    }

    pub(crate) fn get(&mut self, handle: usize) -> Result<&mut Pool, Code> {
        self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)
    }
}

entry_points! {
    11020 & cuMemAllocAsync_ptsz fn cuMemAllocAsync(driver, out: *mut u64, size: usize, stream: *mut c_void) {
        let device = driver.current_device()?;
        let pool = driver.state().pools.of(device).1;
        let at = allocate(driver, stream, pool, size)?;
        // SAFETY: the header wants a pointer to an address, or null.
        unsafe { put(out, at) }
    }

    11020 & cuMemAllocFromPoolAsync_ptsz fn cuMemAllocFromPoolAsync(driver, out: *mut u64, size: usize, pool: *mut c_void, stream: *mut c_void) {
        driver.state().pools.get(pool.addr())?;
        let at = allocate(driver, stream, pool.addr(), size)?;
        // SAFETY: as above.
        unsafe { put(out, at) }
    }

    11020 & cuMemFreeAsync_ptsz fn cuMemFreeAsync(driver, at: u64, stream: *mut c_void) {
        if at == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver.is_capturing(stream)? {
            return driver.record(stream, Step::Free { at });
        }
        let origin = driver.state().addresses.starting(at).map(|mapping| mapping.origin);
        match origin {
            Some(Origin::Pooled { .. }) => give_back(driver, at),
            Some(Origin::Allocated { .. }) => driver.state().addresses.take(at),
            Some(Origin::Graph { .. }) => crate::graph_memory::free(driver, at),
            Some(
                Origin::Vmm
                | Origin::Managed { .. }
                | Origin::Cached { .. }
                | Origin::Opened { .. }
                | Origin::Array
                | Origin::Variable { .. },
            )
            | None => Err(Code::INVALID_VALUE),
        }
    }

    11020 fn cuDeviceGetDefaultMemPool(driver, out: *mut *mut c_void, device: i32) {
        let pool = driver.state().pools.of(driver.device(device)?).0;
        // SAFETY: the header wants a pointer to a pool, or null.
        unsafe { put(out, std::ptr::without_provenance_mut(pool)) }
    }

    11020 fn cuDeviceGetMemPool(driver, out: *mut *mut c_void, device: i32) {
        let pool = driver.state().pools.of(driver.device(device)?).1;
        // SAFETY: as above.
        unsafe { put(out, std::ptr::without_provenance_mut(pool)) }
    }

    11020 fn cuDeviceSetMemPool(driver, device: i32, pool: *mut c_void) {
        let device = driver.device(device)?;
        let mut state = driver.state();
        if state.pools.get(pool.addr())?.device != device {
            return Err(Code::INVALID_VALUE);
        }
        let first = state.pools.of(device).0;
        state.pools.of_device.insert(device, (first, pool.addr()));
        Ok(())
    }

    11020 fn cuMemPoolCreate(driver, out: *mut *mut c_void, properties: *const Properties) {
        // SAFETY: the header wants a pointer to properties, or null.
        let properties = unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let device = driver.device(properties.device()?)?;
        let pool = driver.state().pools.make(device);
        // SAFETY: the header wants a pointer to a pool, or null.
        unsafe { put(out, std::ptr::without_provenance_mut(pool)) }
    }

    11020 fn cuMemPoolDestroy(driver, pool: *mut c_void) {
        let mut state = driver.state();
        let (handle, device) = (pool.addr(), state.pools.get(pool.addr())?.device);
        let (first, current) = state.pools.of(device);
        if handle == first {
            return Err(Code::INVALID_VALUE);
        }
        if handle == current {
            state.pools.of_device.insert(device, (first, first));
        }
        drop(state);
        trim(driver, handle, 0)?;
        // Allocations that are still out live on and go back to the card when they are freed.
        driver.state().pools.pools.remove(&handle);
        Ok(())
    }

    11020 fn cuMemPoolTrimTo(driver, pool: *mut c_void, keep: usize) {
        driver.state().pools.get(pool.addr())?;
        trim(driver, pool.addr(), keep as u64)
    }
}

fn allocate(driver: &Driver, stream: *mut c_void, pool: usize, size: usize) -> Result<u64, Code> {
    driver.check_stream(stream)?;
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = Bytes::new(size as u64).round_up().ok_or(Code::OUT_OF_MEMORY)?;
    if driver.is_capturing(stream)? {
        let device = driver.state().pools.get(pool)?.device;
        let at = driver.state().addresses.reserve(bytes.get())?;
        driver.record(stream, Step::Allocate { at, asked: size as u64, device })?;
        return Ok(at);
    }
    let origin = Origin::Pooled { asked: size as u64, pool };
    let context = driver.current_context()?;
    let cached = reuse(driver, pool, bytes, origin)?;
    let at = match cached {
        Some(at) => at,
        None => {
            let device = driver.state().pools.get(pool)?.device;
            let held = Arc::new(create(driver, device, bytes)?);
            let mut state = driver.state();
            state.pools.get(pool)?.reserved.add(bytes.get());
            state.addresses.place(origin, context, held)?
        }
    };
    driver.state().pools.get(pool)?.used.add(bytes.get());
    Ok(at)
}

/// What the pool keeps of this very size.
fn reuse(driver: &Driver, pool: usize, bytes: Bytes, origin: Origin) -> Result<Option<u64>, Code> {
    let mut state = driver.state();
    state.pools.get(pool)?;
    let kept = state.addresses.all().find_map(|(at, mapping)| {
        (mapping.origin == Origin::Cached { pool } && mapping.size == bytes.get()).then_some(at)
    });
    if let Some(mapping) = kept.and_then(|at| state.addresses.starting(at)) {
        mapping.origin = origin;
    }
    Ok(kept)
}

/// Puts an allocation back into its pool, or back to the card where there is no such pool any more.
pub(crate) fn give_back(driver: &Driver, at: u64) -> Outcome {
    let mut state = driver.state();
    let mapping = state.addresses.starting(at).ok_or(Code::INVALID_VALUE)?;
    let (Origin::Pooled { pool, .. }, size) = (mapping.origin, mapping.size) else {
        return Err(Code::INVALID_VALUE);
    };
    mapping.origin = Origin::Cached { pool };
    match state.pools.pools.get_mut(&pool) {
        Some(pool) => {
            pool.used.now = pool.used.now.saturating_sub(size);
            Ok(())
        }
        None => state.addresses.take(at),
    }
}

/// Gives back to the card what a pool keeps beyond this.
pub(crate) fn trim(driver: &Driver, pool: usize, keep: u64) -> Outcome {
    let mut state = driver.state();
    let kept: Vec<(u64, u64)> = state
        .addresses
        .all()
        .filter(|(_, mapping)| mapping.origin == Origin::Cached { pool })
        .map(|(at, mapping)| (at, mapping.size))
        .collect();
    for (at, size) in kept {
        if state.pools.get(pool)?.reserved.now <= keep {
            break;
        }
        state.addresses.take(at)?;
        let reserved = &mut state.pools.get(pool)?.reserved.now;
        *reserved = reserved.saturating_sub(size);
    }
    Ok(())
}

/// What every wait does: pools keep what their threshold says.
pub(crate) fn settle(driver: &Driver) -> Outcome {
    let pools: Vec<(usize, u64)> =
        driver.state().pools.pools.iter().map(|(&handle, pool)| (handle, pool.threshold)).collect();
    pools.into_iter().try_for_each(|(pool, threshold)| trim(driver, pool, threshold))
}
