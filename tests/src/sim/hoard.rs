//! A guarantee while others hoard the card (I7), in a world of its own: hoarders fill the devices and want back
//! whatever is taken from them; now and then an account asks for what it is guaranteed.
//!
//! By the clock of the simulation it has its bytes within the deadline of a recall, that of a drain and one
//! swap of the whole device, whatever the hoarders do meanwhile. That is measured here from outside, beside
//! the model, which judges each step as in any other run.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_arbiter::{
    Authority, Budget, Budgets, DeviceSpec, DeviceView, DeviceWish, Event, Guard, Patience, Peer, Pinning,
    Policy, SegmentKind, Terms,
};
use gpulease_words::{Bytes, DeviceId, GRANULARITY, LeaseId, SessionId};

use super::actor::{Actor, Scene, Temper};
use super::card::{Card, Mood};
use super::dice::Dice;
use super::model::{Standing, ensure};
use super::setting::{self, Setting, granules, peer};
use super::world::{Check, World};

/// So often an account asks for its own in one run.
const TRIES: u32 = 2;
/// So long hoarders try to fill the devices.
const STEPS_MAX: u32 = 400;
/// What devices and tickets take beside.
const SLACK: Duration = Duration::from_secs(1);
/// How often hoarders act while somebody waits.
const TICK: Duration = Duration::from_millis(250);
/// The owner's process, which no hoarder has.
const OWNER: u64 = 90;

/// One whom a guarantee is owed.
#[derive(Clone, Debug)]
struct Owner {
    peer: Peer,
    guarantee: Bytes,
    /// What a context takes.
    estimate: Bytes,
}

/// How long those waited to whom it was owed.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Asks within the guarantee.
    pub tries: u32,
    /// Those that had to wait.
    pub waited: u32,
    /// The longest wait, in thousandths of what was allowed.
    pub longest: u128,
}

impl Waits {
    /// Takes another run's figures in.
    pub fn add(&mut self, other: &Self) {
        (self.tries, self.waited) = (self.tries + other.tries, self.waited + other.waited);
        self.longest = self.longest.max(other.longest);
    }
}

/// A world of hoarders, and whom something is owed there.
fn draw(dice: &mut Dice) -> (Setting, Owner) {
    loop {
        let (setting, owner) = draw_any(dice);
        if setting.budgets.fit(&setting.policy, &setting.devices).is_ok() {
            return (setting, owner);
        }
    }
}

fn draw_any(dice: &mut Dice) -> (Setting, Owner) {
    let estimate = granules(*dice.weighted(&[(2, 0), (1, 1), (1, 2)]));
    let count = *dice.weighted(&[(3, 1), (1, 2)]);
    let spec = |n| DeviceSpec {
        id: DeviceId::new(n),
        capacity: granules(dice.between(16, 64)),
        overhead_estimate: estimate,
    };
    let devices: Vec<DeviceSpec> = (0..count).map(spec).collect();
    let sizes = devices.iter().map(|spec| spec.capacity.get() / GRANULARITY.get());
    let (least, total) = (sizes.clone().min().unwrap_or(1), sizes.sum::<u64>());
    let mut policy = Policy { max_wait: Duration::from_secs(dice.between(5, 60)), ..Policy::default() };
    setting::move_memory(dice, &mut policy, total, least);
    policy.arena = granules(2 * total);
    policy.pinned_max = Some(granules(dice.between(0, least / 4)));
    let guarantee = granules(dice.between(8, least / 2));
    let in_group = dice.one_in(2);
    let owner = peer(OWNER, if in_group { 0 } else { 4 });
    let budgets = owed(&owner, guarantee, granules(dice.between(0, 4)));
    let hoarders = dice.between(3, 8);
    let hoarder = |n| Actor::new(peer(n, dice.count(1, 3)), Temper::Greedy);
    let actors = (1..=hoarders).map(hoarder).collect();
    let cards = devices.iter().map(|spec| Card::new(spec.id, spec.capacity, Mood::Prompt)).collect();
    let steps = dice.count(10, 60);
    let setting = Setting { policy, budgets, devices, cards, actors, steps, upright: true };
    (setting, Owner { peer: owner, guarantee, estimate })
}

/// Budgets in which so much is the owner's, out of what is his group's where he has one.
fn owed(owner: &Peer, own: Bytes, more: Bytes) -> Budgets {
    let budget = |guarantee| Budget { guarantee, ..Budget::default() };
    let group = owner.group.clone();
    let whole = own.checked_add(more).expect("small");
    Budgets {
        users: BTreeMap::from([(owner.uid, budget(own))]),
        memberships: group.iter().map(|name| (owner.uid, name.clone())).collect(),
        groups: group.into_iter().map(|name| (name, budget(whole))).collect(),
        ..Budgets::default()
    }
}

impl World {
    /// Hoarders, and an account that asks for its own among them.
    pub(super) fn of_hoarders(
        seed: u64,
        mutant: Option<super::Mutant>,
    ) -> (Self, impl FnOnce(&mut Self) -> Result<Waits, super::model::Broken>) {
        let mut dice = Dice::new(seed);
        let (setting, owner) = draw(&mut dice);
        (Self::made(setting, dice, mutant), move |world: &mut Self| world.be_hoarded(&owner))
    }

    fn be_hoarded(&mut self, owner: &Owner) -> Result<Waits, super::model::Broken> {
        let mut waits = Waits::default();
        let request = self.request();
        self.deliver(Event::Open { request, peer: owner.peer.clone() })?;
        for _ in 0..TRIES {
            self.hoard(owner)?;
            self.owner_asks(owner, &mut waits)?;
        }
        Ok(waits)
    }

    /// Hoarders act for a while, and on until there is less than the owner will ask for.
    fn hoard(&mut self, owner: &Owner) -> Check {
        for step in 0..STEPS_MAX {
            let room = |view: &DeviceView| view.free.get() < owner.guarantee.get() / 4;
            if step >= self.steps && self.snapshot().devices.iter().all(room) {
                break;
            }
            let longest = *self.dice.weighted(&[(4, 0), (5, 400), (3, 4_000), (1, 20_000)]);
            let gap = Duration::from_millis(self.dice.between(0, longest));
            self.run_until(self.now.plus(gap))?;
            self.hoarders_act()?;
        }
        Ok(())
    }

    /// One of them does something; those whose lease another ended give back what they have of it.
    fn hoarders_act(&mut self) -> Check {
        if !self.actors.iter().any(|actor| actor.alive) {
            let (n, user) = (self.actors.len() as u64 + 100, self.dice.count(1, 3));
            self.actors.push(Actor::new(peer(n, user), Temper::Greedy));
        }
        for me in self.actors.iter().filter(|actor| actor.alive).map(|a| a.peer.process).collect::<Vec<_>>() {
            let had = (Scene { me, model: &self.model }).in_hand();
            for (segment, lease) in
                had.into_iter().filter(|(_, lease)| self.model.leases[lease].ended).collect::<Vec<_>>()
            {
                self.free(me, segment, lease)?;
            }
        }
        self.client_acts()
    }

    /// The owner asks for what is his, has it in time, uses it and gives it back.
    fn owner_asks(&mut self, owner: &Owner, waits: &mut Waits) -> Check {
        let (since, known) = (self.now, self.model.asks.len());
        for terms in self.wishes(owner) {
            let (request, session) = (self.request(), self.owners_session(owner));
            self.deliver(Event::Acquire { request, session, ask_name: request.0, terms })?;
        }
        let mine: Vec<usize> = (known..self.model.asks.len()).collect();
        let capacity = self.model.devices.iter().map(|device| device.capacity).max();
        let swap = self.model.swap_time(capacity.expect("there is a device"));
        let bound = self.model.policy.recall_deadline + self.model.policy.drain_deadline + swap;
        let granted = |world: &Self| {
            mine.iter().all(|ask| matches!(world.model.asks[*ask].standing, Standing::Granted(_)))
        };
        while !granted(self) {
            ensure!(
                self.now <= since.plus(bound + SLACK),
                "I7: what is guaranteed was asked for at {since:?}, due within {bound:?}, and is not there: {}",
                self.model.describe_all()
            );
            let covered = self.snapshot().waiting.iter().filter(|view| view.guaranteed).count();
            ensure!(
                covered > 0,
                "I7: an ask within the guarantee is not covered: {}",
                self.model.describe_all()
            );
            self.run_until(self.now.plus(TICK))?;
            self.hoarders_act()?;
        }
        waits.tries += u32::try_from(mine.len()).expect("few");
        for ask in &mine {
            let Standing::Granted(lease) = self.model.asks[*ask].standing else { continue };
            let waited = self.model.leases[&lease].waited;
            waits.waited += u32::from(!waited.is_zero());
            waits.longest = waits.longest.max(waited.as_millis() * 1_000 / bound.as_millis());
            self.owner_uses(owner, lease)?;
        }
        let pause = Duration::from_millis(self.dice.between(0, 30_000));
        self.run_until(self.now.plus(pause))?;
        self.owner_gives_back(owner)
    }

    fn owners_session(&self, owner: &Owner) -> SessionId {
        let sessions = Scene { me: owner.peer.process, model: &self.model }.sessions();
        *sessions.first().expect("it was opened")
    }

    /// One ask for all that is guaranteed on a device, or two for parts of it, as much as is not used for contexts.
    fn wishes(&mut self, owner: &Owner) -> Vec<Terms> {
        let parts = if self.dice.one_in(2) { 1 } else { 2 };
        let whole = owner.guarantee.get() / GRANULARITY.get();
        let each = (whole / parts).saturating_sub(owner.estimate.get() / GRANULARITY.get()).max(1);
        let device = self.dice.pick(&self.model.devices.clone()).map(|fact| fact.id);
        let any = self.model.devices.len() == 1 && self.dice.one_in(2);
        let devices = match device {
            Some(device) if !any => DeviceWish::These(BTreeSet::from([device])),
            Some(_) | None => DeviceWish::Any(NonZeroU32::MIN),
        };
        let wish = |reserve: u64, pinned: bool| Terms {
            name: "owed".to_owned(),
            reserve: granules(reserve),
            limit: granules(reserve),
            devices: devices.clone(),
            patience: Patience::Endless,
            pinning: if pinned { Pinning::Pinned } else { Pinning::Movable },
            guest: None,
        };
        (0..parts)
            .map(|_| {
                let reserve = if self.dice.one_in(2) { each } else { self.dice.between(1, each) };
                wish(reserve, self.dice.one_in(3))
            })
            .collect()
    }

    /// What was granted is there: a segment of the whole reserve is made at once.
    fn owner_uses(&mut self, owner: &Owner, lease: LeaseId) -> Check {
        let fact = &self.model.leases[&lease];
        let (device, bytes) = (fact.devices[0], fact.reserve);
        let (request, session) = (self.request(), self.owners_session(owner));
        let (kind, patience, guard) = (SegmentKind::Descriptor, Patience::None, Guard::Outside);
        self.deliver(Event::Allocate { request, session, lease, device, bytes, kind, patience, guard })?;
        let made = self.model.asks.last().map(|ask| ask.standing);
        ensure!(
            matches!(made, Some(Standing::Made(_))),
            "{lease} has its reserve and can't use it: {made:?}"
        );
        self.run_until(self.now.plus(SLACK))
    }

    fn owner_gives_back(&mut self, owner: &Owner) -> Check {
        let me = owner.peer.process;
        for (segment, lease) in (Scene { me, model: &self.model }).in_hand() {
            self.free(me, segment, lease)?;
        }
        let mine = self.model.standing_leases().filter(|(_, lease)| !lease.ended && lease.peer.process == me);
        for lease in mine.map(|(id, _)| id).collect::<Vec<_>>() {
            let (request, session) = (self.request(), self.owners_session(owner));
            self.deliver(Event::Release { request, authority: Authority::Session(session), lease })?;
        }
        self.run_until(self.now.plus(SLACK))
    }
}
