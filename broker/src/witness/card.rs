//! A card as NVML shows it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use gpulease_words::{Bytes, Pid};
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{ProcessUse, Reading};

/// Readings in a row of which two must agree. A process that allocates in a loop lets most pairs differ, not all.
const TRIES_MAX: usize = 8;

/// NVML in this process, opened at the first call.
#[derive(Clone, Copy, Debug)]
pub struct Cards(&'static Nvml);

/// One card.
#[derive(Debug)]
pub struct Card {
    device: Device<'static>,
    uuid: String,
}

impl Cards {
    /// Opens NVML.
    ///
    /// # Errors
    /// A sentence where the library is missing, too old or does not start. The first answer is kept.
    pub fn open() -> Result<Self, String> {
        static OPENED: OnceLock<Result<Nvml, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| Nvml::init().map_err(|error| unavailable(&error)));
        opened.as_ref().map(Self).map_err(Clone::clone)
    }

    /// The card with this UUID, as CUDA names it too.
    ///
    /// # Errors
    /// A sentence where NVML does not know it.
    pub fn card(self, uuid: &str) -> Result<Card, String> {
        match self.0.device_by_uuid(uuid) {
            Ok(device) => Ok(Card { device, uuid: uuid.to_owned() }),
            Err(error) => Err(format!("NVML does not know {uuid}: {error}")),
        }
    }

    /// The version of the NVIDIA driver, "580.159.03" for example.
    ///
    /// # Errors
    /// What NVML says.
    pub fn driver_version(self) -> Result<String, String> {
        self.0.sys_driver_version().map_err(|error| error.to_string())
    }
}

impl Card {
    /// Its UUID.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// How much of it is used now.
    ///
    /// # Errors
    /// A sentence where it does not say.
    pub(crate) fn used(&self) -> Result<Bytes, String> {
        let memory = self.device.memory_info().map_err(|error| self.said(&error))?;
        Ok(Bytes::new(memory.used))
    }

    /// What it says now: first who uses it, then how much is used.
    ///
    /// # Errors
    /// A sentence where it does not even say how much is used.
    pub fn read(&self) -> Result<Reading, String> {
        let processes = self.processes();
        let memory = self.device.memory_info().map_err(|error| self.said(&error))?;
        let usable = Bytes::new(memory.total).saturating_sub(Bytes::new(memory.reserved));
        Ok(Reading { used: Bytes::new(memory.used), usable, processes })
    }

    /// A reading that came out the same twice in a row, so that its parts belong together; `None` where too much
    /// changes.
    ///
    /// # Errors
    /// As [`Card::read`].
    pub fn read_steady(&self) -> Result<Option<Reading>, String> {
        let mut last = self.read()?;
        for _ in 1..TRIES_MAX {
            let next = self.read()?;
            if next == last {
                return Ok(Some(next));
            }
            last = next;
        }
        Ok(None)
    }

    /// Whether it is cut into MIG instances; unknown counts as no, since older cards can't say.
    #[must_use]
    pub fn is_in_mig_mode(&self) -> bool {
        self.device.mig_mode().is_ok_and(|mode| mode.current != 0)
    }

    /// Whether the driver keeps the card awake while nobody uses it, where NVML says so.
    #[must_use]
    pub(super) fn is_kept_awake(&self) -> Option<bool> {
        self.device.is_in_persistent_mode().ok()
    }

    /// Who may use the card, where NVML says so.
    #[must_use]
    pub(super) fn access(&self) -> Option<ComputeMode> {
        self.device.compute_mode().ok()
    }

    /// Use by process. A process can be on several lists, with the same figure.
    fn processes(&self) -> Option<Vec<ProcessUse>> {
        let compute = retried(|| self.device.running_compute_processes()).ok()?;
        let others = [
            retried(|| self.device.running_graphics_processes()).unwrap_or_default(),
            retried(|| self.device.mps_running_compute_processes()).unwrap_or_default(),
        ];
        let mut uses = BTreeMap::new();
        for process in compute.into_iter().chain(others.into_iter().flatten()) {
            let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { return None };
            let most: &mut Bytes = uses.entry(Pid::new(process.pid)).or_default();
            *most = (*most).max(Bytes::new(bytes));
        }
        Some(uses.into_iter().map(|(pid, bytes)| ProcessUse { pid, bytes }).collect())
    }

    fn said(&self, error: &NvmlError) -> String {
        match error {
            NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
                "the NVIDIA driver is too old to say what of a card is used; that came with version 510"
                    .to_owned()
            }
            _ => format!("NVML does not say what of {} is used: {error}", self.uuid),
        }
    }
}

/// The list can grow between NVML's two calls for its length and for itself.
fn retried(list: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Result<Vec<ProcessInfo>, NvmlError> {
    match list() {
        Err(NvmlError::InsufficientSize(_)) => list(),
        other => other,
    }
}

fn unavailable(error: &NvmlError) -> String {
    let help = match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "; it comes with the NVIDIA driver, in some distributions as a package of its own"
        }
        NvmlError::DriverNotLoaded => "; the NVIDIA kernel module is not loaded",
        NvmlError::LibRmVersionMismatch => {
            "; library and kernel module of the driver have different versions: reboot, or install them alike"
        }
        _ => "",
    };
    format!("no NVML: {error}{help}")
}
