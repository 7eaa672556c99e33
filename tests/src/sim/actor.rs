//! Client processes: what they do next, by their temper.

use gpulease_arbiter::{Authority, Event, Idleness, Peer, RequestId};
use gpulease_words::{LeaseId, ProcessId, SegmentId, SessionId};

use super::dice::Dice;
use super::model::{Aim, Journey, Model, SegmentFact, SegmentState, Standing};
use super::wish;

/// What kind of client it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temper {
    /// Asks, uses, gives back.
    Good,
    /// Never waits long, and gives up what it asked for.
    Impatient,
    /// Asks for much and grows.
    Greedy,
    /// Takes and then does nothing.
    Hanging,
    /// Speaks of what is not its own, and says that it unmapped what it maps.
    Lying,
    /// Repeats itself.
    Flooding,
    /// Dies early and loses its connections.
    Frail,
}

/// A client process.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) peer: Peer,
    pub(super) temper: Temper,
    pub(super) alive: bool,
}

/// What a client does, beside talking.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    /// Says something to the broker.
    Say(Event),
    /// Maps a segment that it got from another member.
    Map(SegmentId),
    /// Unmaps a segment.
    Unmap(SegmentId),
    /// Dies.
    Die,
}

/// What a client may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Open,
    Close,
    Drift,
    Return,
    Ask,
    TakeUp,
    WalkOff,
    Withdraw,
    Join,
    Admit,
    Resize,
    Release,
    Allocate,
    Abandon,
    Free,
    MapAlong,
    Unmap,
    Lie,
    Flood,
    Die,
    Enter,
    Idle,
    Pin,
}

impl Step {
    /// Whether nobody's promise suffers from it.
    const fn is_upright(self) -> bool {
        match self {
            Self::Drift
            | Self::Return
            | Self::MapAlong
            | Self::Lie
            | Self::Pin
            | Self::WalkOff
            | Self::Close
            | Self::Admit
            | Self::Join
            | Self::Unmap => false,
            Self::Open
            | Self::Ask
            | Self::TakeUp
            | Self::Withdraw
            | Self::Resize
            | Self::Release
            | Self::Allocate
            | Self::Abandon
            | Self::Free
            | Self::Flood
            | Self::Die
            | Self::Enter
            | Self::Idle => true,
        }
    }
}

impl Temper {
    /// How often it takes each step.
    fn steps(self) -> Vec<(u64, Step)> {
        let all = match self {
            Self::Good => [8, 1, 1, 8, 9, 4, 1, 1, 2, 2, 3, 4, 14, 3, 9, 2, 4, 0, 0, 1, 6, 3, 0],
            Self::Impatient => [8, 2, 1, 8, 12, 4, 4, 8, 1, 1, 3, 8, 10, 6, 8, 1, 4, 0, 0, 1, 6, 2, 0],
            Self::Greedy => [6, 0, 1, 8, 14, 4, 1, 1, 3, 3, 6, 1, 22, 6, 3, 2, 1, 0, 0, 1, 8, 0, 1],
            Self::Hanging => [6, 0, 2, 1, 6, 0, 3, 0, 2, 1, 1, 0, 8, 0, 0, 2, 0, 0, 0, 0, 1, 1, 0],
            Self::Lying => [6, 2, 2, 4, 6, 4, 2, 2, 4, 3, 4, 2, 8, 2, 6, 2, 1, 20, 1, 1, 4, 3, 1],
            Self::Flooding => [6, 2, 1, 4, 6, 2, 1, 2, 1, 2, 2, 3, 8, 1, 4, 0, 4, 1, 6, 0, 4, 1, 0],
            Self::Frail => [8, 2, 8, 10, 8, 8, 8, 2, 3, 3, 2, 2, 12, 4, 3, 2, 2, 0, 0, 8, 6, 1, 1],
        };
        let steps = [
            Step::Open,
            Step::Close,
            Step::Drift,
            Step::Return,
            Step::Ask,
            Step::TakeUp,
            Step::WalkOff,
            Step::Withdraw,
            Step::Join,
            Step::Admit,
            Step::Resize,
            Step::Release,
            Step::Allocate,
            Step::Abandon,
            Step::Free,
            Step::MapAlong,
            Step::Unmap,
            Step::Lie,
            Step::Flood,
            Step::Die,
            Step::Enter,
            Step::Idle,
            Step::Pin,
        ];
        all.into_iter().zip(steps).collect()
    }
}

impl Actor {
    pub(super) const fn new(peer: Peer, temper: Temper) -> Self {
        Self { peer, temper, alive: true }
    }

    /// What it does now. It sees of the world what its own answers told it, which is what the
    /// model knows of it, and rumours of ids.
    pub(super) fn act(
        &self,
        model: &Model,
        dice: &mut Dice,
        next: &mut dyn FnMut() -> RequestId,
    ) -> Vec<Deed> {
        let mut steps = self.temper.steps();
        if model.upright {
            steps.retain(|(_, step)| step.is_upright());
        }
        let step = *dice.weighted(&steps);
        let scene = Scene { me: self.peer.process, model };
        // Without a session there is little else to do.
        let step = if scene.sessions().is_empty() && !dice.one_in(4) { Step::Open } else { step };
        scene.take(step, self, dice, next)
    }
}

/// One client's view of the world.
pub(super) struct Scene<'a> {
    pub(super) me: ProcessId,
    pub(super) model: &'a Model,
}

impl Scene<'_> {
    /// Its open sessions.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        let mine = self.model.sessions.iter().filter(|(_, s)| s.open && s.peer.process == self.me);
        mine.map(|(id, _)| *id).collect()
    }

    /// A session of its own; now and then one that was closed.
    pub(super) fn session(&self, dice: &mut Dice) -> Option<SessionId> {
        let open = self.sessions();
        if open.is_empty() || dice.one_in(40) {
            let mine = self.model.sessions.iter().filter(|(_, s)| s.peer.process == self.me);
            return dice.pick(&mine.map(|(id, _)| *id).collect::<Vec<_>>()).copied();
        }
        dice.pick(&open).copied()
    }

    /// Leases it owns or is a member of, with the session it speaks through.
    fn lease(&self, dice: &mut Dice) -> Option<LeaseId> {
        let mine = self.model.standing_leases().filter(|(_, lease)| lease.members.contains(&self.me));
        dice.pick(&mine.map(|(id, _)| id).collect::<Vec<_>>()).copied()
    }

    /// One of them that is away or on its way; now and then any.
    fn lease_away(&self, dice: &mut Dice) -> Option<LeaseId> {
        let mine = self.model.standing_leases().filter(|(_, lease)| lease.members.contains(&self.me));
        let away = mine.filter(|(_, lease)| lease.journey != Journey::Active);
        let away: Vec<LeaseId> = away.map(|(id, _)| id).collect();
        dice.pick(&away).copied().or_else(|| if dice.one_in(8) { self.lease(dice) } else { None })
    }

    /// Segments it allocated.
    pub(super) fn segments(&self) -> Vec<(SegmentId, LeaseId)> {
        self.its(|segment| segment.state == SegmentState::Live)
    }

    /// Those, and what came back for it and is not filled yet.
    pub(super) fn in_hand(&self) -> Vec<(SegmentId, LeaseId)> {
        self.its(SegmentFact::is_in_hand)
    }

    fn its(&self, which: impl Fn(&SegmentFact) -> bool) -> Vec<(SegmentId, LeaseId)> {
        let mine = self.model.segments.iter().filter(|(_, s)| s.process == self.me && which(s));
        mine.map(|(id, segment)| (*id, segment.lease)).collect()
    }

    /// Its asks by session and name.
    fn asks(&self, of: impl Fn(Standing) -> bool) -> Vec<(SessionId, u64)> {
        let mine = self.model.asks.iter().filter(|ask| ask.peer.process == self.me && of(ask.standing));
        let named = mine.filter_map(|ask| match ask.aim {
            Aim::Lease { name, .. } => Some((ask.session, name)),
            Aim::Growth { .. } | Aim::Resume { .. } => None,
        });
        named.collect()
    }

    fn take(
        &self,
        step: Step,
        actor: &Actor,
        dice: &mut Dice,
        next: &mut dyn FnMut() -> RequestId,
    ) -> Vec<Deed> {
        match step {
            Step::Free => self.free(actor.temper, dice, next),
            Step::MapAlong => self.map_along(dice),
            Step::Unmap => self.segments().first().map(|(id, _)| Deed::Unmap(*id)).into_iter().collect(),
            Step::Die => vec![Deed::Die],
            Step::Flood => {
                let again = *dice.weighted(&[(1, Step::Open), (2, Step::Ask), (1, Step::Allocate)]);
                let times = dice.between(3, 20);
                (0..times).filter_map(|_| self.say(again, actor, dice, next)).map(Deed::Say).collect()
            }
            Step::Release if self.model.upright => self.give_all_back(dice, next),
            Step::Lie => wish::lie(self, dice, next).map(Deed::Say).into_iter().collect(),
            Step::Open
            | Step::Close
            | Step::Drift
            | Step::Return
            | Step::Ask
            | Step::TakeUp
            | Step::WalkOff
            | Step::Withdraw
            | Step::Join
            | Step::Admit
            | Step::Resize
            | Step::Release
            | Step::Allocate
            | Step::Abandon
            | Step::Enter
            | Step::Idle
            | Step::Pin => self.say(step, actor, dice, next).map(Deed::Say).into_iter().collect(),
        }
    }

    fn say(
        &self,
        step: Step,
        actor: &Actor,
        dice: &mut Dice,
        next: &mut dyn FnMut() -> RequestId,
    ) -> Option<Event> {
        match step {
            Step::Open => Some(Event::Open { request: next(), peer: actor.peer.clone() }),
            Step::Close => Some(Event::Close { request: next(), session: self.session(dice)? }),
            Step::Drift => Some(Event::Adrift { session: self.session(dice)? }),
            Step::Return => {
                let mine = |id: &SessionId| self.model.sessions[id].adrift_since.is_some();
                let away: Vec<SessionId> = self.sessions().into_iter().filter(mine).collect();
                Some(Event::Rejoined { session: *dice.pick(&away)? })
            }
            Step::Ask => wish::ask(self, actor.temper, dice, next),
            Step::TakeUp => self.take_up(dice, next),
            Step::WalkOff => {
                let (session, ask_name) = *dice.pick(&self.asks(|s| s != Standing::Left))?;
                Some(Event::Unattended { session, ask_name })
            }
            Step::Withdraw => {
                let any = dice.one_in(4);
                let (session, ask_name) = *dice.pick(&self.asks(|s| any || s == Standing::Waiting))?;
                Some(Event::Withdraw { request: next(), session, ask_name })
            }
            Step::Join => wish::join(self, dice, next),
            Step::Admit => wish::admit(self, dice, next),
            Step::Resize => wish::resize(self, self.lease(dice)?, dice, next),
            Step::Release => {
                let (session, lease) = (self.session(dice)?, self.lease(dice)?);
                let authority = wish::authority(session, actor.peer.uid, dice);
                Some(Event::Release { request: next(), authority, lease })
            }
            Step::Allocate => wish::allocate(self, self.lease(dice)?, actor.temper, dice, next),
            Step::Abandon => {
                let making =
                    |fact: &SegmentFact| fact.process == self.me && fact.state == SegmentState::Creating;
                let made = self.model.segments.values().filter(|fact| making(fact)).map(|fact| fact.request);
                let mine = self.model.asks.iter().filter(|ask| ask.peer.process == self.me);
                let hopes = mine.filter(|ask| {
                    matches!(ask.standing, Standing::Waiting | Standing::OwnDrain | Standing::AtLimit)
                        && matches!(ask.aim, Aim::Growth { .. })
                });
                let leases = self.model.standing_leases().flat_map(|(_, lease)| lease.resumers.iter());
                let waits = leases.filter(|(_, session)| self.sessions().contains(session));
                let waits = waits.map(|(request, _)| *request);
                let requests: Vec<RequestId> =
                    hopes.filter_map(|ask| ask.request).chain(made).chain(waits).collect();
                Some(Event::Abandoned { request: *dice.pick(&requests)? })
            }
            Step::Enter => {
                let (session, lease) = (self.session(dice)?, self.lease_away(dice)?);
                Some(Event::Resume { request: next(), session, lease })
            }
            Step::Idle => {
                let (session, lease) = (self.session(dice)?, self.lease(dice)?);
                let idleness = if dice.one_in(3) { Idleness::Busy } else { Idleness::Idle };
                Some(Event::Idle { session, lease, idleness })
            }
            Step::Pin => {
                let (session, lease) = (self.session(dice)?, self.lease(dice)?);
                Some(Event::Pin { request: next(), session, lease })
            }
            Step::Free | Step::MapAlong | Step::Unmap | Step::Lie | Step::Flood | Step::Die => None,
        }
    }

    /// The same ask again, under a new request.
    fn take_up(&self, dice: &mut Dice, next: &mut dyn FnMut() -> RequestId) -> Option<Event> {
        let any = dice.one_in(8);
        let mine = self
            .model
            .asks
            .iter()
            .filter(|ask| ask.peer.process == self.me && (any || ask.request.is_none()));
        let named = mine.filter_map(|ask| match &ask.aim {
            Aim::Lease { name, terms } => Some((ask.session, *name, terms.clone())),
            Aim::Growth { .. } | Aim::Resume { .. } => None,
        });
        let (session, ask_name, terms) = dice.pick(&named.collect::<Vec<_>>())?.clone();
        Some(Event::Acquire { request: next(), session, ask_name, terms })
    }

    /// Unmaps a segment and gives it back; a liar gives back what it still maps.
    fn free(&self, temper: Temper, dice: &mut Dice, next: &mut dyn FnMut() -> RequestId) -> Vec<Deed> {
        let segments = self.segments();
        let (Some((segment, lease)), Some(session)) = (dice.pick(&segments).copied(), self.session(dice))
        else {
            return Vec::new();
        };
        let say = Deed::Say(Event::Free { request: next(), session, lease, segment });
        match temper == Temper::Lying && dice.one_in(2) {
            true => vec![say],
            false => vec![Deed::Unmap(segment), say],
        }
    }

    /// Gives a lease back with all that it has mapped of it.
    fn give_all_back(&self, dice: &mut Dice, next: &mut dyn FnMut() -> RequestId) -> Vec<Deed> {
        let (Some(lease), Some(session)) = (self.lease(dice), self.sessions().first().copied()) else {
            return Vec::new();
        };
        let mut deeds = Vec::new();
        for (segment, _) in self.segments().into_iter().filter(|(_, of)| *of == lease) {
            deeds.push(Deed::Unmap(segment));
            deeds.push(Deed::Say(Event::Free { request: next(), session, lease, segment }));
        }
        let authority = Authority::Session(self.model.leases[&lease].owner);
        deeds.push(Deed::Say(Event::Release { request: next(), authority, lease }));
        deeds
    }

    /// Maps what another member of its lease allocated, as forked workers do.
    fn map_along(&self, dice: &mut Dice) -> Vec<Deed> {
        let shared = self.model.segments.iter().filter(|(_, segment)| {
            segment.state == SegmentState::Live
                && segment.process != self.me
                && self.model.leases[&segment.lease].members.contains(&self.me)
        });
        let shared: Vec<SegmentId> = shared.map(|(id, _)| *id).collect();
        dice.pick(&shared).map(|id| Deed::Map(*id)).into_iter().collect()
    }
}
