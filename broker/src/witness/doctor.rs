//! What is well and what is not with the driver and the cards of this host, for `gpulease doctor`.

use gpulease_cuda::{Device, Driver, Unavailable};
use nvml_wrapper::enum_wrappers::device::ComputeMode;

use super::{Card, Cards, Reading, people};
use crate::device::cuda::{Canary, numbered, refuse_mig};
use crate::exporter::{Program, Scrubbing, check_scrubbing};

const ACCESS_FOR_ALL: &str = "let all compute by nvidia-smi -c 0";

/// The most processes of a card that are named.
const NAMED_MAX: usize = 8;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What: "driver", "NVML", "cuda:0".
    pub subject: String,
    /// How it is.
    pub verdict: Verdict,
    /// A sentence, with numbers.
    pub says: String,
    /// What helps, where something does and the sentence does not say it.
    pub cure: Option<&'static str>,
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
/// `main` has to begin with [`crate::exporter::maybe_run`] where it is called as `gpuleased`.
#[must_use]
pub fn doctor(canary: Canary) -> Vec<Finding> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(why @ (Unavailable::NoLibrary { .. } | Unavailable::NoDevice { .. })) => {
            let finding = finding("driver", Verdict::Notice, why.to_string());
            return vec![finding.with_cure("host memory can be leased without one")];
        }
        Err(why) => return vec![finding("driver", Verdict::Bad, why.to_string())],
    };
    let cards = Cards::open();
    let mut findings = vec![driver_found(driver, cards.as_ref().ok()), nvml(&cards)];
    match numbered(driver) {
        Ok(devices) => {
            findings.extend(devices.into_iter().enumerate().flat_map(|(number, device)| {
                Patient::new(number, device, cards.as_ref().ok()).findings(canary)
            }))
        }
        Err(why) => findings.push(finding("driver", Verdict::Bad, why.to_string())),
    }
    findings
}

fn finding(subject: &str, verdict: Verdict, says: impl Into<String>) -> Finding {
    Finding { subject: subject.to_owned(), verdict, says: says.into(), cure: None }
}

impl Finding {
    fn with_cure(self, cure: &'static str) -> Self {
        Self { cure: Some(cure), ..self }
    }
}

fn nvml(cards: &Result<Cards, String>) -> Finding {
    match cards {
        Ok(_) => finding("NVML", Verdict::Good, "NVML tells what is used, and by whom"),
        Err(why) => finding(
            "NVML",
            Verdict::Unknown,
            format!(
                "{why}; without it nobody can tell what others use of a card, such figures are N/A, and memory counts as free once as much can be created"
            ),
        ),
    }
}

fn driver_found(driver: &Driver, cards: Option<&Cards>) -> Finding {
    let version = cards.and_then(|cards| cards.driver_version().ok());
    let version = version.map(|version| format!(", driver {version}")).unwrap_or_default();
    finding("driver", Verdict::Good, format!("CUDA {}{version}, with all that is needed", driver.version()))
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
            ComputeMode::Prohibited => {
                let says = format!("{} lets nobody compute (compute mode prohibited)", self.name);
                Some(self.says(Verdict::Bad, says).with_cure(ACCESS_FOR_ALL))
            }
            ComputeMode::ExclusiveProcess | ComputeMode::ExclusiveThread => {
                let says = format!(
                    "{} lets one process compute at a time (compute mode exclusive), so that jobs can't share it",
                    self.name
                );
                Some(self.says(Verdict::Notice, says).with_cure(ACCESS_FOR_ALL))
            }
        }
    }

    fn awake(&self) -> Option<Finding> {
        let awake = self.card.as_ref()?.is_kept_awake()?;
        (!awake).then(|| {
            self.says(
                Verdict::Notice,
                "persistence mode is off, so that the first program on an idle card waits for seconds",
            )
            .with_cure("switch it on by nvidia-smi -pm 1 or nvidia-persistenced")
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
        let reading = self.card.as_ref().and_then(|card| card.read().ok());
        Some(match check_scrubbing(&Program::default(), uuid, reading.as_ref()) {
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
