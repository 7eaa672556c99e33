//! How an ask stands in the line: numbers, who holds what it lacks, and a sentence.

use gpulease_arbiter::{AskView, LeaseState, LeaseView, Time};
use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, Reason, Uid};

use super::encode::{account_path, at_latest, millis};
use crate::driver::View;
use crate::users::Names;

/// What an asker is told; an update is sent when it differs from the last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Standing {
    ask: AskId,
    position: u32,
    short_by: Bytes,
    reason: Reason,
    sentence: String,
    holders: Vec<v1::Holder>,
}

/// Everyone whose name an ask's standing shows.
pub(super) fn users_of(view: &View, ask: AskId) -> Vec<Uid> {
    let device = view.ask(ask).and_then(|(_, ask)| ask.device);
    let account = view.ask(ask).map(|(_, ask)| ask.uid);
    view.holders(device).map(|(lease, _)| lease.uid).chain(account).collect()
}

impl Standing {
    /// How the ask stands, or `None` where it waits no longer.
    pub(super) fn of(view: &View, ask: AskId, names: &Names) -> Option<Self> {
        let (position, asked) = view.ask(ask)?;
        let holders: Vec<_> =
            view.holders(asked.device).map(|(lease, bytes)| holder(lease, bytes, names)).collect();
        let sentence = sentence(view, position, asked, &holders, names);
        Some(Self { ask, position, short_by: asked.short_by, reason: asked.reason, sentence, holders })
    }

    /// The message, with its times as of `now`: a view may be older than the one who asks.
    pub(super) fn message(&self, view: &View, now: Time) -> v1::Waiting {
        let asked = view.ask(self.ask).map(|(_, asked)| asked);
        v1::Waiting {
            ask_id: self.ask.get(),
            position: self.position,
            short_by_bytes: self.short_by.get(),
            reason: self.reason.word().to_owned(),
            message: self.sentence.clone(),
            holders: self.holders.clone(),
            at_latest_ms: asked.and_then(|asked| at_latest(asked, now)),
            waited_ms: asked.map_or(0, |asked| millis(now.since(asked.since))),
        }
    }
}

fn holder(lease: &LeaseView, bytes: Bytes, names: &Names) -> v1::Holder {
    v1::Holder {
        lease_id: lease.id.get(),
        name: lease.name.clone(),
        user: names.known_or_number(lease.uid),
        uid: lease.uid.get(),
        pid: lease.pid.get(),
        bytes: bytes.get(),
    }
}

/// Why it waits, in numbers.
pub(super) fn sentence(
    view: &View,
    position: u32,
    asked: &AskView,
    holders: &[v1::Holder],
    names: &Names,
) -> String {
    let place = match asked.device {
        Some(device) => format!("on device {device}"),
        None => "here".to_owned(),
    };
    let short_by = asked.short_by;
    match asked.reason {
        Reason::NoRoom => {
            let outside: Bytes = view.off_book(asked.device).map(|(_, bytes)| bytes).sum();
            let outside = match outside {
                Bytes::ZERO => String::new(),
                outside => format!("; {outside} are taken outside any lease"),
            };
            format!("{short_by} are missing {place}{}{outside}", held_by(holders))
        }
        Reason::AccountLimit => at_limit(view, asked, names),
        Reason::BehindOthers => {
            format!("there is room {place}, but {} before it in the line are due first", asks(position - 1))
        }
        Reason::Barrier => {
            format!(
                "an ask that has waited too long collects what is free {place}; {short_by} are missing beside it"
            )
        }
        Reason::Draining => {
            format!(
                "{short_by} are missing {place} that were given back and are on their way through the driver"
            )
        }
        Reason::Recalled => {
            let asked_of: Vec<_> = recalled(view, asked, names).take(3).collect();
            let from = if asked_of.is_empty() { String::new() } else { format!("; {}", asked_of.join(", ")) };
            format!("{short_by} are missing {place} and on their way{from}")
        }
        Reason::ArenaFull => {
            let arena = &view.snapshot.arena;
            format!(
                "no host memory is left in which its contents could wait if others were due: {} of {} are free",
                arena.free, arena.capacity
            )
        }
        Reason::PinnedFull => {
            format!("what stays where it is has reached its bound {place}, {short_by} over with this")
        }
        Reason::Suspended => "its lease is not on its devices, and comes back first".to_owned(),
        other => format!("it waits: {other}"),
    }
}

/// The account that has all it may have: of bytes, or, where none of those are missing, of leases.
fn at_limit(view: &View, asked: &AskView, names: &Names) -> String {
    let path = asked.account.as_deref().unwrap_or_default();
    let (account, short_by) = (account_path(path, names), asked.short_by);
    let full = view.snapshot.accounts.iter().find(|view| view.path == path && short_by.is_zero());
    match full.map(|view| (view.leases, view.leases_max.unwrap_or(view.leases))) {
        Some((1, 1)) => {
            format!("{account} has the one lease that it may have at one time; it moves when that ends")
        }
        Some((leases, most)) => format!(
            "{account} has {leases} of at most {most} leases at one time; it moves when one of them ends"
        ),
        None => format!(
            "{account} is at its limit, {short_by} over with this; it moves when that account gives something back"
        ),
    }
}

/// The leases that are asked for bytes that it waits for, each with what they are doing.
pub(super) fn recalled(view: &View, asked: &AskView, names: &Names) -> impl Iterator<Item = String> {
    let leases = asked.recalled.iter().filter_map(|lease| view.lease(*lease));
    leases.map(|lease| {
        let doing = match lease.state {
            LeaseState::Suspending => "is leaving its devices",
            LeaseState::Suspended => "is in host memory",
            LeaseState::Resuming => "comes back",
            LeaseState::Draining => "is given back",
            LeaseState::Active if lease.overdue => "was asked for bytes and is overdue",
            LeaseState::Active => "was asked for bytes",
        };
        let user = names.known_or_number(lease.uid);
        format!("{} ({}, {user}, process {}) {doing}", lease.id, lease.name, lease.pid)
    })
}

fn asks(count: u32) -> String {
    if count == 1 { "1 ask".to_owned() } else { format!("{count} asks") }
}

fn held_by(holders: &[v1::Holder]) -> String {
    let named = holders.iter().take(3).map(|holder| {
        let v1::Holder { lease_id, name, user, bytes, .. } = holder;
        format!("L{lease_id} ({name}, {user}) holds {}", Bytes::new(*bytes))
    });
    let named: Vec<_> = named.collect();
    if named.is_empty() { String::new() } else { format!("; {}", named.join(", ")) }
}
