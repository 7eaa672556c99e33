//! Streams and events. Work is done before its call returns, so there is never any to wait for.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::Instant;

use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph::Kind;
use crate::pointer::put;
use crate::pools;

const DISABLE_TIMING: u32 = 2;
const NON_BLOCKING: u32 = 1;
/// The last of the handles that mean a stream without one having been made.
const PER_THREAD: usize = 2;

/// The streams and events of this process, by the number that their handle is.
#[derive(Default)]
pub(crate) struct Queues {
    last: usize,
    made: BTreeMap<usize, Made>,
}

enum Made {
    Stream {
        flags: u32,
        priority: i32,
        context: usize,
        /// The number of the capture that it takes part in.
        capture: Option<u64>,
    },
    Event {
        timing: Timing,
        at: Option<Instant>,
        /// The number of the capture in which it was recorded last.
        capture: Option<u64>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Timing {
    On,
    Off,
}

impl Queues {
    fn make(&mut self, made: Made) -> *mut c_void {
        self.last += 1;
        // Past the three handles that the driver gives a meaning of their own.
        let handle = 0x1000 + self.last * 16;
        self.made.insert(handle, made);
        std::ptr::without_provenance_mut(handle)
    }

    pub(crate) fn is_stream(&self, handle: *mut c_void) -> bool {
        handle.addr() <= PER_THREAD || matches!(self.made.get(&handle.addr()), Some(Made::Stream { .. }))
    }

    fn event(&mut self, handle: *mut c_void) -> Result<(Timing, &mut Option<Instant>), Code> {
        match self.made.get_mut(&handle.addr()) {
            Some(Made::Event { timing, at, .. }) => Ok((*timing, at)),
            Some(Made::Stream { .. }) | None => Err(Code::INVALID_HANDLE),
        }
    }

    /// The number of the capture in which an event was recorded.
    fn captured_event(&self, handle: *mut c_void) -> Option<u64> {
        match self.made.get(&handle.addr()) {
            Some(Made::Event { capture, .. }) => *capture,
            Some(Made::Stream { .. }) | None => None,
        }
    }

    /// The number of the capture that a stream takes part in.
    pub(crate) fn capture_of(&self, stream: *mut c_void) -> Option<u64> {
        match self.made.get(&stream.addr()) {
            Some(Made::Stream { capture, .. }) => *capture,
            Some(Made::Event { .. }) | None => None,
        }
    }

    /// Whether the legacy stream waits for this one and it for the legacy stream.
    pub(crate) fn waits_for_legacy(&self, stream: usize) -> bool {
        matches!(self.made.get(&stream), Some(Made::Stream { flags, .. }) if flags & NON_BLOCKING == 0)
    }

    /// Has a stream take part in a capture.
    pub(crate) fn join(&mut self, stream: usize, number: u64) {
        let fresh = Made::Stream { flags: 0, priority: 0, context: 0, capture: None };
        if let Made::Stream { capture, .. } = self.made.entry(stream).or_insert(fresh) {
            *capture = Some(number);
        }
    }

    /// Ends a capture for all that took part.
    pub(crate) fn leave(&mut self, number: u64) {
        for made in self.made.values_mut() {
            let (Made::Stream { capture, .. } | Made::Event { capture, .. }) = made;
            if *capture == Some(number) {
                *capture = None;
            }
        }
    }

    /// Ends the streams of a context.
    pub(crate) fn forget_context(&mut self, handle: usize) {
        self.made.retain(|_, made| !matches!(made, Made::Stream { context, .. } if *context == handle));
    }
}

impl Driver {
    /// Whether a stream is one, and the current context can do anything.
    pub(crate) fn check_stream(&self, stream: *mut c_void) -> Outcome {
        self.current_device()?;
        if self.state().queues.is_stream(stream) { Ok(()) } else { Err(Code::INVALID_HANDLE) }
    }

    /// Waits for all work. There is none here; but pools give back what they need not keep.
    pub(crate) fn drain(&self) -> Outcome {
        self.nothing_is_captured()?;
        pools::settle(self)
    }
}

entry_points! {
    2000 fn cuStreamCreate(driver, out: *mut *mut c_void, flags: u32) {
        // SAFETY: the header wants a pointer to a stream, or null.
        unsafe { make_stream(driver, out, flags, 0) }
    }

    5050 fn cuStreamCreateWithPriority(driver, out: *mut *mut c_void, flags: u32, priority: i32) {
        // SAFETY: as above.
        unsafe { make_stream(driver, out, flags, priority) }
    }

    5050 fn cuCtxGetStreamPriorityRange(driver, least: *mut i32, greatest: *mut i32) {
        driver.current_device()?;
        // SAFETY: the header wants pointers to ints, or null.
        unsafe { put(least, 0).and_then(|()| put(greatest, -5)) }
    }

    4000 fn cuStreamDestroy_v2(driver, stream: *mut c_void) {
        let mut state = driver.state();
        if stream.addr() <= PER_THREAD || !state.queues.is_stream(stream) {
            return Err(Code::INVALID_HANDLE);
        }
        state.queues.made.remove(&stream.addr());
        state.end_captures_without_stream();
        Ok(())
    }

    2000 & cuStreamSynchronize_ptsz fn cuStreamSynchronize(driver, stream: *mut c_void) {
        driver.check_stream(stream)?;
        if driver.is_capturing(stream)? {
            return driver.nothing_is_captured();
        }
        pools::settle(driver)
    }

    2000 & cuStreamQuery_ptsz fn cuStreamQuery(driver, stream: *mut c_void) {
        driver.check_stream(stream)?;
        if driver.is_capturing(stream)? { driver.nothing_is_captured() } else { Ok(()) }
    }

    3020 & cuStreamWaitEvent_ptsz fn cuStreamWaitEvent(driver, stream: *mut c_void, event: *mut c_void, _flags: u32) {
        driver.check_stream(stream)?;
        let mut state = driver.state();
        state.queues.event(event)?;
        if let Some(number) = state.queues.captured_event(event) {
            state.queues.join(stream.addr(), number);
        }
        Ok(())
    }

    9020 & cuStreamGetCtx_ptsz fn cuStreamGetCtx(driver, stream: *mut c_void, out: *mut *mut c_void) {
        driver.check_stream(stream)?;
        let current = driver.current_context()?;
        let context = match driver.state().queues.made.get(&stream.addr()) {
            Some(Made::Stream { context, .. }) if *context != 0 => *context,
            Some(_) | None => current,
        };
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, std::ptr::without_provenance_mut(context)) }
    }

    5050 & cuStreamGetFlags_ptsz fn cuStreamGetFlags(driver, stream: *mut c_void, out: *mut u32) {
        driver.check_stream(stream)?;
        let known = match driver.state().queues.made.get(&stream.addr()) {
            Some(Made::Stream { flags, .. }) => *flags,
            Some(Made::Event { .. }) | None => 0,
        };
        // SAFETY: the header wants a pointer to flags, or null.
        unsafe { put(out, known) }
    }

    5050 & cuStreamGetPriority_ptsz fn cuStreamGetPriority(driver, stream: *mut c_void, out: *mut i32) {
        driver.check_stream(stream)?;
        let known = match driver.state().queues.made.get(&stream.addr()) {
            Some(Made::Stream { priority, .. }) => *priority,
            Some(Made::Event { .. }) | None => 0,
        };
        // SAFETY: the header wants a pointer to an int, or null.
        unsafe { put(out, known) }
    }

    12000 & cuStreamGetId_ptsz fn cuStreamGetId(driver, stream: *mut c_void, out: *mut u64) {
        driver.check_stream(stream)?;
        // SAFETY: the header wants a pointer to a number, or null.
        unsafe { put(out, stream.addr() as u64) }
    }

    5000 & cuStreamAddCallback_ptsz fn cuStreamAddCallback(
        driver, stream: *mut c_void, work: Option<unsafe extern "C" fn(*mut c_void, u32, *mut c_void)>, with: *mut c_void, _flags: u32,
    ) {
        driver.check_stream(stream)?;
        let work = work.ok_or(Code::INVALID_VALUE)?;
        if driver.is_capturing(stream)? {
            return driver.nothing_is_captured();
        }
        // SAFETY: the caller's function, with the argument it asked for.
        unsafe { work(stream, 0, with) };
        Ok(())
    }

    10000 & cuLaunchHostFunc_ptsz fn cuLaunchHostFunc(driver, stream: *mut c_void, work: Option<unsafe extern "C" fn(*mut c_void)>, with: *mut c_void) {
        let work = work.ok_or(Code::INVALID_VALUE)?;
        let with = with.expose_provenance();
        driver.submit(stream, Kind::Host, move |_| {
            // SAFETY: the caller's function, with the argument it asked for.
            unsafe { work(std::ptr::with_exposed_provenance_mut(with)) };
            Ok(())
        })
    }

    2000 fn cuEventCreate(driver, out: *mut *mut c_void, flags: u32) {
        driver.current_device()?;
        let timing = if flags & DISABLE_TIMING == 0 { Timing::On } else { Timing::Off };
        let event = driver.state().queues.make(Made::Event { timing, at: None, capture: None });
        // SAFETY: the header wants a pointer to an event, or null.
        unsafe { put(out, event) }
    }

    4000 fn cuEventDestroy_v2(driver, event: *mut c_void) {
        let mut state = driver.state();
        state.queues.event(event)?;
        state.queues.made.remove(&event.addr());
        Ok(())
    }

    2000 & cuEventRecord_ptsz fn cuEventRecord(driver, event: *mut c_void, stream: *mut c_void) {
        record(driver, event, stream)
    }

    11010 & cuEventRecordWithFlags_ptsz fn cuEventRecordWithFlags(driver, event: *mut c_void, stream: *mut c_void, _flags: u32) {
        record(driver, event, stream)
    }

    2000 fn cuEventSynchronize(driver, event: *mut c_void) {
        driver.state().queues.event(event)?;
        if driver.state().queues.captured_event(event).is_some() {
            return Err(Code::CAPTURED_EVENT);
        }
        pools::settle(driver)
    }

    2000 fn cuEventQuery(driver, event: *mut c_void) {
        let mut state = driver.state();
        state.queues.event(event)?;
        if state.queues.captured_event(event).is_some() { Err(Code::CAPTURED_EVENT) } else { Ok(()) }
    }

    2000 fn cuEventElapsedTime(driver, out: *mut f32, start: *mut c_void, end: *mut c_void) {
        // SAFETY: the header wants a pointer to a float, or null.
        unsafe { elapsed(driver, out, start, end) }
    }

    12080 fn cuEventElapsedTime_v2(driver, out: *mut f32, start: *mut c_void, end: *mut c_void) {
        // SAFETY: as above.
        unsafe { elapsed(driver, out, start, end) }
    }
}

/// # Safety
/// `out` is null or may be written to.
unsafe fn make_stream(driver: &Driver, out: *mut *mut c_void, flags: u32, priority: i32) -> Outcome {
    let context = driver.current_context()?;
    if flags > NON_BLOCKING {
        return Err(Code::INVALID_VALUE);
    }
    let stream = driver.state().queues.make(Made::Stream { flags, priority, context, capture: None });
    // SAFETY: the caller's promise.
    unsafe { put(out, stream) }
}

/// Records an event, or marks it as one of the capture that the stream takes part in.
fn record(driver: &Driver, event: *mut c_void, stream: *mut c_void) -> Outcome {
    driver.check_stream(stream)?;
    driver.is_capturing(stream)?;
    let mut state = driver.state();
    let joined = state.queues.capture_of(stream);
    match state.queues.made.get_mut(&event.addr()) {
        Some(Made::Event { at, capture, .. }) => {
            (*at, *capture) = (Some(Instant::now()), joined);
            Ok(())
        }
        Some(Made::Stream { .. }) | None => Err(Code::INVALID_HANDLE),
    }
}

/// # Safety
/// `out` is null or may be written to.
unsafe fn elapsed(driver: &Driver, out: *mut f32, start: *mut c_void, end: *mut c_void) -> Outcome {
    let mut state = driver.state();
    let (begun, from) = state.queues.event(start).map(|(timing, at)| (timing, *at))?;
    let (ended, to) = state.queues.event(end).map(|(timing, at)| (timing, *at))?;
    let (Timing::On, Timing::On, Some(from), Some(to)) = (begun, ended, from, to) else {
        return Err(Code::INVALID_HANDLE);
    };
    let milliseconds = to.saturating_duration_since(from).as_secs_f32() * 1e3;
    // SAFETY: the caller's promise.
    unsafe { put(out, milliseconds) }
}
