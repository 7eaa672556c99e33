//! Host memory as a device: one memfd for each segment.
//!
//! The broker keeps a description of its own and hands over another one, both opened anew through
//! `/proc/self/fd`. The kernel counts the descriptions that are open for writing, whoever holds
//! them by descriptor, mapping or message in flight, and grants the broker a write lease
//! (`fcntl(F_SETLEASE, F_WRLCK)`) only where its own is the last: that is the proof of freedom.
//! The description that `memfd_create` itself returns is not counted, so it is closed at once and
//! never leaves this file.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpulease_words::{Bytes, Pid, SegmentId};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::holders::{Identity, Search};
use super::{Description, Device, Gauge, HandleKind, Handover, Kind, Proof};

/// Past this a segment that is still held somewhere is reported: a client unmaps before it tells, and the kernel takes
/// a killed process's memory apart at gigabytes a second.
const OVERDUE_AFTER: Duration = Duration::from_secs(2);

/// Not in libc for every platform; the number is the same on all that have CUDA.
const F_SETSIG: libc::c_int = 10;

/// Host memory of a fixed size.
#[derive(Debug)]
pub struct HostDevice {
    description: Description,
    segments: BTreeMap<SegmentId, Segment>,
    segments_max: usize,
    /// The sum over the segments.
    existing: Bytes,
    gauge: Arc<Gauge>,
}

#[derive(Debug)]
struct Segment {
    own: OwnedFd,
    bytes: Bytes,
    reclaim: Option<Reclaim>,
}

#[derive(Debug)]
struct Reclaim {
    since: Instant,
    search: Option<Search>,
}

impl HostDevice {
    /// The `index`th host device, of `total` bytes. It makes at most `segments_max` segments at one time, since each costs descriptors.
    #[must_use]
    pub fn new(index: u32, total: Bytes, segments_max: usize) -> Self {
        let description = Description {
            kind: Kind::Host,
            uuid: format!("host-{index}"),
            name: format!("host memory, {total}"),
            total,
            overhead_estimate: Bytes::ZERO,
        };
        Self {
            description,
            segments: BTreeMap::new(),
            segments_max,
            existing: Bytes::ZERO,
            gauge: Arc::default(),
        }
    }

    fn count(&mut self, existing: Option<Bytes>) {
        self.existing = existing.expect("what exists is the sum of the segments and at most the total");
        self.gauge.set(self.existing);
    }

    /// Refuses what does not fit, before anything is made.
    fn admit(&self, bytes: Bytes, kind: HandleKind) -> Result<(), String> {
        let (total, existing) = (self.description.total, self.existing);
        if kind == HandleKind::CudaIpc {
            return Err("host memory has no CUDA IPC handle; ask for the default kind".into());
        }
        if bytes.is_zero() || !bytes.is_granular() {
            return Err(format!("{bytes} is no positive multiple of 2 MiB"));
        }
        if self.segments.len() >= self.segments_max {
            return Err(format!(
                "{} segments exist, which is the most that the broker's limit of open files allows; free some, or raise the limit",
                self.segments.len()
            ));
        }
        match existing.checked_add(bytes) {
            Some(sum) if sum <= total => Ok(()),
            Some(_) | None => {
                Err(format!("{bytes} more than the {existing} that exist is over the {total} of this device"))
            }
        }
    }
}

impl Device for HostDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn create(&mut self, segment: SegmentId, bytes: Bytes, kind: HandleKind) -> Result<Handover, String> {
        self.admit(bytes, kind)?;
        assert!(!self.segments.contains_key(&segment), "segment {segment} is made twice");
        let (own, given) = make(segment, bytes).map_err(|errno| refused(bytes, errno))?;
        self.segments.insert(segment, Segment { own, bytes, reclaim: None });
        self.count(self.existing.checked_add(bytes));
        Ok(Handover::Descriptors(vec![(given, bytes)]))
    }

    fn reclaim(&mut self, segment: SegmentId) {
        let segment = self.segments.get_mut(&segment).expect("only what was made is taken back");
        segment.reclaim = Some(Reclaim { since: Instant::now(), search: None });
    }

    fn prove(&mut self, id: SegmentId) -> Proof {
        let segment = self.segments.get_mut(&id).expect("only what was made is proven");
        let reclaim = segment.reclaim.as_mut().expect("only what is taken back is proven");
        if is_sole_holder(segment.own.as_fd()) {
            let bytes = segment.bytes;
            empty(segment.own.as_fd(), bytes);
            self.segments.remove(&id);
            self.count(self.existing.checked_sub(bytes));
            return Proof::Freed;
        }
        if reclaim.since.elapsed() < OVERDUE_AFTER {
            return Proof::NotYet;
        }
        let Some(file) = Identity::of(segment.own.as_fd()) else { return Proof::Overdue(Vec::new()) };
        let search = reclaim.search.get_or_insert_with(|| Search::start(file));
        search.found().map_or(Proof::NotYet, |pids: &[Pid]| Proof::Overdue(pids.to_vec()))
    }

    fn gauge(&self) -> Arc<Gauge> {
        self.gauge.clone()
    }
}

fn refused(bytes: Bytes, errno: Errno) -> String {
    match errno {
        Errno::MFILE | Errno::NFILE => {
            "the broker has as many files open as it may; free segments, or raise its limit of open files"
                .into()
        }
        Errno::NOMEM | Errno::NOSPC => format!("the host has no {bytes} of memory left"),
        other => format!("the kernel made no memory file of {bytes}: {other}"),
    }
}

/// A memory file: the broker's own description of it, and the one to hand over.
fn make(segment: SegmentId, bytes: Bytes) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let name = format!("gpulease-{segment}");
    let uncounted = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&uncounted, bytes.get())?;
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&uncounted, seals)?;
    let own = opened_anew(uncounted.as_fd())?;
    let given = opened_anew(uncounted.as_fd())?;
    // Nobody opens it a third time, not even through a path-only descriptor kept back: another user's process lacks
    // the permission.
    rustix::fs::fchmod(&own, Mode::empty())?;
    Ok((own, given))
}

fn opened_anew(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Whether no other description of the file is left, in any process, mapping or message. Leaves the write lease in
/// place where it is so; closing the descriptor ends it.
fn is_sole_holder(own: BorrowedFd<'_>) -> bool {
    // The kernel announces a broken lease by a signal, by default one that kills; SIGURG is ignored.
    // SAFETY: F_SETSIG takes an integer and touches only the description, which `own` keeps open.
    let quiet = unsafe { libc::fcntl(own.as_raw_fd(), F_SETSIG, libc::SIGURG) };
    // SAFETY: F_SETLEASE takes an integer and touches only the description, which `own` keeps open.
    quiet == 0 && unsafe { libc::fcntl(own.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } == 0
}

/// Gives the pages back even if a path-only descriptor keeps the empty file in being.
fn empty(own: BorrowedFd<'_>, bytes: Bytes) {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(errno) = rustix::fs::fallocate(own, hole, 0, bytes.get()) {
        tracing::warn!(%errno, "a memory file could not be emptied before it was closed");
    }
}
