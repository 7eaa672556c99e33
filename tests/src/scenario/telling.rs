//! Effects as sentences.

use gpulease_arbiter::{AskView, Effect, LeaseView, Notice, Occurrence, RequestId, Signal, Snapshot};
use gpulease_words::{AskId, Bytes, LeaseId};

use super::budget::Setting;
use super::stage::clock;
use super::table::devices;

/// The request an effect answers.
pub(super) fn request(effect: &Effect) -> Option<RequestId> {
    match effect {
        Effect::Opened { request, .. }
        | Effect::Denied { request, .. }
        | Effect::Done { request }
        | Effect::Queued { request, .. }
        | Effect::Joined { request, .. }
        | Effect::Resized { request, .. }
        | Effect::Released { request, .. }
        | Effect::Recalled { request, .. }
        | Effect::Resumed { request, .. }
        | Effect::Allocated { request, .. } => Some(*request),
        Effect::Granted { request, .. } => *request,
        Effect::Create { .. }
        | Effect::Reclaim { .. }
        | Effect::Notify { .. }
        | Effect::Overdue { .. }
        | Effect::Restore { .. }
        | Effect::Forget { .. }
        | Effect::Signal { .. }
        | Effect::Occurred { .. }
        | Effect::LeaseGone { .. }
        | Effect::SessionGone { .. }
        | Effect::ProcessGone { .. } => None,
    }
}

/// Whether an effect is work that prompt devices do unseen.
pub(super) fn is_device_work(effect: &Effect) -> bool {
    matches!(effect, Effect::Create { .. } | Effect::Restore { .. } | Effect::Reclaim { .. })
}

/// What an effect says, with the figures of `snapshot`, which was made after it.
pub(super) fn sentence(effect: &Effect, snapshot: &Snapshot, setting: &Setting) -> String {
    match effect {
        Effect::Opened { session, .. } => format!("{session} is open"),
        Effect::Denied { denial, .. } => format!("refused, {}: {denial}", denial.reason()),
        Effect::Done { .. } => "done".to_owned(),
        Effect::Queued { ask, .. } => waits(snapshot, *ask),
        Effect::Granted { request, lease } => {
            let unheard = if request.is_none() { ", and nobody is there to hear it" } else { "" };
            format!("{lease} granted{}{unheard}", size(snapshot, *lease))
        }
        Effect::Joined { lease, .. } => format!("a member of {lease}"),
        Effect::Resized { lease, .. } => format!("{lease} resized{}", size(snapshot, *lease)),
        Effect::Released { lease, draining, .. } if draining.is_zero() => {
            format!("{lease} given back, nothing of it is mapped")
        }
        Effect::Released { lease, draining, .. } => {
            format!("{lease} given back, {draining} of it still mapped")
        }
        Effect::Recalled { lease, bytes, .. } => format!("{bytes} asked of {lease}"),
        Effect::Create { segment, lease, device, bytes, .. } => {
            format!("device {device}: make {segment}, {bytes} for {lease}")
        }
        Effect::Allocated { segment, process, .. } => format!("{segment} handed to {process}"),
        Effect::Reclaim { segment, device } => format!("device {device}: take {segment} back"),
        Effect::Notify { session, notice } => format!("{session} is told: {}", told(notice)),
        Effect::Overdue { lease } => format!("{lease} is overdue{}", holder(snapshot, setting, *lease)),
        Effect::LeaseGone { lease } => format!("{lease} is gone, all of it credited"),
        Effect::SessionGone { session } => format!("{session} is gone"),
        Effect::ProcessGone { process } => format!("{process} needs no watching any more"),
        Effect::Restore { segment, lease, device, bytes, .. } => {
            format!("device {device}: make {segment} again, {bytes} for {lease}")
        }
        Effect::Forget { segment } => format!("the host copy of {segment} is dropped"),
        Effect::Resumed { lease, .. } => format!("{lease} has its memory"),
        Effect::Signal { process, signal: Signal::Term } => format!("{process} is told to end"),
        Effect::Signal { process, signal: Signal::Kill } => format!("{process} is ended"),
        Effect::Occurred { lease, what } => format!("{lease} {}", occurred(what)),
    }
}

fn occurred(what: &Occurrence) -> String {
    match what {
        Occurrence::Suspending => "is asked to drain".to_owned(),
        Occurrence::Suspended => "is suspended".to_owned(),
        Occurrence::Resuming => "comes back".to_owned(),
        Occurrence::Resumed => "is back".to_owned(),
        Occurrence::SuspendCancelled(why) => format!("is not suspended: {why}"),
        Occurrence::SwapFailed(why) => format!("can't be swapped out: {why}"),
        Occurrence::Pinned(why) => format!("moves no more: {why}"),
        Occurrence::Terminated => "is ended by policy".to_owned(),
    }
}

fn told(notice: &Notice) -> String {
    match notice {
        Notice::Recall { lease, device, bytes, deadline } => {
            format!("{bytes} of {lease} are wanted back on device {device} by {}", clock(*deadline))
        }
        Notice::Ended { lease, denial } => format!("{lease} ends: {denial}"),
        Notice::Suspend { lease, deadline } => format!("drain {lease} by {}", clock(*deadline)),
        Notice::SwapOut { lease } => format!("swap {lease} out"),
        Notice::SuspendCancelled { lease, why } => format!("open the gate of {lease}: {why}"),
        Notice::SegmentBack { lease, segment } => format!("{segment} of {lease} is back"),
        Notice::Pinned { lease } => format!("{lease} moves no more"),
    }
}

fn waits(snapshot: &Snapshot, ask: AskId) -> String {
    match snapshot.waiting.iter().position(|view| view.id == ask) {
        Some(at) => format!("{ask} waits, {}", place(at, &snapshot.waiting[at])),
        None => format!("{ask} joins the line"),
    }
}

/// Where an ask stands and what it wants for.
pub(super) fn place(at: usize, ask: &AskView) -> String {
    let short = match ask.device {
        Some(device) => format!(", {} short on device {device}", ask.short_by),
        None if ask.short_by.is_zero() => String::new(),
        None => format!(", {} short", ask.short_by),
    };
    let account = ask.account.as_ref().map_or(String::new(), |account| format!(" of {account}"));
    format!("place {}: {}{account}{short}", at + 1, ask.reason)
}

fn lease(snapshot: &Snapshot, id: LeaseId) -> Option<&LeaseView> {
    snapshot.leases.iter().find(|view| view.id == id)
}

fn size(snapshot: &Snapshot, id: LeaseId) -> String {
    let Some(view) = lease(snapshot, id) else { return String::new() };
    format!(": {} on {}", span(view.reserve, view.limit), devices(&view.devices))
}

fn holder(snapshot: &Snapshot, setting: &Setting, id: LeaseId) -> String {
    let Some(view) = lease(snapshot, id) else { return String::new() };
    let user = setting.name_of(view.uid);
    format!(": {} of {user}, pid {}, holds {}", view.program, view.pid, view.held)
}

/// `2 GiB` or `2 GiB up to 4 GiB`.
pub(super) fn span(reserve: Bytes, limit: Bytes) -> String {
    if reserve == limit { reserve.to_string() } else { format!("{reserve} up to {limit}") }
}
