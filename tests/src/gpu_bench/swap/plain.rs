//! What the link does for a plain copy: one call, pinned memory, nothing else.

use std::time::{Duration, Instant};

use gpulease_cuda::{Context, DeviceMemory, PinnedMemory, Stream};
use gpulease_words::Bytes;

/// Buffers on both sides for each direction.
pub(super) struct Plain {
    out: Side,
    back: Side,
}

struct Side {
    device: DeviceMemory,
    host: PinnedMemory,
    stream: Stream,
    bytes: Bytes,
}

impl Plain {
    pub(super) fn new(context: &Context, buffer: Bytes) -> anyhow::Result<Self> {
        Ok(Self { out: Side::new(context, buffer)?, back: Side::new(context, buffer)? })
    }

    /// So much from the device to the host.
    pub(super) fn out(&self, bytes: Bytes) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.out.queue_out(bytes)?;
        self.out.stream.synchronize()?;
        Ok(start.elapsed())
    }

    /// So much from the host to the device.
    pub(super) fn back(&self, bytes: Bytes) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.back.queue_back(bytes)?;
        self.back.stream.synchronize()?;
        Ok(start.elapsed())
    }

    /// So much in each direction at the same time.
    pub(super) fn both_ways(&self, bytes: Bytes) -> anyhow::Result<Duration> {
        let start = Instant::now();
        self.out.queue_out(bytes)?;
        self.back.queue_back(bytes)?;
        self.out.stream.synchronize()?;
        self.back.stream.synchronize()?;
        Ok(start.elapsed())
    }
}

impl Side {
    fn new(context: &Context, bytes: Bytes) -> anyhow::Result<Self> {
        let (device, host) =
            (DeviceMemory::allocate(context, bytes)?, PinnedMemory::allocate(context, bytes)?);
        Ok(Self { device, host, stream: Stream::new(context)?, bytes })
    }

    fn queue_out(&self, mut bytes: Bytes) -> anyhow::Result<()> {
        while !bytes.is_zero() {
            let part = bytes.min(self.bytes);
            // SAFETY: both buffers are as large and this type's own; what is in them is never looked at.
            unsafe { self.stream.copy_to_host(self.host.start(), self.device.ptr(), part) }?;
            bytes = bytes.saturating_sub(part);
        }
        Ok(())
    }

    fn queue_back(&self, mut bytes: Bytes) -> anyhow::Result<()> {
        while !bytes.is_zero() {
            let part = bytes.min(self.bytes);
            // SAFETY: as above.
            unsafe { self.stream.copy_to_device(self.device.ptr(), self.host.start(), part) }?;
            bytes = bytes.saturating_sub(part);
        }
        Ok(())
    }
}
