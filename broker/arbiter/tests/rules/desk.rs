//! A short language for tests: processes that ask, a device that answers, a clock that is moved.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_arbiter::{
    Arbiter, AskView, Authority, Budget, Budgets, Denial, DeviceSpec, DeviceView, DeviceWish, Effect, Event,
    Guard, LeaseView, Notice, Patience, Peer, Pinning, Policy, RequestId, SegmentKind, Snapshot, Terms, Time,
};
use gpulease_words::{
    AskId, Bytes, DeviceId, LeaseId, Pid, ProcessId, Reason, SegmentId, SessionId, Uid, mib,
};

/// The arbiter, who talks to it, and what it said last.
pub(crate) struct Desk {
    pub(crate) arbiter: Arbiter,
    pub(crate) now: Time,
    requests: u64,
    processes: u64,
    /// What the last event led to.
    pub(crate) said: Vec<Effect>,
    /// The answer of each request, the last one counts.
    pub(crate) answers: BTreeMap<RequestId, Answer>,
}

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Opened(SessionId),
    Queued(AskId),
    Granted(LeaseId),
    Joined(LeaseId),
    Resized,
    Resumed,
    Released(Bytes),
    Recalled(Bytes),
    Allocated(SegmentId),
    Done,
    Denied(Denial),
}

/// A process with a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) process: ProcessId,
    pub(crate) session: SessionId,
}

/// Policy with short waits: a barrier after 100 s, graces of 10 s.
pub(crate) fn policy() -> Policy {
    Policy {
        max_wait: Duration::from_secs(100),
        adrift_grace: Duration::from_secs(10),
        unattended_grace: Duration::from_secs(10),
        ..Policy::default()
    }
}

/// As [`policy`], with host memory for copies of so many MiB, 30 s of residency and deadlines of 10 s. Nothing but
/// contexts may be pinned.
pub(crate) fn moving(arena: u64) -> Policy {
    Policy { arena: mib(arena), pinned_max: Some(mib(0)), ..policy() }
}

/// A budget with a guarantee in MiB.
pub(crate) fn guarantee(of: u64) -> Budget {
    Budget { guarantee: mib(of), ..Budget::default() }
}

/// A budget with a limit in MiB.
pub(crate) fn limit(of: u64) -> Budget {
    Budget { limit: Some(mib(of)), ..Budget::default() }
}

/// A budget with a weight.
pub(crate) fn weight(of: u32) -> Budget {
    Budget { weight: NonZeroU32::new(of).expect("a weight"), ..Budget::default() }
}

/// An ask for a lease on any one device, whose limit is its reserve and which waits without end.
pub(crate) fn want(reserve: u64) -> Terms {
    Terms {
        name: "job".to_owned(),
        reserve: mib(reserve),
        limit: mib(reserve),
        devices: DeviceWish::Any(NonZeroU32::MIN),
        patience: Patience::Endless,
        pinning: Pinning::Movable,
        guest: None,
    }
}

/// Ways to ask for more.
pub(crate) trait Ask {
    fn up_to(self, limit: u64) -> Self;
    fn named(self, name: &str) -> Self;
    fn on(self, devices: &[u32]) -> Self;
    fn any(self, count: u32) -> Self;
    fn patient(self, patience: Patience) -> Self;
    fn guest(self, uid: u32) -> Self;
    fn pinned(self) -> Self;
}

impl Ask for Terms {
    fn up_to(self, limit: u64) -> Self {
        Self { limit: mib(limit), ..self }
    }

    fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    fn on(self, devices: &[u32]) -> Self {
        Self { devices: DeviceWish::These(devices.iter().map(|n| DeviceId::new(*n)).collect()), ..self }
    }

    fn any(self, count: u32) -> Self {
        Self { devices: DeviceWish::Any(NonZeroU32::new(count).expect("some")), ..self }
    }

    fn patient(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    fn guest(self, uid: u32) -> Self {
        Self { guest: Some(Uid::new(uid)), ..self }
    }

    fn pinned(self) -> Self {
        Self { pinning: Pinning::Pinned, ..self }
    }
}

/// No wait at all.
pub(crate) const NOW: Patience = Patience::None;

/// At most so many seconds.
pub(crate) fn seconds(n: u64) -> Patience {
    Patience::AtMost(Duration::from_secs(n))
}

impl Desk {
    /// Devices of these capacities in MiB, without overhead, budgets or history.
    pub(crate) fn new(capacities: &[u64]) -> Self {
        Self::with(policy(), Budgets::default(), capacities, 0)
    }

    /// As [`Self::new`], with contexts that cost so many MiB.
    pub(crate) fn with_overhead(capacities: &[u64], overhead: u64) -> Self {
        Self::with(policy(), Budgets::default(), capacities, overhead)
    }

    /// As [`Self::new`], with budgets.
    pub(crate) fn with_budgets(capacities: &[u64], budgets: Budgets) -> Self {
        Self::with(policy(), budgets, capacities, 0)
    }

    pub(crate) fn with(policy: Policy, budgets: Budgets, capacities: &[u64], overhead: u64) -> Self {
        let spec = |(n, capacity): (usize, &u64)| DeviceSpec {
            id: device(u32::try_from(n).expect("few")),
            capacity: mib(*capacity),
            overhead_estimate: mib(overhead),
        };
        let devices: Vec<DeviceSpec> = capacities.iter().enumerate().map(spec).collect();
        Self {
            arbiter: Arbiter::new(policy, budgets, &devices),
            now: Time::START,
            requests: 0,
            processes: 0,
            said: Vec::new(),
            answers: BTreeMap::new(),
        }
    }

    /// One device, and host memory for copies of so much; nothing but contexts may be pinned.
    pub(crate) fn movable(capacity: u64, arena: u64) -> Self {
        Self::with(moving(arena), Budgets::default(), &[capacity], 0)
    }

    /// A segment that is made and in the hands of its process.
    pub(crate) fn held(&mut self, client: Client, lease: LeaseId, bytes: u64) -> SegmentId {
        let segment = self.segment(client, lease, bytes);
        self.tell(Event::Claimed { segment });
        segment
    }

    pub(crate) fn resume(&mut self, client: Client, lease: LeaseId) -> RequestId {
        self.request(|request| Event::Resume { request, session: client.session, lease })
    }

    pub(crate) fn drained(&mut self, client: Client, lease: LeaseId) {
        self.tell(Event::Drained { session: client.session, lease });
    }

    pub(crate) fn swapped_out(&mut self, client: Client, lease: LeaseId, segment: SegmentId) {
        self.tell(Event::SwappedOut { session: client.session, lease, segment });
    }

    pub(crate) fn restored(&mut self, client: Client, lease: LeaseId, segment: SegmentId) {
        self.tell(Event::Restored { session: client.session, lease, segment });
    }

    /// The process does all that a suspension asks of it, and the device proves it.
    pub(crate) fn leave(&mut self, client: Client, lease: LeaseId, segments: &[SegmentId]) {
        self.drained(client, lease);
        for segment in segments {
            self.swapped_out(client, lease, *segment);
        }
        for segment in segments {
            self.tell(Event::Freed { segment: *segment });
        }
    }

    /// The device makes the segments of a lease that comes back, and the process fills them.
    pub(crate) fn come_back(&mut self, client: Client, lease: LeaseId, segments: &[SegmentId]) {
        for segment in segments {
            self.tell(Event::Created { segment: *segment });
            self.tell(Event::Claimed { segment: *segment });
            self.restored(client, lease, *segment);
        }
    }

    pub(crate) fn idle(&mut self, client: Client, lease: LeaseId) {
        let idleness = gpulease_arbiter::Idleness::Idle;
        self.tell(Event::Idle { session: client.session, lease, idleness });
    }

    /// A new process of the user.
    pub(crate) fn client(&mut self, uid: u32) -> Client {
        self.client_in(uid, None)
    }

    /// A new process of a user of the group.
    pub(crate) fn client_in(&mut self, uid: u32, group: Option<&str>) -> Client {
        let peer = self.peer(uid, group);
        self.open(peer)
    }

    /// A process that the broker has not seen.
    pub(crate) fn peer(&mut self, uid: u32, group: Option<&str>) -> Peer {
        self.processes += 1;
        Peer {
            process: ProcessId::new(self.processes),
            pid: Pid::new(u32::try_from(self.processes).expect("few")),
            uid: Uid::new(uid),
            group: group.map(str::to_owned),
            program: "train".to_owned(),
        }
    }

    pub(crate) fn open(&mut self, peer: Peer) -> Client {
        let process = peer.process;
        match self.ask(|request| Event::Open { request, peer }) {
            Answer::Opened(session) => Client { process, session },
            other => panic!("{other:?}"),
        }
    }

    /// Tells the arbiter, collects what it says, checks every invariant.
    pub(crate) fn tell(&mut self, event: Event) {
        self.arbiter.handle(self.now, event);
        self.listen();
    }

    /// As [`Self::tell`], for an event that is answered.
    pub(crate) fn request(&mut self, event: impl FnOnce(RequestId) -> Event) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.tell(event(request));
        request
    }

    /// As [`Self::request`], for the answer.
    pub(crate) fn ask(&mut self, event: impl FnOnce(RequestId) -> Event) -> Answer {
        let request = self.request(event);
        self.answer(request)
    }

    pub(crate) fn answer(&self, request: RequestId) -> Answer {
        self.answers.get(&request).cloned().unwrap_or_else(|| panic!("{request:?} is not answered"))
    }

    fn listen(&mut self) {
        self.said.clear();
        while let Some(effect) = self.arbiter.poll_effect() {
            self.said.push(effect);
        }
        for effect in &self.said {
            if let Some((request, answer)) = answer(effect) {
                self.answers.insert(request, answer);
            }
        }
        self.arbiter.check();
    }

    /// Moves the clock, waking the arbiter whenever it wants to be.
    pub(crate) fn pass(&mut self, seconds: u64) {
        let end = self.now.plus(Duration::from_secs(seconds));
        let mut said = Vec::new();
        while let Some((at, _)) = self.arbiter.poll_timeout().filter(|(at, _)| *at <= end) {
            self.now = self.now.max(at);
            self.arbiter.handle_timeout(self.now);
            self.listen();
            said.append(&mut self.said);
        }
        self.now = end;
        self.said = said;
    }

    /// Asks for a lease under a name of its own.
    pub(crate) fn acquire(&mut self, client: Client, terms: Terms) -> Answer {
        let ask_name = self.requests + 1;
        self.acquire_as(client, ask_name, terms)
    }

    pub(crate) fn acquire_as(&mut self, client: Client, ask_name: u64, terms: Terms) -> Answer {
        self.ask(|request| Event::Acquire { request, session: client.session, ask_name, terms })
    }

    /// A lease that is granted at once.
    pub(crate) fn lease(&mut self, client: Client, terms: Terms) -> LeaseId {
        match self.acquire(client, terms) {
            Answer::Granted(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    /// An ask that has to wait.
    pub(crate) fn queue(&mut self, client: Client, terms: Terms) -> AskId {
        match self.acquire(client, terms) {
            Answer::Queued(ask) => ask,
            other => panic!("{other:?}"),
        }
    }

    /// A refusal.
    pub(crate) fn refused(&mut self, client: Client, terms: Terms) -> Denial {
        match self.acquire(client, terms) {
            Answer::Denied(denial) => denial,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&mut self, client: Client, lease: LeaseId) -> Answer {
        self.ask(|request| Event::Release { request, authority: Authority::Session(client.session), lease })
    }

    /// Asks for a segment on device 0 without waiting.
    pub(crate) fn allocate(&mut self, client: Client, lease: LeaseId, bytes: u64) -> RequestId {
        self.allocate_as(client, lease, bytes, NOW, Guard::Outside)
    }

    pub(crate) fn allocate_as(
        &mut self,
        client: Client,
        lease: LeaseId,
        bytes: u64,
        patience: Patience,
        guard: Guard,
    ) -> RequestId {
        self.request(|request| Event::Allocate {
            request,
            session: client.session,
            lease,
            device: device(0),
            bytes: mib(bytes),
            kind: SegmentKind::Descriptor,
            patience,
            guard,
        })
    }

    /// The segment that the device was just told to make.
    pub(crate) fn making(&self) -> SegmentId {
        let made = self.said.iter().find_map(|effect| match effect {
            Effect::Create { segment, .. } => Some(*segment),
            _ => None,
        });
        made.unwrap_or_else(|| panic!("nothing is made: {:?}", self.said))
    }

    /// A segment that is made at once.
    pub(crate) fn segment(&mut self, client: Client, lease: LeaseId, bytes: u64) -> SegmentId {
        self.allocate(client, lease, bytes);
        let segment = self.making();
        self.tell(Event::Created { segment });
        segment
    }

    pub(crate) fn free(&mut self, client: Client, lease: LeaseId, segment: SegmentId) -> Answer {
        self.ask(|request| Event::Free { request, session: client.session, lease, segment })
    }

    /// Freed by its process and proven by the device.
    pub(crate) fn give_back(&mut self, client: Client, lease: LeaseId, segment: SegmentId) {
        assert_eq!(self.free(client, lease, segment), Answer::Done);
        self.tell(Event::Freed { segment });
    }

    pub(crate) fn die(&mut self, client: Client) {
        self.tell(Event::Died { process: client.process });
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.arbiter.snapshot(self.now)
    }

    pub(crate) fn device(&self, n: usize) -> DeviceView {
        self.snapshot().devices[n].clone()
    }

    pub(crate) fn view(&self, lease: LeaseId) -> LeaseView {
        self.arbiter.lease(lease).unwrap_or_else(|| panic!("{lease} is gone"))
    }

    pub(crate) fn waiting(&self, ask: AskId) -> AskView {
        self.snapshot()
            .waiting
            .into_iter()
            .find(|view| view.id == ask)
            .unwrap_or_else(|| panic!("{ask} does not wait"))
    }

    /// Who waits, the next one first.
    pub(crate) fn line(&self) -> Vec<AskId> {
        self.snapshot().waiting.into_iter().map(|view| view.id).collect()
    }

    /// The owners' users of what was just granted, in order.
    pub(crate) fn granted(&self) -> Vec<u32> {
        let granted = self.said.iter().filter_map(|effect| match effect {
            Effect::Granted { lease, .. } => Some(self.view(*lease).uid.get()),
            _ => None,
        });
        granted.collect()
    }

    /// What was just told to sessions.
    pub(crate) fn notices(&self) -> Vec<(SessionId, Notice)> {
        let notices = self.said.iter().filter_map(|effect| match effect {
            Effect::Notify { session, notice } => Some((*session, notice.clone())),
            _ => None,
        });
        notices.collect()
    }

    /// Why the ask waits and how much is missing, in MiB.
    pub(crate) fn why(&self, ask: AskId) -> (Reason, u64) {
        let view = self.waiting(ask);
        (view.reason, view.short_by.get() >> 20)
    }
}

fn answer(effect: &Effect) -> Option<(RequestId, Answer)> {
    Some(match effect.clone() {
        Effect::Opened { request, session } => (request, Answer::Opened(session)),
        Effect::Denied { request, denial } => (request, Answer::Denied(denial)),
        Effect::Done { request } => (request, Answer::Done),
        Effect::Queued { request, ask } => (request, Answer::Queued(ask)),
        Effect::Granted { request, lease } => (request?, Answer::Granted(lease)),
        Effect::Joined { request, lease } => (request, Answer::Joined(lease)),
        Effect::Resized { request, .. } => (request, Answer::Resized),
        Effect::Released { request, draining, .. } => (request, Answer::Released(draining)),
        Effect::Recalled { request, bytes, .. } => (request, Answer::Recalled(bytes)),
        Effect::Allocated { request, segment, .. } => (request, Answer::Allocated(segment)),
        Effect::Resumed { request, .. } => (request, Answer::Resumed),
        Effect::Create { .. }
        | Effect::Restore { .. }
        | Effect::Forget { .. }
        | Effect::Signal { .. }
        | Effect::Occurred { .. }
        | Effect::Reclaim { .. }
        | Effect::Notify { .. }
        | Effect::Overdue { .. }
        | Effect::LeaseGone { .. }
        | Effect::SessionGone { .. }
        | Effect::ProcessGone { .. } => return None,
    })
}

pub(crate) const fn device(n: u32) -> DeviceId {
    DeviceId::new(n)
}
