//! The CUDA contexts of the devices that this process has segments on.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpulease_cuda::{Context, Driver};
use gpulease_words::DeviceId;

use crate::device::Device;
use crate::memory::MapError;

/// One claim on the primary context of each device, made at the first segment and kept: it is the
/// context that the program's kernels run in anyway.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    contexts: Mutex<BTreeMap<DeviceId, Context>>,
}

impl Gpus {
    /// Blocks for the time it takes to start CUDA (0.3 s) where this is the first call.
    pub(crate) fn context(&self, device: &Device) -> Result<Context, MapError> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&device.id) {
            return Ok(context.clone());
        }
        let context = retain(device)?;
        contexts.insert(device.id, context.clone());
        Ok(context)
    }

    /// Gives the claim up; the next segment makes another.
    pub(crate) fn forget(&self, device: DeviceId) {
        let gone = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
        drop(gone);
    }
}

fn retain(device: &Device) -> Result<Context, MapError> {
    let driver = Driver::load()?;
    let unseen = || MapError::NotVisible { uuid: device.uuid.clone() };
    let uuid = device.uuid.parse().map_err(|_| unseen())?;
    let found = driver.device(uuid)?.ok_or_else(unseen)?;
    Ok(Context::retain(found)?)
}
