//! Promises that need no history: what a refusal leaves behind, and what it says.

use gpulease_arbiter::{AskView, Denial, Snapshot};
use gpulease_words::Reason;

use super::model::{Broken, ensure};

/// I9: nothing but the generation and the time changed.
pub(super) fn unchanged(before: &Snapshot, after: &Snapshot, what: &str) -> Result<(), Broken> {
    let mut same = before.clone();
    (same.generation, same.at) = (after.generation, after.at);
    // A promise that time has passed by is not shown any more.
    for view in &mut same.waiting {
        view.at_latest = view.at_latest.filter(|at| *at >= after.at);
    }
    if same == *after {
        return Ok(());
    }
    Err(Broken(format!("I9: {what} changed the state from {before:?} to {after:?}")))
}

/// I11: the sentence of a refusal says a number or what would help.
pub(super) fn refusal_helps(denial: &Denial) -> Result<(), Broken> {
    const CURES: [&str; 15] = [
        "ask for",
        "wait",
        "release",
        "free ",
        "resize",
        "end one",
        "lists",
        "connect",
        "leave",
        "use ",
        "give",
        "back",
        "withdrawn",
        "only",
        "again",
    ];
    let sentence = denial.to_string();
    let helps =
        sentence.contains(|c: char| c.is_ascii_digit()) || CURES.iter().any(|cure| sentence.contains(cure));
    ensure!(helps, "I11: the refusal {denial:?} says neither a number nor what would help: {sentence}");
    Ok(())
}

/// I11: each ask that waits has a reason for waiting, with its figure.
pub(super) fn every_wait_says_why(snapshot: &Snapshot) -> Result<(), Broken> {
    snapshot.waiting.iter().try_for_each(wait_says_why)
}

fn wait_says_why(ask: &AskView) -> Result<(), Broken> {
    let said = match ask.reason {
        Reason::NoRoom => !ask.short_by.is_zero() && ask.device.is_some(),
        Reason::AccountLimit => ask.account.is_some(),
        Reason::Barrier
        | Reason::BehindOthers
        | Reason::Draining
        | Reason::Recalled
        | Reason::ArenaFull
        | Reason::PinnedFull
        | Reason::Suspended
        | Reason::DeviceLost => true,
        Reason::OverBudget
        | Reason::TooLarge
        | Reason::BeyondLease
        | Reason::WaitOver
        | Reason::TooMany
        | Reason::NoSuchLease
        | Reason::NoSuchSegment
        | Reason::NoSuchDevice
        | Reason::NoSuchSession
        | Reason::Malformed
        | Reason::WouldDeadlock
        | Reason::Ending
        | Reason::Overdue
        | Reason::DeviceRefused
        | Reason::Withdrawn
        | Reason::Stopping
        | Reason::ImpossibleBudget
        | Reason::NotAllowed => false,
    };
    ensure!(said, "I11: {} waits and its reason has no figure: {ask:?}", ask.id);
    Ok(())
}
