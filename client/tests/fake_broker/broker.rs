//! A broker without a brain: it speaks the protocol, keeps the least of books, and misbehaves on
//! demand. What it is told is in its book, which tests wait on.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpulease_client::proto::{self as v1, jobs_server::JobsServer, report_request::News};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::Server;

use crate::handoff;
use crate::service::Jobs;

/// Long enough for a loaded machine, short enough to fail.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Less than a flood of waiting asks needs.
const STREAMS_PER_CONNECTION: u32 = 72;

/// How the hand-over socket behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOver {
    Right,
    RefuseTicket,
    OneTooFew,
    OneTooMany,
    /// The frame speaks of more bytes than were allocated.
    Larger,
}

/// What happens to asks for leases, by the first word of their name.
/// `wait...`: they wait. `deny...`: they are refused. Else they are granted at once.
pub struct Ask {
    /// Dropped with the answer, which ends the stream.
    pub updates: Option<UnboundedSender<Result<v1::AcquireUpdate, Status>>>,
    pub lease: Option<u64>,
}

pub struct Segment {
    pub ask_name: u64,
    pub chunks: Vec<(OwnedFd, u64)>,
    pub acknowledged: bool,
    /// Goes along with the first claim, where the segment is movable.
    pub host_copy: Option<OwnedFd>,
    /// How often it was made again.
    pub returns: u32,
}

/// A wish for a suspended lease, and where its updates go.
pub struct Wish {
    pub lease: u64,
    pub updates: Option<UnboundedSender<Result<v1::ResumeUpdate, Status>>>,
}

/// What the broker knows, and what it was told.
pub struct Book {
    pub next: u64,
    /// Session to secret.
    pub sessions: BTreeMap<u64, Vec<u8>>,
    pub streams: BTreeMap<u64, UnboundedSender<Result<v1::SessionMessage, Status>>>,
    pub rejoined: u32,
    pub asks: BTreeMap<(u64, u64), Ask>,
    pub leases: BTreeSet<u64>,
    pub segments: BTreeMap<u64, Segment>,
    pub handover: HandOver,
    pub allocations_wait: bool,
    /// Allocates that arrived, in order.
    pub allocates: Vec<v1::AllocateRequest>,
    /// Allocates that wait, by their names, and what ends the wait.
    pub allocates_waiting: BTreeMap<u64, oneshot::Sender<()>>,
    /// Segments freed while the client still had them mapped or open.
    pub freed_too_early: Vec<u64>,
    pub withdrawn: Vec<u64>,
    pub released: Vec<u64>,
    pub closed: Vec<u64>,
    /// Ask streams that the client read to their end, by the ask's name, and those it did not.
    pub ended_asks: Vec<u64>,
    pub broken_asks: Vec<u64>,
    /// Acquires are not taken in until this is opened.
    pub gate: Option<watch::Receiver<bool>>,
    pub acquires_at_the_gate: u32,
    /// Allocates of this size and more are refused.
    pub refused_from: u64,
    /// Where frees wait.
    pub gate_of_frees: Option<watch::Receiver<bool>>,
    /// The ends of answered ask streams, which are put off by holding them.
    pub ends: Vec<UnboundedSender<Result<v1::AcquireUpdate, Status>>>,
    pub ends_are_put_off: bool,
    /// Allocations come with a host copy.
    pub movable: bool,
    pub idle_after_ms: u64,
    /// What a rejoin says of leases.
    pub standings: Vec<v1::LeaseStanding>,
    pub sizes: Vec<v1::LeaseSizes>,
    pub reports: Vec<(u64, News)>,
    pub wishes: Vec<Wish>,
    pub pins: Vec<u64>,
    /// Tickets that were claimed, and those of them that were refused.
    pub claims: u32,
    pub refused_tickets: u32,
    /// The next answer to a wish or a pin.
    pub refusal: Option<v1::Denied>,
}

/// The book, its lock, and a bell for every change.
pub struct Shared {
    book: Mutex<Book>,
    bell: Condvar,
}

impl Shared {
    /// Looks at or changes the book.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let result = change(&mut self.book());
        self.bell.notify_all();
        result
    }

    /// Waits until the book says so; fails the test when it never does.
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&mut Book) -> bool) {
        let (start, mut book) = (Instant::now(), self.book());
        while !is_so(&mut book) {
            let left = DEADLINE.checked_sub(start.elapsed());
            let left = left.unwrap_or_else(|| panic!("never happened: {what}"));
            book = self.bell.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A running fake; it can be stopped and started again at the same sockets.
pub struct Broker {
    folder: TempDir,
    pub shared: Arc<Shared>,
    runtime: Option<Runtime>,
    handoff: Option<handoff::Listener>,
}

impl Broker {
    pub fn start() -> Self {
        let shared = Arc::new(Shared { book: Mutex::new(Book::new()), bell: Condvar::new() });
        let mut broker = Self { folder: tempfile::tempdir().unwrap(), shared, runtime: None, handoff: None };
        broker.serve();
        broker
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("gpulease.sock")
    }

    /// Listens (again).
    pub fn serve(&mut self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let context = runtime.enter();
        let listener = UnixListener::bind(self.socket()).unwrap();
        let serving = Server::builder()
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .add_service(JobsServer::new(Jobs::new(Arc::clone(&self.shared))))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(serving);
        self.handoff = Some(handoff::Listener::start(&self.folder.path().join("handoff.sock"), &self.shared));
        drop(context);
        self.runtime = Some(runtime);
    }

    /// As SIGKILL: every connection breaks.
    pub fn kill(&mut self) {
        let runtime = self.runtime.take().unwrap();
        // On a thread of its own, since tests may be inside a runtime.
        std::thread::spawn(move || runtime.shutdown_timeout(DEADLINE)).join().unwrap();
        self.handoff.take();
        std::fs::remove_file(self.socket()).unwrap();
        self.shared.change(|book| book.streams.clear());
    }

    /// Ends the session streams, and nothing else.
    pub fn break_streams(&self) {
        self.shared.change(|book| book.streams.clear());
    }

    /// As a restart without records.
    pub fn forget(&self) {
        self.shared.change(|book| {
            book.sessions.clear();
            book.asks.clear();
            book.leases.clear();
            book.segments.clear();
        });
    }

    /// Makes a segment again, and says so with a fresh ticket.
    pub fn bring_back(&self, session: u64, lease: u64, segment: u64) {
        self.shared.change(|book| {
            let segment = book.segments.get_mut(&segment).unwrap();
            let sizes: Vec<u64> = segment.chunks.iter().map(|(_, size)| *size).collect();
            segment.chunks = sizes.into_iter().map(|size| (made(size), size)).collect();
            segment.acknowledged = false;
            segment.returns += 1;
        });
        let ticket = ticket(segment).into();
        let back = v1::SegmentBack { lease_id: lease, segment_id: segment, ticket };
        self.tell(session, v1::session_message::Message::SegmentBack(back));
    }

    /// Says what becomes of the wish for a lease, which has to be there.
    pub fn answer_wish(&self, lease: u64, update: v1::resume_update::Update) {
        let is_last = !matches!(update, v1::resume_update::Update::Waiting(_));
        self.shared.change(|book| {
            let wish = book.wishes.iter_mut().rfind(|wish| wish.lease == lease).unwrap();
            let updates = wish.updates.as_ref().unwrap();
            // Who has gone away asks again.
            let _ = updates.send(Ok(v1::ResumeUpdate { update: Some(update) }));
            if is_last {
                wish.updates = None;
            }
        });
    }

    pub fn tell(&self, session: u64, message: v1::session_message::Message) {
        let book = self.shared.book();
        book.streams[&session].send(Ok(v1::SessionMessage { message: Some(message) })).unwrap();
    }
}

/// A memory file, as a chunk or a host copy is one.
pub fn made(size: u64) -> OwnedFd {
    let memory = memfd_create("segment", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, size).unwrap();
    handoff::reopened(&memory)
}

/// The ticket of a segment.
pub fn ticket(segment: u64) -> Vec<u8> {
    [segment.to_le_bytes(), [9; 8]].concat()
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.runtime.is_some() {
            self.kill();
        }
    }
}

impl Book {
    fn new() -> Self {
        Self {
            next: 0,
            sessions: BTreeMap::new(),
            streams: BTreeMap::new(),
            rejoined: 0,
            asks: BTreeMap::new(),
            leases: BTreeSet::new(),
            segments: BTreeMap::new(),
            handover: HandOver::Right,
            allocations_wait: false,
            allocates: Vec::new(),
            allocates_waiting: BTreeMap::new(),
            freed_too_early: Vec::new(),
            withdrawn: Vec::new(),
            released: Vec::new(),
            closed: Vec::new(),
            ended_asks: Vec::new(),
            broken_asks: Vec::new(),
            gate: None,
            acquires_at_the_gate: 0,
            refused_from: (16 << 20) + 1,
            gate_of_frees: None,
            ends: Vec::new(),
            ends_are_put_off: false,
            movable: false,
            idle_after_ms: 0,
            standings: Vec::new(),
            sizes: Vec::new(),
            reports: Vec::new(),
            wishes: Vec::new(),
            pins: Vec::new(),
            claims: 0,
            refused_tickets: 0,
            refusal: None,
        }
    }

    pub fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The session of a request.
    pub fn session(&self, session: Option<v1::SessionRef>) -> Result<u64, Status> {
        let session = session.unwrap_or_default();
        let known = self.sessions.get(&session.session_id).is_some_and(|secret| *secret == session.secret);
        let refused = || {
            gpulease_proto::refusal::refusal(
                tonic::Code::NotFound,
                gpulease_client::Reason::NoSuchSession,
                "no such session",
            )
        };
        known.then_some(session.session_id).ok_or_else(refused)
    }

    /// Nothing is owed by anybody.
    pub fn is_clear(&self) -> bool {
        self.asks.is_empty()
            && self.leases.is_empty()
            && self.segments.is_empty()
            && self.allocates_waiting.is_empty()
    }

    /// Grants an ask that waits.
    pub fn grant(&mut self, key: (u64, u64)) {
        let lease = self.id();
        let ask = self.asks.get_mut(&key).unwrap();
        ask.lease = Some(lease);
        let granted = v1::Granted {
            lease_id: lease,
            token: vec![7; 16].into(),
            device_indices: vec![0],
            reserve_bytes: 8 << 20,
            limit_bytes: 16 << 20,
            waited_ms: 3,
        };
        let update = v1::acquire_update::Update::Granted(granted);
        let updates = ask.updates.take().unwrap();
        // Where nobody listens any more, the withdrawal has crossed the grant.
        let _ = updates.send(Ok(v1::AcquireUpdate { update: Some(update) }));
        if self.ends_are_put_off {
            self.ends.push(updates);
        }
        self.leases.insert(lease);
    }
}
