//! The memory of a training job: leased from the broker, or its own where it runs bare.

use anyhow::{Context as _, Result};
use gpulease_client::blocking::{Lease, Segment};
use gpulease_client::{AskError, Bytes, DeviceKind, Pressure, Reason};
use gpulease_cuda::DeviceMemory;

use crate::backend::Arena;
use crate::backend::host::Host;
use crate::gpu::{Gpu, Run};
use crate::trainer::Work;

/// Segments of device memory, in the order in which they came.
pub struct Memory(Kind);

enum Kind {
    LeasedHost(Leased),
    LeasedCuda(Leased, Gpu),
    BareHost(Vec<Vec<f32>>),
    BareCuda(Vec<DeviceMemory>, Gpu),
}

/// How this process came to its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It asked for it, and gives it back.
    Owner,
    /// It joined it: whoever asked for it gives it back.
    Member,
}

/// What came of asking for more.
#[derive(Debug)]
pub enum Growth {
    /// It is there.
    Granted,
    /// The broker has reasons.
    Refused(gpulease_client::Denied),
}

impl Memory {
    /// Memory of this lease, on the first of its devices; none of it yet.
    ///
    /// # Errors
    /// The device is a GPU that this process can't use.
    pub fn leased(lease: Lease, role: Role) -> Result<Self> {
        let client = lease.client();
        let first = lease.devices().first().context("the lease has no device")?;
        let device = client.devices().iter().find(|device| device.id == *first);
        let device = device.with_context(|| format!("the broker does not list device {first}"))?;
        let leased = Leased { segments: Vec::new(), pressure: lease.pressure(), lease, role };
        Ok(Self(match device.kind {
            DeviceKind::Host => Kind::LeasedHost(leased),
            DeviceKind::Cuda => Kind::LeasedCuda(leased, Gpu::with_uuid(&device.uuid)?),
        }))
    }

    /// Host memory that no broker knows of.
    #[must_use]
    pub fn bare_host() -> Self {
        Self(Kind::BareHost(Vec::new()))
    }

    /// Memory of this GPU that no broker knows of.
    #[must_use]
    pub fn bare_cuda(gpu: Gpu) -> Self {
        Self(Kind::BareCuda(Vec::new(), gpu))
    }

    /// All of it.
    #[must_use]
    pub fn held(&self) -> Bytes {
        match &self.0 {
            Kind::LeasedHost(leased) | Kind::LeasedCuda(leased, _) => leased.held(),
            Kind::BareHost(pieces) => pieces.iter().map(|floats| Bytes::new(4 * floats.len() as u64)).sum(),
            Kind::BareCuda(pieces, _) => pieces.iter().map(DeviceMemory::bytes).sum(),
        }
    }

    /// Takes one more segment. Within the reserve the broker never refuses; above it, it refuses at once where
    /// there is no room, since a job with memory in hand has better things to do than wait. A lease that is swapped
    /// out comes back first.
    ///
    /// # Errors
    /// What fails; a refusal is no failure.
    pub fn grow(&mut self, bytes: Bytes) -> Result<Growth> {
        match &mut self.0 {
            Kind::LeasedHost(leased) | Kind::LeasedCuda(leased, _) => return leased.grow(bytes),
            Kind::BareHost(pieces) => pieces.push(vec![0.0; usize::try_from(bytes.get() / 4)?]),
            Kind::BareCuda(pieces, gpu) => pieces.push(gpu.allocate(bytes)?),
        }
        Ok(Growth::Granted)
    }

    /// How much the broker asks to have back, since this was last asked.
    pub fn wanted_back(&mut self) -> Bytes {
        match &mut self.0 {
            Kind::LeasedHost(leased) | Kind::LeasedCuda(leased, _) => leased.wanted_back(),
            Kind::BareHost(_) | Kind::BareCuda(..) => Bytes::ZERO,
        }
    }

    /// Gives back whole segments, the last first and never the very first, until that much is back or none is
    /// left; returns how much.
    ///
    /// # Errors
    /// The broker does not take it.
    pub fn give_back(&mut self, bytes: Bytes) -> Result<Bytes> {
        match &mut self.0 {
            Kind::LeasedHost(leased) | Kind::LeasedCuda(leased, _) => leased.give_back(bytes),
            Kind::BareHost(_) | Kind::BareCuda(..) => Ok(Bytes::ZERO),
        }
    }

    /// Does some work in it. Under a lease it holds the guard for so long, so keep the work short: while it
    /// lasts, the broker can't suspend the job.
    ///
    /// # Errors
    /// What the device or the broker reports.
    pub fn work<W: Work>(&mut self, work: W) -> Result<W::Output> {
        match &mut self.0 {
            Kind::LeasedHost(Leased { segments, lease, .. }) => {
                let resident = lease.enter()?;
                let spans: Result<Vec<&mut [f32]>, _> =
                    segments.iter_mut().map(|segment| segment.as_mut_slice(&resident)).collect();
                work.on(&mut Host::default(), Arena::new(spans?))
            }
            Kind::LeasedCuda(Leased { segments, lease, .. }, gpu) => {
                let resident = lease.enter()?;
                let runs: Result<Vec<Run>, _> = segments
                    .iter()
                    .map(|segment| Ok::<_, anyhow::Error>((segment.device_ptr(&resident)?, segment.bytes())))
                    .collect();
                // SAFETY: segments are mapped for us to read and write, and stay so while the guard lives.
                unsafe { gpu.work(&runs?, work) }
            }
            Kind::BareHost(pieces) => {
                work.on(&mut Host::default(), Arena::new(pieces.iter_mut().map(Vec::as_mut_slice)))
            }
            Kind::BareCuda(pieces, gpu) => {
                let runs: Vec<Run> = pieces.iter().map(|piece| (piece.ptr().raw(), piece.bytes())).collect();
                // SAFETY: it was allocated for us and is freed when `pieces` goes.
                unsafe { gpu.work(&runs, work) }
            }
        }
    }

    /// Gives all of it back.
    ///
    /// # Errors
    /// The broker does not take it.
    pub fn release(self) -> Result<()> {
        match self.0 {
            Kind::LeasedHost(leased) | Kind::LeasedCuda(leased, _) => leased.release(),
            Kind::BareHost(_) | Kind::BareCuda(..) => Ok(()),
        }
    }
}

/// A lease, and what was taken of it.
struct Leased {
    segments: Vec<Segment>,
    pressure: Pressure,
    lease: Lease,
    role: Role,
}

impl Leased {
    fn held(&self) -> Bytes {
        self.segments.iter().map(|segment| segment.bytes()).sum()
    }

    fn grow(&mut self, bytes: Bytes) -> Result<Growth> {
        loop {
            match self.lease.allocation(bytes).no_wait().allocate() {
                Ok(segment) => {
                    self.segments.push(segment);
                    return Ok(Growth::Granted);
                }
                Err(AskError::Denied(denied)) if denied.reason == Reason::Suspended => {
                    self.lease.come_home()?
                }
                Err(AskError::Denied(denied)) => return Ok(Growth::Refused(denied)),
                Err(AskError::Failed(error)) => return Err(error.into()),
            }
        }
    }

    fn wanted_back(&mut self) -> Bytes {
        let mut latest = Bytes::ZERO;
        while let Some(recall) = self.pressure.try_next() {
            latest = recall.bytes;
        }
        latest
    }

    fn give_back(&mut self, bytes: Bytes) -> Result<Bytes> {
        let mut back = Bytes::ZERO;
        while back < bytes && self.segments.len() > 1 {
            let Some(segment) = self.segments.pop() else { break };
            back = back.saturating_add(segment.bytes());
            segment.free()?;
        }
        Ok(back)
    }

    fn release(self) -> Result<()> {
        for segment in self.segments {
            segment.free()?;
        }
        match self.role {
            Role::Owner => self.lease.release().map(drop)?,
            Role::Member => {}
        }
        Ok(())
    }
}
