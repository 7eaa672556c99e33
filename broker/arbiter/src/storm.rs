//! A storm of seeded events, sound and unsound, with every derived figure recomputed after each.
//! The order of the line is compared with a slow search at every grant (see `settle`).

mod weather;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gpulease_words::{DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, mib};

use crate::accounts::Resource;
use crate::line::ask::{Ask, Post, Stage};
use crate::{Arbiter, Budgets, DeviceSpec, Effect, Event, Notice, Occurrence, Policy, RequestId, Time};

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
        let mut policy = storm.policy();
        let mut budgets = storm.budgets();
        if budgets.fit(&policy, &devices).is_err() {
            policy.pinned_max = None;
            budgets = Budgets { groups: BTreeMap::new(), users: BTreeMap::new(), ..budgets };
        }
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

    fn request(&mut self, what: &'static str, by: ProcessId) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.open.insert(request, what);
        self.asked.insert(request, by);
        request
    }

    fn step(&mut self, event: Event) {
        if let Event::Abandoned { request } = &event {
            self.open.retain(|open, what| open != request || !["allocate", "resume"].contains(what));
        }
        let known: BTreeSet<_> = self.arbiter.line.asks.values().filter_map(|ask| ask.request).collect();
        let left = matches!(event, Event::Unattended { .. });
        let later = self.under(900);
        self.clock += Duration::from_millis(later);
        if std::env::var_os("STORM_TALK").is_some() {
            eprintln!("{:?} {event:?}", self.clock);
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
                | Effect::Resumed { request, .. }
                | Effect::Allocated { request, .. } => self.answered(request),
                Effect::Granted { request, lease } => {
                    request.into_iter().for_each(|request| self.answered(request));
                    if !self.leases.contains(&lease) {
                        self.leases.push(lease);
                    }
                }
                Effect::Create { segment, .. } => self.segments.push(segment),
                Effect::Occurred { what, .. } => drop(self.seen.insert(happened(&what))),
                Effect::Notify { notice, .. } => drop(self.seen.insert(told(&notice))),
                Effect::LeaseGone { lease } => self.leases.retain(|l| *l != lease),
                Effect::SessionGone { session } => self.sessions.retain(|(s, _)| *s != session),
                Effect::Queued { .. }
                | Effect::Reclaim { .. }
                | Effect::Restore { .. }
                | Effect::Forget { .. }
                | Effect::Signal { .. }
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
            if self.under(2) == 0 {
                let event = self.journey();
                self.step(event);
            }
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
        let accounts = self.arbiter.accounts.all().filter(|(_, node)| !node.is_store());
        assert_eq!(accounts.count(), 1, "accounts are left");
        assert!(snapshot.arena.free == snapshot.arena.capacity, "{:?}", snapshot.arena);
    }
}

fn stage(ask: &Ask) -> &'static str {
    match ask.stage {
        Stage::OwnDrain => "own drain",
        Stage::AtLimit => "at limit",
        Stage::Leaving => "leaving",
        Stage::InLine => "in line",
        Stage::Barrier { post: Post::Hopeless, .. } => "hopeless",
        Stage::Barrier { post: Post::Parked(_, Resource::Slots), .. } => "parked for a slot",
        Stage::Barrier { post: Post::Parked(_, Resource::Bytes), .. } => "parked for bytes",
        Stage::Barrier { post: Post::Collecting, .. } => "collecting",
    }
}

fn happened(what: &Occurrence) -> &'static str {
    match what {
        Occurrence::Suspending => "suspending",
        Occurrence::Suspended => "suspended",
        Occurrence::Resuming => "resuming",
        Occurrence::Resumed => "back",
        Occurrence::SuspendCancelled(_) => "cancelled",
        Occurrence::SwapFailed(_) => "swap failed",
        Occurrence::Pinned(_) => "pinned",
        Occurrence::Terminated => "terminated",
    }
}

fn told(notice: &Notice) -> &'static str {
    match notice {
        Notice::Recall { .. } => "told: recall",
        Notice::Ended { .. } => "told: ended",
        Notice::Suspend { .. } => "told: suspend",
        Notice::SwapOut { .. } => "told: swap out",
        Notice::SuspendCancelled { .. } => "told: cancelled",
        Notice::SegmentBack { .. } => "told: segment back",
        Notice::Pinned { .. } => "told: pinned",
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
        Effect::Restore { .. } => "restore",
        Effect::Forget { .. } => "forget",
        Effect::Resumed { .. } => "resumed",
        Effect::Signal { .. } => "signal",
        Effect::Occurred { .. } => "occurred",
    }
}

#[test]
fn a_storm_breaks_nothing() {
    let seeds = std::env::var("STORM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let first = std::env::var("STORM_FIRST").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut seen = BTreeSet::new();
    for seed in first..first + seeds {
        eprintln!("seed {seed}");
        let mut storm = Storm::new(seed);
        storm.blow(300);
        storm.calm();
        seen.extend(storm.seen);
    }
    eprintln!("{seen:?}");
}
