//! The state as lines of text.

use gpulease_arbiter::{AccountView, AskView, DeviceView, LeaseView, Purpose, Snapshot};
use gpulease_words::{AskId, Bytes, DeviceId, DurationText, LeaseId};

use super::budget::Setting;
use super::telling::{place, span};

/// Devices, leases and the line.
pub(super) fn status(snapshot: &Snapshot, setting: &Setting) -> Vec<String> {
    let devices = snapshot.devices.iter().map(device);
    let leases = snapshot.leases.iter().map(|view| lease(view, setting));
    devices.chain(leases).chain(asks(snapshot, setting)).collect()
}

/// The line alone.
pub(super) fn line(snapshot: &Snapshot, setting: &Setting) -> Vec<String> {
    match snapshot.waiting.is_empty() {
        true => vec!["nobody waits".to_owned()],
        false => asks(snapshot, setting).collect(),
    }
}

/// The accounts.
pub(super) fn accounts(snapshot: &Snapshot, _: &Setting) -> Vec<String> {
    snapshot.accounts.iter().map(account).collect()
}

/// Why an ask waits: what it lacks, and who has it.
pub(super) fn why_ask(snapshot: &Snapshot, setting: &Setting, id: AskId) -> Vec<String> {
    let Some(at) = snapshot.waiting.iter().position(|view| view.id == id) else {
        return vec![format!("{id} does not wait")];
    };
    let ask = &snapshot.waiting[at];
    let on = |view: &&LeaseView| ask.device.is_none_or(|device| view.devices.contains(&device));
    let holders = snapshot.leases.iter().filter(on).map(|view| lease(view, setting));
    std::iter::once(waiting(at, ask, snapshot, setting)).chain(holders).collect()
}

/// How a lease stands.
pub(super) fn why_lease(snapshot: &Snapshot, setting: &Setting, id: LeaseId) -> Vec<String> {
    let found = snapshot.leases.iter().find(|view| view.id == id);
    vec![found.map_or_else(|| format!("{id} is not there"), |view| lease(view, setting))]
}

/// `device 0` or `devices 0, 1`.
pub(super) fn devices(ids: &[DeviceId]) -> String {
    let numbers: Vec<String> = ids.iter().map(DeviceId::to_string).collect();
    format!("{} {}", if ids.len() == 1 { "device" } else { "devices" }, numbers.join(", "))
}

/// The parts that are not zero, with their names.
fn parts(parts: &[(&str, Bytes)]) -> String {
    let there: Vec<String> =
        parts.iter().filter(|(_, b)| !b.is_zero()).map(|(name, b)| format!("{name} {b}")).collect();
    if there.is_empty() { "nothing".to_owned() } else { there.join(", ") }
}

fn device(view: &DeviceView) -> String {
    let sum = parts(&[
        ("free", view.free),
        ("set aside", view.set_aside),
        ("overhead", view.overhead),
        ("held", view.held),
        ("draining", view.draining),
        ("quarantined", view.quarantined),
        ("off-book", view.off_book.unwrap_or(Bytes::ZERO)),
    ]);
    let unbacked = match view.unbacked {
        Bytes::ZERO => String::new(),
        bytes => format!("; {bytes} promised is unbacked"),
    };
    let lost = if view.usable { "" } else { "; lost" };
    format!("device {}, {}: {sum}{unbacked}{lost}", view.id, view.capacity)
}

fn lease(view: &LeaseView, setting: &Setting) -> String {
    let sum = parts(&[
        ("set aside", view.set_aside),
        ("overhead", view.overhead),
        ("held", view.held),
        ("draining", view.draining),
        ("quarantined", view.quarantined),
        ("in host memory", view.swapped),
    ]);
    let marks: String = [
        (view.overdue, ", overdue".to_owned()),
        (view.adrift, ", adrift".to_owned()),
        (view.pinned, ", pinned".to_owned()),
        (view.guaranteed, ", guaranteed".to_owned()),
        (view.idle, ", idle".to_owned()),
        (!view.suspects.is_empty(), format!(", suspects {}", numbers(view))),
    ]
    .into_iter()
    .filter_map(|(is, mark)| is.then_some(mark))
    .collect();
    format!(
        "{} {} of {}, pid {}, {}{marks}: {} on {}; {sum}",
        view.id,
        view.name,
        setting.name_of(view.uid),
        view.pid,
        view.state.word(),
        span(view.reserve, view.limit),
        devices(&view.devices),
    )
}

fn numbers(view: &LeaseView) -> String {
    let pids: Vec<String> = view.suspects.iter().map(|pid| format!("pid {pid}")).collect();
    pids.join(", ")
}

fn asks(snapshot: &Snapshot, setting: &Setting) -> impl Iterator<Item = String> {
    snapshot.waiting.iter().enumerate().map(|(at, view)| waiting(at, view, snapshot, setting))
}

fn waiting(at: usize, view: &AskView, snapshot: &Snapshot, setting: &Setting) -> String {
    let wish = match view.devices.is_empty() {
        true => format!("any {}", view.devices_wanted),
        false => devices(&view.devices),
    };
    let growth = view.lease.map_or(String::new(), |lease| match view.purpose {
        Purpose::Lease | Purpose::Growth => format!(" (growth of {lease})"),
        Purpose::Resume => format!(" (to have {lease} back)"),
    });
    let barrier = match (view.guaranteed, view.barrier) {
        (true, _) => ", guaranteed",
        (false, true) => ", a barrier",
        (false, false) => "",
    };
    let patience = view.deadline.map_or(String::new(), |deadline| {
        format!(", gives up in {}", DurationText(deadline.since(snapshot.at)))
    });
    let latest = view
        .at_latest
        .map_or(String::new(), |at| format!("; at the latest in {}", DurationText(at.since(snapshot.at))));
    let recalled: Vec<String> = view.recalled.iter().map(LeaseId::to_string).collect();
    let recalled =
        if recalled.is_empty() { String::new() } else { format!("; recalled: {}", recalled.join(", ")) };
    format!(
        "{} {} of {}{growth} waits {} for {} on {wish}{barrier}{patience}; {}{recalled}{latest}",
        view.id,
        view.name,
        setting.name_of(view.uid),
        DurationText(snapshot.at.since(view.since)),
        span(view.reserve, view.limit),
        place(at, view),
    )
}

fn account(view: &AccountView) -> String {
    let limit = view.limit.map_or(String::new(), |limit| format!(" of {limit}"));
    let leases_max = view.leases_max.map_or(String::new(), |max| format!(" of {max}"));
    format!(
        "{}: {}{limit}, weight {}, leases {}{leases_max}",
        view.path, view.charged, view.weight, view.leases
    )
}
