//! The devices that a daemon serves.

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, Size};
use tokio::sync::mpsc;

use super::StartError;
use crate::device::choice::DeviceChoice;
use crate::device::claim::Claim;
use crate::device::cuda::{self, Canary, CudaDevice};
use crate::device::host::HostDevice;
use crate::device::thread::OwnerThread;
use crate::device::{Device, Kind};
use crate::driver::{DeviceFacts, World};
use crate::exporter::Scrubbing;
use crate::settings::{BadSetting, HEADROOM, Hold, Settings};
use crate::witness::Watched;

/// A device that can be served.
pub(super) struct Opened {
    pub(super) facts: DeviceFacts,
    device: Box<dyn Device>,
    /// What an operator should know of it.
    pub(super) remarks: Vec<String>,
    /// Against other brokers, where it is a GPU.
    claim: Option<Claim>,
}

impl Opened {
    pub(super) fn info(&self) -> v1::DeviceInfo {
        crate::grpc::device_info(self.facts.id, &self.facts.description, self.facts.capacity)
    }

    /// As the witness has to watch it, where it is a GPU.
    pub(super) fn watched(&self) -> Option<Watched> {
        let DeviceFacts { id, description, capacity, gauge, .. } = &self.facts;
        match description.kind {
            Kind::Host => None,
            Kind::Cuda => {
                let (uuid, gauge) = (description.uuid.clone(), gauge.clone());
                let overhead_estimate = description.overhead_estimate;
                Some(Watched { device: *id, uuid, capacity: *capacity, overhead_estimate, gauge })
            }
        }
    }

    pub(super) fn take_claim(&mut self) -> Option<Claim> {
        self.claim.take()
    }
}

/// Opens what the settings name.
///
/// # Errors
/// When a device cannot be used, or is another broker's.
pub(super) fn open(settings: &Settings, open_files: u64) -> Result<Vec<Opened>, StartError> {
    let chosen = chosen(&settings.devices)?;
    let raw = std::thread::scope(|scope| {
        // Several GPUs at once: each takes most of a second.
        let each = |(place, choice)| scope.spawn(move || Raw::open(place, choice, settings, open_files));
        let opening: Vec<_> = chosen.iter().enumerate().map(each).collect();
        let joined =
            opening.into_iter().map(|thread| thread.join().expect("opening a device does not panic"));
        joined.collect::<Result<Vec<_>, StartError>>()
    })?;
    let mut opened: Vec<Opened> = Vec::new();
    for (index, raw) in (0..).zip(raw) {
        let uuid = &raw.device.description().uuid;
        if opened.iter().any(|other| other.facts.description.uuid == *uuid) {
            return Err(BadSetting(format!("device {uuid} is named twice; name it once")).into());
        }
        opened.push(raw.admit(DeviceId::new(index), settings.capacity)?);
    }
    Ok(opened)
}

/// `auto` as what it stands for here.
fn chosen(choices: &[DeviceChoice]) -> Result<Vec<DeviceChoice>, StartError> {
    let choices = if choices.is_empty() { &[DeviceChoice::Auto] } else { choices };
    let mut chosen = Vec::new();
    for choice in choices {
        match choice {
            DeviceChoice::Auto => {
                let gpus = cuda::visible().map_err(|why| {
                    StartError::Device(format!(
                        "{why}; put the driver right, or serve host memory with --device host:8GiB"
                    ))
                })?;
                match gpus.as_slice() {
                    [] => chosen.push(DeviceChoice::embedded(host_total())),
                    _ => chosen.extend(gpus.into_iter().map(DeviceChoice::Cuda)),
                }
            }
            DeviceChoice::Cuda(_) | DeviceChoice::Host(_) => chosen.push(choice.clone()),
        }
    }
    Ok(chosen)
}

/// A device that is not numbered yet.
struct Raw {
    device: Box<dyn Device>,
    remarks: Vec<String>,
    claim: Option<Claim>,
    /// Never leased.
    headroom: Bytes,
}

impl Raw {
    fn open(
        place: usize,
        choice: &DeviceChoice,
        settings: &Settings,
        open_files: u64,
    ) -> Result<Self, StartError> {
        match choice {
            DeviceChoice::Auto => unreachable!("it was resolved"),
            DeviceChoice::Cuda(choice) => {
                // Before anything is done on a card that another broker may have.
                let uuid = choice.uuid().map_err(StartError::Device)?;
                let claim = Claim::take(&uuid).map_err(|taken| StartError::Device(taken.to_string()))?;
                let device = CudaDevice::open(choice, settings.helpers.clone(), Canary::Run)
                    .map_err(StartError::Device)?;
                let remarks = remarks(&device);
                let (device, headroom) = held(device, settings)?;
                Ok(Self { device: Box::new(device), remarks, claim: Some(claim), headroom })
            }
            DeviceChoice::Host(bytes) => {
                let present = host_total();
                if *bytes > present {
                    let why = format!("--device host:{bytes}: the host has {present} in all; give less");
                    return Err(BadSetting(why).into());
                }
                let index = u32::try_from(place).expect("a command line names fewer");
                let segments_max = usize::try_from(open_files / 5).unwrap_or(usize::MAX);
                Ok(Self {
                    device: Box::new(HostDevice::new(index, *bytes, segments_max)),
                    remarks: Vec::new(),
                    claim: None,
                    headroom: Bytes::ZERO,
                })
            }
        }
    }

    fn admit(self, id: DeviceId, capacity: Option<Size>) -> Result<Opened, StartError> {
        let description = self.device.description();
        let (total, headroom) = (description.total, self.headroom);
        let most = total.saturating_sub(headroom);
        let asked = capacity.map_or(most, |size| size.of(most));
        let capacity = asked.round_down();
        if capacity.is_zero() || asked > most {
            let beside =
                if headroom.is_zero() { String::new() } else { format!(" less the headroom of {headroom}") };
            let why = format!(
                "the capacity of device {id} would be {asked} of its {total}{beside}; give at least 2 MiB and at most all of it"
            );
            return Err(BadSetting(why).into());
        }
        let facts = DeviceFacts::new(id, &*self.device, capacity);
        Ok(Opened { facts, device: self.device, remarks: self.remarks, claim: self.claim })
    }
}

/// With a hold where that is set, and how much then is never leased.
fn held(device: CudaDevice, settings: &Settings) -> Result<(CudaDevice, Bytes), StartError> {
    match settings.hold {
        Hold::None => Ok((device, Bytes::ZERO)),
        Hold::All => {
            let total = device.description().total;
            let headroom = settings.headroom.map_or(HEADROOM, |size| size.of(total)).round_down();
            Ok((device.with_hold(headroom).map_err(StartError::Device)?, headroom))
        }
    }
}

fn remarks(device: &CudaDevice) -> Vec<String> {
    let nvml = device.nvml_trouble().map(|why| {
        format!(
            "there is no NVML for it ({why}), so nobody can tell what processes without a lease take of it"
        )
    });
    let canary = match device.scrubbing() {
        Scrubbing::Unknown(why) => Some(format!("whether its driver clears memory is not known: {why}")),
        _ => None,
    };
    nvml.into_iter().chain(canary).collect()
}

fn host_total() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes::new(info.totalram.saturating_mul(u64::from(info.mem_unit)))
}

/// Gives each device to its owner thread.
pub(super) fn give_to_threads(
    opened: Vec<Opened>,
    world: &mpsc::UnboundedSender<World>,
) -> std::io::Result<Vec<(DeviceFacts, OwnerThread)>> {
    let started = opened.into_iter().map(|Opened { facts, device, .. }| {
        let world = world.clone();
        let report = move |completion| drop(world.send(World::Device(completion)));
        OwnerThread::start(facts.id, device, report).map(|thread| (facts, thread))
    });
    started.collect()
}
