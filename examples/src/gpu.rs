//! A GPU of this process, ready for the training kernels.

use anyhow::{Context as _, Result, ensure};
use gpulease_client::Bytes;
use gpulease_cuda::{Context, DeviceMemory, Driver};

use crate::backend::Arena;
use crate::backend::cuda::{Cuda, DeviceFloats, Kernels};
use crate::trainer::Work;

/// A context on a GPU, with the kernels loaded into it.
#[derive(Debug)]
pub struct Gpu {
    // Before the context, without which it can't be unloaded.
    kernels: Kernels,
    context: Context,
}

/// Where a run of device memory begins, and its size.
pub type Run = (u64, Bytes);

impl Gpu {
    /// The GPU with that number in CUDA's order.
    ///
    /// # Errors
    /// No driver, an old one, no such GPU, or no room for a context on it.
    pub fn numbered(ordinal: usize) -> Result<Self> {
        let driver = Driver::load()?;
        let devices = driver.devices()?;
        let there = devices.len();
        let device = devices.into_iter().nth(ordinal);
        let device = device.with_context(|| {
            format!("this process sees {there} GPUs, and none of them is number {ordinal}")
        })?;
        Self::on(driver, device)
    }

    /// The GPU with that UUID.
    ///
    /// # Errors
    /// As [`numbered`](Self::numbered).
    pub fn with_uuid(uuid: &str) -> Result<Self> {
        let driver = Driver::load()?;
        let device = driver.device(uuid.parse()?)?;
        Self::on(driver, device.with_context(|| format!("this process sees no GPU {uuid}"))?)
    }

    fn on(driver: &'static Driver, device: gpulease_cuda::Device) -> Result<Self> {
        driver.check_cudarc()?;
        let context = Context::retain(device)?;
        context.make_current()?;
        Ok(Self { kernels: Kernels::load()?, context })
    }

    /// Memory that no broker knows of.
    ///
    /// # Errors
    /// The card has too little.
    pub fn allocate(&self, bytes: Bytes) -> Result<DeviceMemory> {
        Ok(DeviceMemory::allocate(&self.context, bytes)?)
    }

    /// Does some work in memory of this GPU, and waits until the GPU has done it.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Safety
    /// All of `memory` is mapped for reading and writing in this GPU's primary context until this returns, and
    /// nothing else uses it meanwhile.
    pub unsafe fn work<W: Work>(&self, memory: &[Run], work: W) -> Result<W::Output> {
        self.context.make_current()?;
        let mut spans = Vec::with_capacity(memory.len());
        for (address, bytes) in memory {
            let floats = usize::try_from(bytes.get() / 4)?;
            ensure!(
                address % 256 == 0,
                "memory at {address:#x} is not aligned as CUDA's allocators align it"
            );
            // SAFETY: the caller vouches for the memory, and the work is done before we return.
            spans.push(unsafe { DeviceFloats::new(*address, floats) });
        }
        let output = work.on(&mut Cuda::new(&self.kernels), Arena::new(spans));
        // Also where the work failed half-way: what it began still uses the memory.
        self.context.synchronize()?;
        output
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The kernels are unloaded from the current context. A context that can't be current has lost them.
        let _ = self.context.make_current();
    }
}
