//! The arbiter under test, with a mutant between it and the world where a test wants to see the
//! simulator fail.

use std::collections::VecDeque;

use gpulease_arbiter::{Arbiter, Effect, Event, Snapshot, Time, Why};

use super::mutant::{Meddler, Mutant};
use super::setting::Setting;

/// An arbiter as the world meets it.
#[derive(Debug)]
pub(super) struct Subject {
    arbiter: Arbiter,
    meddler: Option<Meddler>,
    effects: VecDeque<Effect>,
}

impl Subject {
    pub(super) fn new(setting: &Setting, mutant: Option<Mutant>) -> Self {
        let (mut policy, mut budgets) = (setting.policy.clone(), setting.budgets.clone());
        if let Some(mutant) = mutant {
            mutant.misread(&mut policy, &mut budgets);
        }
        let arbiter = Arbiter::new(policy, budgets, &setting.devices);
        Self { arbiter, meddler: mutant.map(Meddler::new), effects: VecDeque::new() }
    }

    pub(super) fn handle(&mut self, now: Time, event: Event) {
        let events = match &mut self.meddler {
            Some(meddler) => meddler.hears(event),
            None => vec![event],
        };
        for event in events {
            self.arbiter.handle(now, event);
            self.collect(now);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if !self.meddler.as_ref().is_some_and(Meddler::sleeps) {
            self.arbiter.handle_timeout(now);
            self.collect(now);
        }
    }

    /// Drains the arbiter; what a meddler answers to its effects goes in at once.
    fn collect(&mut self, now: Time) {
        let mut rounds = 0;
        loop {
            let arbiter = &mut self.arbiter;
            let fresh: Vec<Effect> = std::iter::from_fn(|| arbiter.poll_effect()).collect();
            let Some(meddler) = &mut self.meddler else {
                self.effects.extend(fresh);
                return;
            };
            let owed = match meddler.wants_owed() {
                true => self
                    .arbiter
                    .snapshot(now)
                    .leases
                    .iter()
                    .find(|lease| lease.guaranteed && lease.movable)
                    .map(|lease| lease.id),
                false => None,
            };
            let (said, forged) = meddler.says(fresh, owed);
            self.effects.extend(said);
            rounds += 1;
            if forged.is_empty() || rounds > 8 {
                return;
            }
            forged.into_iter().for_each(|event| self.arbiter.handle(now, event));
        }
    }

    /// What the arbiter wanted done since the last call.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        self.effects.drain(..).collect()
    }

    pub(super) fn poll_timeout(&self) -> Option<(Time, Why)> {
        self.arbiter.poll_timeout()
    }

    pub(super) fn snapshot(&self, now: Time) -> Snapshot {
        self.arbiter.snapshot(now)
    }

    pub(super) fn check(&self) {
        self.arbiter.check();
    }
}
