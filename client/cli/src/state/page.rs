//! The state as text for a person.

use std::time::Duration;

use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, DurationText, LeaseId};

use super::bar;
use crate::escape::printable;
use crate::grid::{self, Column, Narrow};
use crate::look::{Look, Tone};

/// The whole page, each line ended.
pub(crate) fn page(reply: &v1::StatusReply, look: Look) -> String {
    let mut text = String::new();
    if let Some(broker) = &reply.broker {
        text.push_str(&broker_lines(broker));
    }
    text.push_str(&devices(&reply.devices, look));
    text.push_str(&leases(&reply.leases, look));
    if !reply.waiting.is_empty() {
        text.push_str(&format!(
            "\n{}\n{}",
            heading("The line", reply.waiting.len(), look),
            line(&reply.waiting, look)
        ));
    }
    text.push_str(&strangers(&reply.devices, look));
    if let Some(note) = reply.broker.as_ref().and_then(|broker| advisory(broker, look)) {
        text.push_str(&format!("\n{note}\n"));
    }
    text
}

fn heading(words: &str, count: usize, look: Look) -> String {
    look.paint(Tone::Heading, &format!("{words} ({count})"))
}

fn broker_lines(broker: &v1::BrokerStatus) -> String {
    let mut text = format!(
        "gpuleased {}, pid {}, up {}, {}\n",
        printable(&broker.version),
        broker.pid,
        span(broker.uptime_ms),
        printable(&broker.socket)
    );
    for helper in &broker.helpers {
        let cost = figure(helper.overhead_bytes);
        let (role, pid, device) = (printable(&helper.role), helper.pid, helper.device_index);
        text.push_str(&format!("its {role}, pid {pid}, uses {cost} of device {device}\n"));
    }
    text.extend(broker.arena.as_ref().map(arena_lines));
    text
}

/// Host memory for suspended leases.
fn arena_lines(arena: &v1::ArenaStatus) -> String {
    let amount = |bytes| Bytes::new(bytes).to_string();
    let mut parts = vec![
        format!("{} free", amount(arena.free_bytes)),
        format!("{} set aside", amount(arena.set_aside_bytes)),
        format!("{} filled", amount(arena.filled_bytes)),
    ];
    if arena.draining_bytes > 0 {
        parts.push(format!("{} draining", amount(arena.draining_bytes)));
    }
    let mut text =
        format!("arena of {} in host memory: {}\n", amount(arena.capacity_bytes), parts.join(", "));
    if !arena.trouble.is_empty() {
        text.push_str(&format!("   {}\n", printable(&arena.trouble)));
    }
    text
}

/// What a broker without a hold cannot promise.
fn advisory(broker: &v1::BrokerStatus, look: Look) -> Option<String> {
    (broker.hold == "none").then(|| {
        look.paint(
            Tone::Warning,
            "Advisory: the broker holds nothing back (hold = none), so programs that do not ask it can take leased memory.",
        )
    })
}

fn devices(devices: &[v1::DeviceStatus], look: Look) -> String {
    let mut text = format!("\n{}\n", heading("Devices", devices.len(), look));
    for device in devices {
        text.push_str(&device_lines(device, look));
    }
    if devices.iter().any(|device| device.memory.is_some()) {
        text.push_str(&look.paint(Tone::Dim, &wrapped(&bar::LEGEND.map(str::to_owned), look)));
    }
    text
}

fn device_lines(device: &v1::DeviceStatus, look: Look) -> String {
    let mut text = String::new();
    if let Some(info) = &device.info {
        text.push_str(&format!("{}  {}  {}", info.index, printable(&info.name), printable(&info.uuid)));
    }
    if let Some(memory) = &device.memory {
        let (capacity, total) = (Bytes::new(memory.capacity_bytes), Bytes::new(memory.total_bytes));
        text.push_str(&format!("  leases {capacity} of its {total}\n   {}\n", bar::bar(memory, look)));
        text.push_str(&wrapped(&buckets(memory), look));
    } else {
        text.push('\n');
    }
    if !device.trouble.is_empty() {
        text.push_str(&format!("   {}\n", look.paint(Tone::Bad, &printable(&device.trouble))));
    }
    text
}

fn buckets(memory: &v1::DeviceMemory) -> Vec<String> {
    let always = [("free", Some(memory.free_bytes)), ("held", Some(memory.held_bytes))];
    let sometimes = [
        ("overhead", memory.overhead_bytes),
        ("set aside", memory.set_aside_bytes),
        ("draining", memory.draining_bytes),
        ("quarantined", memory.quarantined_bytes),
        ("unbacked", memory.unbacked_bytes),
    ];
    let last = [
        ("off-book", memory.off_book_bytes),
        ("peak", Some(memory.peak_charged_bytes)),
        ("the device says used", memory.device_used_bytes),
    ];
    let sometimes =
        sometimes.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(word, bytes)| (word, Some(bytes)));
    let all = always.into_iter().chain(sometimes).chain(last);
    all.map(|(word, bytes)| format!("{word} {}", figure(bytes))).collect()
}

/// The phrases with commas between, in as many indented lines as they need.
fn wrapped(phrases: &[String], look: Look) -> String {
    let width = look.width.unwrap_or(usize::MAX);
    let (mut text, mut column) = (String::from("   "), 3);
    for (i, phrase) in phrases.iter().enumerate() {
        let comma = if i + 1 < phrases.len() { "," } else { "" };
        if column > 3 && column + 1 + phrase.len() + comma.len() > width {
            text.push_str("\n   ");
            column = 3;
        } else if column > 3 {
            text.push(' ');
            column += 1;
        }
        text.extend([phrase, comma]);
        column += phrase.len() + comma.len();
    }
    text.push('\n');
    text
}

const LEASE_COLUMNS: &[Column] = &[
    Column::left("ID", Narrow::Keep),
    Column::left("NAME", Narrow::Cut),
    Column::left("USER", Narrow::Cut),
    Column::right("PID", Narrow::LeaveOut(2)),
    Column::left("STATE", Narrow::Keep),
    Column::left("DEVICES", Narrow::LeaveOut(3)),
    Column::left("RESERVE..LIMIT", Narrow::LeaveOut(1)),
    Column::right("HELD", Narrow::Keep),
    Column::right("OVERHEAD", Narrow::LeaveOut(4)),
    Column::right("AGE", Narrow::LeaveOut(5)),
];

fn leases(leases: &[v1::LeaseStatus], look: Look) -> String {
    let title = format!("\n{}\n", heading("Leases", leases.len(), look));
    if leases.is_empty() {
        return title;
    }
    let rows: Vec<Vec<String>> = leases.iter().map(lease_row).collect();
    title + &grid::lines(LEASE_COLUMNS, &rows, look)
}

fn lease_row(lease: &v1::LeaseStatus) -> Vec<String> {
    vec![
        LeaseId::new(lease.id).to_string(),
        printable(&lease.name).into_owned(),
        user(&lease.user, lease.uid),
        lease.pid.to_string(),
        lease_state(lease),
        list(&lease.device_indices),
        amounts(lease.reserve_bytes, lease.limit_bytes),
        Bytes::new(lease.held_bytes).to_string(),
        overhead(lease),
        span(lease.age_ms),
    ]
}

fn lease_state(lease: &v1::LeaseStatus) -> String {
    let marks = [
        (lease.overdue, "overdue"),
        (lease.adrift, "adrift"),
        (lease.quarantined_bytes > 0, "quarantine"),
        (lease.idle, "idle"),
    ];
    let away = Some(lease.away_bytes).filter(|bytes| *bytes > 0).map(Bytes::new);
    let away = away.map_or_else(String::new, |bytes| format!(", {bytes} away"));
    let marks = marks.into_iter().filter(|(set, _)| *set).map(|(_, word)| format!(", {word}"));
    printable(&lease.state).into_owned() + &away + &marks.collect::<String>()
}

/// Overhead that nobody has measured is an estimate, and is shown as one.
fn overhead(lease: &v1::LeaseStatus) -> String {
    let estimated = lease.members.iter().any(|m| !m.overhead_measured && m.overhead_bytes > 0);
    let mark = if estimated { "~" } else { "" };
    format!("{mark}{}", Bytes::new(lease.overhead_bytes))
}

const LINE_COLUMNS: &[Column] = &[
    Column::right("#", Narrow::Keep),
    Column::left("ID", Narrow::Keep),
    Column::left("NAME", Narrow::Cut),
    Column::left("USER", Narrow::Cut),
    Column::right("PID", Narrow::LeaveOut(2)),
    Column::left("WANTS", Narrow::Keep),
    Column::right("SHORT BY", Narrow::Keep),
    Column::left("REASON", Narrow::LeaveOut(1)),
    Column::right("WAITED", Narrow::LeaveOut(3)),
    Column::right("AT LATEST", Narrow::LeaveOut(4)),
];

/// The asks that wait as a table, next first.
pub(crate) fn line(waiting: &[v1::WaitingStatus], look: Look) -> String {
    let rows: Vec<Vec<String>> = waiting.iter().map(waiting_row).collect();
    grid::lines(LINE_COLUMNS, &rows, look)
}

fn waiting_row(ask: &v1::WaitingStatus) -> Vec<String> {
    let barrier = if ask.barrier { ", barrier" } else { "" };
    vec![
        ask.position.to_string(),
        AskId::new(ask.id).to_string(),
        printable(&ask.name).into_owned(),
        user(&ask.user, ask.uid),
        ask.pid.to_string(),
        wants(ask),
        Bytes::new(ask.short_by_bytes).to_string(),
        printable(&ask.reason).into_owned() + barrier,
        span(ask.waited_ms),
        ask.at_latest_ms.map_or_else(|| "N/A".to_owned(), span),
    ]
}

fn wants(ask: &v1::WaitingStatus) -> String {
    let amount = amounts(ask.reserve_bytes, ask.limit_bytes);
    match (ask.lease_id, ask.devices_wanted) {
        (Some(lease), _) if ask.resume => {
            format!("{} back for {}", Bytes::new(ask.reserve_bytes), LeaseId::new(lease))
        }
        (Some(lease), _) => format!("{} more for {}", Bytes::new(ask.reserve_bytes), LeaseId::new(lease)),
        (None, 0 | 1) => amount,
        (None, devices) => format!("{amount} x {devices}"),
    }
}

const ACCOUNT_COLUMNS: &[Column] = &[
    Column::left("ACCOUNT", Narrow::Cut),
    Column::right("CHARGED", Narrow::Keep),
    Column::right("LIMIT", Narrow::Keep),
    Column::right("GUARANTEE", Narrow::LeaveOut(4)),
    Column::right("LEASES", Narrow::LeaveOut(1)),
    Column::right("MOST", Narrow::LeaveOut(2)),
    Column::right("WEIGHT", Narrow::LeaveOut(3)),
];

/// The accounts as a table, parents first.
pub(crate) fn accounts(accounts: &[v1::AccountStatus], look: Look) -> String {
    let rows: Vec<Vec<String>> = accounts.iter().map(account_row).collect();
    grid::lines(ACCOUNT_COLUMNS, &rows, look)
}

fn account_row(account: &v1::AccountStatus) -> Vec<String> {
    let none = || "none".to_owned();
    vec![
        printable(&account.path).into_owned(),
        Bytes::new(account.charged_bytes).to_string(),
        account.limit_bytes.map_or_else(none, |bytes| Bytes::new(bytes).to_string()),
        account.guarantee_bytes.map_or_else(none, |bytes| Bytes::new(bytes).to_string()),
        account.leases.to_string(),
        account.leases_max.map_or_else(none, |max| max.to_string()),
        account.weight.to_string(),
    ]
}

fn strangers(devices: &[v1::DeviceStatus], look: Look) -> String {
    let mut text = String::new();
    for device in devices {
        let index = device.info.as_ref().map_or_else(|| "?".to_owned(), |info| info.index.to_string());
        for stranger in &device.strangers {
            let user = stranger.uid.map_or_else(|| "N/A".to_owned(), |uid| user(&stranger.user, uid));
            let (bytes, command) = (Bytes::new(stranger.bytes), printable(&stranger.command));
            let words = format!("pid {} of {user} uses {bytes} of device {index}: {command}", stranger.pid);
            let width = look.width.unwrap_or(usize::MAX);
            text.push_str(&grid::clipped(&words, width));
            text.push('\n');
        }
    }
    if text.is_empty() {
        text
    } else {
        let advice =
            "start it with `gpulease run`, or end it; until then its memory is taken off what is leased\n";
        format!("\n{}\n{text}{advice}", look.paint(Tone::Warning, "Outside any lease"))
    }
}

/// A user's name, or his number where he has none.
pub(crate) fn user(name: &str, uid: u32) -> String {
    if name.is_empty() { format!("uid {uid}") } else { printable(name).into_owned() }
}

/// `8 GiB`, or `8 GiB..20 GiB` where it may grow.
fn amounts(reserve: u64, limit: u64) -> String {
    let (reserve, limit) = (Bytes::new(reserve), Bytes::new(limit));
    if limit <= reserve { reserve.to_string() } else { format!("{reserve}..{limit}") }
}

/// An amount, or `N/A` where nobody knows it.
fn figure(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "N/A".to_owned(), |bytes| Bytes::new(bytes).to_string())
}

/// Milliseconds as a span of time.
pub(crate) fn span(ms: u64) -> String {
    DurationText(Duration::from_millis(ms)).to_string()
}

fn list(indices: &[u32]) -> String {
    let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
    indices.join(",")
}

#[cfg(test)]
mod tests;
