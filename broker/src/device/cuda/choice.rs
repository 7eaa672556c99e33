//! Which GPU is meant, and whether it can be lent.

use std::fmt;
use std::str::FromStr;

use gpulease_cuda::{CudaError, Device, Driver, ParseUuidError, Uuid};
use gpulease_words::GRANULARITY;

use crate::witness::Card;

/// A GPU as the command line names it: `cuda:0`, or `cuda:GPU-01234567-89ab-...`.
///
/// Numbers count by place on the PCI bus, as nvidia-smi does, whatever `CUDA_DEVICE_ORDER` says. Only what
/// `CUDA_VISIBLE_DEVICES` shows is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// By number.
    Number(u32),
    /// By UUID.
    Uuid(Uuid),
}

/// A text that names no GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no GPU; write cuda:0, or cuda:GPU-... with the UUID that nvidia-smi -L shows")]
pub struct ParseChoiceError(String);

impl Choice {
    /// The UUID of the GPU meant, as [`crate::device::Description`] has it.
    ///
    /// # Errors
    /// A sentence where there is no such GPU, or it can't be lent.
    pub fn uuid(&self) -> Result<String, String> {
        find(self)?.uuid().map(|uuid| uuid.to_string()).map_err(|why| why.to_string())
    }
}

impl FromStr for Choice {
    type Err = ParseChoiceError;

    fn from_str(text: &str) -> Result<Self, ParseChoiceError> {
        let wrong = || ParseChoiceError(text.to_owned());
        let name = text.strip_prefix("cuda:").ok_or_else(wrong)?;
        if name.bytes().all(|b| b.is_ascii_digit()) {
            return name.parse().map(Self::Number).map_err(|_| wrong());
        }
        name.parse().map(Self::Uuid).map_err(|_: ParseUuidError| wrong())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "cuda:{number}"),
            Self::Uuid(uuid) => write!(f, "cuda:{uuid}"),
        }
    }
}

/// Every GPU that this process sees, in order of their numbers; none where there is no driver or it shows none.
///
/// # Errors
/// A sentence where there is a driver and it does not work.
pub fn visible() -> Result<Vec<Choice>, String> {
    match Driver::load() {
        Ok(driver) => {
            let devices = numbered(driver).map_err(|why| why.to_string())?;
            let uuids = devices.into_iter().map(Device::uuid).collect::<Result<Vec<_>, _>>();
            Ok(uuids.map_err(|why| why.to_string())?.into_iter().map(Choice::Uuid).collect())
        }
        Err(gpulease_cuda::Unavailable::NoLibrary { .. } | gpulease_cuda::Unavailable::NoDevice { .. }) => {
            Ok(Vec::new())
        }
        Err(why) => Err(why.to_string()),
    }
}

/// The device meant.
pub(super) fn find(choice: &Choice) -> Result<Device, String> {
    let driver = Driver::load().map_err(|why| format!("{choice} can't be had: {why}"))?;
    let devices = numbered(driver).map_err(|why| format!("{choice} can't be had: {why}"))?;
    let count = devices.len();
    let found = match choice {
        Choice::Number(number) => devices.into_iter().nth(*number as usize),
        Choice::Uuid(uuid) => devices.into_iter().find(|device| device.uuid().as_ref() == Ok(uuid)),
    };
    let device =
        found.ok_or_else(|| format!("there is no {choice}: the CUDA driver shows {}", counted(count)))?;
    let granularity = device.granularity().map_err(|why| format!("{choice} can't be lent: {why}"))?;
    if granularity.is_zero() || !GRANULARITY.get().is_multiple_of(granularity.get()) {
        return Err(format!(
            "{choice} can't be lent: its driver makes memory in steps of {granularity}, and gpulease in steps of {GRANULARITY}"
        ));
    }
    Ok(device)
}

/// In order of their places on the PCI bus, which the driver writes with leading zeros.
pub(crate) fn numbered(driver: &'static Driver) -> Result<Vec<Device>, CudaError> {
    let devices = driver.devices()?.into_iter().map(|device| Ok((device.pci_bus_id()?, device)));
    let mut devices = devices.collect::<Result<Vec<_>, CudaError>>()?;
    devices.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(devices.into_iter().map(|(_, device)| device).collect())
}

/// Refuses a card that is cut into instances, or an instance of one.
pub(crate) fn refuse_mig(name: &str, card: Option<&Card>) -> Result<(), String> {
    if card.is_some_and(Card::is_in_mig_mode) || name.contains(" MIG ") {
        return Err(format!(
            "{name} is in MIG mode, and gpulease leases whole cards only; switch it off (nvidia-smi -mig 0) or choose another card"
        ));
    }
    Ok(())
}

fn counted(devices: usize) -> String {
    match devices {
        1 => "one GPU".to_owned(),
        n => format!("{n} GPUs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_back() {
        for text in ["cuda:0", "cuda:15", "cuda:GPU-01234567-89ab-cdef-0011-2233445566ff"] {
            assert_eq!(text.parse::<Choice>().map(|choice| choice.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_names_no_gpu_says_what_would() {
        for text in ["", "cuda", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999", "host:8GiB", "cuda:MIG-1"]
        {
            let error = text.parse::<Choice>().expect_err(text).to_string();
            assert!(error.contains("write cuda:0"), "{error}");
        }
    }

    #[test]
    fn an_instance_is_known_by_its_name() {
        let error = refuse_mig("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None).expect_err("it is an instance");
        assert!(error.contains("whole cards"), "{error}");
        assert_eq!(refuse_mig("NVIDIA H200", None), Ok(()));
    }
}
