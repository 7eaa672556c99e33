//! Getting a lease for `run` and `hold`: what is wished, in bytes and devices, and the wait for it.

use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_client::{Client, Device, Lease};
use gpulease_words::{Bytes, DeviceId, DurationText};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::arguments::{Amounts, Common, Memory, Whole, Wish};
use crate::escape::printable;
use crate::exit::{Exit, Failure};
use crate::look::Look;
use crate::output;
use crate::progress::{Manner, Progress};
use crate::signals::{Caught, Signals, name};
use crate::state::SCHEMA_VERSION;

/// The live line is drawn again so often, for the time in it.
const REDRAW: Duration = Duration::from_secs(1);

/// Which devices are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Where {
    Any(NonZeroU32),
    These(Vec<DeviceId>),
}

/// Asks for what is wished and waits for it, telling how it stands; a signal gives the wait up.
///
/// # Errors
/// A refusal, a broker that is gone, or the signal.
pub(crate) async fn acquire(
    client: &Client,
    wish: &Wish,
    default_name: &str,
    common: &Common,
    signals: &mut Signals,
) -> Result<Lease, Failure> {
    let place = place(wish, client.devices())?;
    let amounts = amounts(wish.memory, &place, client.devices())?;
    let (tell, mut updates) = mpsc::unbounded_channel();
    let ask = client
        .lease(amounts.reserve)
        .up_to(amounts.limit)
        .name(wish.name.as_deref().unwrap_or(default_name))
        .on_waiting(move |waiting| drop(tell.send(waiting.clone())));
    let ask = match &place {
        Where::Any(count) => ask.gpus(count.get()),
        Where::These(devices) => ask.on_devices(devices.iter().copied()),
    };
    let ask = match wish.wait {
        _ if wish.no_wait => ask.no_wait(),
        Some(wait) if wait.is_zero() => ask.no_wait(),
        Some(wait) => ask.wait_at_most(wait),
        None => ask.wait_forever(),
    };
    let ask = if wish.pinned { ask.pinned() } else { ask };
    let mut progress = Progress::new(manner(common, wish));
    let mut answer = std::pin::pin!(ask.acquire());
    let mut tick = tokio::time::interval(REDRAW);
    let lease = loop {
        tokio::select! {
            biased;
            answer = &mut answer => break answer,
            caught = signals.next() => if caught.ends_a_wait() {
                progress.clear();
                return Err(given_up(caught, &progress));
            },
            Some(waiting) = updates.recv() => progress.update(waiting),
            _ = tick.tick() => progress.refresh(),
        }
    };
    progress.clear();
    let lease = lease?;
    announce(&lease, amounts, client.devices(), common, wish);
    Ok(lease)
}

fn manner(common: &Common, wish: &Wish) -> Manner {
    match (common.json, wish.quiet, Look::stderr_is_terminal()) {
        (true, _, _) => Manner::Documents,
        (false, true, _) => Manner::Quiet,
        (false, false, true) => Manner::Live(Look::of_stderr()),
        (false, false, false) => Manner::Lines,
    }
}

fn given_up(caught: Caught, progress: &Progress) -> Failure {
    let signal = name(caught.number);
    let message = match progress.last() {
        Some(waiting) => format!("gave up at {signal}: {} is withdrawn", waiting.ask),
        None => format!("gave up at {signal}, before the ask was answered"),
    };
    Failure::new(Exit::Signal(caught.number), message)
}

fn place(wish: &Wish, devices: &[Device]) -> Result<Where, Failure> {
    if wish.device.is_empty() {
        return Ok(Where::Any(wish.gpus.unwrap_or(NonZeroU32::MIN)));
    }
    let mut these = Vec::new();
    for text in &wish.device {
        let device = named(text, devices)?;
        if these.contains(&device) {
            return Err(Failure::new(Exit::Usage, format!("device {device} is named twice; name each once")));
        }
        these.push(device);
    }
    Ok(Where::These(these))
}

/// The device with this index, this UUID, or the only one whose UUID begins so.
fn named(text: &str, devices: &[Device]) -> Result<DeviceId, Failure> {
    let text = text.trim();
    let index: Option<u32> = text.parse().ok();
    if let Some(device) = devices.iter().find(|d| Some(d.id.get()) == index || d.uuid == text) {
        return Ok(device.id);
    }
    let begins = |device: &&Device| !text.is_empty() && index.is_none() && device.uuid.starts_with(text);
    let found: Vec<&Device> = devices.iter().filter(begins).collect();
    if let [device] = found[..] {
        return Ok(device.id);
    }
    let known: Vec<String> = devices.iter().map(|d| format!("{} ({})", d.id, printable(&d.uuid))).collect();
    let what = if found.is_empty() { "no device" } else { "more than one device" };
    let known = known.join(", ");
    Err(Failure::new(Exit::Usage, format!("{text:?} is {what} of this broker; write one of {known}")))
}

/// The amounts in bytes; growth without end is as far as the largest allows. A share is one of the smallest device that may be chosen.
fn amounts(memory: Memory, place: &Where, devices: &[Device]) -> Result<Amounts, Failure> {
    let chosen = |device: &&Device| match place {
        Where::Any(_) => true,
        Where::These(these) => these.contains(&device.id),
    };
    let capacities = || devices.iter().filter(chosen).map(|device| device.capacity);
    let (smallest, largest) = (capacities().min(), capacities().max());
    let whole = Whole { smallest: smallest.unwrap_or(Bytes::ZERO), largest: largest.unwrap_or(Bytes::ZERO) };
    memory.of(whole).map_err(|why| Failure::new(Exit::Usage, why))
}

#[derive(Serialize)]
struct GrantedDocument {
    schema_version: u32,
    event: &'static str,
    id: String,
    devices: Vec<u32>,
    reserve_bytes: u64,
    limit_bytes: u64,
    waited_seconds: f64,
}

/// Says what was granted, on standard error: standard output belongs to the command.
fn announce(lease: &Lease, asked: Amounts, devices: &[Device], common: &Common, wish: &Wish) {
    if common.json {
        output::say_document(&GrantedDocument {
            schema_version: SCHEMA_VERSION,
            event: "granted",
            id: lease.id().to_string(),
            devices: lease.devices().iter().map(|device| device.get()).collect(),
            reserve_bytes: lease.reserve().get(),
            limit_bytes: lease.limit().get(),
            waited_seconds: lease.waited().as_secs_f64(),
        });
    } else if !wish.quiet {
        let amounts = Amounts { reserve: lease.reserve(), limit: lease.limit() };
        let place = place_words(lease.devices(), devices);
        let waited = DurationText(lease.waited());
        let most = less_than_asked(asked, amounts);
        output::say(&format!("{}: {amounts}{most} on {place}, granted after {waited}", lease.id()));
    }
}

/// Growth that devices or budgets would never allow is not granted, and the job goes by what is.
fn less_than_asked(asked: Amounts, granted: Amounts) -> String {
    if granted.limit >= asked.limit {
        return String::new();
    }
    format!(" (not {}: more is not to be had by devices and budget)", asked.limit)
}

fn place_words(granted: &[DeviceId], devices: &[Device]) -> String {
    let name = |id: &DeviceId| {
        let device = devices.iter().find(|device| device.id == *id);
        device.map_or_else(|| format!("device {id}"), |d| format!("device {id} ({})", printable(&d.name)))
    };
    granted.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use gpulease_client::DeviceKind;
    use gpulease_words::gib;

    use super::*;

    fn devices() -> Vec<Device> {
        let device = |index, uuid: &str, capacity| Device {
            id: DeviceId::new(index),
            kind: DeviceKind::Cuda,
            uuid: uuid.into(),
            name: "H200".into(),
            capacity,
        };
        vec![device(0, "GPU-12ab", gib(64)), device(1, "GPU-12cd", gib(32)), device(2, "7", gib(16))]
    }

    #[test]
    fn devices_by_index_uuid_or_its_beginning() {
        let devices = devices();
        for (text, index) in [("0", 0), (" 1", 1), ("GPU-12ab", 0), ("GPU-12c", 1), ("7", 2)] {
            assert_eq!(named(text, &devices), Ok(DeviceId::new(index)), "{text}");
        }
        for (text, word) in
            [("3", "no device"), ("GPU-12", "more than one"), ("", "no device"), ("H200", "no device")]
        {
            let failure = named(text, &devices).expect_err(text);
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.contains(word) && failure.message.contains("1 (GPU-12cd)"), "{failure}");
        }
    }

    #[test]
    fn a_share_is_one_of_the_smallest_that_may_be_chosen() {
        let devices = devices();
        let memory = "50%".parse().expect("a size");
        let all = Where::Any(NonZeroU32::MIN);
        assert_eq!(amounts(memory, &all, &devices).map(|a| a.reserve), Ok(gib(8)));
        let these = Where::These(vec![DeviceId::new(0), DeviceId::new(1)]);
        assert_eq!(amounts(memory, &these, &devices).map(|a| a.reserve), Ok(gib(16)));
    }
}
