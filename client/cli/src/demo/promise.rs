//! What the demo promises, and whether it was so.

use serde::Serialize;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Promise {
    /// A job over its budget is refused, with the reason in numbers.
    OverBudgetRefused,
    /// A lease grows up to its limit, and not beyond.
    GrowthBounded,
    /// Who finds no room waits, and is told what is short.
    Waits,
    /// What a killed job had goes to the next in line.
    PassedOn,
    /// Who waited is granted when room comes.
    GrantedAfter,
    /// The losses fall.
    LossesFall,
    /// Jobs that together exceed the device take turns, and all finish.
    TakesTurns,
    /// No device ever held more than its capacity.
    WithinCapacity,
    /// At the end everything is given back.
    GivenBack,
}

impl Promise {
    /// All of them, in the order in which they are kept.
    pub(super) const ALL: [Self; 9] = [
        Self::OverBudgetRefused,
        Self::GrowthBounded,
        Self::Waits,
        Self::PassedOn,
        Self::GrantedAfter,
        Self::LossesFall,
        Self::TakesTurns,
        Self::WithinCapacity,
        Self::GivenBack,
    ];

    /// The promise in words.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::OverBudgetRefused => "who asks for more than the budget is refused, in numbers",
            Self::GrowthBounded => "a lease grows up to its limit, and not beyond",
            Self::Waits => "who finds no room waits, and is told what is short",
            Self::PassedOn => "what a killed job had goes to the next in line",
            Self::GrantedAfter => "who waited is granted when room comes",
            Self::LossesFall => "every job's loss falls",
            Self::TakesTurns => "jobs that together want more than the device has take turns, and all finish",
            Self::WithinCapacity => "no device ever held more than its capacity",
            Self::GivenBack => "at the end everything is given back",
        }
    }
}

/// Whether a promise was kept, with the numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verdict {
    pub(super) promise: Promise,
    pub(super) kept: bool,
    pub(super) detail: String,
}

/// The verdicts so far; the first one on a promise stands, and a broken one outweighs a kept one.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdicts(Vec<Verdict>);

impl Verdicts {
    /// Notes that the promise was kept.
    pub(super) fn kept(&mut self, promise: Promise, detail: impl Into<String>) {
        if self.of(promise).is_none() {
            self.0.push(Verdict { promise, kept: true, detail: detail.into() });
        }
    }

    /// Notes that the promise was broken.
    pub(super) fn broken(&mut self, promise: Promise, detail: impl Into<String>) {
        if self.of(promise).is_none_or(|verdict| verdict.kept) {
            self.0.retain(|verdict| verdict.promise != promise);
            self.0.push(Verdict { promise, kept: false, detail: detail.into() });
        }
    }

    fn of(&self, promise: Promise) -> Option<&Verdict> {
        self.0.iter().find(|verdict| verdict.promise == promise)
    }

    /// One verdict for each promise, in their order; what was never come to is broken.
    pub(super) fn all(&self) -> Vec<Verdict> {
        let never = |promise| Verdict {
            promise,
            kept: false,
            detail: "the demo ended before it came to this".into(),
        };
        Promise::ALL
            .into_iter()
            .map(|promise| self.of(promise).cloned().unwrap_or_else(|| never(promise)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_once_stays_broken_and_what_is_not_shown_is_not_kept() {
        let mut verdicts = Verdicts::default();
        verdicts.kept(Promise::Waits, "a");
        verdicts.broken(Promise::Waits, "b");
        verdicts.kept(Promise::Waits, "c");
        verdicts.kept(Promise::LossesFall, "d");
        let all = verdicts.all();
        assert_eq!(all.len(), Promise::ALL.len());
        let kept: Vec<_> = all.iter().filter(|verdict| verdict.kept).map(|verdict| verdict.promise).collect();
        assert_eq!(kept, [Promise::LossesFall]);
        assert!(all.iter().any(|verdict| verdict.promise == Promise::Waits && verdict.detail == "b"));
    }
}
