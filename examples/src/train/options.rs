//! What a training run is told.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use gpulease_client::Bytes;
use gpulease_client::blocking::{Client, Lease};
use gpulease_words::{GRANULARITY, Size, parse_duration};

use super::report::Event;
use crate::gpu::Gpu;
use crate::memory::{Memory, Role};

/// The options of a training run.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Memory to begin with (8GiB, 512MiB, 50%); without it, the lease of `gpulease run` around this program
    #[arg(short, long, value_name = "SIZE")]
    pub memory: Option<Size>,

    /// Memory to grow to, while there is room
    #[arg(long, value_name = "SIZE", requires = "memory")]
    pub up_to: Option<Size>,

    /// Steps after which to grow the data set
    #[arg(long, value_name = "STEP", value_parser = clap::value_parser!(u64).range(1..))]
    pub grow_at: Option<u64>,

    /// Steps to train; one goes through 128 samples
    #[arg(long, value_name = "STEPS", default_value_t = Self::STEPS, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,

    /// Steps from one report of the loss to the next
    #[arg(long, value_name = "STEPS", default_value_t = Self::REPORT_EVERY, value_parser = clap::value_parser!(u64).range(1..))]
    pub report_every: u64,

    /// Decides weights and data: the same seed and sizes give the same run, bit by bit
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,

    /// Name of the job
    #[arg(short, long, value_name = "NAME", default_value = Self::NAME)]
    pub name: String,

    /// Wait at most so long for the lease (30s, 10m) instead of without end
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub wait: Option<Duration>,

    /// Do without a broker, in memory of this device: host or cuda:N
    #[arg(long, value_name = "DEVICE", requires = "memory")]
    pub bare: Option<BareDevice>,
}

/// A device to train on without a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareDevice {
    /// Anonymous host memory.
    Host,
    /// The GPU with that number in CUDA's order.
    Cuda(usize),
}

impl FromStr for BareDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let cuda = text.strip_prefix("cuda:").and_then(|number| number.parse().ok()).map(Self::Cuda);
        let device = if text == "host" { Some(Self::Host) } else { cuda };
        device.ok_or_else(|| format!("{text:?} is no device; write host or cuda:0"))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: None,
            up_to: None,
            grow_at: None,
            steps: Self::STEPS,
            report_every: Self::REPORT_EVERY,
            seed: 1,
            name: Self::NAME.to_owned(),
            wait: None,
            bare: None,
        }
    }
}

/// What a run may use, and where.
pub(crate) struct Standing {
    pub(crate) memory: Memory,
    pub(crate) device: String,
    pub(crate) lease: Option<u64>,
    pub(crate) asked: Bytes,
    pub(crate) limit: Bytes,
    pub(crate) waited: Duration,
}

impl Options {
    const STEPS: u64 = 2000;
    const REPORT_EVERY: u64 = 100;
    const NAME: &'static str = "digits";

    /// Gets the right to the memory, waiting in line where that is needed.
    pub(crate) fn obtain(&self, report: &mut (dyn FnMut(&Event) + Send)) -> Result<Standing> {
        match (self.bare, self.memory) {
            (Some(device), Some(memory)) => self.bare(device, memory),
            (Some(_), None) => anyhow::bail!("a bare run has no broker to ask for its size: give --memory"),
            (None, Some(memory)) => {
                let client = Client::connect()?;
                Self::in_lease(&client, self.acquire(&client, memory, report)?, Role::Owner)
            }
            (None, None) => {
                let lease = Client::join_from_env()
                    .context("without --memory the program takes its lease from `gpulease run`")?;
                let client = Client::from(lease.client());
                Self::in_lease(&client, lease, Role::Member)
            }
        }
    }

    fn acquire(
        &self,
        client: &Client,
        memory: Size,
        report: &mut (dyn FnMut(&Event) + Send),
    ) -> Result<Lease> {
        // A share is of the smallest device, so that it means the same wherever the lease is granted.
        let whole = client.devices().iter().map(|device| device.capacity).min();
        let whole = whole.context("the broker has no device")?;
        let reserve = granular(memory.of(whole))?;
        let limit = self.up_to.map_or(Ok(reserve), |size| granular(size.of(whole)))?;
        let ask = client.lease(reserve).up_to(limit).name(&self.name);
        let ask = match self.wait {
            None => ask,
            Some(Duration::ZERO) => ask.no_wait(),
            Some(most) => ask.wait_at_most(most),
        };
        Ok(ask.on_waiting(|waiting| report(&Event::from(waiting))).acquire()?)
    }

    fn in_lease(client: &Client, lease: Lease, role: Role) -> Result<Standing> {
        let first = lease.devices().first().context("the lease has no device")?;
        let device = client.devices().iter().find(|device| device.id == *first);
        Ok(Standing {
            device: device.map_or_else(|| first.to_string(), |device| device.name.clone()),
            lease: Some(lease.id().get()),
            asked: lease.reserve(),
            limit: lease.limit(),
            waited: lease.waited(),
            memory: Memory::leased(lease, role)?,
        })
    }

    fn bare(&self, device: BareDevice, memory: Size) -> Result<Standing> {
        let asked = granular(amount(memory)?)?;
        let limit = self.up_to.map_or(Ok(asked), |size| granular(amount(size)?))?;
        ensure!(asked <= limit, "--up-to {limit} is less than --memory {asked}");
        let (memory, device) = match device {
            BareDevice::Host => (Memory::bare_host(), "host memory, bare".to_owned()),
            BareDevice::Cuda(ordinal) => {
                (Memory::bare_cuda(Gpu::numbered(ordinal)?), format!("GPU {ordinal}, bare"))
            }
        };
        Ok(Standing { memory, device, lease: None, asked, limit, waited: Duration::ZERO })
    }
}

fn granular(bytes: Bytes) -> Result<Bytes> {
    bytes.round_up().with_context(|| format!("{bytes} does not fit 64 bits in steps of {GRANULARITY}"))
}

fn amount(size: Size) -> Result<Bytes> {
    match size {
        Size::Amount(bytes) => Ok(bytes),
        Size::Share(_) => {
            anyhow::bail!("a bare run knows no whole that it could take a share of: write --memory 2GiB")
        }
    }
}
