//! The program's device memory: segments of the lease, whole or in parts.
//!
//! A segment costs a trip to the broker and is a multiple of 2 MiB. So small allocations are parts of *chunks*, which
//! are segments too and grow with what the program takes in small parts; large ones are a segment each.

mod chunk;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_client::{Bytes, DeviceId, Reason, blocking, mib};

use crate::code::{Code, OUT_OF_MEMORY};
use crate::driver;
use crate::job::Job;
use crate::report::{Once, say};
use chunk::{Chunk, Part};

/// The first chunk of a device: the least that a segment can be.
const FIRST_CHUNK: Bytes = mib(2);
/// Large enough that a part costs next to nothing, small enough that an empty one is no loss to a small lease.
const LARGEST_CHUNK: Bytes = mib(64);
/// A chunk serves parts up to this fraction of it, so that what is lost at its end stays small.
const PARTS_OF_A_CHUNK: u64 = 4;
/// A new chunk is this fraction of what is in parts already.
const CHUNK_TO_PARTS: u64 = 4;

/// All memory of this process that is of the lease.
pub(crate) struct Heap {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// What the program has, by address.
    blocks: BTreeMap<u64, Block>,
    devices: BTreeMap<DeviceId, Arena>,
}

/// What there is on one device.
#[derive(Default)]
struct Arena {
    chunks: BTreeMap<u64, Chunk>,
    /// Segments, chunks included.
    held: Bytes,
    /// What the program has in parts.
    in_parts: Bytes,
}

/// One allocation.
enum Block {
    Whole(blocking::Segment),
    Part { device: DeviceId, chunk: u64, part: Part, bytes: Bytes },
}

/// Where an allocation begins and how large it is.
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) bytes: usize,
}

/// What came of a free.
pub(crate) enum Freed {
    /// It was of the lease. An error is of work that ran before, and the memory is free all the same.
    Ours(Result<(), Code>),
    Unknown,
}

impl Heap {
    pub(crate) fn new() -> Self {
        Self { inner: Mutex::default() }
    }

    /// Takes memory on a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the lease or the broker has no room.
    pub(crate) fn allocate(&self, job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<u64, Code> {
        let small =
            bytes.get().saturating_mul(PARTS_OF_A_CHUNK) <= self.lock().arena(device).next_chunk().get();
        if small && let Some(at) = self.part(device, bytes) {
            return Ok(at);
        }
        if small {
            self.add_chunk(job, device, bytes)?;
            return self.part(device, bytes).ok_or(OUT_OF_MEMORY);
        }
        match segment(job, device, bytes) {
            Ok((segment, at)) => {
                let mut inner = self.lock();
                let arena = inner.arena(device);
                arena.held = arena.held.saturating_add(segment.bytes());
                inner.blocks.insert(at, Block::Whole(segment));
                Ok(at)
            }
            // A chunk may have a hole of that size.
            Err(code) => self.part(device, bytes).ok_or(code),
        }
    }

    /// Gives memory back. Like the driver it waits for all work of the context before.
    pub(crate) fn free(&self, at: u64) -> Freed {
        let Some(block) = self.lock().blocks.remove(&at) else { return Freed::Unknown };
        let done = driver::synchronize();
        match block {
            Block::Whole(segment) => self.end(segment),
            Block::Part { device, chunk, part, bytes } => {
                let empty = self.lock().arena(device).take_back(chunk, part, bytes);
                empty.into_iter().for_each(|chunk| self.end(chunk.into_segment()));
            }
        }
        Freed::Ours(done)
    }

    /// The allocation that an address is in.
    pub(crate) fn range_of(&self, at: u64) -> Option<Range> {
        let inner = self.lock();
        let (base, block) = inner.blocks.range(..=at).next_back()?;
        let bytes = block.bytes().get();
        (at - base < bytes).then_some(Range { base: *base, bytes: bytes as usize })
    }

    /// What this process has of the lease on a device.
    pub(crate) fn held(&self, device: DeviceId) -> Bytes {
        self.lock().devices.get(&device).map_or(Bytes::ZERO, |arena| arena.held)
    }

    fn part(&self, device: DeviceId, bytes: Bytes) -> Option<u64> {
        let mut inner = self.lock();
        let (at, block) = inner.arena(device).part(device, bytes)?;
        inner.blocks.insert(at, block);
        Some(at)
    }

    /// Adds a chunk that has room for this; a smaller one than usual where the lease has no room for that.
    fn add_chunk(&self, job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<(), Code> {
        let usual = self.lock().arena(device).next_chunk();
        let added = segment(job, device, usual).or_else(|code| {
            let least = FIRST_CHUNK.max(bytes.round_up().unwrap_or(usual));
            if least < usual { segment(job, device, least) } else { Err(code) }
        });
        let (segment, at) = added?;
        let mut inner = self.lock();
        let arena = inner.arena(device);
        arena.held = arena.held.saturating_add(segment.bytes());
        arena.chunks.insert(at, Chunk::new(segment, at));
        Ok(())
    }

    /// Unmaps a segment and gives it back to the broker.
    fn end(&self, segment: blocking::Segment) {
        let (device, bytes) = (segment.device(), segment.bytes());
        // Unlocked: it waits for the device.
        drop(segment);
        let mut inner = self.lock();
        let arena = inner.arena(device);
        arena.held = arena.held.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn arena(&mut self, device: DeviceId) -> &mut Arena {
        self.devices.entry(device).or_default()
    }
}

impl Arena {
    /// How large the next chunk is to be.
    fn next_chunk(&self) -> Bytes {
        let wanted = Bytes::new(self.in_parts.get() / CHUNK_TO_PARTS);
        wanted.round_up().unwrap_or(LARGEST_CHUNK).clamp(FIRST_CHUNK, LARGEST_CHUNK)
    }

    fn part(&mut self, device: DeviceId, bytes: Bytes) -> Option<(u64, Block)> {
        // The newest first: it has the most room.
        let (chunk, part, at) = self.chunks.iter_mut().rev().find_map(|(base, chunk)| {
            let (part, at) = chunk.part(bytes)?;
            Some((*base, part, at))
        })?;
        self.in_parts = self.in_parts.saturating_add(bytes);
        Some((at, Block::Part { device, chunk, part, bytes }))
    }

    /// A part is free again. Returns the chunk where it is empty and not the only one that is.
    fn take_back(&mut self, base: u64, part: Part, bytes: Bytes) -> Option<Chunk> {
        self.in_parts = self.in_parts.saturating_sub(bytes);
        self.chunks.get_mut(&base)?.take_back(part);
        let spare = self.chunks.iter().any(|(other, chunk)| *other != base && chunk.is_empty());
        if self.chunks[&base].is_empty() && (spare || self.in_parts.is_zero()) {
            return self.chunks.remove(&base);
        }
        None
    }
}

impl Block {
    fn bytes(&self) -> Bytes {
        match self {
            Self::Whole(segment) => segment.bytes(),
            Self::Part { bytes, .. } => *bytes,
        }
    }
}

/// Takes a segment of the lease; returns its address, too.
fn segment(job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<(blocking::Segment, u64), Code> {
    let resident = job.enter()?;
    let segment = job.lease.allocation(bytes).on(device).no_wait().allocate().map_err(|error| {
        refused(job, bytes, &error);
        OUT_OF_MEMORY
    })?;
    let at = segment.device_ptr(resident).map_err(|error| {
        say(&error.to_string());
        OUT_OF_MEMORY
    })?;
    Ok((segment, at))
}

/// Says why there is no memory, once for each kind: a program may ask often.
fn refused(job: &Job, bytes: Bytes, error: &gpulease_client::AskError) {
    static LIMIT: Once = Once::new();
    static ROOM: Once = Once::new();
    static FAILED: Once = Once::new();
    let once = match error.denied().map(|denied| denied.reason) {
        Some(Reason::BeyondLease) => &LIMIT,
        Some(_) => &ROOM,
        None => &FAILED,
    };
    once.say(|| format!("no memory for {bytes} in lease {}: {error}", job.lease.id()));
}
