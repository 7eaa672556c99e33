//! Leased memory for a pluggable allocator: two C functions with the signatures that PyTorch's
//! `CUDAPluggableAllocator` asks for, and what Python needs to know of them.
//!
//! Who takes memory here keeps plain addresses, and knows nothing of guards and suspensions. So the lease is pinned
//! before the first address is given away.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpulease_client::blocking::{Lease, Segment};
use gpulease_client::{AccessError, AskError, Bytes, DeviceId, DeviceKind, Error};
use gpulease_cuda::{CudaError, Driver, Unavailable};
use pyo3::prelude::*;

use crate::error::raised;
use crate::job::{self, lock};

/// Bringing a lease back that was away when its pool was opened takes no longer where there is room.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// The pool of the process of this pid.
struct Pool {
    pid: u32,
    terms: Option<Terms>,
    segments: BTreeMap<usize, Segment>,
    /// Why the last allocation brought nothing.
    trouble: Option<String>,
}

/// Where memory comes from, and how long it may take.
#[derive(Clone)]
struct Terms {
    lease: Arc<Lease>,
    wait: Duration,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { pid: 0, terms: None, segments: BTreeMap::new(), trouble: None });

/// Why an allocation brought nothing.
enum Trouble {
    NotOpen,
    Size(isize),
    NotOfTheLease(c_int),
    Ask(AskError),
    Access(AccessError),
    NoCuda(Unavailable),
    Cuda(CudaError),
    Panicked,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotOpen => {
                f.write_str("this process has not opened the pool: call gpulease.mem_pool() in it")
            }
            Self::Size(size) => write!(f, "{size} bytes are no size"),
            Self::NotOfTheLease(ordinal) => {
                write!(f, "device {ordinal} of this process is none of the lease")
            }
            Self::Ask(error) => error.fmt(f),
            Self::Access(error) => error.fmt(f),
            Self::NoCuda(error) => error.fmt(f),
            Self::Cuda(error) => error.fmt(f),
            Self::Panicked => f.write_str("the allocation panicked; standard error has the message"),
        }
    }
}

/// Pins the lease and makes the C functions serve memory of it, above its reserve after waiting at most so many seconds.
#[pyfunction]
#[pyo3(signature = (wait_seconds=0.0))]
pub(crate) fn open_pool(py: Python<'_>, wait_seconds: f64) -> PyResult<()> {
    let wait = Duration::try_from_secs_f64(wait_seconds).unwrap_or(Duration::ZERO);
    py.detach(|| {
        let lease = job::lease()?;
        lease.pin()?;
        // Here once, it stays: it is pinned.
        drop(lease.entry().wait_at_most(BACK_WITHIN).enter()?);
        let mut pool = lock(&POOL);
        pool.mine();
        pool.terms = Some(Terms { lease, wait });
        Ok(())
    })
    .map_err(raised)
}

/// What the pool has mapped.
#[derive(IntoPyObject)]
pub(crate) struct PoolState {
    open: bool,
    segments: usize,
    held_bytes: u64,
    trouble: Option<String>,
}

/// The pool of this process as it is now.
#[pyfunction]
pub(crate) fn pool_state() -> PoolState {
    let mut pool = lock(&POOL);
    pool.mine();
    PoolState {
        open: pool.terms.is_some(),
        segments: pool.segments.len(),
        held_bytes: pool.segments.values().map(|segment| segment.bytes().get()).sum(),
        trouble: pool.trouble.clone(),
    }
}

/// No new memory; what is mapped stays.
pub(crate) fn close() {
    lock(&POOL).terms = None;
}

impl Pool {
    /// A forked child has no part in its parent's memory.
    fn mine(&mut self) {
        let pid = process::id();
        if self.pid != pid {
            *self = Self { pid, terms: None, segments: BTreeMap::new(), trouble: None };
        }
    }
}

/// Takes at least `size` bytes of the lease's memory on the device of this CUDA ordinal; null where there is none.
/// `stream` is not looked at: the memory is nobody else's before it is given out, and nobody's work uses it any more when
/// it is taken back.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gpulease_pool_allocate(
    size: isize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    // A panic may not cross into C.
    let taken = catch_unwind(AssertUnwindSafe(|| allocate(size, device))).unwrap_or(Err(Trouble::Panicked));
    let mut pool = lock(&POOL);
    match taken {
        Ok((address, segment)) => {
            pool.trouble = None;
            pool.segments.insert(address, segment);
            // The mapping lives outside of what Rust calls allocated objects, as an address from C.
            std::ptr::with_exposed_provenance_mut(address)
        }
        Err(trouble) => {
            pool.trouble = Some(trouble.to_string());
            null_mut()
        }
    }
}

/// Gives back what [`gpulease_pool_allocate`] gave, after all work in the device's context. Another address is left alone.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn gpulease_pool_free(
    address: *mut c_void,
    _size: isize,
    _device: c_int,
    _stream: *mut c_void,
) {
    // Unmapping waits for the device: not under the lock.
    let Some(segment) = lock(&POOL).segments.remove(&address.addr()) else { return };
    // The broker knows when this returns, so that what is asked for next finds the room. Where it can't be told now the
    // memory is unmapped all the same and the client tells it later. A panic may not cross into C.
    let _ = catch_unwind(AssertUnwindSafe(|| segment.free()));
}

fn allocate(size: isize, ordinal: c_int) -> Result<(usize, Segment), Trouble> {
    let bytes = u64::try_from(size).ok().filter(|bytes| *bytes > 0).ok_or(Trouble::Size(size))?;
    let Terms { lease, wait } = terms().ok_or(Trouble::NotOpen)?;
    let device = device_of(&lease, ordinal)?;
    let ask = lease.allocation(Bytes::new(bytes)).on(device);
    let ask = if wait.is_zero() { ask.no_wait() } else { ask.wait_at_most(wait) };
    let mut segment = ask.allocate().map_err(Trouble::Ask)?;
    let resident = lease.enter().map_err(|error| Trouble::Ask(error.into()))?;
    let address = match segment.kind() {
        DeviceKind::Host => {
            segment.as_mut_slice::<u8>(&resident).map(|bytes| bytes.as_mut_ptr().expose_provenance())
        }
        DeviceKind::Cuda => segment.device_ptr(&resident).map(|address| address as usize),
    };
    drop(resident);
    Ok((address.map_err(Trouble::Access)?, segment))
}

fn terms() -> Option<Terms> {
    let mut pool = lock(&POOL);
    pool.mine();
    pool.terms.clone()
}

/// The broker's device behind a number of this process. CUDA's numbers are this process's own, so the UUID decides;
/// devices of host memory are counted in the lease's order.
fn device_of(lease: &Lease, ordinal: c_int) -> Result<DeviceId, Trouble> {
    let none = || Trouble::NotOfTheLease(ordinal);
    let at = usize::try_from(ordinal).map_err(|_| none())?;
    let client = lease.client();
    let mine = client.devices().iter().filter(|device| lease.devices().contains(&device.id));
    let (gpus, host): (Vec<_>, Vec<_>) = mine.partition(|device| device.kind == DeviceKind::Cuda);
    if gpus.is_empty() {
        return host.get(at).map(|device| device.id).ok_or_else(none);
    }
    let seen = Driver::load().map_err(Trouble::NoCuda)?.devices().map_err(Trouble::Cuda)?;
    let uuid = seen.get(at).ok_or_else(none)?.uuid().map_err(Trouble::Cuda)?.to_string();
    gpus.into_iter().find(|device| device.uuid == uuid).map(|device| device.id).ok_or_else(none)
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Ask(error.into())
    }
}
