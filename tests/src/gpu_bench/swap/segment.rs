//! A segment as a suspension meets it: memory of the card, and a host copy that is ready for it.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use gpulease_client::swap::{HostCopy, Lane, Site, Sums};
use gpulease_cuda::{Allocation, Context, Mapping};
use gpulease_words::{Bytes, mib};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

pub(super) struct Segment {
    context: Context,
    /// What the broker has of the memory.
    memory: Option<Allocation>,
    site: Site,
    copy: HostCopy,
    _mapping: Mapping,
}

impl Segment {
    /// Makes it, fills it, and prepares its host copy.
    pub(super) fn new(context: &Context, bytes: Bytes, seed: u8) -> anyhow::Result<Self> {
        let memory = Allocation::create(context.device(), bytes)?;
        let descriptor = memory.export()?;
        let mapping = Mapping::of_descriptors(context, &[(descriptor.as_fd(), bytes)])?;
        let site = Site::of(&mapping);
        let arena = memfd_create("arena", MemfdFlags::CLOEXEC)?;
        ftruncate(&arena, bytes.get())?;
        let copy = HostCopy::map(arena.as_fd(), bytes)?;
        copy.register(context)?;
        fill(context, &mapping, seed)?;
        Ok(Self { context: context.clone(), memory: Some(memory), site, copy, _mapping: mapping })
    }

    /// Copies it out and unmaps it, and then lets the broker's own handle go. Returns how long the client took.
    pub(super) fn out(&mut self, lane: &Lane) -> anyhow::Result<(Sums, Duration)> {
        let start = Instant::now();
        // SAFETY: nothing else of this process uses the segment.
        let (sums, vacated) = unsafe { lane.out(&self.site, &self.copy, || self.site.vacate()) }?;
        vacated?;
        let took = start.elapsed();
        self.memory.take().context("it was here")?.release()?;
        Ok((sums, took))
    }

    /// The broker makes the memory again.
    pub(super) fn make(&mut self) -> anyhow::Result<()> {
        self.memory = Some(Allocation::create(self.context.device(), self.site.bytes())?);
        Ok(())
    }

    /// Maps the memory and copies the bytes back in. Returns how long the client took.
    pub(super) fn back(&mut self, lane: &Lane, sums: &Sums) -> anyhow::Result<Duration> {
        let descriptor = self.memory.as_ref().context("it was made")?.export()?;
        let start = Instant::now();
        self.site.occupy(&[(descriptor.as_fd(), self.site.bytes())])?;
        // SAFETY: as above.
        unsafe { lane.back(&self.site, &self.copy, sums) }?;
        Ok(start.elapsed())
    }
}

/// Every 2 MiB has a byte of its own, so that pieces at wrong places show.
fn fill(context: &Context, mapping: &Mapping, seed: u8) -> anyhow::Result<()> {
    let step = mib(2);
    for (index, at) in (0..mapping.bytes().get()).step_by(2 << 20).enumerate() {
        let byte = seed.wrapping_add(u8::try_from(index % 251).unwrap_or(0));
        // SAFETY: the memory was just mapped by this thread, which alone uses it.
        unsafe { context.fill(mapping.ptr().offset(Bytes::new(at)), byte, step) }?;
    }
    Ok(())
}
