//! What clients ask for: sizes and places that make sense, and some that do not.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_arbiter::{
    Authority, DeviceWish, Event, Guard, Patience, Pinning, Place, RequestId, SegmentKind, Terms,
};
use gpulease_words::{Bytes, DeviceId, LeaseId, SegmentId, SessionId, Uid};

use super::actor::{Scene, Temper};
use super::dice::Dice;
use super::setting::{JOBS, granules, peer};

/// Draws the number of a new request.
type Next<'a> = &'a mut dyn FnMut() -> RequestId;

/// A size, seldom one that makes no sense.
fn size(dice: &mut Dice, most: u64) -> Bytes {
    match dice.below(60) {
        0 => Bytes::ZERO,
        1 => Bytes::new(dice.between(1, 4_000_000)),
        2 => Bytes::MAX,
        3 => granules(1 << 20),
        _ => granules(dice.between(1, most.max(1))),
    }
}

fn patience(temper: Temper, dice: &mut Dice) -> Patience {
    let longest = if temper == Temper::Impatient { 5 } else { 200 };
    let at_most = Patience::AtMost(Duration::from_millis(dice.between(0, longest * 1_000)));
    let endless = if temper == Temper::Impatient { 0 } else { 3 };
    *dice.weighted(&[(2, Patience::None), (4, at_most), (endless, Patience::Endless)])
}

fn devices(scene: &Scene<'_>, dice: &mut Dice) -> DeviceWish {
    let there = u32::try_from(scene.model.devices.len()).expect("few devices");
    let most = if dice.one_in(20) { there + 1 } else { there };
    if dice.one_in(2) {
        let count = *dice.weighted(&[(5, 1), (2, most)]);
        return DeviceWish::Any(NonZeroU32::new(count).expect("at least one"));
    }
    let count = *dice.weighted(&[(5, 1), (2, there)]);
    let these: BTreeSet<DeviceId> = (0..count).map(|_| DeviceId::new(dice.count(0, most - 1))).collect();
    DeviceWish::These(if dice.one_in(60) { BTreeSet::new() } else { these })
}

/// An ask for a lease.
pub(super) fn ask(scene: &Scene<'_>, temper: Temper, dice: &mut Dice, next: Next<'_>) -> Option<Event> {
    let session = scene.session(dice)?;
    let most = scene.model.devices.iter().map(|d| d.capacity.get() >> 21).max().unwrap_or(1);
    let share = if temper == Temper::Greedy { 1 } else { *dice.weighted(&[(1, 1), (2, 2), (4, 4)]) };
    let reserve = size(dice, most / share);
    let limit = match dice.below(12) {
        0 => size(dice, most),
        1..=5 => reserve,
        _ => reserve.saturating_add(granules(dice.between(0, most))),
    };
    let terms = Terms {
        name: (*dice.pick(&JOBS)?).to_owned(),
        reserve,
        limit,
        devices: devices(scene, dice),
        patience: patience(temper, dice),
        pinning: if dice.one_in(4) { Pinning::Pinned } else { Pinning::Movable },
        guest: dice.one_in(5).then(|| Uid::new(1000 + dice.count(0, 4))),
    };
    // A name comes twice now and then.
    let names = if dice.one_in(12) { 3 } else { 1_000_000 };
    let ask_name = dice.between(1, names);
    Some(Event::Acquire { request: next(), session, ask_name, terms })
}

/// Joins a lease of anybody: the token is checked elsewhere, the user is not. Now and then below other members.
pub(super) fn join(scene: &Scene<'_>, dice: &mut Dice, next: Next<'_>) -> Option<Event> {
    let session = scene.session(dice)?;
    let leases: Vec<LeaseId> = scene.model.leases.keys().copied().collect();
    let (lease, request) = (*dice.pick(&leases)?, next());
    let members = &scene.model.leases[&lease].members;
    let above = if request.0.is_multiple_of(3) { 2 } else { 0 };
    let ancestors = members.iter().rev().take(above).copied().collect();
    Some(Event::Join { request, session, lease, ancestors })
}

/// Admits a child, or a process of somebody else.
pub(super) fn admit(scene: &Scene<'_>, dice: &mut Dice, next: Next<'_>) -> Option<Event> {
    let session = scene.session(dice)?;
    let leases: Vec<LeaseId> = scene.model.standing_leases().map(|(id, _)| id).collect();
    let lease = *dice.pick(&leases)?;
    let me = scene.model.sessions.get(&session)?.peer.clone();
    let peer = match dice.below(8) {
        0 => peer(50_000 + dice.between(1, 12), dice.count(0, 4)),
        _ => {
            let child = 1_000 * me.process.get() + dice.between(1, 3);
            peer(child, me.uid.get() - 1000)
        }
    };
    // The kernel knows one user for each process, and a dead one can't be admitted.
    let known = scene.model.processes.get(&peer.process);
    let peer = known.map_or(peer, |fact| fact.peer.clone());
    if known.is_some_and(|fact| !fact.alive) {
        return None;
    }
    let place = if dice.one_in(2) { Place::Own } else { Place::Callers };
    Some(Event::Admit { request: next(), session, lease, peer, place })
}

/// Another size for a lease.
pub(super) fn resize(scene: &Scene<'_>, lease: LeaseId, dice: &mut Dice, next: Next<'_>) -> Option<Event> {
    let session = scene.session(dice)?;
    let fact = &scene.model.leases[&lease];
    let most = fact.limit.get() >> 21;
    let reserve = match dice.below(4) {
        0 => fact.reserve,
        _ => size(dice, most.min(64)),
    };
    let limit = match dice.below(4) {
        0 => size(dice, most.min(64)),
        _ => fact.limit.max(reserve),
    };
    Some(Event::Resize { request: next(), session, lease, reserve, limit })
}

/// On whose word a lease ends.
pub(super) fn authority(session: SessionId, uid: Uid, dice: &mut Dice) -> Authority {
    match dice.below(6) {
        0 => Authority::User(uid),
        1 => Authority::Session(SessionId::new(dice.between(1, 40))),
        _ => Authority::Session(session),
    }
}

/// Memory of a lease.
pub(super) fn allocate(
    scene: &Scene<'_>,
    lease: LeaseId,
    temper: Temper,
    dice: &mut Dice,
    next: Next<'_>,
) -> Option<Event> {
    let session = scene.session(dice)?;
    let fact = &scene.model.leases[&lease];
    let device = *dice.pick(&fact.devices)?;
    let most = match temper {
        Temper::Greedy => fact.limit,
        Temper::Good
        | Temper::Impatient
        | Temper::Hanging
        | Temper::Lying
        | Temper::Flooding
        | Temper::Frail => fact.reserve,
    };
    Some(Event::Allocate {
        request: next(),
        session,
        lease,
        device: if dice.one_in(40) { DeviceId::new(dice.count(0, 5)) } else { device },
        bytes: size(dice, (most.get() >> 21).min(64)),
        kind: if dice.one_in(5) { SegmentKind::CudaIpc } else { SegmentKind::Descriptor },
        patience: patience(temper, dice),
        guard: if dice.one_in(5) { Guard::Inside } else { Guard::Outside },
    })
}

/// Something about what is not one's own: foreign and unknown leases and segments, double frees,
/// closed sessions.
pub(super) fn lie(scene: &Scene<'_>, dice: &mut Dice, next: Next<'_>) -> Option<Event> {
    let session = scene.session(dice)?;
    let leases: Vec<LeaseId> = scene.model.leases.keys().copied().collect();
    let segments: Vec<SegmentId> = scene.model.segments.keys().copied().collect();
    let known = dice.pick(&segments).copied();
    let segment = known.filter(|_| !dice.one_in(4)).unwrap_or(SegmentId::new(dice.between(0, 99)));
    let its = known.map(|id| scene.model.segments[&id].lease).filter(|_| dice.one_in(2));
    let lease = its.or_else(|| dice.pick(&leases).copied()).unwrap_or(LeaseId::new(dice.between(0, 99)));
    let request = next();
    Some(match dice.below(8) {
        0..=2 => Event::Free { request, session, lease, segment },
        3 => Event::Release { request, authority: Authority::Session(session), lease },
        4 => Event::Release { request, authority: Authority::User(Uid::new(1000 + dice.count(0, 5))), lease },
        5 => Event::Resize { request, session, lease, reserve: granules(1), limit: granules(1) },
        6 => Event::Withdraw { request, session, ask_name: dice.between(0, 9) },
        _ => Event::Allocate {
            request,
            session,
            lease,
            device: DeviceId::new(dice.count(0, 1)),
            bytes: granules(1),
            kind: SegmentKind::Descriptor,
            patience: Patience::None,
            guard: Guard::Outside,
        },
    })
}
