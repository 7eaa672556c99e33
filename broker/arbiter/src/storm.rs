//! A storm of seeded events, sound and unsound, with every derived figure recomputed after each.
//! The order of the line is compared with a slow search at every grant (see `settle`).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid, mib};

use crate::accounts::Resource;
use crate::line::ask::{Ask, Post, Stage};
use crate::{
    Arbiter, Authority, Budget, Budgets, DeviceSpec, DeviceWish, Effect, Event, Guard, Patience, Peer,
    Pinning, Policy, RequestId, SegmentKind, Terms, Time,
};

struct Storm {
    arbiter: Arbiter,
    state: u64,
    clock: Duration,
    requests: u64,
    open: BTreeMap<RequestId, &'static str>,
    sessions: Vec<(SessionId, ProcessId)>,
    leases: Vec<LeaseId>,
    segments: Vec<SegmentId>,
    processes: u64,
    asked: BTreeMap<RequestId, ProcessId>,
    seen: BTreeSet<&'static str>,
}

const DEVICES: u64 = 3;

impl Storm {
    fn new(seed: u64) -> Self {
        let mut storm = Self {
            arbiter: Arbiter::new(Policy::default(), Budgets::default(), &[]),
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            clock: Duration::ZERO,
            requests: 0,
            open: BTreeMap::new(),
            sessions: Vec::new(),
            leases: Vec::new(),
            segments: Vec::new(),
            processes: 0,
            asked: BTreeMap::new(),
            seen: BTreeSet::new(),
        };
        let devices: Vec<DeviceSpec> = (0..storm.under(DEVICES) + 1)
            .map(|n| DeviceSpec {
                id: DeviceId::new(u32::try_from(n).expect("few")),
                capacity: mib(2 * (20 + storm.under(40))),
                overhead_estimate: mib(2 * storm.under(3)),
            })
            .collect();
        let (policy, budgets) = (storm.policy(), storm.budgets());
        storm.arbiter = Arbiter::new(policy, budgets, &devices);
        storm
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn under(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, from: &[T], otherwise: T) -> T {
        let len = from.len() as u64;
        if len == 0 || self.under(40) == 0 {
            otherwise
        } else {
            from[usize::try_from(self.under(len)).expect("small")]
        }
    }

    fn policy(&mut self) -> Policy {
        Policy {
            max_wait: Duration::from_secs(self.under(40)),
            adrift_grace: Duration::from_secs(self.under(30)),
            unattended_grace: Duration::from_secs(self.under(20)),
            asks_per_uid: 4 + u32::try_from(self.under(10)).expect("small"),
            leases_per_uid: 3 + u32::try_from(self.under(10)).expect("small"),
            segments_per_lease: 2 + u32::try_from(self.under(10)).expect("small"),
            members_per_lease: 2 + u32::try_from(self.under(3)).expect("small"),
            ..Policy::default()
        }
    }

    fn budget(&mut self, scale: u64) -> Budget {
        let limit = (self.under(2) == 0).then(|| mib(2 * (5 + self.under(scale))));
        let leases_max = (self.under(4) == 0).then(|| 1 + u32::try_from(self.under(4)).expect("small"));
        Budget {
            limit,
            weight: NonZeroU32::MIN.saturating_add(u32::try_from(self.under(4)).expect("small")),
            leases_max,
        }
    }

    fn budgets(&mut self) -> Budgets {
        Budgets {
            host: self.budget(120),
            groups: BTreeMap::from([("g0".to_owned(), self.budget(70)), ("g1".to_owned(), self.budget(70))]),
            users: BTreeMap::from([(Uid::new(1), self.budget(50))]),
            default_user: self.budget(50),
            jobs: vec![("a*".to_owned(), self.budget(40))],
            default_job: self.budget(40),
        }
    }

    fn request(&mut self, what: &'static str, by: ProcessId) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.open.insert(request, what);
        self.asked.insert(request, by);
        request
    }

    fn peer(&mut self, process: ProcessId) -> Peer {
        let uid = u32::try_from(process.get() % 5).expect("small");
        let group = (uid > 0).then(|| format!("g{}", uid % 2));
        let pid = Pid::new(u32::try_from(process.get()).expect("small"));
        Peer { process, pid, uid: Uid::new(uid), group, program: "storm".to_owned() }
    }

    fn event(&mut self) -> Event {
        let (session, process) = self.pick(&self.sessions.clone(), (SessionId::new(999), ProcessId::new(0)));
        let lease = self.pick(&self.leases.clone(), LeaseId::new(999));
        let segment = self.pick(&self.segments.clone(), SegmentId::new(9999));
        let device = DeviceId::new(u32::try_from(self.under(DEVICES)).expect("small"));
        let ask_name = self.under(12);
        match self.under(100) {
            0..9 => {
                let again = self.under(4) == 0 && process.get() > 0;
                let process = if again { process } else { self.fresh() };
                let peer = self.peer(process);
                Event::Open { request: self.request("open", process), peer }
            }
            9..11 => Event::Adrift { session },
            11..13 => Event::Rejoined { session },
            13 => Event::Close { request: self.request("close", process), session },
            14..16 => Event::Died { process },
            16..40 => {
                let terms = self.terms();
                Event::Acquire { request: self.request("acquire", process), session, ask_name, terms }
            }
            40..42 => Event::Unattended { session, ask_name },
            42 => Event::Withdraw { request: self.request("withdraw", process), session, ask_name },
            43..46 => Event::Join { request: self.request("join", process), session, lease },
            46..48 => {
                let child = self.fresh();
                let peer = self.peer(child);
                Event::Admit { request: self.request("admit", process), session, lease, peer }
            }
            48..51 => Event::Resize {
                request: self.request("resize", process),
                session,
                lease,
                reserve: mib(2 * self.under(20)),
                limit: mib(2 * self.under(40)),
            },
            51..54 => {
                let authority = match self.under(3) {
                    0 => Authority::Session(session),
                    1 => Authority::User(Uid::new(u32::try_from(self.under(5)).expect("small"))),
                    _ => Authority::Operator,
                };
                Event::Release { request: self.request("release", process), authority, lease }
            }
            54..76 => self.allocate(session, process, lease, device),
            76..78 => Event::Abandoned { request: RequestId(self.requests.saturating_sub(self.under(20))) },
            78..88 => {
                let mine: Vec<_> = self
                    .arbiter
                    .processes
                    .iter()
                    .flat_map(|(p, known)| known.segments.iter().map(|s| (*p, *s)).collect::<Vec<_>>())
                    .collect();
                let (owner, segment) = self.pick(&mine, (process, segment));
                let known = self.arbiter.processes.get(&owner).and_then(|p| p.sessions.first().copied());
                let lease = self.arbiter.lease_of(segment).unwrap_or(lease);
                Event::Free {
                    request: self.request("free", owner),
                    session: known.unwrap_or(session),
                    lease,
                    segment,
                }
            }
            88..90 => Event::Claimed { segment },
            90..92 => {
                let bytes = (self.under(3) > 0).then(|| mib(self.under(60)));
                Event::OffBook { device, bytes }
            }
            92..95 => Event::Overhead { process, device, bytes: mib(self.under(30)) },
            95 if self.under(30) == 0 => Event::DeviceLost { device },
            95..97 => Event::Recall {
                request: self.request("recall", process),
                lease,
                bytes: mib(2 * self.under(4)),
                within: Duration::from_secs(self.under(10)),
            },
            _ => Event::Freed { segment },
        }
    }

    fn allocate(
        &mut self,
        session: SessionId,
        process: ProcessId,
        lease: LeaseId,
        device: DeviceId,
    ) -> Event {
        let member = self.arbiter.leases.get(&lease).and_then(|l| l.members.first().copied());
        let sessions = member.and_then(|m| self.arbiter.processes[&m].sessions.first().copied());
        let devices: Vec<DeviceId> =
            self.arbiter.leases.get(&lease).map_or_else(Vec::new, |l| l.shares.keys().copied().collect());
        Event::Allocate {
            request: self.request("allocate", member.unwrap_or(process)),
            session: sessions.unwrap_or(session),
            lease,
            device: self.pick(&devices, device),
            bytes: mib(2 * self.under(16)),
            kind: SegmentKind::Descriptor,
            patience: self.patience(),
            guard: if self.under(4) == 0 { Guard::Inside } else { Guard::Outside },
        }
    }

    fn fresh(&mut self) -> ProcessId {
        self.processes += 1;
        ProcessId::new(self.processes)
    }

    fn patience(&mut self) -> Patience {
        match self.under(4) {
            0 => Patience::None,
            1 => Patience::AtMost(Duration::from_secs(self.under(60))),
            _ => Patience::Endless,
        }
    }

    fn terms(&mut self) -> Terms {
        let reserve = mib(2 * self.under(20));
        let devices = match self.under(3) {
            0 => DeviceWish::These(
                (0..=self.under(3)).map(|n| DeviceId::new(u32::try_from(n).expect("small"))).collect(),
            ),
            _ => {
                DeviceWish::Any(NonZeroU32::MIN.saturating_add(u32::try_from(self.under(2)).expect("small")))
            }
        };
        Terms {
            name: ["a1", "a2", "b"][usize::try_from(self.under(3)).expect("small")].to_owned(),
            reserve,
            limit: if self.under(10) == 0 { mib(2) } else { Bytes::new(reserve.get() * (1 + self.under(3))) },
            devices,
            patience: self.patience(),
            pinning: Pinning::Movable,
            guest: (self.under(3) == 0).then(|| Uid::new(2)),
        }
    }

    fn step(&mut self, event: Event) {
        if let Event::Died { process } = &event {
            let dead = *process;
            self.open.retain(|request, _| self.asked[request] != dead);
        }
        if let Event::Abandoned { request } = &event {
            self.open.retain(|open, what| open != request || *what != "allocate");
        }
        let known: BTreeSet<_> = self.arbiter.line.asks.values().filter_map(|ask| ask.request).collect();
        let left = matches!(event, Event::Unattended { .. });
        let later = self.under(900);
        self.clock += Duration::from_millis(later);
        if std::env::var_os("STORM_TALK").is_some() {
            println!("{:?} {event:?}", self.clock);
        }
        self.arbiter.handle(Time::after_start(self.clock), event);
        if left {
            let now: BTreeSet<_> = self.arbiter.line.asks.values().filter_map(|ask| ask.request).collect();
            self.open.retain(|request, _| !known.contains(request) || now.contains(request));
        }
        self.drain();
        if self.arbiter.poll_timeout().is_some_and(|(at, _)| at.since_start() <= self.clock) {
            self.arbiter.handle_timeout(Time::after_start(self.clock));
            self.drain();
        }
    }

    fn drain(&mut self) {
        while let Some(effect) = self.arbiter.poll_effect() {
            self.seen.insert(word(&effect));
            match effect {
                Effect::Opened { request, session } => {
                    self.answered(request);
                    self.sessions.push((session, self.asked[&request]));
                }
                Effect::Denied { request, .. }
                | Effect::Done { request }
                | Effect::Joined { request, .. }
                | Effect::Resized { request, .. }
                | Effect::Released { request, .. }
                | Effect::Recalled { request, .. }
                | Effect::Allocated { request, .. } => self.answered(request),
                Effect::Granted { request, lease } => {
                    request.into_iter().for_each(|request| self.answered(request));
                    if !self.leases.contains(&lease) {
                        self.leases.push(lease);
                    }
                }
                Effect::Create { segment, .. } => self.segments.push(segment),
                Effect::LeaseGone { lease } => self.leases.retain(|l| *l != lease),
                Effect::SessionGone { session } => self.sessions.retain(|(s, _)| *s != session),
                Effect::Queued { .. }
                | Effect::Reclaim { .. }
                | Effect::Notify { .. }
                | Effect::Overdue { .. }
                | Effect::ProcessGone { .. } => {}
            }
        }
        self.arbiter.check();
        self.seen.extend(self.arbiter.line.asks.values().map(|ask| stage(ask)));
    }

    fn answered(&mut self, request: RequestId) {
        assert!(
            self.open.remove(&request).is_some(),
            "{request:?} is answered twice, or nobody waits for it"
        );
    }

    /// What the device answers, now or later, well or badly.
    fn device(&mut self) {
        let segment = self.pick(&self.segments.clone(), SegmentId::new(9999));
        let event = match self.under(10) {
            0 => Event::CreateFailed { segment, why: "the storm".to_owned() },
            1 => Event::Unproven { segment, suspects: vec![Pid::new(7)] },
            2..6 => Event::Created { segment },
            _ => Event::Freed { segment },
        };
        self.step(event);
    }

    fn blow(&mut self, steps: u32) {
        for _ in 0..steps {
            let event = self.event();
            self.step(event);
            self.device();
            if self.under(8) == 0 {
                drop(self.arbiter.snapshot(Time::after_start(self.clock)));
            }
        }
    }

    /// Everyone leaves and the device proves everything: nothing may be left.
    fn calm(&mut self) {
        for process in 1..=self.processes {
            self.step(Event::Died { process: ProcessId::new(process) });
        }
        for segment in self.segments.clone() {
            self.step(Event::Created { segment });
            self.step(Event::Freed { segment });
        }
        let snapshot = self.arbiter.snapshot(Time::after_start(self.clock));
        assert!(snapshot.leases.is_empty() && snapshot.waiting.is_empty() && snapshot.sessions == 0);
        for device in snapshot.devices {
            let off_book = device.off_book.unwrap_or_default();
            assert_eq!(device.free.checked_add(off_book), Some(device.capacity), "device {}", device.id);
        }
        assert!(self.open.is_empty(), "nobody answered {:?}", self.open);
        assert_eq!(self.arbiter.poll_timeout(), None);
        assert!(self.arbiter.processes.is_empty() && self.arbiter.users.is_empty());
        assert_eq!(self.arbiter.accounts.all().count(), 1, "accounts are left");
    }
}

fn stage(ask: &Ask) -> &'static str {
    match ask.stage {
        Stage::OwnDrain => "own drain",
        Stage::InLine => "in line",
        Stage::Barrier { post: Post::Hopeless(_), .. } => "hopeless",
        Stage::Barrier { post: Post::Parked(_, Resource::Slots), .. } => "parked for a slot",
        Stage::Barrier { post: Post::Parked(_, Resource::Bytes), .. } => "parked for bytes",
        Stage::Barrier { post: Post::Collecting, .. } => "collecting",
    }
}

fn word(effect: &Effect) -> &'static str {
    match effect {
        Effect::Opened { .. } => "opened",
        Effect::Denied { denial, .. } => denial.reason().word(),
        Effect::Done { .. } => "done",
        Effect::Queued { .. } => "queued",
        Effect::Granted { .. } => "granted",
        Effect::Joined { .. } => "joined",
        Effect::Resized { .. } => "resized",
        Effect::Released { .. } => "released",
        Effect::Recalled { .. } => "recalled",
        Effect::Create { .. } => "create",
        Effect::Allocated { .. } => "allocated",
        Effect::Reclaim { .. } => "reclaim",
        Effect::Notify { .. } => "notify",
        Effect::Overdue { .. } => "overdue",
        Effect::LeaseGone { .. } => "lease gone",
        Effect::SessionGone { .. } => "session gone",
        Effect::ProcessGone { .. } => "process gone",
    }
}

#[test]
fn a_storm_breaks_nothing() {
    let seeds = std::env::var("STORM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let first = std::env::var("STORM_FIRST").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut seen = BTreeSet::new();
    for seed in first..first + seeds {
        println!("seed {seed}");
        let mut storm = Storm::new(seed);
        storm.blow(300);
        storm.calm();
        seen.extend(storm.seen);
    }
    println!("{seen:?}");
}
