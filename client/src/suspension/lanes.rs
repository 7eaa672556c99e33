//! The lanes of each device, made when the first segment moves and kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpulease_words::DeviceId;

use crate::device::{Device, DeviceKind};
use crate::gpus::Gpus;
use crate::memory::MapError;
use crate::swap::Lane;

/// One segment goes out and one comes in at a time on each device: a link is no faster with more, and the first is
/// there sooner.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<BTreeMap<DeviceId, Arc<Pair>>>);

#[derive(Debug)]
pub(crate) struct Pair {
    out: Mutex<Lane>,
    back: Mutex<Lane>,
}

impl Lanes {
    /// Blocks for as long as it takes to make streams where there are none yet.
    pub(crate) fn of(&self, gpus: &Gpus, device: &Device) -> Result<Arc<Pair>, MapError> {
        let mut lanes = lock(&self.0);
        if let Some(pair) = lanes.get(&device.id) {
            return Ok(Arc::clone(pair));
        }
        let lane = || match device.kind {
            DeviceKind::Host => Ok(Lane::Host),
            DeviceKind::Cuda => Ok::<_, MapError>(Lane::cuda(&gpus.context(device)?)?),
        };
        let pair = Arc::new(Pair { out: Mutex::new(lane()?), back: Mutex::new(lane()?) });
        lanes.insert(device.id, Arc::clone(&pair));
        Ok(pair)
    }
}

impl Pair {
    /// The way out, for one segment.
    pub(crate) fn out(&self) -> MutexGuard<'_, Lane> {
        lock(&self.out)
    }

    /// The way back, for one segment.
    pub(crate) fn back(&self) -> MutexGuard<'_, Lane> {
        lock(&self.back)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
