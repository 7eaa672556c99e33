//! Streams and events. Work is done before its call returns, so there is never any to wait for.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::Instant;

use crate::code::{Code, Outcome};
use crate::driver::{Driver, entry_points};
use crate::pointer::put;

const DISABLE_TIMING: u32 = 2;

/// The streams and events of this process, by the number that their handle is.
#[derive(Default)]
pub(crate) struct Queues {
    last: usize,
    made: BTreeMap<usize, Made>,
}

enum Made {
    Stream,
    Event { timing: Timing, at: Option<Instant> },
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

    fn is_stream(&self, handle: *mut c_void) -> bool {
        handle.addr() <= 2 || matches!(self.made.get(&handle.addr()), Some(Made::Stream))
    }

    fn event(&mut self, handle: *mut c_void) -> Result<(Timing, &mut Option<Instant>), Code> {
        match self.made.get_mut(&handle.addr()) {
            Some(Made::Event { timing, at }) => Ok((*timing, at)),
            Some(Made::Stream) | None => Err(Code::INVALID_HANDLE),
        }
    }
}

entry_points! {
    fn cuStreamCreate(driver, out: *mut *mut c_void, flags: u32) {
        // SAFETY: the header wants a pointer to a stream, or null.
        unsafe { make_stream(driver, out, flags) }
    }

    fn cuStreamCreateWithPriority(driver, out: *mut *mut c_void, flags: u32, _priority: i32) {
        // SAFETY: as above.
        unsafe { make_stream(driver, out, flags) }
    }

    fn cuCtxGetStreamPriorityRange(driver, least: *mut i32, greatest: *mut i32) {
        driver.current_device()?;
        // SAFETY: the header wants pointers to ints, or null.
        unsafe { put(least, 0).and_then(|()| put(greatest, 0)) }
    }

    fn cuStreamDestroy_v2(driver, stream: *mut c_void) {
        let mut state = driver.state();
        if stream.addr() <= 2 || !state.queues.is_stream(stream) {
            return Err(Code::INVALID_HANDLE);
        }
        state.queues.made.remove(&stream.addr());
        Ok(())
    }

    fn cuStreamSynchronize(driver, stream: *mut c_void) {
        check_stream(driver, stream)
    }

    fn cuStreamQuery(driver, stream: *mut c_void) {
        check_stream(driver, stream)
    }

    fn cuStreamWaitEvent(driver, stream: *mut c_void, event: *mut c_void, _flags: u32) {
        check_stream(driver, stream)?;
        driver.state().queues.event(event).map(drop)
    }

    fn cuStreamIsCapturing(driver, stream: *mut c_void, out: *mut u32) {
        check_stream(driver, stream)?;
        // SAFETY: the header wants a pointer to a status, or null.
        unsafe { put(out, 0) }
    }

    fn cuStreamBeginCapture_v2(_driver, _stream: *mut c_void, _mode: u32) {
        Err(Code::NOT_SUPPORTED)
    }

    fn cuLaunchHostFunc(driver, stream: *mut c_void, work: Option<unsafe extern "C" fn(*mut c_void)>, with: *mut c_void) {
        check_stream(driver, stream)?;
        let work = work.ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the caller's function, with the argument it asked for.
        unsafe { work(with) };
        Ok(())
    }

    fn cuEventCreate(driver, out: *mut *mut c_void, flags: u32) {
        driver.current_device()?;
        let timing = if flags & DISABLE_TIMING == 0 { Timing::On } else { Timing::Off };
        let event = driver.state().queues.make(Made::Event { timing, at: None });
        // SAFETY: the header wants a pointer to an event, or null.
        unsafe { put(out, event) }
    }

    fn cuEventDestroy_v2(driver, event: *mut c_void) {
        let mut state = driver.state();
        state.queues.event(event)?;
        state.queues.made.remove(&event.addr());
        Ok(())
    }

    fn cuEventRecord(driver, event: *mut c_void, stream: *mut c_void) {
        check_stream(driver, stream)?;
        *driver.state().queues.event(event)?.1 = Some(Instant::now());
        Ok(())
    }

    fn cuEventSynchronize(driver, event: *mut c_void) {
        driver.state().queues.event(event).map(drop)
    }

    fn cuEventQuery(driver, event: *mut c_void) {
        driver.state().queues.event(event).map(drop)
    }

    fn cuEventElapsedTime(driver, out: *mut f32, start: *mut c_void, end: *mut c_void) {
        // SAFETY: the header wants a pointer to a float, or null.
        unsafe { elapsed(driver, out, start, end) }
    }

    fn cuEventElapsedTime_v2(driver, out: *mut f32, start: *mut c_void, end: *mut c_void) {
        // SAFETY: as above.
        unsafe { elapsed(driver, out, start, end) }
    }
}

/// # Safety
/// `out` is null or may be written to.
unsafe fn make_stream(driver: &Driver, out: *mut *mut c_void, flags: u32) -> Outcome {
    driver.current_device()?;
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let stream = driver.state().queues.make(Made::Stream);
    // SAFETY: the caller's promise.
    unsafe { put(out, stream) }
}

pub(crate) fn check_stream(driver: &Driver, stream: *mut c_void) -> Outcome {
    driver.current_device()?;
    if driver.state().queues.is_stream(stream) { Ok(()) } else { Err(Code::INVALID_HANDLE) }
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
