//! What the broker itself tells.

use std::path::Path;

use gpulease_proto::v1;
use gpulease_words::Bytes;

use super::finding::Finding;
use crate::state::{kind_word, span, user};

/// All findings about a broker that answers.
pub(super) fn findings(state: &v1::StatusReply, socket: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(broker) = &state.broker {
        findings.push(answers(broker, socket));
        findings.push(version(broker));
        findings.push(visible(broker));
        findings.push(hold(broker, &state.devices));
        findings.extend(broker.arena.as_ref().map(arena));
    }
    for device in &state.devices {
        findings.extend(device_findings(device));
    }
    findings.extend(witness(&state.devices));
    findings.extend(leases(state));
    findings
}

fn answers(broker: &v1::BrokerStatus, socket: &Path) -> Finding {
    let (version, pid, up) = (&broker.version, broker.pid, span(broker.uptime_ms));
    Finding::ok("broker", format!("gpuleased {version} answers at {} (pid {pid}, up {up})", socket.display()))
}

fn version(broker: &v1::BrokerStatus) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    if broker.version == ours {
        Finding::ok("version", format!("broker and command line are both {ours}"))
    } else {
        let theirs = &broker.version;
        let message = format!("the broker is {theirs} and this command line {ours}");
        Finding::warn("version", message, "install the same version of both, and restart the older one")
    }
}

/// The pids that a broker shows are those of its own pid namespace.
fn visible(broker: &v1::BrokerStatus) -> Finding {
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", broker.pid));
    if comm.is_ok_and(|name| name.starts_with("gpulease")) {
        return Finding::ok(
            "pids",
            "the broker is in this pid namespace, so the pids it shows are those seen here",
        );
    }
    Finding::warn(
        "pids",
        "the broker is in another pid namespace (a container?), so the pids it shows are not those seen here",
        "look processes up on the host; leases work all the same",
    )
}

fn hold(broker: &v1::BrokerStatus, devices: &[v1::DeviceStatus]) -> Finding {
    match broker.hold.as_str() {
        "all" => {
            let held = devices.iter().filter_map(|device| device.memory.as_ref()?.hold_bytes);
            let (held, cards) = held.fold((Bytes::ZERO, 0), |(sum, cards), bytes| {
                (sum.saturating_add(Bytes::new(bytes)), cards + 1)
            });
            let on = if cards == 1 { "the card".to_owned() } else { format!("{cards} cards") };
            Finding::ok(
                "hold",
                format!(
                    "the broker holds what is not leased, {held} of {on}, so nobody can allocate around it beyond the headroom"
                ),
            )
        }
        "none" => Finding::warn(
            "hold",
            "the broker holds nothing back (hold = none): limits are advisory, and programs that do not ask it can take leased memory",
            "run the broker as root with `--hold all` where that must not be",
        ),
        other => Finding::warn(
            "hold",
            format!("hold = {other} is unknown to this version"),
            "update the command line",
        ),
    }
}

/// Host memory for suspended leases.
fn arena(arena: &v1::ArenaStatus) -> Finding {
    let (capacity, free) = (Bytes::new(arena.capacity_bytes), Bytes::new(arena.free_bytes));
    if !arena.trouble.is_empty() {
        return Finding::warn(
            "arena",
            arena.trouble.clone(),
            "free memory of the host, or give the broker a smaller arena; until then those leases stay on their devices",
        );
    }
    Finding::ok("arena", format!("{free} of {capacity} of host memory are free for suspended leases"))
}

fn device_findings(device: &v1::DeviceStatus) -> Vec<Finding> {
    let Some(info) = &device.info else { return Vec::new() };
    let (index, name) = (info.index, &info.name);
    let mut findings = vec![if device.trouble.is_empty() {
        let kind = kind_word(info.kind()).unwrap_or("unknown");
        Finding::ok("device", format!("device {index} ({kind}, {name}): {}", Bytes::new(info.capacity_bytes)))
    } else {
        let message = format!("device {index} ({name}) cannot be used: {}", device.trouble);
        Finding::fail("device", message, "do what it says, then restart the broker")
    }];
    findings.extend(device.memory.as_ref().and_then(|memory| book(index, memory)));
    findings.extend(device.strangers.iter().map(|stranger| outsider(index, stranger)));
    findings
}

fn book(index: u32, memory: &v1::DeviceMemory) -> Option<Finding> {
    let (quarantined, unbacked) = (Bytes::new(memory.quarantined_bytes), Bytes::new(memory.unbacked_bytes));
    if !quarantined.is_zero() {
        let message =
            format!("{quarantined} of device {index} could not be proven free and are in quarantine");
        return Some(Finding::warn(
            "quarantine",
            message,
            "`gpulease` shows whose they are; end those processes",
        ));
    }
    (!unbacked.is_zero()).then(|| {
        let message = format!("{unbacked} that are promised on device {index} were taken by outsiders");
        Finding::warn(
            "unbacked",
            message,
            "end the programs outside any lease, or run the broker with `--hold all`",
        )
    })
}

fn outsider(index: u32, stranger: &v1::Stranger) -> Finding {
    let who = stranger.uid.map_or_else(|| "an unknown user".to_owned(), |uid| user(&stranger.user, uid));
    let (pid, bytes, command) = (stranger.pid, Bytes::new(stranger.bytes), &stranger.command);
    Finding::warn(
        "stranger",
        format!("pid {pid} of {who} uses {bytes} of device {index} outside any lease: {command}"),
        "start it with `gpulease run`, or end it; until then its memory is taken off what can be leased",
    )
}

fn witness(devices: &[v1::DeviceStatus]) -> Option<Finding> {
    let gpus = || {
        devices
            .iter()
            .filter(|device| device.info.as_ref().is_some_and(|info| info.kind() == v1::DeviceKind::Cuda))
    };
    gpus().next()?;
    let blind =
        gpus().any(|device| device.memory.as_ref().is_none_or(|memory| memory.device_used_bytes.is_none()));
    Some(if blind {
        Finding::warn(
            "nvml",
            "the broker gets no figures from NVML: overhead is estimated, and strangers are not seen",
            "install the driver's libnvidia-ml.so.1 (in containers: the utility capability), and restart the broker",
        )
    } else if gpus().any(|device| !device.strangers_known) {
        Finding::warn(
            "nvml",
            "NVML tells how much of the card is used and not by whom, so strangers have no names",
            "in a container, give the broker the host's pid namespace (--pid=host)",
        )
    } else {
        Finding::ok("nvml", "the card's own figures are there, by process")
    })
}

fn leases(state: &v1::StatusReply) -> Option<Finding> {
    let unused = state.leases.iter().filter(|lease| !lease.used && lease.age_ms > 60_000).count();
    (unused > 0).then(|| {
        Finding::warn(
            "leases",
            format!(
                "leases older than 1m of which no process has claimed memory: {unused} of {}",
                state.leases.len()
            ),
            "their programs take GPU memory from outside the broker, or none; `gpulease why` tells of each",
        )
    })
}

#[cfg(test)]
mod tests {
    use gpulease_words::gib;

    use super::super::finding::Level;
    use super::*;

    fn state() -> v1::StatusReply {
        v1::StatusReply {
            broker: Some(v1::BrokerStatus {
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
                hold: "all".into(),
                ..Default::default()
            }),
            devices: vec![v1::DeviceStatus {
                info: Some(v1::DeviceInfo {
                    kind: v1::DeviceKind::Cuda.into(),
                    name: "H200".into(),
                    capacity_bytes: gib(8).get(),
                    ..Default::default()
                }),
                memory: Some(v1::DeviceMemory { device_used_bytes: Some(0), ..Default::default() }),
                strangers_known: true,
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn level(state: &v1::StatusReply, check: &str) -> Option<Level> {
        findings(state, Path::new("/s"))
            .iter()
            .find(|finding| finding.check == check)
            .map(|finding| finding.level)
    }

    #[test]
    fn a_sound_broker_has_nothing_to_cure() {
        let found = findings(&state(), Path::new("/s"));
        let cures: Vec<_> = found.iter().filter(|finding| finding.cure.is_some()).collect();
        // The test's own process is named after the test binary, so it passes for the broker.
        assert!(cures.is_empty(), "{cures:#?}");
    }

    #[test]
    fn each_fault_is_found_with_a_cure() {
        type Fault = fn(&mut v1::StatusReply);
        let faults: [(&str, Level, Fault); 8] = [
            ("version", Level::Warn, |s| s.broker.as_mut().expect("set").version = "9.0.0".into()),
            ("hold", Level::Warn, |s| s.broker.as_mut().expect("set").hold = "none".into()),
            ("pids", Level::Warn, |s| s.broker.as_mut().expect("set").pid = u32::MAX),
            ("device", Level::Fail, |s| s.devices[0].trouble = "MIG".into()),
            ("nvml", Level::Warn, |s| s.devices[0].memory.as_mut().expect("set").device_used_bytes = None),
            ("nvml", Level::Warn, |s| s.devices[0].strangers_known = false),
            ("quarantine", Level::Warn, |s| s.devices[0].memory.as_mut().expect("set").quarantined_bytes = 1),
            ("stranger", Level::Warn, |s| s.devices[0].strangers.push(v1::Stranger::default())),
        ];
        for (check, expected, fault) in faults {
            let mut broken = state();
            fault(&mut broken);
            assert_eq!(level(&broken, check), Some(expected), "{check}");
        }
    }

    #[test]
    fn a_host_broker_needs_no_nvml() {
        let mut host = state();
        host.devices[0].info.as_mut().expect("set").kind = v1::DeviceKind::Host.into();
        host.devices[0].memory.as_mut().expect("set").device_used_bytes = None;
        assert_eq!(level(&host, "nvml"), None);
    }
}
