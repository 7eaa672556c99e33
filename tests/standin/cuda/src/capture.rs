//! Stream capture: what is asked of a stream becomes nodes of a graph instead of work.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use crate::code::{Code, Outcome};
use crate::driver::{Driver, State};
use crate::entry::entry_points;
use crate::graph::{Graph, Kind, Node};
use crate::pointer::{handle, put};

const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

/// The captures that go on, by their number.
#[derive(Default)]
pub(crate) struct Captures {
    last: u64,
    active: BTreeMap<u64, Capture>,
}

struct Capture {
    graph: usize,
    /// The stream that began it.
    stream: usize,
    mode: Mode,
    thread: ThreadId,
    status: u32,
}

/// `CUstreamCaptureMode`: whose calls that can't be captured break a capture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Everybody's.
    Global,
    /// Those of the thread that captures.
    OfThread,
    /// Nobody's.
    Relaxed,
}

/// What a node does when its graph is launched.
#[derive(Clone)]
pub(crate) enum Step {
    Work { kind: Kind, work: Work },
    Allocate { at: u64, asked: u64, device: u32 },
    Free { at: u64 },
}

pub(crate) type Work = Arc<dyn Fn(&Driver) -> Outcome + Send + Sync>;

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

impl Mode {
    fn of(number: u32) -> Result<Self, Code> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::OfThread),
            2 => Ok(Self::Relaxed),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::OfThread => 1,
            Self::Relaxed => 2,
        }
    }
}

impl Captures {
    fn get(&mut self, number: u64) -> Result<&mut Capture, Code> {
        self.active.get_mut(&number).ok_or(Code::INVALID_HANDLE)
    }

    /// Breaks those that a call which can't be captured breaks, and says whether there were any.
    fn invalidate(&mut self, broken: impl Fn(&Capture) -> bool) -> Outcome {
        let mut any = false;
        for capture in self.active.values_mut().filter(|capture| broken(capture)) {
            capture.status = INVALIDATED;
            any = true;
        }
        if any { Err(Code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }
}

impl State {
    /// A capture ends with the stream that began it: nobody can end it any more.
    pub(crate) fn end_captures_without_stream(&mut self) {
        let Self { captures, queues, .. } = self;
        captures.active.retain(|&number, capture| {
            let stays = queues.is_stream(std::ptr::without_provenance_mut(capture.stream));
            if !stays {
                queues.leave(number);
            }
            stays
        });
    }
}

impl Driver {
    /// What a call does first that is unsafe while a stream is captured: it breaks the capture.
    pub(crate) fn may_not_be_captured(&self) -> Outcome {
        let (mine, me) = (MODE.get(), thread::current().id());
        let mut state = self.state();
        if state.captures.active.is_empty() || mine == Mode::Relaxed {
            return Ok(());
        }
        state.captures.invalidate(|capture| match capture.mode {
            Mode::Global => mine == Mode::Global || capture.thread == me,
            Mode::OfThread => capture.thread == me,
            Mode::Relaxed => false,
        })
    }

    /// What a wait for all work of a context does first.
    pub(crate) fn nothing_is_captured(&self) -> Outcome {
        self.state().captures.invalidate(|_| true)
    }

    /// Whether a stream captures; a broken capture, or the legacy stream beside a capture, is an error.
    pub(crate) fn is_capturing(&self, stream: *mut c_void) -> Result<bool, Code> {
        let mut state = self.state();
        if state.captures.active.is_empty() {
            return Ok(false);
        }
        let Some(number) = state.queues.capture_of(stream) else {
            let blocking = |capture: &Capture| state.queues.waits_for_legacy(capture.stream);
            let beside: Vec<u64> = state
                .captures
                .active
                .iter()
                .filter(|(_, capture)| stream.addr() <= 1 && blocking(capture))
                .map(|(&number, _)| number)
                .collect();
            for &number in &beside {
                state.captures.get(number)?.status = INVALIDATED;
            }
            return if beside.is_empty() { Ok(false) } else { Err(Code::STREAM_CAPTURE_IMPLICIT) };
        };
        match state.captures.get(number)?.status {
            ACTIVE => Ok(true),
            _ => Err(Code::STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// Adds a node to what a stream captures.
    pub(crate) fn record(&self, stream: *mut c_void, step: Step) -> Outcome {
        let mut state = self.state();
        let number = state.queues.capture_of(stream).ok_or(Code::INVALID_HANDLE)?;
        let graph = state.captures.get(number)?.graph;
        state.graphs.add(graph, Node::new(step)).map(drop)
    }

    /// Has a stream do something: at once, or as a node of what it captures.
    pub(crate) fn submit(
        &self,
        stream: *mut c_void,
        kind: Kind,
        work: impl Fn(&Self) -> Outcome + Send + Sync + 'static,
    ) -> Outcome {
        self.check_stream(stream)?;
        if self.is_capturing(stream)? {
            return self.record(stream, Step::Work { kind, work: Arc::new(work) });
        }
        work(self)
    }

    pub(crate) fn begin_capture(&self, stream: *mut c_void, graph: Option<usize>, mode: u32) -> Outcome {
        self.check_stream(stream)?;
        let mode = Mode::of(mode)?;
        if stream.addr() <= 1 {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut state = self.state();
        if state.queues.capture_of(stream).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let graph = match graph {
            Some(graph) => graph,
            None => state.graphs.make(Graph::default()),
        };
        state.captures.last += 1;
        let number = state.captures.last;
        let (stream, thread) = (stream.addr(), thread::current().id());
        state.captures.active.insert(number, Capture { graph, stream, mode, thread, status: ACTIVE });
        state.queues.join(stream, number);
        Ok(())
    }

    fn end_capture(&self, stream: *mut c_void) -> Result<usize, Code> {
        self.check_stream(stream)?;
        let mut state = self.state();
        let number = state.queues.capture_of(stream).ok_or(Code::ILLEGAL_STATE)?;
        let capture = state.captures.get(number)?;
        let (origin, owner, strict) = (capture.stream, capture.thread, capture.mode != Mode::Relaxed);
        if origin != stream.addr() {
            return Err(Code::STREAM_CAPTURE_UNMATCHED);
        }
        if strict && owner != thread::current().id() {
            return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        }
        let capture = state.captures.active.remove(&number).ok_or(Code::INVALID_HANDLE)?;
        state.queues.leave(number);
        if capture.status == ACTIVE {
            return Ok(capture.graph);
        }
        state.graphs.graphs.remove(&capture.graph);
        Err(Code::STREAM_CAPTURE_INVALIDATED)
    }

    /// Status, number and graph of what a stream captures.
    fn captured(&self, stream: *mut c_void) -> Result<(u32, u64, usize), Code> {
        self.check_stream(stream)?;
        let mut state = self.state();
        let Some(number) = state.queues.capture_of(stream) else { return Ok((0, 0, 0)) };
        let capture = state.captures.get(number)?;
        Ok((capture.status, number, capture.graph))
    }
}

entry_points! {
    10010 & cuStreamBeginCapture_v2_ptsz fn cuStreamBeginCapture_v2(driver, stream: *mut c_void, mode: u32) {
        driver.begin_capture(stream, None, mode)
    }

    12030 & cuStreamBeginCaptureToGraph_ptsz fn cuStreamBeginCaptureToGraph(
        driver, stream: *mut c_void, graph: *mut c_void, _dependencies: *const c_void, _edges: *const c_void, _count: usize, mode: u32,
    ) {
        driver.state().graphs.get(graph.addr())?;
        driver.begin_capture(stream, Some(graph.addr()), mode)
    }

    10000 & cuStreamEndCapture_ptsz fn cuStreamEndCapture(driver, stream: *mut c_void, out: *mut *mut c_void) {
        let graph = driver.end_capture(stream)?;
        // SAFETY: the header wants a pointer to a graph, or null.
        unsafe { put(out, handle(graph)) }
    }

    10000 & cuStreamIsCapturing_ptsz fn cuStreamIsCapturing(driver, stream: *mut c_void, out: *mut u32) {
        let (status, ..) = driver.captured(stream)?;
        // SAFETY: the header wants a pointer to a status, or null.
        unsafe { put(out, status) }
    }

    11030 & cuStreamGetCaptureInfo_v2_ptsz fn cuStreamGetCaptureInfo_v2(
        driver, stream: *mut c_void, status: *mut u32, number: *mut u64, graph: *mut *mut c_void, nodes: *mut *const c_void, count: *mut usize,
    ) {
        // SAFETY: the header wants pointers that may be written to, or null.
        unsafe { tell(driver, stream, status, number, graph, nodes, count) }
    }

    12030 & cuStreamGetCaptureInfo_v3_ptsz fn cuStreamGetCaptureInfo_v3(
        driver, stream: *mut c_void, status: *mut u32, number: *mut u64, graph: *mut *mut c_void, nodes: *mut *const c_void,
        edges: *mut *const c_void, count: *mut usize,
    ) {
        if !edges.is_null() {
            // SAFETY: as above.
            unsafe { put(edges, std::ptr::null()) }?;
        }
        // SAFETY: as above.
        unsafe { tell(driver, stream, status, number, graph, nodes, count) }
    }

    11030 & cuStreamUpdateCaptureDependencies_ptsz fn cuStreamUpdateCaptureDependencies(
        driver, stream: *mut c_void, _nodes: *mut c_void, _count: usize, _flags: u32,
    ) {
        if driver.is_capturing(stream)? { Ok(()) } else { Err(Code::ILLEGAL_STATE) }
    }

    10010 fn cuThreadExchangeStreamCaptureMode(_driver, mode: *mut u32) {
        // SAFETY: the header wants a pointer to a mode, or null.
        let wanted = unsafe { mode.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let before = MODE.replace(Mode::of(*wanted)?);
        // SAFETY: as above.
        unsafe { put(mode, before.number()) }
    }
}

/// # Safety
/// Each pointer is null or may be written to.
unsafe fn tell(
    driver: &Driver,
    stream: *mut c_void,
    status: *mut u32,
    number: *mut u64,
    graph: *mut *mut c_void,
    nodes: *mut *const c_void,
    count: *mut usize,
) -> Outcome {
    let captured = driver.captured(stream)?;
    // SAFETY: the caller's promise; a null status is refused.
    unsafe { put(status, captured.0) }?;
    if !number.is_null() {
        // SAFETY: as above.
        unsafe { put(number, captured.1) }?;
    }
    if !graph.is_null() {
        // SAFETY: as above.
        unsafe { put(graph, handle(captured.2)) }?;
    }
    // What the next node will depend on is not told: nodes run in the order in which they came.
    if !nodes.is_null() {
        // SAFETY: as above.
        unsafe { put(nodes, std::ptr::null()) }?;
    }
    if !count.is_null() {
        // SAFETY: as above.
        unsafe { put(count, 0) }?;
    }
    Ok(())
}
