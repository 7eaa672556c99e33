//! What a daemon says of itself to the one who started it.

use super::rules::Rules;
use super::{StartError, devices, paths, raise_open_files};
use crate::driver::DeviceFacts;
use crate::settings::{Hold, Settings};
use crate::sockets::{Place, Rank};

/// A device in one line.
pub(super) fn device(facts: &DeviceFacts) -> String {
    let description = &facts.description;
    format!(
        "device {}: {} ({}), {} of {} are leased",
        facts.id, description.name, description.uuid, facts.capacity, description.total
    )
}

/// What is kept of these devices, and what that means.
pub(super) fn hold<'a>(facts: impl IntoIterator<Item = &'a DeviceFacts>) -> &'static str {
    if facts.into_iter().any(|facts| facts.gauge.hold().is_some()) {
        "all; what is not leased is kept from processes without a lease"
    } else {
        "none; against processes without a lease the broker is advisory"
    }
}

/// What an operator should know of the devices together.
pub(super) fn remarks(settings: &Settings, opened: &[devices::Opened]) -> Vec<String> {
    let each = opened.iter().flat_map(|opened| opened.remarks.clone());
    let idle = settings.hold == Hold::All && !opened.iter().any(|opened| opened.facts.gauge.hold().is_some());
    let nothing_held =
        "hold = \"all\" has no effect here: there is no GPU to hold, and host memory cannot be held";
    each.chain(idle.then(|| nothing_held.to_owned())).collect()
}

/// Says what serving would do, and changes nothing.
///
/// # Errors
/// When it could not be done.
pub(super) fn check(settings: &Settings) -> Result<(), StartError> {
    let paths = paths(settings, Rank::own())?;
    Place::check(&paths)?;
    settings.log.level.as_deref().map_or(Ok(()), super::log::sound)?;
    let opened = devices::open(settings, raise_open_files())?;
    opened.iter().for_each(|opened| println!("{}", device(&opened.facts)));
    remarks(settings, &opened).iter().for_each(|remark| println!("  {remark}"));
    let rules = Rules::settle(settings, &opened)?;
    rules.accounts.lines(rules.measure).iter().for_each(|line| println!("{line}"));
    if !rules.policy.arena.is_zero() {
        println!("arena: {} of host memory for suspended leases", rules.policy.arena);
    }
    println!("sockets: {}, {} and {}", paths.jobs.display(), paths.handoff.display(), paths.admin.display());
    println!("hold: {}", hold(opened.iter().map(|opened| &opened.facts)));
    Ok(())
}
