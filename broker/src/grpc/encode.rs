//! Views as messages of the wire.

use std::time::Duration;

use gpulease_arbiter::{
    AccountView, ArenaView, AskView, Denial, DeviceView, LeaseView, MemberView, Purpose, Time,
};
use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, Uid};

use super::About;
use crate::arena::Level;
use crate::device::{Description, Kind};
use crate::driver::{DeviceFacts, LeaseTerms, Refusal, View};
use crate::event_log::Entry;
use crate::users::Names;
use crate::witness::Stranger;

pub(crate) fn device_info(id: DeviceId, description: &Description, capacity: Bytes) -> v1::DeviceInfo {
    let kind = match description.kind {
        Kind::Host => v1::DeviceKind::Host,
        Kind::Cuda => v1::DeviceKind::Cuda,
    };
    v1::DeviceInfo {
        index: id.get(),
        kind: kind.into(),
        uuid: description.uuid.clone(),
        name: description.name.clone(),
        capacity_bytes: capacity.get(),
    }
}

/// Everyone whose name a status shows.
pub(super) fn users_of(view: &View) -> impl Iterator<Item = Uid> {
    let leases = view.snapshot.leases.iter().map(|lease| lease.uid);
    let waiting = view.snapshot.waiting.iter().map(|ask| ask.uid);
    let accounts = view.snapshot.accounts.iter().filter_map(|account| account.uid);
    let strangers = view.devices.iter().filter_map(|facts| facts.strangers.as_ref()).flatten();
    leases.chain(waiting).chain(accounts).chain(strangers.filter_map(|stranger| stranger.uid))
}

/// The whole state. Names that are not known yet are shown as numbers.
pub(super) fn status(view: &View, now: Time, about: &About, names: &Names) -> v1::StatusReply {
    let snapshot = &view.snapshot;
    let devices = snapshot.devices.iter().zip(&view.devices);
    let waiting = (1..).zip(&snapshot.waiting);
    v1::StatusReply {
        generation: snapshot.generation,
        broker: Some(broker(view, now, about)),
        devices: devices.map(|(book, facts)| device(book, facts, names)).collect(),
        leases: snapshot.leases.iter().map(|view| lease(view, now, names)).collect(),
        waiting: waiting.map(|(position, ask)| waiting_status(position, ask, now, names)).collect(),
        accounts: snapshot.accounts.iter().map(|view| account(view, names)).collect(),
    }
}

fn broker(view: &View, now: Time, about: &About) -> v1::BrokerStatus {
    let helpers = view.devices.iter().flat_map(|facts| {
        let pids = facts.gauge.read().map(|made| made.helpers).unwrap_or_default();
        pids.into_iter().map(|pid| v1::HelperProcess {
            role: "exporter".to_owned(),
            pid: pid.get(),
            device_index: facts.id.get(),
            overhead_bytes: None,
        })
    });
    v1::BrokerStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: millis(now.since_start()),
        socket: about.socket.display().to_string(),
        hold: hold(view).to_owned(),
        helpers: helpers.collect(),
        arena: about.arena.as_ref().map(|gauge| arena(&view.snapshot.arena, &gauge.read())),
    }
}

fn hold(view: &View) -> &'static str {
    let is_held = |facts: &DeviceFacts| facts.gauge.hold().is_some();
    if view.devices.iter().any(is_held) { "all" } else { "none" }
}

fn arena(book: &ArenaView, level: &Level) -> v1::ArenaStatus {
    v1::ArenaStatus {
        capacity_bytes: book.capacity.get(),
        free_bytes: book.free.get(),
        set_aside_bytes: book.set_aside.get(),
        filled_bytes: book.filled.get(),
        draining_bytes: level.draining.get(),
        touched_bytes: level.touched.get(),
        trouble: level.lacking.values().next().cloned().unwrap_or_default(),
    }
}

fn device(book: &DeviceView, facts: &DeviceFacts, names: &Names) -> v1::DeviceStatus {
    let memory = v1::DeviceMemory {
        total_bytes: facts.description.total.get(),
        capacity_bytes: book.capacity.get(),
        free_bytes: book.free.get(),
        set_aside_bytes: book.set_aside.get(),
        overhead_bytes: book.overhead.get(),
        held_bytes: book.held.get(),
        draining_bytes: book.draining.get(),
        quarantined_bytes: book.quarantined.get(),
        off_book_bytes: book.off_book.map(Bytes::get),
        unbacked_bytes: book.unbacked.get(),
        peak_charged_bytes: book.peak_charged.get(),
        device_used_bytes: facts.used().map(Bytes::get),
        hold_bytes: facts.gauge.hold().map(Bytes::get),
    };
    let strangers = facts.strangers.as_deref().unwrap_or_default();
    v1::DeviceStatus {
        info: Some(device_info(facts.id, &facts.description, facts.capacity)),
        memory: Some(memory),
        strangers: strangers.iter().map(|view| stranger(view, names)).collect(),
        strangers_known: facts.strangers.is_some(),
        trouble: facts.trouble.clone().unwrap_or_default(),
    }
}

fn stranger(view: &Stranger, names: &Names) -> v1::Stranger {
    v1::Stranger {
        pid: view.pid.get(),
        uid: view.uid.map(Uid::get),
        user: view.uid.map(|uid| names.known_or_number(uid)).unwrap_or_default(),
        command: crate::text::shown(&view.command),
        bytes: view.bytes.get(),
    }
}

fn lease(view: &LeaseView, now: Time, names: &Names) -> v1::LeaseStatus {
    v1::LeaseStatus {
        id: view.id.get(),
        name: view.name.clone(),
        user: names.known_or_number(view.uid),
        uid: view.uid.get(),
        pid: view.pid.get(),
        members: view.members.iter().map(member).collect(),
        state: view.state.word().to_owned(),
        device_indices: indices(&view.devices),
        reserve_bytes: view.reserve.get(),
        limit_bytes: view.limit.get(),
        held_bytes: view.held.get(),
        overhead_bytes: view.overhead.get(),
        draining_bytes: view.draining.get(),
        quarantined_bytes: view.quarantined.get(),
        held_peak_bytes: view.held_peak.get(),
        guaranteed: view.guaranteed,
        suspendable: view.movable,
        overdue: view.overdue,
        adrift: view.adrift,
        age_ms: millis(now.since(view.granted_at)),
        waited_ms: millis(view.waited),
        segments: view.segments,
        used: view.used,
        program: view.program.clone(),
        away_bytes: view.swapped.get(),
        idle: view.idle,
        suspensions: view.suspensions,
    }
}

fn member(view: &MemberView) -> v1::Member {
    v1::Member {
        pid: view.pid.get(),
        command: view.program.clone(),
        overhead_bytes: view.overhead.get(),
        overhead_measured: view.measured,
    }
}

fn waiting_status(position: u32, ask: &AskView, now: Time, names: &Names) -> v1::WaitingStatus {
    v1::WaitingStatus {
        id: ask.id.get(),
        name: ask.name.clone(),
        user: names.known_or_number(ask.uid),
        uid: ask.uid.get(),
        pid: ask.pid.get(),
        position,
        reserve_bytes: ask.reserve.get(),
        limit_bytes: ask.limit.get(),
        short_by_bytes: ask.short_by.get(),
        reason: ask.reason.word().to_owned(),
        waited_ms: millis(now.since(ask.since)),
        at_latest_ms: at_latest(ask, now),
        barrier: ask.barrier,
        lease_id: ask.lease.map(gpulease_words::LeaseId::get),
        devices_wanted: ask.devices_wanted,
        resume: ask.purpose == Purpose::Resume,
    }
}

/// When it is granted or refused at the latest, where that is known.
pub(super) fn at_latest(ask: &AskView, now: Time) -> Option<u64> {
    let earliest = ask.deadline.into_iter().chain(ask.at_latest).min();
    earliest.map(|time| millis(time.since(now)))
}

fn account(view: &AccountView, names: &Names) -> v1::AccountStatus {
    v1::AccountStatus {
        path: account_path(&view.path, names),
        limit_bytes: view.limit.map(Bytes::get),
        charged_bytes: view.charged.get(),
        weight: view.weight,
        leases: view.leases,
        leases_max: view.leases_max,
        guarantee_bytes: Some(view.guarantee).filter(|guarantee| !guarantee.is_zero()).map(Bytes::get),
    }
}

/// `user.1000/job.x` with the user's name in place of the number.
pub(super) fn account_path(path: &str, names: &Names) -> String {
    let Some(rest) = path.strip_prefix("user.") else {
        return path.to_owned();
    };
    let (number, job) = rest.split_once('/').unwrap_or((rest, ""));
    let Ok(uid) = number.parse() else {
        return path.to_owned();
    };
    let user = names.known_or_number(Uid::new(uid));
    if job.is_empty() { format!("user.{user}") } else { format!("user.{user}/{job}") }
}

/// A refusal, with accounts by their names.
pub(super) fn denied(refusal: &Refusal, names: &Names) -> v1::Denied {
    let message = match refusal {
        Refusal::Denied(denial) => with_names(denial, names).to_string(),
        Refusal::Stopping => refusal.to_string(),
    };
    v1::Denied { reason: refusal.reason().word().to_owned(), message }
}

pub(super) fn with_names(denial: &Denial, names: &Names) -> Denial {
    let mut denial = denial.clone();
    if let Denial::OverBudget { account, .. }
    | Denial::AccountFull { account, .. }
    | Denial::AccountDue { account, .. }
    | Denial::TooMany { account, .. }
    | Denial::StillTooMany { account, .. }
    | Denial::GuaranteeOverParent { account, .. }
    | Denial::GuaranteeOverLimit { account, .. }
    | Denial::GuaranteeUncounted { account } = &mut denial
    {
        *account = account_path(account, names);
    }
    denial
}

pub(super) fn lease_info(terms: LeaseTerms) -> v1::LeaseInfo {
    v1::LeaseInfo {
        lease_id: terms.lease.get(),
        device_indices: indices(&terms.devices),
        name: terms.name,
        reserve_bytes: terms.reserve.get(),
        limit_bytes: terms.limit.get(),
    }
}

pub(super) fn indices(devices: &[DeviceId]) -> Vec<u32> {
    devices.iter().map(|device| device.get()).collect()
}

pub(super) fn event(entry: &Entry) -> v1::EventMessage {
    let facts = &entry.facts;
    v1::EventMessage {
        number: entry.number,
        unix_ms: entry.unix_ms,
        kind: entry.kind.word().to_owned(),
        message: entry.message.clone(),
        lease_id: facts.lease.map(gpulease_words::LeaseId::get),
        ask_id: facts.ask.map(gpulease_words::AskId::get),
        session_id: facts.session.map(gpulease_words::SessionId::get),
        uid: facts.uid.map(Uid::get),
        pid: facts.pid.map(gpulease_words::Pid::get),
        device_index: facts.device.map(DeviceId::get),
        bytes: facts.bytes.map(Bytes::get),
        name: facts.name.clone().unwrap_or_default(),
        reason: facts.reason.map(|reason| reason.word().to_owned()).unwrap_or_default(),
    }
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn accounts_are_shown_by_their_users_names() {
        let names = Arc::new(Names::new());
        names.prepare([Uid::new(0)]).await;
        for (path, text) in [
            ("host", "host"),
            ("group.nlp", "group.nlp"),
            ("user.0", "user.root"),
            ("user.0/job.a/b", "user.root/job.a/b"),
            ("user.4000000001/job.x", "user.4000000001/job.x"),
            ("user.x", "user.x"),
        ] {
            assert_eq!(account_path(path, &names), text);
        }
        let denial = Denial::TooMany { what: "leases", account: "user.0".into(), max: 3 };
        assert!(denied(&denial.into(), &names).message.starts_with("user.root may have at most 3 leases"));
    }
}
