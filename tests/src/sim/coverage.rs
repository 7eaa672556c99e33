//! Which events, effects, notices and denials occurred.

use std::collections::BTreeMap;
use std::fmt;

use gpulease_arbiter::{Denial, Effect, Event, Notice, Occurrence};

/// The names of a closed enum's variants, and the name of one value's. Behind the semicolon: what no simulated host
/// leads to.
macro_rules! kinds {
    ($name:ident, $all:ident, $of:ident: $($variant:ident)*; $($still:ident)*) => {
        const $all: &[&str] = &[$(stringify!($variant),)*];

        const fn $name(value: &$of) -> &'static str {
            match value {
                $($of::$variant { .. } => stringify!($variant),)*
                $($of::$still { .. } => stringify!($still),)*
            }
        }
    };
}

kinds! { event_name, EVENTS, Event:
    Open Adrift Rejoined Close Died Acquire Unattended Withdraw Join Admit Resize Release Allocate Abandoned Created
    CreateFailed Claimed Free Freed Unproven OffBook Overhead DeviceLost Recall
    Drained SwappedOut SwapFailed Resume Restored Idle Pin SetBudgets;
}

kinds! { effect_name, EFFECTS, Effect:
    Opened Denied Done Queued Granted Joined Resized Released Recalled Create Allocated Reclaim Notify Overdue
    LeaseGone SessionGone ProcessGone Restore Forget Resumed Signal Occurred;
}

kinds! { notice_name, NOTICES, Notice:
    Recall Ended Suspend SwapOut SuspendCancelled SegmentBack Pinned;
}

kinds! { occurrence_name, OCCURRENCES, Occurrence:
    Suspending Suspended Resuming Resumed SuspendCancelled SwapFailed Pinned Terminated;
}

kinds! { denial_name, DENIALS, Denial:
    OverBudget AccountFull TooLarge TooManyDevices BeyondLease NoRoom WaitOver StillTooMany TooMany NoSuchLease NoSuchSegment
    NoSuchDevice NoSuchSession Malformed WouldDeadlock Ending Overdue DeviceRefused DeviceLost Withdrawn EndedByOther
    OutOfIds NotAllowed AccountDue Suspended ArenaFull PinnedFull GuaranteesTooLarge GuaranteeOverParent
    GuaranteeOverLimit GuaranteeUncounted;
}

/// How often each kind of thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl Coverage {
    pub(super) fn event(&mut self, event: &Event) {
        self.count("event", event_name(event));
    }

    pub(super) fn effect(&mut self, effect: &Effect) {
        self.count("effect", effect_name(effect));
        match effect {
            Effect::Denied { denial, .. } => self.count("denial", denial_name(denial)),
            Effect::Notify { notice, .. } => {
                self.count("notice", notice_name(notice));
                if let Notice::Ended { denial, .. } = notice {
                    self.count("denial", denial_name(denial));
                }
            }
            Effect::Granted { request: None, .. } => self.count("case", "granted to nobody's ear"),
            Effect::Opened { .. }
            | Effect::Done { .. }
            | Effect::Queued { .. }
            | Effect::Granted { .. }
            | Effect::Joined { .. }
            | Effect::Resized { .. }
            | Effect::Released { .. }
            | Effect::Recalled { .. }
            | Effect::Create { .. }
            | Effect::Allocated { .. }
            | Effect::Reclaim { .. }
            | Effect::Overdue { .. }
            | Effect::Restore { .. }
            | Effect::Forget { .. }
            | Effect::Signal { .. }
            | Effect::Occurred { .. }
            | Effect::Resumed { .. }
            | Effect::LeaseGone { .. }
            | Effect::SessionGone { .. }
            | Effect::ProcessGone { .. } => {}
        }
    }

    pub(super) fn occurrence(&mut self, what: &Occurrence) {
        self.count("occurrence", occurrence_name(what));
    }

    /// Counts something that is worth knowing about a run.
    pub(super) fn case(&mut self, what: &'static str) {
        self.count("case", what);
    }

    fn count(&mut self, of: &'static str, what: &'static str) {
        *self.counts.entry((of, what)).or_default() += 1;
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        for (key, n) in &other.counts {
            *self.counts.entry(*key).or_default() += n;
        }
    }

    /// Every variant that never occurred, as `event Open` and the like.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let all = [
            ("event", EVENTS),
            ("effect", EFFECTS),
            ("notice", NOTICES),
            ("occurrence", OCCURRENCES),
            ("denial", DENIALS),
        ];
        let pairs = all.iter().flat_map(|(of, names)| names.iter().map(move |name| (*of, *name)));
        pairs
            .filter(|pair| !self.counts.contains_key(pair))
            .map(|(of, name)| format!("{of} {name}"))
            .collect()
    }

    /// How often something happened.
    #[must_use]
    pub fn of(&self, of: &str, what: &str) -> u64 {
        let found = self.counts.iter().find(|((o, w), _)| *o == of && *w == what);
        found.map_or(0, |(_, n)| *n)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((of, what), n) in &self.counts {
            writeln!(f, "{of:>7} {what:<24} {n:>10}")?;
        }
        Ok(())
    }
}
