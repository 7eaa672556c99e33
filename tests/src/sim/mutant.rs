//! Faults put between the arbiter and the world, each of which the simulator must notice: the
//! negative controls of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_arbiter::{Budgets, Denial, Effect, Event, Notice, Occurrence, Policy, RequestId};
use gpulease_words::{Bytes, LeaseId, SegmentId, SessionId};

/// One way to break the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Bytes are credited when they are given back, not when they are proven free.
    CreditsEarly,
    /// A `Freed` is lost.
    LosesFreed,
    /// What can't be proven free is credited.
    CreditsUnproven,
    /// A grant is answered twice.
    GrantsTwice,
    /// Twice as much is granted as was asked.
    GrantsBeyond,
    /// A `Done` is swallowed.
    SwallowsDone,
    /// A refusal is swallowed.
    SwallowsDenied,
    /// A segment is handed over before the device made it.
    HandsOverUnmade,
    /// A `Reclaim` is swallowed.
    DropsReclaim,
    /// A `Reclaim` is said twice.
    ReclaimsTwice,
    /// Nobody becomes a barrier.
    IgnoresMaxWait,
    /// Weights count for nothing.
    IgnoresWeights,
    /// Limits count for nothing.
    IgnoresLimits,
    /// Counts have no bounds.
    IgnoresBounds,
    /// A death goes unnoticed.
    MissesDeaths,
    /// What outsiders take goes unnoticed.
    MissesOutsiders,
    /// What was measured goes unnoticed.
    MissesMeasurements,
    /// A broken stream goes unnoticed.
    MissesAdrift,
    /// Time stands still.
    Sleeps,
    /// A refusal says neither a number nor a cure.
    SaysNothing,
    /// A refused allocation leaves something behind.
    RemembersRefusals,
    /// A stranger may join.
    LetsStrangersJoin,
    /// Somebody else's segment may be freed.
    FreesForOthers,
    /// The ask of a broken stream is kept.
    KeepsUnattended,
    /// A holder is not told that his bytes are wanted.
    KeepsRecallsQuiet,
    /// The end of a lease is not told.
    KeepsEndsQuiet,
    /// A lost device is used.
    UsesLostDevices,
    /// Two grants change places.
    SwapsGrants,
    /// Asks become barriers late, and are overtaken when nothing may overtake them any more.
    OvertakesBarriers,
    /// A lease that a guarantee covers is told to leave.
    SuspendsGuaranteed,
    /// What is swapped out is credited before the device has proven it.
    CreditsAtSuspend,
    /// A lease is called back with half of its bytes.
    ResumesHalf,
    /// The last member's word that it drained is lost, and so is what should follow.
    LosesWakeUps,
    /// A flood of one user's small asks goes before older asks of others: nobody is ever a barrier, and no share counts.
    FavoursFloods,
    /// What is guaranteed goes unnoticed.
    IgnoresGuarantees,
    /// A lease is taken away as soon as it has its memory.
    IgnoresResidency,
}

impl Mutant {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::CreditsEarly,
        Self::LosesFreed,
        Self::CreditsUnproven,
        Self::GrantsTwice,
        Self::GrantsBeyond,
        Self::SwallowsDone,
        Self::SwallowsDenied,
        Self::HandsOverUnmade,
        Self::DropsReclaim,
        Self::ReclaimsTwice,
        Self::IgnoresMaxWait,
        Self::IgnoresWeights,
        Self::IgnoresLimits,
        Self::IgnoresBounds,
        Self::MissesDeaths,
        Self::MissesOutsiders,
        Self::MissesMeasurements,
        Self::MissesAdrift,
        Self::Sleeps,
        Self::SaysNothing,
        Self::RemembersRefusals,
        Self::LetsStrangersJoin,
        Self::FreesForOthers,
        Self::KeepsUnattended,
        Self::KeepsRecallsQuiet,
        Self::KeepsEndsQuiet,
        Self::UsesLostDevices,
        Self::SwapsGrants,
        Self::OvertakesBarriers,
        Self::SuspendsGuaranteed,
        Self::CreditsAtSuspend,
        Self::ResumesHalf,
        Self::LosesWakeUps,
        Self::FavoursFloods,
        Self::IgnoresGuarantees,
        Self::IgnoresResidency,
    ];

    /// Whether the arbiter works with other settings than its clients were told of, so that figures alone would give
    /// it away: it has to be caught by what it does.
    pub(super) const fn shows_its_settings(self) -> bool {
        matches!(self, Self::OvertakesBarriers | Self::FavoursFloods)
    }

    /// What the arbiter is told of the policy.
    pub(super) fn misread(self, policy: &mut Policy, budgets: &mut Budgets) {
        match self {
            Self::IgnoresMaxWait => policy.max_wait = Duration::from_secs(1 << 30),
            Self::IgnoresBounds => {
                *policy = Policy {
                    max_wait: policy.max_wait,
                    adrift_grace: policy.adrift_grace,
                    unattended_grace: policy.unattended_grace,
                    ..Policy::default()
                };
            }
            Self::OvertakesBarriers => {
                policy.max_wait *= 4;
                each_budget(budgets, |budget| budget.max_wait = budget.max_wait.map(|wait| wait * 4));
            }
            Self::FavoursFloods => {
                policy.max_wait = Duration::from_secs(1 << 30);
                each_budget(budgets, |budget| {
                    (budget.weight, budget.max_wait) = (NonZeroU32::MIN, None);
                });
            }
            Self::IgnoresGuarantees => each_budget(budgets, |budget| budget.guarantee = Bytes::ZERO),
            Self::IgnoresResidency => {
                policy.min_residency = Duration::ZERO;
                policy.swap_bytes_per_second = Bytes::MAX;
            }
            Self::IgnoresWeights => each_budget(budgets, |budget| budget.weight = NonZeroU32::MIN),
            Self::IgnoresLimits => each_budget(budgets, |budget| budget.limit = None),
            Self::CreditsEarly
            | Self::LosesFreed
            | Self::CreditsUnproven
            | Self::GrantsTwice
            | Self::GrantsBeyond
            | Self::SwallowsDone
            | Self::SwallowsDenied
            | Self::HandsOverUnmade
            | Self::DropsReclaim
            | Self::ReclaimsTwice
            | Self::MissesDeaths
            | Self::MissesOutsiders
            | Self::MissesMeasurements
            | Self::MissesAdrift
            | Self::Sleeps
            | Self::SaysNothing
            | Self::RemembersRefusals
            | Self::LetsStrangersJoin
            | Self::FreesForOthers
            | Self::KeepsUnattended
            | Self::KeepsRecallsQuiet
            | Self::KeepsEndsQuiet
            | Self::UsesLostDevices
            | Self::SuspendsGuaranteed
            | Self::CreditsAtSuspend
            | Self::ResumesHalf
            | Self::LosesWakeUps
            | Self::SwapsGrants => {}
        }
    }
}

fn each_budget(budgets: &mut Budgets, change: impl Fn(&mut gpulease_arbiter::Budget)) {
    change(&mut budgets.host);
    budgets.groups.values_mut().for_each(&change);
    budgets.users.values_mut().for_each(&change);
    change(&mut budgets.default_user);
    budgets.jobs.iter_mut().for_each(|(_, budget)| change(budget));
    change(&mut budgets.default_job);
}

/// A mutant at work, with what it has to remember.
#[derive(Clone, Debug)]
pub(super) struct Meddler {
    mutant: Mutant,
    times: u32,
    credited: BTreeSet<SegmentId>,
    /// Who asked, and what came of it: whose name it lends to strangers.
    askers: BTreeMap<RequestId, SessionId>,
    owners: BTreeMap<LeaseId, SessionId>,
    users: BTreeMap<SegmentId, SessionId>,
}

/// What a fault does only once it does at this many-th occasion, so that the run is under way.
const LATER: u32 = 3;

impl Meddler {
    pub(super) const fn new(mutant: Mutant) -> Self {
        Self {
            mutant,
            times: 0,
            credited: BTreeSet::new(),
            askers: BTreeMap::new(),
            owners: BTreeMap::new(),
            users: BTreeMap::new(),
        }
    }

    /// Whether it has to be told which lease a guarantee covers.
    pub(super) fn wants_owed(&self) -> bool {
        self.mutant == Mutant::SuspendsGuaranteed
    }

    pub(super) fn sleeps(&self) -> bool {
        self.mutant == Mutant::Sleeps
    }

    fn now(&mut self) -> bool {
        self.times += 1;
        self.times == LATER
    }

    /// What the arbiter hears instead of an event.
    pub(super) fn hears(&mut self, event: Event) -> Vec<Event> {
        if let Event::Acquire { request, session, .. } | Event::Allocate { request, session, .. } = &event {
            self.askers.insert(*request, *session);
        }
        match (self.mutant, &event) {
            (Mutant::CreditsEarly | Mutant::CreditsUnproven, Event::Freed { segment }) => {
                if self.credited.contains(segment) { Vec::new() } else { vec![event] }
            }
            (Mutant::CreditsEarly, Event::Unproven { segment, .. }) if self.credited.contains(segment) => {
                Vec::new()
            }
            (Mutant::CreditsUnproven, Event::Unproven { segment, .. }) => {
                self.credited.insert(*segment);
                vec![Event::Freed { segment: *segment }]
            }
            (Mutant::HandsOverUnmade, Event::Created { segment }) if self.credited.contains(segment) => {
                Vec::new()
            }
            (Mutant::CreditsAtSuspend, Event::SwappedOut { segment, .. }) => {
                self.credited.insert(*segment);
                vec![event.clone(), Event::Freed { segment: *segment }]
            }
            (Mutant::CreditsAtSuspend, Event::Freed { segment }) if self.credited.remove(segment) => {
                Vec::new()
            }
            (Mutant::LosesWakeUps, Event::Drained { .. }) => Vec::new(),
            (Mutant::LosesFreed, Event::Freed { .. })
            | (Mutant::MissesDeaths, Event::Died { .. })
            | (Mutant::MissesOutsiders, Event::OffBook { .. })
            | (Mutant::MissesMeasurements, Event::Overhead { .. })
            | (Mutant::MissesAdrift, Event::Adrift { .. })
            | (Mutant::KeepsUnattended, Event::Unattended { .. })
                if self.now() || self.times > LATER =>
            {
                Vec::new()
            }
            // A device is lost once or never in a run: nothing to wait for.
            (Mutant::UsesLostDevices, Event::DeviceLost { .. }) => Vec::new(),
            (Mutant::GrantsBeyond, Event::Acquire { .. }) => vec![doubled(event)],
            (Mutant::LetsStrangersJoin, Event::Join { request, lease, .. }) => match self.owners.get(lease) {
                Some(owner) => vec![Event::Join {
                    request: *request,
                    session: *owner,
                    lease: *lease,
                    ancestors: Vec::new(),
                }],
                None => vec![event],
            },
            (Mutant::FreesForOthers, Event::Free { request, lease, segment, .. }) => match self
                .users
                .get(segment)
            {
                Some(user) => {
                    vec![Event::Free { request: *request, session: *user, lease: *lease, segment: *segment }]
                }
                None => vec![event],
            },
            _ => vec![event],
        }
    }

    fn remember(&mut self, effect: &Effect) {
        if let Effect::Granted { request: Some(request), lease } = effect {
            self.owners.extend(self.askers.get(request).map(|session| (*lease, *session)));
        }
        if let Effect::Allocated { request, segment, .. } = effect {
            self.users.extend(self.askers.get(request).map(|session| (*segment, *session)));
        }
    }

    /// What the world sees of the arbiter's effects, and events that the arbiter hears at once.
    pub(super) fn says(&mut self, effects: Vec<Effect>, owed: Option<LeaseId>) -> (Vec<Effect>, Vec<Event>) {
        let (mut said, mut forged) = (Vec::new(), Vec::new());
        for effect in effects {
            self.remember(&effect);
            match (self.mutant, &effect) {
                (Mutant::CreditsEarly, Effect::Reclaim { segment, .. }) => {
                    self.credited.insert(*segment);
                    forged.push(Event::Freed { segment: *segment });
                    said.push(effect);
                }
                (Mutant::HandsOverUnmade, Effect::Create { segment, .. }) => {
                    self.credited.insert(*segment);
                    forged.push(Event::Created { segment: *segment });
                    said.push(effect);
                }
                (Mutant::GrantsTwice, Effect::Granted { .. })
                | (Mutant::ReclaimsTwice, Effect::Reclaim { .. }) => {
                    said.extend([effect.clone(), effect]);
                }
                (Mutant::SwallowsDone, Effect::Done { .. })
                | (Mutant::SwallowsDenied, Effect::Denied { .. })
                | (Mutant::DropsReclaim, Effect::Reclaim { .. })
                    if self.now() => {}
                (Mutant::KeepsRecallsQuiet, Effect::Notify { notice: Notice::Recall { .. }, .. })
                | (Mutant::KeepsEndsQuiet, Effect::Notify { notice: Notice::Ended { .. }, .. }) => {}
                (Mutant::SuspendsGuaranteed, Effect::Occurred { what: Occurrence::Suspending, lease }) => {
                    let lease = owed.unwrap_or(*lease);
                    said.push(Effect::Occurred { lease, what: Occurrence::Suspending });
                }
                (Mutant::ResumesHalf, Effect::Restore { segment, lease, device, bytes, process }) => {
                    let (segment, lease, device, process) = (*segment, *lease, *device, *process);
                    let bytes = Bytes::new(bytes.get() / 2);
                    said.push(Effect::Restore { segment, lease, device, bytes, process });
                }
                (Mutant::SaysNothing, Effect::Denied { request, .. }) => {
                    said.push(Effect::Denied { request: *request, denial: Denial::Malformed("no") });
                }
                (Mutant::RemembersRefusals, Effect::Denied { .. }) if self.times < LATER => {
                    self.times += 1;
                    forged.extend(ghost(self.times));
                    said.push(effect);
                }
                _ => said.push(effect),
            }
        }
        if self.mutant == Mutant::SwapsGrants {
            swap_grants(&mut said);
        }
        (said, forged)
    }
}

/// An ask for twice the bytes, as far as it may grow.
fn doubled(event: Event) -> Event {
    let Event::Acquire { request, session, ask_name, mut terms } = event else { return event };
    if let Some(reserve) = terms.reserve.checked_mul(2).filter(|r| r.is_granular() && *r < Bytes::MAX) {
        terms.reserve = reserve;
        terms.limit = terms.limit.max(reserve);
    }
    Event::Acquire { request, session, ask_name, terms }
}

/// A session that nobody opened.
fn ghost(n: u32) -> Option<Event> {
    let peer = super::setting::peer(900_000 + u64::from(n), 4);
    Some(Event::Open { request: RequestId(u64::MAX - u64::from(n)), peer })
}

fn swap_grants(effects: &mut [Effect]) {
    let granted = |effect: &Effect| matches!(effect, Effect::Granted { .. });
    let at: Vec<usize> = effects.iter().enumerate().filter(|(_, e)| granted(e)).map(|(i, _)| i).collect();
    if let [first, .., last] = at[..] {
        effects.swap(first, last);
    }
}
