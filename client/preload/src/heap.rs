//! The program's device memory: segments of the lease, whole or in parts.
//!
//! A segment costs a trip to the broker and is a multiple of 2 MiB. So small allocations are parts of *chunks*, which
//! are segments too and grow with what the program takes in small parts; large ones are a segment each.

mod chunk;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpulease_client::{Bytes, DeviceId, mib};

use crate::capture;
use crate::code::{Code, OUT_OF_MEMORY};
use crate::job::Job;
use crate::piece::Piece;
use chunk::{Chunk, Part};

/// The least that a segment can be.
const LEAST_CHUNK: Bytes = mib(2);
/// The first chunk is this fraction of the lease, and no more than this: one trip to the broker, a millisecond or two, serves
/// 10,000 small parts.
const FIRST_OF_LIMIT: u64 = 256;
const LARGEST_FIRST: Bytes = mib(16);
/// Large enough that a part costs next to nothing, small enough that an empty one is no loss to a small lease.
const LARGEST_CHUNK: Bytes = mib(64);
/// A chunk serves parts up to this fraction of it, so that what is lost at its end stays small.
const PARTS_OF_A_CHUNK: u64 = 4;
/// A new chunk is this fraction of what is in parts already.
const CHUNK_TO_PARTS: u64 = 4;

/// All memory of this process that is of the lease.
pub(crate) struct Heap {
    inner: Mutex<Inner>,
    /// How many wait in limbo, for who need not lock to know.
    limbo: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    /// What the program has that is a segment each, by address.
    wholes: BTreeMap<u64, Box<Piece>>,
    devices: BTreeMap<DeviceId, Arena>,
    /// What was freed while a stream recorded, when nobody could wait for the device.
    limbo: Vec<Block>,
}

/// What there is on one device.
#[derive(Default)]
struct Arena {
    chunks: BTreeMap<u64, Chunk>,
    /// What the program has in parts.
    in_parts: Bytes,
}

/// An allocation on its way back.
enum Block {
    Whole(Box<Piece>),
    Part { device: DeviceId, chunk: u64, part: Part },
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
        Self { inner: Mutex::default(), limbo: AtomicUsize::new(0) }
    }

    /// Takes memory on a device.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the lease or the broker has no room.
    pub(crate) fn allocate(&self, job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<u64, Code> {
        self.leave_limbo(job);
        let mut inner = self.lock();
        let parts = bytes.get().saturating_mul(PARTS_OF_A_CHUNK);
        let small = parts <= LEAST_CHUNK.get() || parts <= inner.arena(device).next_chunk(job.limit()).get();
        if small && let Some(at) = inner.part(device, bytes) {
            return Ok(at);
        }
        drop(inner);
        if small {
            self.add_chunk(job, device, bytes)?;
            return self.part(device, bytes).ok_or(OUT_OF_MEMORY);
        }
        match Piece::take(job, device, bytes) {
            Ok(piece) => {
                let at = piece.at();
                self.lock().wholes.insert(at, Box::new(piece));
                Ok(at)
            }
            // A chunk may have a hole of that size.
            Err(code) => self.part(device, bytes).ok_or(code),
        }
    }

    /// Gives memory back. Like the driver it waits for all work before on the memory's device, whichever is current.
    pub(crate) fn free(&self, job: &Job, at: u64) -> Freed {
        let mut inner = self.lock();
        let Some(block) = inner.strike(at) else { return Freed::Unknown };
        if capture::is_under_way() {
            inner.limbo.push(block);
            self.limbo.store(inner.limbo.len(), Ordering::Relaxed);
            return Freed::Ours(Ok(()));
        }
        drop(inner);
        let done = job.synchronize(block.device());
        self.end(block);
        Freed::Ours(done)
    }

    /// As [`Self::free`], for memory that no work uses any more.
    pub(crate) fn free_unused(&self, at: u64) {
        let block = self.lock().strike(at);
        block.into_iter().for_each(|block| self.end(block));
    }

    /// Gives all memory of a device back.
    pub(crate) fn let_go(&self, device: DeviceId) {
        let mut inner = self.lock();
        let wholes = std::mem::take(&mut inner.wholes);
        let (gone, kept): (BTreeMap<_, _>, _) =
            wholes.into_iter().partition(|(_, piece)| piece.device() == device);
        inner.wholes = kept;
        inner.limbo.retain(|block| block.device() != device);
        let chunks = inner.devices.remove(&device);
        drop(inner);
        drop((gone, chunks));
    }

    /// What was freed while a stream recorded is free once none does.
    pub(crate) fn leave_limbo(&self, job: &Job) {
        if self.limbo.load(Ordering::Relaxed) == 0 || capture::is_under_way() {
            return;
        }
        self.limbo.store(0, Ordering::Relaxed);
        let limbo = std::mem::take(&mut self.lock().limbo);
        let devices: BTreeSet<DeviceId> = limbo.iter().map(Block::device).collect();
        for device in devices {
            // An error is of work that ran before, and somebody else's to see.
            let _ = job.synchronize(device);
        }
        limbo.into_iter().for_each(|block| self.end(block));
    }

    /// The allocation that an address is in.
    pub(crate) fn range_of(&self, at: u64) -> Option<Range> {
        let inner = self.lock();
        let part = inner.devices.values().find_map(|arena| arena.chunk_of(at)?.range_of(at));
        let whole = || {
            let (base, piece) = inner.wholes.range(..=at).next_back()?;
            let bytes = piece.bytes().get();
            (at - base < bytes).then_some(Range { base: *base, bytes: bytes as usize })
        };
        part.or_else(whole)
    }

    fn part(&self, device: DeviceId, bytes: Bytes) -> Option<u64> {
        self.lock().part(device, bytes)
    }

    /// Adds a chunk that has room for this; a smaller one than usual where the lease has no room for that.
    fn add_chunk(&self, job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<(), Code> {
        let usual = self.lock().arena(device).next_chunk(job.limit());
        let added = Piece::take(job, device, usual).or_else(|code| {
            let least = LEAST_CHUNK.max(bytes.round_up().unwrap_or(usual));
            if least < usual { Piece::take(job, device, least) } else { Err(code) }
        });
        let chunk = Chunk::new(added?);
        self.lock().arena(device).chunks.insert(chunk.base(), chunk);
        Ok(())
    }

    /// Unlocked where a segment goes, since that waits for the device.
    fn end(&self, block: Block) {
        let empty = match block {
            Block::Whole(_) => Vec::new(),
            Block::Part { device, chunk, part } => self.lock().arena(device).take_back(chunk, part),
        };
        drop(empty);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn part(&mut self, device: DeviceId, bytes: Bytes) -> Option<u64> {
        self.arena(device).part(bytes)
    }

    /// The allocation that begins at this address is the program's no more.
    fn strike(&mut self, at: u64) -> Option<Block> {
        let part = self.devices.iter_mut().find_map(|(device, arena)| arena.strike(*device, at));
        part.or_else(|| self.wholes.remove(&at).map(Block::Whole))
    }

    fn arena(&mut self, device: DeviceId) -> &mut Arena {
        self.devices.entry(device).or_default()
    }
}

impl Arena {
    /// How large the next chunk is to be in a lease of this limit.
    fn next_chunk(&self, limit: Bytes) -> Bytes {
        let up = |bytes: u64| Bytes::new(bytes).round_up().unwrap_or(LARGEST_CHUNK);
        let first = up(limit.get() / FIRST_OF_LIMIT).clamp(LEAST_CHUNK, LARGEST_FIRST);
        up(self.in_parts.get() / CHUNK_TO_PARTS).clamp(first, LARGEST_CHUNK)
    }

    fn part(&mut self, bytes: Bytes) -> Option<u64> {
        // The newest first: it has the most room.
        let at = self.chunks.values_mut().rev().find_map(|chunk| chunk.part(bytes))?;
        self.in_parts = self.in_parts.saturating_add(bytes);
        Some(at)
    }

    /// The chunk that an address would be in.
    fn chunk_of(&self, at: u64) -> Option<&Chunk> {
        self.chunks.range(..=at).next_back().map(|(_, chunk)| chunk)
    }

    fn strike(&mut self, device: DeviceId, at: u64) -> Option<Block> {
        let (chunk, there) = self.chunks.range_mut(..=at).next_back()?;
        Some(Block::Part { device, chunk: *chunk, part: there.strike(at)? })
    }

    /// A part is free again. Returns the chunks that nobody needs: those that are empty, but for one while there are parts.
    fn take_back(&mut self, base: u64, part: Part) -> Vec<Chunk> {
        self.in_parts = self.in_parts.saturating_sub(part.bytes());
        let Some(chunk) = self.chunks.get_mut(&base) else { return Vec::new() };
        chunk.take_back(part);
        if !chunk.is_empty() {
            return Vec::new();
        }
        let empty = self.chunks.iter().filter(|(_, chunk)| chunk.is_empty()).map(|(base, _)| *base);
        let kept = usize::from(!self.in_parts.is_zero());
        let over: Vec<u64> = empty.skip(kept).collect();
        over.iter().filter_map(|base| self.chunks.remove(base)).collect()
    }
}

impl Block {
    fn device(&self) -> DeviceId {
        match self {
            Self::Whole(piece) => piece.device(),
            Self::Part { device, .. } => *device,
        }
    }
}
