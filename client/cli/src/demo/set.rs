//! The devices of the demo, and how much of each it takes.

use gpulease_cuda::Driver;
use gpulease_words::{Bytes, Size, gib, mib};
use nvml_wrapper::Nvml;

use super::gauge::card;
use crate::exit::{Exit, Failure};

/// The most that the demo takes of a device.
const MOST: Bytes = gib(8);

/// It takes at most one part in so many of what is free.
const PARTS: u64 = 4;

/// What the broker sets aside for a process's context on a card until it has measured it.
const PROCESS_ON_A_CARD: Bytes = mib(640);

/// What the private broker manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// As `gpuleased --device` takes them.
    pub(super) devices: Vec<String>,
    /// Of each device.
    pub(super) capacity: Bytes,
    /// What each process costs the first device beside its lease.
    pub(super) overhead: Bytes,
    /// A sentence for a person.
    pub(super) words: String,
}

/// The devices that were named, else every GPU, else host memory.
///
/// # Errors
/// Where a device makes no sense, or is not there.
pub(super) fn choose(named: &[String]) -> Result<Set, Failure> {
    let named: Vec<&str> = named.iter().map(String::as_str).filter(|device| *device != "auto").collect();
    match named[..] {
        [] => Ok(every_card().unwrap_or_else(host)),
        [first, ..] => {
            let capacities: Result<Vec<Bytes>, Failure> =
                named.iter().map(|device| capacity_of(device)).collect();
            let capacity = capacities?.into_iter().min().unwrap_or(Bytes::ZERO);
            let overhead = if first.starts_with("host:") { Bytes::ZERO } else { PROCESS_ON_A_CARD };
            let devices = named.iter().map(|device| (*device).to_owned()).collect();
            let words = format!("the named devices, {capacity} of each");
            Ok(Set { devices, capacity, overhead, words })
        }
    }
}

/// Every GPU that CUDA shows; `None` where there is none.
fn every_card() -> Option<Set> {
    let cards = Driver::load().ok()?.devices().ok().filter(|cards| !cards.is_empty())?;
    let capacity = (0..cards.len()).map(|ordinal| card_capacity(ordinal).unwrap_or(MOST)).min()?;
    let devices: Vec<String> = (0..cards.len()).map(|ordinal| format!("cuda:{ordinal}")).collect();
    let words =
        format!("{} GPUs, {capacity} of each (at most {MOST} and a quarter of what is free)", cards.len());
    Some(Set { devices, capacity, overhead: PROCESS_ON_A_CARD, words })
}

fn host() -> Set {
    let capacity = share_of(free_of_host());
    let words = format!(
        "{capacity} of host memory, since no GPU is to be seen here (at most {MOST} and a quarter of what is free)"
    );
    Set { devices: vec![format!("host:{}B", capacity.get())], capacity, overhead: Bytes::ZERO, words }
}

fn capacity_of(device: &str) -> Result<Bytes, Failure> {
    let wrong = |why: String| Failure::new(Exit::Usage, format!("--device {device}: {why}"));
    if let Some(size) = device.strip_prefix("host:") {
        let size: Size = size.parse().map_err(|e: gpulease_words::ParseSizeError| wrong(e.to_string()))?;
        return Ok(size.of(free_of_host()).round_down().min(MOST));
    }
    let ordinal = device.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
    let ordinal = ordinal.ok_or_else(|| wrong("write cuda:0, or host:8GiB".to_owned()))?;
    card_capacity(ordinal).map_err(wrong)
}

/// A share of what is free on the card, as NVML says; without NVML of all that it has.
fn card_capacity(ordinal: usize) -> Result<Bytes, String> {
    let driver = Driver::load().map_err(|why| why.to_string())?;
    let devices = driver.devices().map_err(|why| why.to_string())?;
    let count = devices.len();
    let device = devices.into_iter().nth(ordinal);
    let device =
        device.ok_or_else(|| format!("there are {count} GPUs here, and none of them is number {ordinal}"))?;
    let free = device.uuid().ok().and_then(|uuid| card(&Nvml::init().ok()?, &uuid.to_string()));
    match free {
        Some(card) => Ok(share_of(card.free)),
        None => device.total().map(share_of).map_err(|why| why.to_string()),
    }
}

fn share_of(free: Bytes) -> Bytes {
    Bytes::new(free.get() / PARTS).round_down().min(MOST)
}

/// What the kernel would give without swapping, and a memory limit of this process's group leaves.
pub(super) fn free_of_host() -> Bytes {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = available(&meminfo).unwrap_or(Bytes::ZERO);
    group_leaves().map_or(available, |left| left.min(available))
}

fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024).map(Bytes::new)
}

/// What the control group (version 2) of this process may still use.
fn group_leaves() -> Option<Bytes> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
    let figure = |file: &str| -> Option<u64> {
        let path = std::path::Path::new("/sys/fs/cgroup").join(&path).join(file);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some(Bytes::new(figure("memory.max")?).saturating_sub(Bytes::new(figure("memory.current")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_what_is_free_and_at_most_8_gib() {
        assert_eq!(share_of(gib(100)), gib(8));
        assert_eq!(share_of(gib(4)), gib(1));
        assert_eq!(share_of(mib(15)), mib(2));
        assert_eq!(available("MemFree: 1 kB\nMemAvailable:    2048 kB\n"), Some(mib(2)));
    }

    #[test]
    fn devices_by_name() {
        let set = choose(&["host:64MiB".into()]).expect("host memory");
        assert_eq!(
            (set.capacity, set.overhead, set.devices),
            (mib(64), Bytes::ZERO, vec!["host:64MiB".into()])
        );
        for device in ["host:", "host:8", "cuda:", "gpu0", "cuda:4000"] {
            let failure = choose(&[device.into()]).expect_err(device);
            assert_eq!(failure.exit, Exit::Usage, "{device}: {failure}");
        }
    }
}
