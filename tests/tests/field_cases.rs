//! What users of GPU-sharing tools have reported, asked of the arbiter: each test has the number of
//! its case and tells the story.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use gpulease_arbiter::{
    Arbiter, Authority, Budgets, Denial, DeviceSpec, DeviceWish, Effect, Event, Guard, LeaseState, Patience,
    Peer, Pinning, Policy, RequestId, SegmentKind, Terms, Time,
};
use gpulease_words::{Bytes, DeviceId, LeaseId, Pid, ProcessId, SegmentId, SessionId, Uid, gib, mib};

const CARD: DeviceId = DeviceId::new(0);

/// How many operations case 8 runs; the environment variable of this name asks for another number.
const FIELD_08_OPERATIONS: &str = "GPULEASE_FIELD_08_OPERATIONS";

/// An arbiter of one card and the processes that talk to it.
struct Desk {
    arbiter: Arbiter,
    requests: u64,
    said: Vec<Effect>,
}

impl Desk {
    fn new(capacity: Bytes) -> Self {
        let card = DeviceSpec { id: CARD, capacity, overhead_estimate: Bytes::ZERO };
        let arbiter = Arbiter::new(Policy::default(), Budgets::default(), &[card]);
        Self { arbiter, requests: 0, said: Vec::new() }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn tell(&mut self, event: Event) {
        self.arbiter.handle(Time::START, event);
        self.said = std::iter::from_fn(|| self.arbiter.poll_effect()).collect();
    }

    fn open(&mut self, n: u64) -> SessionId {
        let number = u32::try_from(n).expect("few processes");
        let peer = Peer {
            process: ProcessId::new(n),
            pid: Pid::new(1_000 + number),
            uid: Uid::new(1_000 + number),
            group: None,
            program: "train".to_owned(),
        };
        let request = self.request();
        self.tell(Event::Open { request, peer });
        let opened = self.said.iter().find_map(|effect| match effect {
            Effect::Opened { session, .. } => Some(*session),
            _ => None,
        });
        opened.expect("nothing bounds so few sessions")
    }

    fn acquire(&mut self, session: SessionId, reserve: Bytes, limit: Bytes) -> RequestId {
        let request = self.request();
        let terms = Terms {
            name: "job".to_owned(),
            reserve,
            limit,
            devices: DeviceWish::Any(NonZeroU32::MIN),
            patience: Patience::Endless,
            pinning: Pinning::Movable,
            guest: None,
        };
        self.tell(Event::Acquire { request, session, ask_name: request.0, terms });
        request
    }

    fn allocate(&mut self, session: SessionId, lease: LeaseId, bytes: Bytes) -> RequestId {
        let request = self.request();
        self.tell(Event::Allocate {
            request,
            session,
            lease,
            device: CARD,
            bytes,
            kind: SegmentKind::Descriptor,
            patience: Patience::None,
            guard: Guard::Outside,
        });
        request
    }

    fn free(&mut self, session: SessionId, lease: LeaseId, segment: SegmentId) {
        let request = self.request();
        self.tell(Event::Free { request, session, lease, segment });
    }

    fn granted(&self) -> Vec<(RequestId, LeaseId)> {
        let grants = self.said.iter().filter_map(|effect| match effect {
            Effect::Granted { request: Some(request), lease } => Some((*request, *lease)),
            _ => None,
        });
        grants.collect()
    }

    fn created(&self) -> Option<SegmentId> {
        self.said.iter().find_map(|effect| match effect {
            Effect::Create { segment, .. } => Some(*segment),
            _ => None,
        })
    }

    fn reclaimed(&self) -> Vec<SegmentId> {
        let back = self.said.iter().filter_map(|effect| match effect {
            Effect::Reclaim { segment, .. } => Some(*segment),
            _ => None,
        });
        back.collect()
    }

    fn denial(&self) -> Option<&Denial> {
        self.said.iter().find_map(|effect| match effect {
            Effect::Denied { denial, .. } => Some(denial),
            _ => None,
        })
    }

    fn book(&self) -> gpulease_arbiter::DeviceView {
        self.arbiter.snapshot(Time::START).devices[0].clone()
    }
}

/// The same lots each time.
struct Lots(u64);

impl Lots {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// HAMi#1181: after long churn the usage counter went below zero and came out as 17 TB, and every
/// allocation failed. Frees of what is unknown, of what is another's and of what was freed before
/// change nothing here, and what is held is what was made and not freed, after a million of them.
#[test]
fn field_08_a_counter_never_wraps() {
    let operations =
        std::env::var(FIELD_08_OPERATIONS).ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000_u64);
    let mut churn = Churn::new();
    for operation in 0..operations {
        let who = usize::try_from(churn.lots.below(4)).expect("one of four");
        match churn.lots.below(1_000) {
            0..450 => churn.allocate(who),
            450..850 => churn.free(who),
            850..999 => churn.free_badly(who),
            _ => churn.kill(who),
        }
        let holder = &churn.holders[who];
        let held = churn.desk.arbiter.lease(holder.lease).map(|view| view.held);
        assert_eq!(held, Some(holder.held), "after {operation} operations");
        if operation % 100_000 == 0 {
            churn.desk.arbiter.check();
        }
    }
    churn.desk.arbiter.check();
}

/// A process with a lease, and what it has of it by its own count.
struct Holder {
    process: ProcessId,
    session: SessionId,
    lease: LeaseId,
    held: Bytes,
    live: BTreeMap<SegmentId, Bytes>,
}

/// Four holders that come and go.
struct Churn {
    desk: Desk,
    lots: Lots,
    holders: Vec<Holder>,
    processes: u64,
    /// Segments that were freed, the last few.
    freed: Vec<SegmentId>,
}

impl Churn {
    fn new() -> Self {
        let freed = vec![SegmentId::new(1 << 40)];
        let mut churn =
            Self { desk: Desk::new(gib(64)), lots: Lots(8), holders: Vec::new(), processes: 0, freed };
        for _ in 0..4 {
            let holder = churn.newcomer();
            churn.holders.push(holder);
        }
        churn
    }

    /// A process with a lease of 8 GiB that may grow to 16.
    fn newcomer(&mut self) -> Holder {
        self.processes += 1;
        let session = self.desk.open(self.processes);
        self.desk.acquire(session, gib(8), gib(16));
        let lease = self.desk.granted().first().expect("four of them fit").1;
        let process = ProcessId::new(self.processes);
        Holder { process, session, lease, held: Bytes::ZERO, live: BTreeMap::new() }
    }

    fn allocate(&mut self, who: usize) {
        let holder = &mut self.holders[who];
        let bytes = mib(2 * (1 + self.lots.below(64)));
        self.desk.allocate(holder.session, holder.lease, bytes);
        if let Some(segment) = self.desk.created() {
            self.desk.tell(Event::Created { segment });
            holder.live.insert(segment, bytes);
            holder.held = holder.held.checked_add(bytes).expect("less than the card");
        }
    }

    fn free(&mut self, who: usize) {
        let holder = &mut self.holders[who];
        let picked = usize::try_from(self.lots.below(8)).expect("one of eight");
        let Some(segment) = holder.live.keys().nth(picked).copied() else { return };
        let bytes = holder.live.remove(&segment).expect("it was just there");
        holder.held = holder.held.checked_sub(bytes).expect("it was counted");
        self.desk.free(holder.session, holder.lease, segment);
        self.desk.tell(Event::Freed { segment });
        let kept = usize::try_from(segment.get() % 16).expect("one of sixteen");
        match self.freed.get_mut(kept) {
            Some(place) => *place = segment,
            None => self.freed.push(segment),
        }
    }

    /// Frees what was freed before, what was never made, or what is another's.
    fn free_badly(&mut self, who: usize) {
        let others = self.holders[(who + 1) % 4].live.keys().next().copied();
        let at = usize::try_from(self.lots.below(self.freed.len() as u64)).expect("one of few");
        let gone = self.freed[at];
        let segment = others.filter(|_| self.lots.below(2) == 0).unwrap_or(gone);
        let holder = &self.holders[who];
        let before = self.desk.arbiter.lease(holder.lease);
        self.desk.free(holder.session, holder.lease, segment);
        assert!(self.desk.denial().is_some(), "{segment} is freed by who does not have it");
        self.desk.tell(Event::Freed { segment: gone });
        assert_eq!(self.desk.arbiter.lease(holder.lease), before, "a bad free changes nothing");
    }

    fn kill(&mut self, who: usize) {
        self.desk.tell(Event::Died { process: self.holders[who].process });
        for segment in self.desk.reclaimed() {
            self.desk.tell(Event::Freed { segment });
        }
        self.holders[who] = self.newcomer();
    }
}

/// HAMi-core#170: two jobs that each asked for the whole card both got it. Of 64 at once one is
/// granted and 63 wait, and each that ends starts just the next, in order.
#[test]
fn field_15_one_of_64_whole_cards_is_granted() {
    let mut desk = Desk::new(gib(80));
    let sessions: Vec<SessionId> = (1..=64).map(|n| desk.open(n)).collect();
    let mut asked = Vec::new();
    let mut granted = Vec::new();
    for session in &sessions {
        asked.push(desk.acquire(*session, gib(80), gib(80)));
        granted.extend(desk.granted());
    }
    assert_eq!(granted, [(asked[0], LeaseId::new(1))]);
    assert_eq!(desk.arbiter.snapshot(Time::START).waiting.len(), 63);
    for (i, session) in sessions.iter().enumerate() {
        let lease = LeaseId::new(i as u64 + 1);
        let request = desk.request();
        desk.tell(Event::Release { request, authority: Authority::Session(*session), lease });
        let next = asked.get(i + 1).map(|next| (*next, LeaseId::new(i as u64 + 2)));
        assert_eq!(desk.granted(), Vec::from_iter(next), "after {lease}");
    }
    assert_eq!(desk.book().free, gib(80));
}

/// A step in the life of a lease at which its process may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Granted,
    Making,
    Made,
    Claimed,
    Freeing,
    Unproven,
    Releasing,
}

/// HAMi-core#86: waiters spun for minutes on a lock whose owner had died. Whatever step the holder is
/// killed at, with 64 waiting, the next is granted with the event that proves the last byte, and
/// nobody is before.
#[test]
fn field_16_a_killed_holder_makes_room_at_every_step() {
    use Step::{Claimed, Freeing, Granted, Made, Making, Releasing, Unproven};
    for step in [Granted, Making, Made, Claimed, Freeing, Unproven, Releasing] {
        let mut desk = Desk::new(gib(80));
        let holder = desk.open(1);
        desk.acquire(holder, gib(80), gib(80));
        let lease = desk.granted()[0].1;
        let asked: Vec<RequestId> = (2..=65)
            .map(|n| {
                let session = desk.open(n);
                desk.acquire(session, gib(80), gib(80))
            })
            .collect();
        let made = live_until(&mut desk, holder, lease, step);
        desk.tell(Event::Died { process: ProcessId::new(1) });
        let mut grants = desk.granted();
        if let Some(segment) = made {
            assert_eq!(grants, [], "{step:?}: its bytes are not proven free");
            if step == Making {
                desk.tell(Event::Created { segment });
            }
            desk.tell(Event::Freed { segment });
            grants = desk.granted();
        }
        assert_eq!(grants, [(asked[0], LeaseId::new(2))], "{step:?}");
        assert_eq!(desk.arbiter.lease(lease), None, "{step:?}");
        desk.arbiter.check();
    }
}

/// The holder's life up to a step; gives the segment that is there then.
fn live_until(desk: &mut Desk, holder: SessionId, lease: LeaseId, step: Step) -> Option<SegmentId> {
    if step == Step::Granted {
        return None;
    }
    desk.allocate(holder, lease, gib(80));
    let segment = desk.created().expect("it is within the reserve");
    let rest = [
        (Step::Made, Event::Created { segment }),
        (Step::Claimed, Event::Claimed { segment }),
        (Step::Freeing, Event::Free { request: desk.request(), session: holder, lease, segment }),
        (Step::Unproven, Event::Unproven { segment, suspects: vec![Pid::new(1_001)] }),
        (
            Step::Releasing,
            Event::Release { request: desk.request(), authority: Authority::Session(holder), lease },
        ),
    ];
    for (_, event) in rest.into_iter().take_while(|(at, _)| *at <= step) {
        desk.tell(event);
    }
    Some(segment)
}

/// pytorch#4293: a killed trainer stayed defunct and kept its memory, and the scheduler gave the card
/// to the next job, which ran out. Here the bytes stay charged, nobody gets them, and an operator
/// sees whose they are: process, user, and since when.
#[test]
fn field_19_a_defunct_trainer_is_charged_and_shown() {
    let mut desk = Desk::new(gib(16));
    let trainer = desk.open(1);
    desk.acquire(trainer, gib(12), gib(12));
    let lease = desk.granted()[0].1;
    desk.allocate(trainer, lease, gib(12));
    let segment = desk.created().expect("it is within the reserve");
    desk.tell(Event::Created { segment });
    desk.tell(Event::Claimed { segment });
    let next = desk.open(2);
    let asked = desk.acquire(next, gib(8), gib(8));

    desk.tell(Event::Died { process: ProcessId::new(1) });
    assert_eq!(desk.reclaimed(), [segment]);
    desk.tell(Event::Unproven { segment, suspects: vec![Pid::new(1_001)] });
    assert_eq!(desk.granted(), []);
    let view = desk.arbiter.lease(lease).expect("it is charged");
    assert_eq!((view.quarantined, view.state), (gib(12), LeaseState::Draining));
    assert_eq!(
        (view.suspects, view.uid, view.pid),
        (vec![Pid::new(1_001)], Uid::new(1_001), Pid::new(1_001))
    );
    assert_eq!((view.granted_at, view.program.as_str()), (Time::START, "train"));
    let book = desk.book();
    assert_eq!((book.free, book.quarantined), (gib(4), gib(12)));
    let waiting = &desk.arbiter.snapshot(Time::START).waiting;
    assert_eq!((waiting.len(), waiting[0].short_by), (1, gib(4)));

    desk.tell(Event::Freed { segment });
    assert_eq!(desk.granted(), [(asked, LeaseId::new(2))]);
}

/// DAPO#35: a job that breathed between 1 and 60 GB lost its room to neighbours and died of out of
/// memory when it breathed in. What is reserved is kept however little of it is in use: with others
/// asking for every byte, no breath is ever refused.
#[test]
fn field_30_a_breathing_job_keeps_its_reserve() {
    let (mut desk, mut lots) = (Desk::new(gib(80)), Lots(30));
    let job = desk.open(1);
    desk.acquire(job, gib(60), gib(60));
    let lease = desk.granted()[0].1;
    let mut held: BTreeSet<SegmentId> = BTreeSet::new();
    for n in 2..40 {
        let greedy = desk.open(n);
        desk.acquire(greedy, gib(1 + lots.below(80)), gib(80));
    }
    for breath in 0..2_000 {
        let before = desk.book();
        for segment in std::mem::take(&mut held) {
            desk.free(job, lease, segment);
            desk.tell(Event::Freed { segment });
            assert_eq!(desk.granted(), [], "breath {breath}: nobody gets what is reserved");
        }
        assert_eq!(desk.book().free, before.free, "breath {breath}");
        let mut left = gib(60);
        while !left.is_zero() {
            let piece = left.min(gib(1 + lots.below(40)));
            desk.allocate(job, lease, piece);
            let segment = desk.created().unwrap_or_else(|| panic!("breath {breath}: {:?}", desk.said));
            desk.tell(Event::Created { segment });
            held.insert(segment);
            left = left.checked_sub(piece).expect("at most what is left");
        }
        assert_eq!(
            desk.book().held.checked_sub(before.held),
            Some(if breath == 0 { gib(60) } else { Bytes::ZERO })
        );
    }
}
