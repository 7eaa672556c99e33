//! What the settings come to on the devices that there are.

use gpulease_arbiter::Policy;
use gpulease_words::Bytes;

use super::StartError;
use super::devices::Opened;
use crate::arena::room::Room;
use crate::budgets::InForce;
use crate::budgets::kept::Kept;
use crate::device::Kind;
use crate::driver::spec;
use crate::settings::{Accounts, BadSetting, Measure, Settings};

/// The rules by which a broker grants.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) policy: Policy,
    pub(super) measure: Measure,
    /// Where budgets of the run time are kept.
    pub(super) kept: Option<Kept>,
    pub(super) in_force: InForce,
    pub(super) accounts: Accounts,
}

impl Rules {
    /// Those of these settings on these devices.
    ///
    /// # Errors
    /// When they cannot be kept, with the figures.
    pub(super) fn settle(settings: &Settings, opened: &[Opened]) -> Result<Self, StartError> {
        let facts = || opened.iter().map(|opened| &opened.facts);
        let measure = Measure::of(facts().map(|facts| facts.capacity));
        let of_host = facts().filter(|facts| facts.description.kind == Kind::Host);
        let beside = of_host.map(|facts| facts.capacity).sum();
        let arena = settings.arena.map(|size| Room::look().arena(size, beside)).transpose();
        let arena = arena.map_err(BadSetting)?.unwrap_or(Bytes::ZERO);
        let pinned_max = settings.pinned_max.map(|size| size.of(measure.each).round_down());
        let policy = Policy { arena, pinned_max, ..settings.policy.clone() };
        let kept = settings.state.as_deref().map(Kept::within).transpose()?;
        let in_force = InForce::at_start(settings.accounts.clone(), kept.as_ref())?;
        let accounts = in_force.accounts()?;
        let specs: Vec<_> = facts().map(spec).collect();
        let fits = accounts.budgets(measure).fit(&policy, &specs);
        fits.map_err(|denial| BadSetting(format!("budgets: {denial}")))?;
        Ok(Self { policy, measure, kept, in_force, accounts })
    }
}
