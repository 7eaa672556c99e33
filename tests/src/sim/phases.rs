//! The two phases of a run: faults, then none.

use std::time::Duration;

use gpulease_arbiter::{Authority, Event, Patience, RequestId, Time};
use gpulease_words::{Bytes, LeaseId, ProcessId};

use super::actor::{Actor, Deed, Scene, Temper};
use super::model::{Model, SegmentFact, SegmentState, Standing, ensure};
use super::setting::{granules, peer};
use super::wish;
use super::world::{Check, World};

/// Once the faults stopped nobody keeps a lease longer.
const HOLD: Duration = Duration::from_secs(5);
/// How often clients look after their leases then.
const TICK: Duration = Duration::from_millis(500);
/// What devices, the kernel and the clients' ticks add to each handing-on of memory.
const SLACK: Duration = Duration::from_secs(2);
/// Seldom more processes than this.
const PROCESSES_MAX: u64 = 60;

/// What outsiders and operators do.
#[derive(Clone, Copy, Debug)]
enum Intrusion {
    Strangers,
    Witness,
    Operator,
    LostDevice,
    ChildDies,
    Newcomer,
    WakeForNothing,
    Client,
    Budgets,
}

impl World {
    /// Both phases.
    pub(super) fn live(&mut self) -> Check {
        for _ in 0..self.steps {
            let gap = self.gap();
            self.run_until(self.now.plus(gap))?;
            self.intrude()?;
        }
        self.calm()?;
        self.serve_who_waits()?;
        self.end()
    }

    fn gap(&mut self) -> Duration {
        let longest = *self.dice.weighted(&[(4, 0), (5, 400), (3, 4_000), (1, 40_000)]);
        Duration::from_millis(self.dice.between(0, longest))
    }

    fn intrude(&mut self) -> Check {
        let faults = u64::from(!self.upright);
        let changes = u64::from(!self.upright && self.model.binds());
        let intrusion = *self.dice.weighted(&[
            (400, Intrusion::Client),
            (16 * faults, Intrusion::Strangers),
            (20 * faults, Intrusion::Witness),
            (12 * faults, Intrusion::Operator),
            (faults, Intrusion::LostDevice),
            (5, Intrusion::ChildDies),
            (6, Intrusion::Newcomer),
            (6, Intrusion::WakeForNothing),
            (3 * changes, Intrusion::Budgets),
        ]);
        match intrusion {
            Intrusion::Client => self.client_acts(),
            Intrusion::Strangers => self.strangers_move(),
            Intrusion::Witness => self.witness_measures(),
            Intrusion::Operator => self.operator_acts(),
            Intrusion::LostDevice => self.device_is_lost(),
            Intrusion::ChildDies => self.child_dies(),
            Intrusion::Newcomer => {
                self.newcomer();
                Ok(())
            }
            Intrusion::WakeForNothing => self.wake_for_nothing(),
            Intrusion::Budgets => self.budgets_change(),
        }
    }

    pub(super) fn client_acts(&mut self) -> Check {
        let alive: Vec<Actor> = self.actors.iter().filter(|actor| actor.alive).cloned().collect();
        let Some(actor) = self.dice.pick(&alive).cloned() else {
            self.newcomer();
            return Ok(());
        };
        let Self { model, dice, requests, .. } = self;
        let deeds = actor.act(model, dice, &mut || {
            *requests += 1;
            RequestId(*requests)
        });
        deeds.into_iter().try_for_each(|deed| self.perform(actor.peer.process, deed))
    }

    /// Outsiders take, at times more than there is, and give back; at times nobody can tell.
    fn strangers_move(&mut self) -> Check {
        let Some(device) = self.dice.pick(&self.model.devices.clone()).cloned() else { return Ok(()) };
        let capacity = device.capacity.get();
        let bytes = match self.dice.below(6) {
            0 => Some(Bytes::ZERO),
            1 => None,
            2 => Some(Bytes::new(self.dice.between(0, capacity + capacity / 4))),
            _ => Some(Bytes::new(self.dice.between(0, capacity / 3))),
        };
        self.deliver(Event::OffBook { device: device.id, bytes })
    }

    fn witness_measures(&mut self) -> Check {
        let processes: Vec<ProcessId> = self.model.processes.keys().copied().collect();
        let devices: Vec<_> = self.model.devices.iter().map(|device| device.id).collect();
        let (Some(process), Some(device)) = (self.dice.pick(&processes).copied(), self.dice.pick(&devices))
        else {
            return Ok(());
        };
        let odd = if self.dice.one_in(3) { self.dice.between(1, 999) } else { 0 };
        let bytes = Bytes::new(granules(self.dice.between(0, 4)).get() + odd);
        let device = *device;
        self.deliver(Event::Overhead { process, device, bytes })
    }

    fn operator_acts(&mut self) -> Check {
        let leases: Vec<LeaseId> = self.model.leases.keys().copied().collect();
        let known = self.dice.pick(&leases).copied();
        let lease = known.unwrap_or(LeaseId::new(self.dice.between(0, 9)));
        let request = self.request();
        if self.dice.one_in(3) {
            return self.deliver(Event::Release { request, authority: Authority::Operator, lease });
        }
        let bytes = granules(*self.dice.weighted(&[(1, 0), (1, 1), (1, 8)]));
        let within = Duration::from_secs(self.dice.between(0, 40));
        self.deliver(Event::Recall { request, lease, bytes, within })
    }

    fn device_is_lost(&mut self) -> Check {
        let devices: Vec<_> = self.cards.iter().map(|card| card.id).collect();
        // A host of one device without it is a short story.
        if devices.len() < 2 || !self.dice.one_in(3) {
            return Ok(());
        }
        let Some(device) = self.dice.pick(&devices).copied() else { return Ok(()) };
        self.cards.iter_mut().filter(|card| card.id == device).for_each(|card| card.lost = true);
        self.deliver(Event::DeviceLost { device })
    }

    /// Processes that were admitted and have no mind of their own.
    fn children(&self) -> Vec<ProcessId> {
        let no_actor = |id: &ProcessId| self.actors.iter().all(|actor| actor.peer.process != *id);
        let alive = self.model.processes.iter().filter(|(_, fact)| fact.alive).map(|(id, _)| *id);
        alive.filter(no_actor).collect()
    }

    fn child_dies(&mut self) -> Check {
        let children = self.children();
        self.dice.pick(&children).copied().into_iter().for_each(|child| self.kill(child));
        Ok(())
    }

    fn newcomer(&mut self) {
        let n = self.actors.len() as u64 + 100;
        if n < PROCESSES_MAX + 100 {
            let user = self.dice.count(0, 4);
            let temper = *self.dice.weighted(&[(3, Temper::Good), (1, Temper::Greedy), (1, Temper::Lying)]);
            self.actors.push(Actor::new(peer(n, user), temper));
        }
    }

    /// The faults stop: devices and strangers behave, hanging clients go on or are killed, broken
    /// streams come back.
    fn calm(&mut self) -> Check {
        self.cards.iter_mut().for_each(super::card::Card::calm_down);
        for device in self.model.devices.clone() {
            self.deliver(Event::OffBook { device: device.id, bytes: Some(Bytes::ZERO) })?;
        }
        for child in self.children() {
            self.kill(child);
        }
        for at in 0..self.actors.len() {
            let hangs = self.actors[at].temper == Temper::Hanging && self.actors[at].alive;
            if hangs && self.dice.one_in(2) {
                self.kill(self.actors[at].peer.process);
            }
            self.actors[at].temper = Temper::Good;
        }
        self.run_until(self.now.plus(SLACK))
    }

    /// Whatever waits now is granted, or leaves by its own deadline, within the bound, while
    /// newcomers go on asking for small leases.
    fn serve_who_waits(&mut self) -> Check {
        // One whose context turned out too large for its account waits for its own end.
        let old: Vec<usize> =
            self.model.waiting().filter(|(_, ask)| self.model.fits_alone(ask)).map(|(i, _)| i).collect();
        let each = HOLD + SLACK + self.model.policy.unattended_grace;
        let turns = u32::try_from(old.len()).expect("few asks") + 1;
        let until = self.now.plus(self.model.policy.max_wait + each * (turns + 1));
        let still = |model: &Model| old.iter().any(|i| model.asks[*i].standing == Standing::Waiting);
        while still(&self.model) {
            self.coverage.case("ticks with old asks waiting");
            let names: Vec<_> = old.iter().map(|i| self.model.asks[*i].id).collect();
            ensure!(
                self.now <= until,
                "I6: of {names:?} one still waits at {:?}: {}",
                self.now,
                self.model.describe_all()
            );
            // Whom a guarantee covers goes first, however long others waited for an account's limit.
            let guarantees = self.model.binds();
            self.tend(if guarantees { Newcomers::None } else { Newcomers::Ask })?;
        }
        Ok(())
    }

    /// Everybody finishes; then everything is as at the start.
    fn end(&mut self) -> Check {
        let each = HOLD + SLACK + self.model.policy.unattended_grace + self.model.policy.adrift_grace;
        let turns = u32::try_from(self.model.waiting().count()).expect("few asks") + 2;
        let until = self.now.plus(self.model.policy.max_wait + each * turns);
        while self.now < until && !(self.is_quiet() && self.model.standing_leases().next().is_none()) {
            self.tend(Newcomers::None)?;
        }
        self.close_all()?;
        self.kill_who_maps();
        self.run_until(self.now.plus(self.model.policy.adrift_grace + each))?;
        self.everything_is_given_back()
    }

    fn close_all(&mut self) -> Check {
        let open: Vec<_> = self.model.sessions.iter().filter(|(_, s)| s.open).map(|(id, _)| *id).collect();
        for session in open {
            let request = self.request();
            self.deliver(Event::Close { request, session })?;
        }
        Ok(())
    }

    /// A client that could not open a session any more, for the bounds, gives back by its end.
    fn kill_who_maps(&mut self) {
        let had = self.model.segments.values().filter(|segment| segment.is_in_hand());
        let processes: std::collections::BTreeSet<ProcessId> = had.map(|segment| segment.process).collect();
        processes.into_iter().for_each(|process| self.kill(process));
    }

    fn everything_is_given_back(&mut self) -> Check {
        let end = self.snapshot();
        ensure!(
            end.leases.is_empty() && end.waiting.is_empty() && end.sessions == 0,
            "left at the end: {end:?}"
        );
        for device in &end.devices {
            ensure!(device.free == device.capacity, "bytes are missing at the end: {device:?}");
        }
        for account in &end.accounts {
            ensure!(account.charged.is_zero() && account.leases == 0, "charged at the end: {account:?}");
        }
        ensure!(self.is_quiet(), "a timer runs at the end, due at {:?}", self.next_wake());
        for card in &self.cards {
            ensure!(card.taken().is_zero(), "device {} still has {} of pieces", card.id, card.taken());
        }
        self.model.all_is_answered()
    }

    /// Lets each client look after its own, then lets time pass.
    fn tend(&mut self, newcomers: Newcomers) -> Check {
        for at in 0..self.actors.len() {
            let actor = self.actors[at].clone();
            if actor.alive {
                self.finish(&actor)?;
            }
            if actor.alive && newcomers == Newcomers::Ask && self.dice.one_in(12) {
                self.ask_a_little(&actor)?;
            }
        }
        self.end_orphans()?;
        self.run_until(self.now.plus(TICK))
    }

    /// What a client does that finishes: comes back, frees, unmaps, releases.
    fn finish(&mut self, actor: &Actor) -> Check {
        let me = actor.peer.process;
        let mine = |world: &Self| -> Vec<_> { Scene { me, model: &world.model }.sessions() };
        for session in mine(self) {
            if self.model.sessions[&session].adrift_since.is_some() {
                self.deliver(Event::Rejoined { session })?;
            }
        }
        if mine(self).is_empty() && self.maps_something(me) {
            let request = self.request();
            self.deliver(Event::Open { request, peer: actor.peer.clone() })?;
        }
        self.cards_forget_foreign(me);
        // One that gets no session, for the bounds, gives back by its end.
        if mine(self).is_empty() && self.maps_something(me) {
            self.kill(me);
            return Ok(());
        }
        let now = self.now;
        for (segment, lease) in (Scene { me, model: &self.model }).in_hand() {
            let fact = &self.model.leases[&lease];
            if fact.ended || now.since(fact.granted_at) >= HOLD {
                self.free(me, segment, lease)?;
            }
        }
        self.release_old(me)
    }

    fn maps_something(&self, me: ProcessId) -> bool {
        self.model.segments.values().any(|s| s.process == me && s.is_in_hand())
    }

    pub(super) fn free(
        &mut self,
        me: ProcessId,
        segment: gpulease_words::SegmentId,
        lease: LeaseId,
    ) -> Check {
        self.perform(me, Deed::Unmap(segment))?;
        let Some(session) = (Scene { me, model: &self.model }).sessions().first().copied() else {
            return Ok(());
        };
        let request = self.request();
        self.deliver(Event::Free { request, session, lease, segment })
    }

    /// Segments of others that a process maps, and those it lied about, are unmapped.
    fn cards_forget_foreign(&mut self, me: ProcessId) {
        let foreign = |s: &SegmentFact| s.process != me || s.state != SegmentState::Live;
        let ids: Vec<_> =
            self.model.segments.iter().filter(|(_, s)| foreign(s)).map(|(id, s)| (*id, s.device)).collect();
        for (segment, device) in ids {
            self.cards.iter_mut().filter(|card| card.id == device).for_each(|card| card.unmap(segment, me));
        }
    }

    fn release_old(&mut self, me: ProcessId) -> Check {
        let old = |now: Time, granted: Time| now.since(granted) >= HOLD;
        let owned: Vec<_> = self
            .model
            .standing_leases()
            .filter(|(_, lease)| !lease.ended && lease.peer.process == me && old(self.now, lease.granted_at))
            .map(|(id, lease)| (id, lease.owner))
            .collect();
        for (lease, owner) in owned {
            if self.model.open_session(owner).is_some() {
                let request = self.request();
                self.deliver(Event::Release { request, authority: Authority::Session(owner), lease })?;
            }
        }
        Ok(())
    }

    /// Leases whose owner is gone and which other members keep alive: an operator ends them.
    fn end_orphans(&mut self) -> Check {
        let orphan = |(_, lease): &(LeaseId, &super::model::LeaseFact)| {
            !lease.ended
                && self.model.open_session(lease.owner).is_none()
                && self.now.since(lease.granted_at) >= HOLD
        };
        let orphans: Vec<LeaseId> = self.model.standing_leases().filter(orphan).map(|(id, _)| id).collect();
        for lease in orphans {
            let request = self.request();
            self.deliver(Event::Release { request, authority: Authority::Operator, lease })?;
        }
        Ok(())
    }

    /// A newcomer's small ask, which must not starve the old ones.
    fn ask_a_little(&mut self, actor: &Actor) -> Check {
        let me = actor.peer.process;
        if (Scene { me, model: &self.model }).sessions().is_empty() {
            let request = self.request();
            return self.deliver(Event::Open { request, peer: actor.peer.clone() });
        }
        let request = self.request();
        let asked =
            wish::ask(&Scene { me, model: &self.model }, Temper::Impatient, &mut self.dice, &mut || request);
        let Some(Event::Acquire { request, session, ask_name, mut terms }) = asked else { return Ok(()) };
        terms.patience = Patience::AtMost(HOLD);
        self.deliver(Event::Acquire { request, session, ask_name, terms })
    }
}

/// Whether new asks come while old ones wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newcomers {
    Ask,
    None,
}
