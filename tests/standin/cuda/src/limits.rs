//! Limits of a context, of which two cost memory of the device.

use std::sync::Arc;

use gpulease_words::Bytes;

use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::pointer::put;
use crate::vmm::create;

/// Threads that a device can run at once: each has a stack.
const THREADS: usize = 132 * 2048;

/// `CUlimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// Of each thread.
    Stack,
    PrintfBuffer,
    /// What kernels take by `malloc`.
    Heap,
    /// One that this driver keeps and does nothing with.
    Other(u32),
}

impl Limit {
    fn of(number: u32) -> Result<Self, Code> {
        match number {
            0 => Ok(Self::Stack),
            1 => Ok(Self::PrintfBuffer),
            2 => Ok(Self::Heap),
            3..=6 => Ok(Self::Other(number)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// What a context has of it before anybody asks, which is within what the context costs.
    fn first(self) -> usize {
        match self {
            Self::Stack => 1024,
            Self::PrintfBuffer => 1 << 20,
            Self::Heap => 8 << 20,
            Self::Other(_) => 0,
        }
    }

    /// The memory that this much of it takes beyond that.
    fn cost(self, value: usize) -> Bytes {
        let more = value.saturating_sub(self.first());
        let all = match self {
            Self::Stack => more.saturating_mul(THREADS),
            Self::PrintfBuffer | Self::Heap => more,
            Self::Other(_) => 0,
        };
        Bytes::new(all as u64)
    }
}

entry_points! {
    3010 fn cuCtxSetLimit(driver, limit: u32, value: usize) {
        set(driver, Limit::of(limit)?, value)
    }

    3010 fn cuCtxGetLimit(driver, out: *mut usize, limit: u32) {
        let limit = Limit::of(limit)?;
        let handle = driver.current_context()?;
        let value = driver.state().contexts.get(handle)?.limits.get(&limit).map_or(limit.first(), |(value, _)| *value);
        // SAFETY: the header wants a pointer to a size, or null.
        unsafe { put(out, value) }
    }
}

fn set(driver: &Driver, limit: Limit, value: usize) -> Outcome {
    let (handle, device) = (driver.current_context()?, driver.current_device()?);
    let bytes = limit.cost(value).round_up().ok_or(Code::OUT_OF_MEMORY)?;
    // What the old value cost is given up first.
    let before = driver.state().contexts.get(handle)?.limits.remove(&limit);
    drop(before);
    let held = if bytes.is_zero() { None } else { Some(Arc::new(create(driver, device, bytes)?)) };
    driver.state().contexts.get(handle)?.limits.insert(limit, (value, held));
    Ok(())
}
