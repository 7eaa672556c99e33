//! Why one ask waits or one lease is as it is.

use gpulease_arbiter::{AskView, LeaseState, LeaseView, Purpose, Time};
use gpulease_proto::v1;
use gpulease_words::{AskId, Bytes, DurationText, LeaseId, Pid, Reason};

use super::waiting::{Standing, recalled, sentence};
use crate::driver::View;
use crate::users::Names;
use crate::witness::Stranger;

/// Why an ask waits; `None` where it does not.
pub(super) fn ask(view: &View, now: Time, id: AskId, names: &Names) -> Option<v1::Why> {
    let (position, asked) = view.ask(id)?;
    let waiting = Standing::of(view, id, names)?.message(view, now);
    let user = names.known_or_number(asked.uid);
    let waited = DurationText(now.since(asked.since));
    let what = match (asked.purpose, asked.lease) {
        (Purpose::Resume, Some(lease)) => format!("the {} of lease {lease} to come back", asked.reserve),
        (Purpose::Growth | Purpose::Lease, Some(lease)) => {
            format!("{} more for lease {lease}", asked.reserve)
        }
        (Purpose::Resume | Purpose::Growth | Purpose::Lease, None) => {
            format!("{} on {}", asked.reserve, devices(asked.devices_wanted))
        }
    };
    let summary = format!(
        "{id} ({}, {user}) waits for {what}, {waited} so far; it is number {position} in the line",
        asked.name
    );
    let mut details = vec![sentence(view, position, asked, &waiting.holders, names)];
    details.extend(waiting.holders.iter().map(held));
    details.extend(outside(view, asked, names));
    details.extend(recalled(view, asked, names));
    details.extend(next_step(asked, now));
    details.push(help(asked));
    Some(v1::Why { summary, details, waiting: Some(waiting) })
}

fn devices(count: u32) -> String {
    if count == 1 { "one device".to_owned() } else { format!("each of {count} devices") }
}

fn held(holder: &v1::Holder) -> String {
    let v1::Holder { lease_id, name, user, pid, bytes, .. } = holder;
    format!("L{lease_id} ({name}) of {user}, process {pid}, holds {} there", Bytes::new(*bytes))
}

/// What outsiders have where it lacks something, who they are, and what to do about it.
fn outside(view: &View, asked: &AskView, names: &Names) -> Vec<String> {
    if !matches!(asked.reason, Reason::NoRoom | Reason::Barrier | Reason::Draining | Reason::Recalled) {
        return Vec::new();
    }
    let name = |stranger: &Stranger| {
        let user = stranger.uid.map(|uid| names.known_or_number(uid)).unwrap_or_default();
        let (pid, command, bytes) = (stranger.pid, crate::text::shown(&stranger.command), stranger.bytes);
        format!("process {pid} of {user} ({command}) uses {bytes}")
    };
    let devices = view.off_book(asked.device).map(|(facts, bytes)| {
        let who = match facts.outsiders(name) {
            who if who.is_empty() => "by whom is not known; `gpulease doctor` may tell why".to_owned(),
            who => format!("{who}; it would help to start that with `gpulease run`, or to end it"),
        };
        format!("{bytes} of device {} are taken outside any lease: {who}", facts.id)
    });
    devices.collect()
}

fn next_step(asked: &AskView, now: Time) -> Vec<String> {
    let barrier = if asked.barrier {
        "it has waited so long that nothing may overtake it any more".to_owned()
    } else {
        format!("in {} nothing may overtake it any more", DurationText(asked.barrier_at.since(now)))
    };
    let deadline = asked
        .deadline
        .map(|deadline| format!("in {} it gives up, as it was asked to", DurationText(deadline.since(now))));
    let guaranteed =
        asked.guaranteed.then(|| "its account's guarantee covers it, so that it goes first".to_owned());
    let latest = asked.at_latest.map(|latest| {
        let span = DurationText(latest.since(now));
        format!("in {span} it is granted at the latest, provided that each holder answers by its deadline")
    });
    std::iter::once(barrier).chain(guaranteed).chain(latest).chain(deadline).collect()
}

fn help(asked: &AskView) -> String {
    match asked.reason {
        Reason::AccountLimit if asked.short_by.is_zero() => {
            "it would help to end another lease of that account, or to ask the operator for a larger leases_max".to_owned()
        }
        Reason::AccountLimit => {
            "it would help to release another lease of that account, or to ask the operator for a larger limit".to_owned()
        }
        Reason::PinnedFull => {
            "it would help to ask for a lease that may be suspended, or to ask the operator for a larger pinned_max".to_owned()
        }
        Reason::ArenaFull => "it would help to ask the operator for a larger arena, or for a pinned lease".to_owned(),
        Reason::NoRoom | Reason::Barrier => {
            format!("it would help to ask for {} less, or to ask a holder to release", asked.short_by)
        }
        _ => "it needs nothing but time".to_owned(),
    }
}

/// How a lease stands; `None` where there is none of that id.
pub(super) fn lease(view: &View, now: Time, id: LeaseId, names: &Names) -> Option<v1::Why> {
    let lease = view.lease(id)?;
    let user = names.known_or_number(lease.uid);
    let age = DurationText(now.since(lease.granted_at));
    let summary =
        format!("{id} ({}, {user}) is {} and was granted {age} ago", lease.name, lease.state.word());
    let details = lease_details(lease).into_iter().chain(movements(view, lease, now)).collect();
    Some(v1::Why { summary, details, waiting: None })
}

/// By what right it has its memory, and where that is.
fn movements(view: &View, lease: &LeaseView, now: Time) -> Vec<String> {
    let mut details = Vec::new();
    let swapped = lease.swapped;
    match lease.state {
        LeaseState::Suspending => details.push(format!(
            "others are due: it is asked to leave its devices; {swapped} of it are in host memory so far"
        )),
        LeaseState::Suspended => {
            let back = view
                .snapshot
                .waiting
                .iter()
                .find(|ask| ask.purpose == Purpose::Resume && ask.lease == Some(lease.id));
            let next = match back {
                Some(ask) => format!("it waits in the line as {} to come back", ask.id),
                None => "it comes into the line when its process next wants it".to_owned(),
            };
            details.push(format!("its {swapped} are in host memory; {next}"));
        }
        LeaseState::Resuming => {
            details.push(format!("it comes back to its devices; {swapped} of it are still in host memory"));
        }
        LeaseState::Active | LeaseState::Draining => {}
    }
    if view.snapshot.arena.capacity.is_zero() || lease.state == LeaseState::Draining {
        return details;
    }
    details.push(match (lease.guaranteed, lease.movable) {
        (true, _) => "its account's guarantee covers it: it is not suspended for others".to_owned(),
        (false, true) => "it is lent: it may be suspended when others are due".to_owned(),
        (false, false) => "it stays where it is: it cannot be suspended".to_owned(),
    });
    details.extend(lease.resident_since.map(|since| {
        let idle = if lease.idle { ", and nobody has used it for a while" } else { "" };
        format!("it has had its memory for {}{idle}", DurationText(now.since(since)))
    }));
    if lease.suspensions > 0 {
        details.push(format!("it was suspended {}", counted(lease.suspensions as usize, "time")));
    }
    details
}

/// `1 segment`, `2 segments`, `2 member processes`.
fn counted(count: usize, what: &str) -> String {
    let ending = match (count, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {what}{ending}")
}

fn lease_details(lease: &LeaseView) -> Vec<String> {
    let mut details = vec![
        format!(
            "it has {} set aside and holds {} in {}; it may grow to {} a device",
            lease.set_aside,
            lease.held,
            counted(lease.segments as usize, "segment"),
            lease.limit
        ),
        format!(
            "contexts and libraries of its {} take {}",
            counted(lease.members.len(), "member process"),
            lease.overhead
        ),
    ];
    if lease.state == LeaseState::Draining {
        details.push(format!(
            "it is given back; {} come free as its members unmap or end, {} could not be proven free",
            lease.draining, lease.quarantined
        ));
    }
    if !lease.suspects.is_empty() {
        let pids: Vec<_> = lease.suspects.iter().map(Pid::to_string).collect();
        details.push(format!(
            "process {} may still map memory of it; end it to free the bytes",
            pids.join(", ")
        ));
    }
    if lease.adrift {
        details.push("its owner's stream is broken; the owner may rejoin".to_owned());
    }
    if lease.overdue {
        details.push("it is overdue and gets no growth until it gives surplus back".to_owned());
    }
    if !lease.used {
        details.push("no process has fetched memory of it yet".to_owned());
    }
    details
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one() {
        assert_eq!(counted(1, "segment"), "1 segment");
        assert_eq!(counted(0, "segment"), "0 segments");
        assert_eq!(
            (counted(1, "member process"), counted(3, "member process")),
            ("1 member process".into(), "3 member processes".into())
        );
    }
}
