//! What a seed draws before time starts: devices, policy, budgets, who is there.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_arbiter::{Budget, Budgets, DeviceSpec, OnOverdue, Peer, Pinning, Policy};
use gpulease_words::{Bytes, DeviceId, GRANULARITY, Pid, ProcessId, Uid};

use super::actor::{Actor, Temper};
use super::card::{Card, Mood};
use super::dice::Dice;

/// The names that jobs take.
pub(super) const JOBS: [&str; 4] = ["resnet", "sweep-1", "sweep-2", "notebook"];
const GROUPS: [&str; 2] = ["lab", "guests"];
const FIRST_UID: u32 = 1000;
const FIRST_PID: u32 = 4000;

/// All that a run starts from.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) policy: Policy,
    pub(super) budgets: Budgets,
    pub(super) devices: Vec<DeviceSpec>,
    pub(super) cards: Vec<Card>,
    pub(super) actors: Vec<Actor>,
    /// How many things happen before the faults stop.
    pub(super) steps: u32,
    /// Nobody lies, hangs or fails, so that all that is promised must be kept.
    pub(super) upright: bool,
}

/// Whether leases move in a world, and who lives in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing moves and nothing is guaranteed.
    Still,
    /// Leases move, and clients are as they are.
    Moving,
    /// Leases move, and everyone does what he should.
    Upright,
}

/// So many granules of 2 MiB.
pub(super) fn granules(n: u64) -> Bytes {
    GRANULARITY.checked_mul(n).expect("a simulated device is small")
}

impl Setting {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let kind = *dice.weighted(&[(4, Kind::Still), (4, Kind::Moving), (2, Kind::Upright)]);
        let devices = devices(dice);
        let total: u64 = devices.iter().map(|d| d.capacity.get() / GRANULARITY.get()).sum();
        let (mut budgets, mut policy) = (budgets(dice, total), policy(dice));
        if kind != Kind::Still {
            let least = devices.iter().map(|d| d.capacity.get() / GRANULARITY.get()).min().unwrap_or(1);
            move_memory(dice, &mut policy, total, least);
            budgets = owe(dice, budgets, &policy, &devices);
        }
        let upright = kind == Kind::Upright;
        let mood = |dice: &mut Dice| if upright { Mood::Prompt } else { mood(dice) };
        let cards = devices.iter().map(|spec| Card::new(spec.id, spec.capacity, mood(dice))).collect();
        let mut actors = actors(dice);
        for actor in actors.iter_mut().filter(|_| upright) {
            actor.temper = *dice.weighted(&[(4, Temper::Good), (3, Temper::Greedy), (2, Temper::Flooding)]);
        }
        Self { policy, budgets, cards, actors, devices, steps: dice.count(60, 320), upright }
    }
}

/// Leases can leave their devices, for host memory.
pub(super) fn move_memory(dice: &mut Dice, policy: &mut Policy, total: u64, least: u64) {
    let seconds = |dice: &mut Dice, low, high| Duration::from_secs(dice.between(low, high));
    policy.arena = if dice.one_in(8) { Bytes::ZERO } else { granules(dice.between(total / 2, 2 * total)) };
    policy.pinned_max = dice.one_in(3).then(|| granules(dice.between(0, least / 3)));
    policy.headroom = if dice.one_in(4) { granules(dice.between(0, 3)) } else { Bytes::ZERO };
    policy.min_residency = seconds(dice, 0, 40);
    policy.recall_deadline = seconds(dice, 1, 15);
    policy.drain_deadline = seconds(dice, 1, 15);
    policy.swap_bytes_per_second = granules(dice.between(4, 64));
}

/// Some accounts are owed memory; where what is drawn can't be kept, less is.
pub(super) fn owe(dice: &mut Dice, budgets: Budgets, policy: &Policy, devices: &[DeviceSpec]) -> Budgets {
    let least = devices.iter().map(|d| d.capacity.get() / GRANULARITY.get()).min().unwrap_or(1);
    for most in [least / 2, least / 3, least / 6] {
        let mut owed = budgets.clone();
        for (n, name) in GROUPS.iter().enumerate() {
            if let Some(group) = owed.groups.get_mut(*name) {
                group.guarantee = granules(dice.between(0, most)).min(group.limit.unwrap_or(Bytes::MAX));
                let own = group.guarantee;
                let uid = Uid::new(FIRST_UID + 2 * u32::try_from(n).expect("few groups"));
                if let Some(user) = owed.users.get_mut(&uid) {
                    user.guarantee = granules(dice.between(0, most)).min(own).min(user.limit.unwrap_or(own));
                    owed.memberships.insert(uid, (*name).to_owned());
                }
            }
        }
        let single = Uid::new(FIRST_UID + 4);
        if dice.one_in(2) {
            let guarantee = granules(dice.between(0, most));
            owed.users.insert(single, Budget { guarantee, ..Budget::default() });
        }
        for budget in owed.users.values_mut().chain(owed.groups.values_mut()) {
            budget.max_wait = dice.one_in(5).then(|| Duration::from_secs(dice.between(1, 60)));
            budget.pinning = if dice.one_in(12) { Pinning::Pinned } else { Pinning::Movable };
            let grace = Duration::from_secs(dice.between(1, 5));
            budget.on_overdue = dice.one_in(5).then_some(OnOverdue::Terminate { grace });
        }
        if owed.fit(policy, devices).is_ok() {
            return owed;
        }
    }
    Budgets::default()
}

fn devices(dice: &mut Dice) -> Vec<DeviceSpec> {
    let count = *dice.weighted(&[(5, 1), (3, 2), (1, 3), (1, 4)]);
    let estimate = *dice.weighted(&[(2, 0), (1, 1), (1, 3)]);
    let spec = |n| DeviceSpec {
        id: DeviceId::new(n),
        capacity: granules(dice.between(6, 64)),
        overhead_estimate: granules(estimate),
    };
    (0..count).map(spec).collect()
}

fn mood(dice: &mut Dice) -> Mood {
    *dice.weighted(&[(4, Mood::Prompt), (3, Mood::Slow), (2, Mood::Failing), (2, Mood::Unsure)])
}

fn policy(dice: &mut Dice) -> Policy {
    let seconds = |dice: &mut Dice, low, high| Duration::from_secs(dice.between(low, high));
    let mut policy = Policy {
        max_wait: seconds(dice, 5, 120),
        adrift_grace: seconds(dice, 1, 60),
        unattended_grace: seconds(dice, 1, 20),
        ..Policy::default()
    };
    if dice.one_in(3) {
        policy.sessions_per_uid = dice.count(2, 6);
        policy.asks_per_uid = dice.count(1, 6);
        policy.leases_per_uid = dice.count(1, 6);
        policy.segments_per_lease = dice.count(1, 6);
        policy.members_per_lease = dice.count(1, 3);
    }
    if dice.one_in(6) {
        policy.sessions_max = dice.count(4, 12);
        policy.asks_max = dice.count(2, 8);
        policy.leases_max = dice.count(2, 8);
    }
    policy
}

pub(super) fn budgets(dice: &mut Dice, total: u64) -> Budgets {
    let groups = GROUPS.iter().filter(|_| dice.clone().one_in(2)).collect::<Vec<_>>();
    let groups: BTreeMap<String, Budget> =
        groups.into_iter().map(|name| ((*name).to_owned(), budget(dice, total))).collect();
    let users = (0..4).filter(|n| n % 2 == 0 || dice.one_in(3)).collect::<Vec<_>>();
    Budgets {
        host: if dice.one_in(4) { budget(dice, total) } else { Budget::default() },
        groups,
        users: users.into_iter().map(|n| (Uid::new(FIRST_UID + n), budget(dice, total))).collect(),
        default_user: budget(dice, total),
        jobs: if dice.one_in(2) { vec![("sweep-*".to_owned(), budget(dice, total))] } else { Vec::new() },
        default_job: if dice.one_in(3) { budget(dice, total) } else { Budget::default() },
        memberships: BTreeMap::new(),
    }
}

fn budget(dice: &mut Dice, total: u64) -> Budget {
    Budget {
        limit: (!dice.one_in(3)).then(|| granules(dice.between(total / 4 + 1, total + 2))),
        weight: NonZeroU32::new(dice.count(1, 4)).expect("at least one"),
        leases_max: dice.one_in(5).then(|| dice.count(1, 5)),
        ..Budget::default()
    }
}

fn actors(dice: &mut Dice) -> Vec<Actor> {
    let count = dice.between(2, 12);
    (1..=count).map(|n| actor(dice, n)).collect()
}

fn actor(dice: &mut Dice, n: u64) -> Actor {
    let temper = *dice.weighted(&[
        (6, Temper::Good),
        (2, Temper::Impatient),
        (2, Temper::Greedy),
        (1, Temper::Hanging),
        (2, Temper::Lying),
        (1, Temper::Flooding),
        (2, Temper::Frail),
    ]);
    let user = dice.count(0, 4);
    Actor::new(peer(n, user), temper)
}

/// The process of this number, of this user. Users are in one group each, or in none.
pub(super) fn peer(n: u64, user: u32) -> Peer {
    let group = GROUPS.get(user as usize / 2).map(|name| (*name).to_owned());
    Peer {
        process: ProcessId::new(n),
        pid: Pid::new(FIRST_PID + u32::try_from(n).expect("few processes")),
        uid: Uid::new(FIRST_UID + user),
        group,
        program: format!("train-{n}"),
    }
}
