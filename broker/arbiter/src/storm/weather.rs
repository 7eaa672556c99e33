//! What the storm throws at the arbiter.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid, mib};

use super::{DEVICES, Storm};
use crate::{
    Authority, Budget, Budgets, DeviceWish, Event, Guard, Idleness, OnOverdue, Patience, Peer, Pinning,
    Place, Policy, RequestId, SegmentKind, Terms,
};

impl Storm {
    pub(super) fn policy(&mut self) -> Policy {
        Policy {
            max_wait: Duration::from_secs(self.under(40)),
            adrift_grace: Duration::from_secs(self.under(30)),
            unattended_grace: Duration::from_secs(self.under(20)),
            asks_per_uid: 4 + u32::try_from(self.under(10)).expect("small"),
            leases_per_uid: 3 + u32::try_from(self.under(10)).expect("small"),
            segments_per_lease: 2 + u32::try_from(self.under(10)).expect("small"),
            members_per_lease: 2 + u32::try_from(self.under(3)).expect("small"),
            arena: if self.under(2) == 0 { Bytes::ZERO } else { mib(2 * (20 + self.under(100))) },
            pinned_max: (self.under(4) == 0).then(|| mib(2 * self.under(30))),
            min_residency: Duration::from_secs(self.under(20)),
            recall_deadline: Duration::from_secs(self.under(10)),
            drain_deadline: Duration::from_secs(1 + self.under(10)),
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
            max_wait: (self.under(5) == 0).then(|| Duration::from_secs(self.under(10))),
            pinning: if self.under(12) == 0 { Pinning::Pinned } else { Pinning::Movable },
            on_overdue: (self.under(4) == 0)
                .then_some(OnOverdue::Terminate { grace: Duration::from_secs(3) }),
            ..Budget::default()
        }
    }

    pub(super) fn budgets(&mut self) -> Budgets {
        let mut budgets = self.limits();
        if self.under(2) == 0 {
            for name in ["g0", "g1"] {
                let group = budgets.groups.get_mut(name).expect("it is there");
                group.guarantee = group.limit.unwrap_or(mib(20)).min(mib(2 * self.under(12)));
            }
            let own = budgets.groups["g1"].guarantee;
            let user = budgets.users.get_mut(&Uid::new(1)).expect("it is there");
            user.guarantee = user.limit.unwrap_or(mib(20)).min(mib(2 * self.under(10))).min(own);
            budgets.memberships.insert(Uid::new(1), "g1".to_owned());
        }
        budgets
    }

    fn limits(&mut self) -> Budgets {
        Budgets {
            host: self.budget(120),
            groups: BTreeMap::from([("g0".to_owned(), self.budget(70)), ("g1".to_owned(), self.budget(70))]),
            users: BTreeMap::from([(Uid::new(1), self.budget(50))]),
            default_user: self.budget(50),
            jobs: vec![("a*".to_owned(), self.budget(40))],
            default_job: self.budget(40),
            memberships: BTreeMap::new(),
        }
    }

    fn peer(&mut self, process: ProcessId) -> Peer {
        let uid = u32::try_from(process.get() % 5).expect("small");
        let group = (uid > 0).then(|| format!("g{}", uid % 2));
        let pid = Pid::new(u32::try_from(process.get()).expect("small"));
        Peer { process, pid, uid: Uid::new(uid), group, program: "storm".to_owned() }
    }

    pub(super) fn event(&mut self) -> Event {
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
            43..46 => {
                let known = self.sessions.clone();
                let ancestors =
                    (0..self.under(3)).map(|_| ProcessId::new(self.under(known.len() as u64 + 4))).collect();
                Event::Join { request: self.request("join", process), session, lease, ancestors }
            }
            46..48 => {
                let child = self.fresh();
                let peer = self.peer(child);
                let place = if self.under(2) == 0 { Place::Own } else { Place::Callers };
                Event::Admit { request: self.request("admit", process), session, lease, peer, place }
            }
            48..54 => self.change(session, process, lease),
            54..76 => self.allocate(session, process, lease, device),
            76..78 => Event::Abandoned { request: RequestId(self.requests.saturating_sub(self.under(20))) },
            78..88 => self.free(session, process, segment),
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
            97 if self.under(4) == 0 => Event::SetBudgets {
                request: self.request("budgets", process),
                budgets: Box::new(self.budgets()),
            },
            _ => Event::Freed { segment },
        }
    }

    /// What belongs to suspensions, mostly at the right time and from the right one.
    pub(super) fn journey(&mut self) -> Event {
        let moving: Vec<LeaseId> = self.arbiter.moving.iter().copied().collect();
        let anyone = self.pick(&self.leases.clone(), LeaseId::new(999));
        let lease = if self.under(5) == 0 { anyone } else { self.pick(&moving, anyone) };
        let segments: Vec<SegmentId> =
            self.arbiter.leases.get(&lease).map_or_else(Vec::new, |l| l.segments.iter().copied().collect());
        let segment = self.pick(&segments, SegmentId::new(9999));
        let holder = self.arbiter.segments.get(&segment).map(|s| s.process);
        let member = self.arbiter.leases.get(&lease).and_then(|l| l.members.last().copied());
        let process = holder.or(member).unwrap_or(ProcessId::new(0));
        let session = self.arbiter.processes.get(&process).and_then(|p| p.sessions.first().copied());
        let session = session.unwrap_or(SessionId::new(999));
        match self.under(40) {
            0..8 => Event::Drained { session, lease },
            8..16 => Event::SwappedOut { session, lease, segment },
            16 => Event::SwapFailed { session, lease, why: "the storm".to_owned() },
            17..22 => self.resume(),
            22..29 => Event::Restored { session, lease, segment },
            29..33 => {
                let idleness = if self.under(3) == 0 { Idleness::Busy } else { Idleness::Idle };
                Event::Idle { session, lease, idleness }
            }
            33 => Event::Pin { request: self.request("pin", process), session, lease },
            34..37 => Event::Claimed { segment },
            37..39 => Event::Freed { segment },
            _ => Event::Created { segment },
        }
    }

    fn resume(&mut self) -> Event {
        let away: Vec<LeaseId> =
            self.arbiter.leases.iter().filter(|(_, l)| l.active().is_err()).map(|(id, _)| *id).collect();
        let lease = self.pick(&away, LeaseId::new(999));
        let process = self.arbiter.leases.get(&lease).and_then(|l| l.members.first().copied());
        let process = process.unwrap_or(ProcessId::new(0));
        let session = self.arbiter.processes.get(&process).and_then(|p| p.sessions.first().copied());
        let session = session.unwrap_or(SessionId::new(999));
        Event::Resume { request: self.request("resume", process), session, lease }
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

    /// The lease gets another size, or ends.
    fn change(&mut self, session: SessionId, process: ProcessId, lease: LeaseId) -> Event {
        if self.under(2) == 0 {
            let (reserve, limit) = (mib(2 * self.under(20)), mib(2 * self.under(40)));
            return Event::Resize {
                request: self.request("resize", process),
                session,
                lease,
                reserve,
                limit,
            };
        }
        let authority = match self.under(3) {
            0 => Authority::Session(session),
            1 => Authority::User(Uid::new(u32::try_from(self.under(5)).expect("small"))),
            _ => Authority::Operator,
        };
        Event::Release { request: self.request("release", process), authority, lease }
    }

    /// A segment comes back, mostly from the process that has it.
    fn free(&mut self, session: SessionId, process: ProcessId, segment: SegmentId) -> Event {
        let known = &self.arbiter.processes;
        let live: Vec<_> =
            known.iter().flat_map(|(p, known)| known.segments.iter().map(|s| (*p, *s))).collect();
        let (owner, segment) = self.pick(&live, (process, segment));
        let own = self.arbiter.processes.get(&owner).and_then(|p| p.sessions.first().copied());
        let lease = self.arbiter.lease_of(segment).unwrap_or(LeaseId::new(999));
        Event::Free { request: self.request("free", owner), session: own.unwrap_or(session), lease, segment }
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
}
