//! What is well and what is not with the driver and the cards of this host, for `gpulease doctor`.

use gpulease_cuda::{Device, Driver};
use nvml_wrapper::enum_wrappers::device::ComputeMode;

use super::{Card, Cards, Reading, people};
use crate::device::cuda::{Canary, numbered, refuse_mig};
use crate::exporter::{Program, Scrubbing, check_scrubbing};

/// The most processes of a card that are named.
const NAMED_MAX: usize = 8;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What: "driver", "NVML", "cuda:0".
    pub subject: String,
    /// How it is.
    pub verdict: Verdict,
    /// A sentence, with numbers, and with what helps where something does.
    pub says: String,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, and should be known.
    Notice,
    /// Keeps gpulease from leasing a card.
    Bad,
    /// Could not be found out.
    Unknown,
}

/// Looks at driver, NVML and every GPU that this process sees.
///
/// It loads the driver (0.1 s). The canary makes it start this process's program twice, half a second in all, so that
/// `main` has to begin with [`crate::exporter::maybe_run`].
#[must_use]
pub fn doctor(canary: Canary) -> Vec<Finding> {
    let cards = Cards::open();
    let mut findings = vec![nvml(&cards)];
    let devices = Driver::load().map_err(|why| why.to_string()).and_then(|driver| {
        findings.insert(0, driver_found(driver, cards.as_ref().ok()));
        numbered(driver).map_err(|why| why.to_string())
    });
    match devices {
        Ok(devices) => {
            findings.extend(devices.into_iter().enumerate().flat_map(|(number, device)| {
                Patient::new(number, device, cards.as_ref().ok()).findings(canary)
            }))
        }
        Err(why) => findings.insert(0, finding("driver", Verdict::Bad, why)),
    }
    findings
}

fn finding(subject: &str, verdict: Verdict, says: impl Into<String>) -> Finding {
    Finding { subject: subject.to_owned(), verdict, says: says.into() }
}

fn nvml(cards: &Result<Cards, String>) -> Finding {
    match cards {
        Ok(_) => finding("NVML", Verdict::Good, "NVML tells what is used, and by whom"),
        Err(why) => finding(
            "NVML",
            Verdict::Unknown,
            format!(
                "{why}. Without it nobody can tell what others use of a card: such figures are N/A, and memory counts as free once as much can be created"
            ),
        ),
    }
}

fn driver_found(driver: &Driver, cards: Option<&Cards>) -> Finding {
    let version = cards.and_then(|cards| cards.driver_version().ok());
    let version = version.map(|version| format!(", driver {version}")).unwrap_or_default();
    finding("driver", Verdict::Good, format!("CUDA {}{version}", driver.version()))
}

/// A GPU under examination.
struct Patient {
    subject: String,
    name: String,
    device: Device,
    uuid: Option<String>,
    card: Option<Card>,
}

impl Patient {
    fn new(number: usize, device: Device, cards: Option<&Cards>) -> Self {
        let uuid = device.uuid().ok().map(|uuid| uuid.to_string());
        let card = cards.zip(uuid.as_ref()).and_then(|(cards, uuid)| cards.card(uuid).ok());
        let name = device.name().unwrap_or_else(|_| "a GPU without a name".to_owned());
        Self { subject: format!("cuda:{number}"), name, device, uuid, card }
    }

    fn findings(&self, canary: Canary) -> Vec<Finding> {
        let mut findings = vec![self.sharing()];
        findings
            .extend(refuse_mig(&self.name, self.card.as_ref()).err().map(|why| self.says(Verdict::Bad, why)));
        findings.extend(self.access());
        findings.extend(self.awake());
        findings.push(self.users());
        findings.extend(self.scrubbing(canary));
        findings
    }

    fn says(&self, verdict: Verdict, says: impl Into<String>) -> Finding {
        finding(&self.subject, verdict, says)
    }

    fn sharing(&self) -> Finding {
        match self.device.granularity() {
            Ok(step) => self.says(
                Verdict::Good,
                format!("{} can lend its memory to other processes, in steps of {step}", self.name),
            ),
            Err(why) => self.says(Verdict::Bad, why.to_string()),
        }
    }

    fn access(&self) -> Option<Finding> {
        match self.card.as_ref()?.access()? {
            ComputeMode::Default => None,
            ComputeMode::Prohibited => Some(self.says(
                Verdict::Bad,
                format!("{} lets nobody compute (compute mode prohibited); nvidia-smi -c 0 lets all", self.name),
            )),
            ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread => Some(self.says(
                Verdict::Notice,
                format!(
                    "{} lets one process compute at a time (compute mode exclusive), so that jobs can't share it; nvidia-smi -c 0 lets all",
                    self.name
                ),
            )),
        }
    }

    fn awake(&self) -> Option<Finding> {
        let awake = self.card.as_ref()?.is_kept_awake()?;
        (!awake).then(|| {
            self.says(
                Verdict::Notice,
                "persistence mode is off, so that the first program on an idle card waits for seconds; nvidia-smi -pm 1 or nvidia-persistenced switches it on",
            )
        })
    }

    fn users(&self) -> Finding {
        let Some(Ok(reading)) = self.card.as_ref().map(Card::read) else {
            return self.says(Verdict::Unknown, "who else uses it can't be told without NVML");
        };
        let left = format!("{} of {} are free", reading.free(), reading.usable);
        match named(&reading) {
            None => self.says(
                Verdict::Unknown,
                format!("{left}; the driver does not say who uses the rest, so off-book use is N/A"),
            ),
            Some(names) if names.is_empty() => {
                self.says(Verdict::Good, format!("{left}, and no process has a context on it"))
            }
            Some(names) => self.says(Verdict::Notice, format!("{left}; it is used by {}", names.join(", "))),
        }
    }

    fn scrubbing(&self, canary: Canary) -> Option<Finding> {
        let uuid = self.uuid.as_ref().filter(|_| canary == Canary::Run)?;
        Some(match check_scrubbing(&Program::default(), uuid) {
            Scrubbing::Seen => self.says(
                Verdict::Good,
                "fresh memory held none of what another process had written there (a sample)",
            ),
            Scrubbing::Missing => self.says(
                Verdict::Bad,
                "fresh memory held what another process had written: one job could read another's data",
            ),
            Scrubbing::Unknown(why) => {
                self.says(Verdict::Unknown, format!("whether memory is scrubbed between processes: {why}"))
            }
        })
    }
}

fn named(reading: &Reading) -> Option<Vec<String>> {
    let processes = reading.processes.as_ref()?;
    let mut names: Vec<String> = processes
        .iter()
        .take(NAMED_MAX)
        .map(|process| format!("{}: {}", people::describe(process.pid), process.bytes))
        .collect();
    if processes.len() > NAMED_MAX {
        names.push(format!("{} more", processes.len() - NAMED_MAX));
    }
    Some(names)
}
