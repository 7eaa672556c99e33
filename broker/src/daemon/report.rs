//! What a daemon says of itself to the one who started it.

use super::rules::Rules;
use super::{StartError, devices, paths, raise_open_files};
use crate::driver::DeviceFacts;
use crate::settings::Settings;
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

/// Says what serving would do, and changes nothing.
///
/// # Errors
/// When it could not be done.
pub(super) fn check(settings: &Settings) -> Result<(), StartError> {
    let paths = paths(settings, Rank::own())?;
    Place::check(&paths)?;
    let opened = devices::open(settings, raise_open_files())?;
    for opened in &opened {
        println!("{}", device(&opened.facts));
        opened.remarks.iter().for_each(|remark| println!("  {remark}"));
    }
    let rules = Rules::settle(settings, &opened)?;
    rules.accounts.lines(rules.measure).iter().for_each(|line| println!("{line}"));
    if !rules.policy.arena.is_zero() {
        println!("arena: {} of host memory for suspended leases", rules.policy.arena);
    }
    println!("sockets: {}, {} and {}", paths.jobs.display(), paths.handoff.display(), paths.admin.display());
    println!("hold: {}", hold(opened.iter().map(|opened| &opened.facts)));
    Ok(())
}
