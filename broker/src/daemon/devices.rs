//! The devices that a daemon serves.

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, Size};
use tokio::sync::mpsc;

use super::StartError;
use crate::device::Device;
use crate::device::choice::DeviceChoice;
use crate::device::host::HostDevice;
use crate::device::thread::OwnerThread;
use crate::driver::{DeviceFacts, World};
use crate::settings::{BadSetting, Settings};

/// A device that can be served.
pub(super) struct Opened {
    pub(super) facts: DeviceFacts,
    device: Box<dyn Device>,
}

impl Opened {
    pub(super) fn info(&self) -> v1::DeviceInfo {
        crate::grpc::device_info(self.facts.id, &self.facts.description, self.facts.capacity)
    }
}

/// Opens what the settings name.
///
/// # Errors
/// When a device cannot be used, or is another broker's.
pub(super) fn open(settings: &Settings, open_files: u64) -> Result<Vec<Opened>, StartError> {
    let choices =
        if settings.devices.is_empty() { &[DeviceChoice::Auto] } else { settings.devices.as_slice() };
    let mut devices: Vec<Box<dyn Device>> = Vec::new();
    for choice in choices {
        match choice {
            DeviceChoice::Auto => devices.push(host(0, DeviceChoice::embedded(host_total()), open_files)?),
            DeviceChoice::Cuda(ordinal) => {
                return Err(StartError::Device(format!("cuda:{ordinal}: not yet")));
            }
            host_choice @ DeviceChoice::Host(_) => {
                let index = u32::try_from(devices.len()).expect("a command line names fewer");
                devices.push(host(index, *host_choice, open_files)?);
            }
        }
    }
    (0..)
        .zip(devices)
        .map(|(index, device)| opened(DeviceId::new(index), device, settings.capacity))
        .collect()
}

fn opened(id: DeviceId, device: Box<dyn Device>, capacity: Option<Size>) -> Result<Opened, StartError> {
    let total = device.description().total;
    let capacity = capacity.map_or(total, |size| size.of(total)).round_down();
    if capacity.is_zero() || capacity > total {
        let why = format!(
            "the capacity of device {id} would be {capacity} of its {total}; give at least 2 MiB and at most all of it"
        );
        return Err(BadSetting(why).into());
    }
    Ok(Opened { facts: DeviceFacts::new(id, &*device, capacity), device })
}

fn host(index: u32, choice: DeviceChoice, open_files: u64) -> Result<Box<dyn Device>, StartError> {
    let DeviceChoice::Host(bytes) = choice else { unreachable!("only host memory is made here") };
    let present = host_total();
    if bytes > present {
        return Err(
            BadSetting(format!("--device host:{bytes}: the host has {present} in all; give less")).into()
        );
    }
    let segments_max = usize::try_from(open_files / 5).unwrap_or(usize::MAX);
    Ok(Box::new(HostDevice::new(index, bytes, segments_max)))
}

fn host_total() -> Bytes {
    let info = rustix::system::sysinfo();
    Bytes::new(u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit)))
}

/// Gives each device to its owner thread.
pub(super) fn give_to_threads(
    opened: Vec<Opened>,
    world: &mpsc::UnboundedSender<World>,
) -> std::io::Result<Vec<(DeviceFacts, OwnerThread)>> {
    let started = opened.into_iter().map(|Opened { facts, device }| {
        let world = world.clone();
        let report = move |completion| drop(world.send(World::Device(completion)));
        OwnerThread::start(facts.id, device, report).map(|thread| (facts, thread))
    });
    started.collect()
}
