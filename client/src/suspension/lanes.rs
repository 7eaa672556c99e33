//! The lanes of each device, made when the first segment is prepared for moving and kept.

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
    /// Blocks for as long as it takes to make them where there are none yet: 0.1 s on a GPU.
    pub(crate) fn of(&self, gpus: &Gpus, device: &Device) -> Result<Arc<Pair>, MapError> {
        let mut lanes = lock(&self.0);
        if let Some(pair) = lanes.get(&device.id) {
            return Ok(Arc::clone(pair));
        }
        let out = match device.kind {
            DeviceKind::Host => Lane::Host,
            DeviceKind::Cuda => Lane::cuda(&gpus.context(device)?)?,
        };
        let back = out.another()?;
        let pair = Arc::new(Pair { out: Mutex::new(out), back: Mutex::new(back) });
        lanes.insert(device.id, Arc::clone(&pair));
        Ok(pair)
    }

    /// Gives those of a device up; the next segment that is prepared makes others.
    pub(crate) fn forget(&self, device: DeviceId) {
        let gone = lock(&self.0).remove(&device);
        drop(gone);
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
