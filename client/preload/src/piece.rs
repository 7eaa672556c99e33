//! A segment of the lease, counted for as long as this process has it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpulease_client::{AskError, Bytes, DeviceId, Reason, blocking};

use crate::capture;
use crate::code::{Code, OUT_OF_MEMORY};
use crate::gate;
use crate::job::Job;
use crate::report::{Once, say};

/// So often an ask is put again that crossed a suspension, or another thread's guard.
const ATTEMPTS: u32 = 8;

/// A segment, mapped.
pub(crate) struct Piece {
    /// `None` only while it is dropped.
    segment: Option<blocking::Segment>,
    at: u64,
    count: Count,
}

/// What this process has of a device.
pub(crate) type Count = Arc<AtomicU64>;

impl Piece {
    /// Takes a segment of the lease.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the lease or the broker has no room; why is said once.
    pub(crate) fn take(job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<Self, Code> {
        let aside = job.charges.beside(job, job.number(device), bytes)?;
        let piece = Self::ask(job, device, bytes)?;
        aside.count(|| {
            piece.count.fetch_add(piece.bytes().get(), Ordering::Relaxed);
        });
        Ok(piece)
    }

    /// One that is not counted yet.
    fn ask(job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<Self, Code> {
        job.keeper.begin(job)?;
        for attempts in 1..=ATTEMPTS {
            let error = match gate::inside(|| attempt(job, device, bytes))? {
                Ok(piece) => return Ok(piece),
                Err(error) => error,
            };
            match (remedy(&error), wait_for_memory()) {
                (Remedy::Home, _) if attempts < ATTEMPTS => come_home(job)?,
                (Remedy::Line, Some(wait)) if !capture::is_under_way() => {
                    return in_line(job, device, bytes, wait);
                }
                (Remedy::Home | Remedy::Line | Remedy::None, _) => return Err(refused(job, bytes, &error)),
            }
        }
        Err(OUT_OF_MEMORY)
    }

    /// Its first address.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.segment().device()
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.segment().bytes()
    }

    /// Maps it at these addresses, which the program has reserved, or at addresses of its own again.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where the driver refuses.
    ///
    /// # Safety
    /// As [`gpulease_client::Segment::move_to`].
    pub(crate) unsafe fn move_to(&mut self, job: &'static Job, to: Option<u64>) -> Result<(), Code> {
        let segment = self.segment.as_mut().expect("it is there until the drop");
        let moved = gate::inside(|| {
            let resident = job.lease.enter().map_err(|error| error.to_string())?;
            // SAFETY: the caller's promise.
            unsafe { segment.move_to(&resident, to) }.map_err(|error| error.to_string())?;
            segment.device_ptr(&resident).map_err(|error| error.to_string())
        })?;
        self.at = moved.map_err(|why| {
            say(&why);
            crate::code::INVALID_VALUE
        })?;
        Ok(())
    }

    fn segment(&self) -> &blocking::Segment {
        self.segment.as_ref().expect("it is there until the drop")
    }

    fn new(job: &'static Job, segment: blocking::Segment) -> Result<Self, AskError> {
        let resident = job.lease.enter()?;
        let count = job.count(segment.device());
        // Memory of a GPU has an address; a lease of host memory was never joined.
        let at = segment.device_ptr(&resident).expect("it is memory of a GPU, under its own lease's guard");
        Ok(Self { segment: Some(segment), at, count })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let bytes = self.bytes();
        // Unmapped first: until then it is not free for anybody.
        drop(self.segment.take());
        self.count.fetch_sub(bytes.get(), Ordering::Relaxed);
    }
}

fn attempt(job: &'static Job, device: DeviceId, bytes: Bytes) -> Result<Piece, AskError> {
    Piece::new(job, job.lease.allocation(bytes).on(device).no_wait().allocate()?)
}

/// Waits until the lease is not suspended, which may have befallen it before this process had memory of it.
fn come_home(job: &'static Job) -> Result<(), Code> {
    job.keeper.step_back(&job.lease);
    job.lease.come_home().map_err(|error| {
        say(&format!("the memory of lease {} is not here: {error}", job.lease.id()));
        OUT_OF_MEMORY
    })
}

/// Waits in line for it, without a guard: what it waits for may be this process's own to give.
fn in_line(job: &'static Job, device: DeviceId, bytes: Bytes, wait: Duration) -> Result<Piece, Code> {
    let mut attempts = 0;
    loop {
        job.keeper.step_back(&job.lease);
        let asked = job.lease.allocation(bytes).on(device).wait_at_most(wait).allocate();
        attempts += 1;
        match asked {
            Ok(segment) => {
                let piece = gate::inside(|| Piece::new(job, segment))?;
                return piece.map_err(|error| refused(job, bytes, &error));
            }
            // Another thread was faster at the gate.
            Err(AskError::Denied(denied))
                if denied.reason == Reason::WouldDeadlock && attempts < ATTEMPTS => {}
            Err(error) => return Err(refused(job, bytes, &error)),
        }
    }
}

/// What would help.
enum Remedy {
    /// Waiting until the lease has its memory again.
    Home,
    /// Waiting in line.
    Line,
    None,
}

fn remedy(error: &AskError) -> Remedy {
    let Some(denied) = error.denied() else { return Remedy::None };
    match denied.reason {
        Reason::Suspended => Remedy::Home,
        Reason::NoRoom
        | Reason::AccountLimit
        | Reason::BehindOthers
        | Reason::Barrier
        | Reason::Draining
        | Reason::Recalled
        | Reason::ArenaFull
        | Reason::PinnedFull
        | Reason::WaitOver => Remedy::Line,
        _ => Remedy::None,
    }
}

/// How long an allocation above the reserve may wait.
fn wait_for_memory() -> Option<Duration> {
    static WAIT: OnceLock<Option<Duration>> = OnceLock::new();
    *WAIT.get_or_init(|| {
        let milliseconds = std::env::var("GPULEASE_WAIT_FOR_MEMORY_MS").ok()?.parse().ok()?;
        Some(Duration::from_millis(milliseconds)).filter(|wait| !wait.is_zero())
    })
}

/// Says why there is no memory, once for each kind: a program may ask often.
fn refused(job: &Job, bytes: Bytes, error: &AskError) -> Code {
    static LEASE: Once = Once::new();
    static ROOM: Once = Once::new();
    static FAILED: Once = Once::new();
    let once = match error.denied().map(|denied| denied.reason) {
        Some(Reason::BeyondLease) => &LEASE,
        Some(_) => &ROOM,
        None => &FAILED,
    };
    once.say(|| format!("no memory for {bytes} in lease {}: {error}", job.lease.id()));
    OUT_OF_MEMORY
}
