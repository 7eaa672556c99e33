//! An operator who changes budgets while everything runs.

use gpulease_arbiter::Event;

use super::setting::granules;
use super::world::{Check, World};

impl World {
    /// The operator says other budgets, which may be impossible.
    pub(super) fn budgets_change(&mut self) -> Check {
        let specs = self.model.specs.clone();
        let total: u64 = specs.iter().map(|d| d.capacity.get() >> 21).sum();
        let mut budgets = super::setting::budgets(&mut self.dice, total);
        if self.dice.one_in(2) {
            budgets = super::setting::owe(&mut self.dice, budgets, &self.model.policy, &specs);
        } else if self.dice.one_in(2) {
            budgets.groups.values_mut().for_each(|group| group.guarantee = granules(total));
        }
        // Where nothing is bounded any more nothing moves either: that is another world.
        let (policy, guaranteed) = (&self.model.policy, |b: &gpulease_arbiter::Budgets| {
            let users = b.users.values().any(|user| !user.guarantee.is_zero());
            users || b.groups.values().any(|group| !group.guarantee.is_zero())
        });
        if policy.arena.is_zero() && policy.pinned_max.is_none() && !guaranteed(&budgets) {
            return Ok(());
        }
        let request = self.request();
        self.deliver(Event::SetBudgets { request, budgets: Box::new(budgets) })
    }
}
