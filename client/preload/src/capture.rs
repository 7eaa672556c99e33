//! Streams whose work is being recorded into a graph instead of done.
//!
//! Meanwhile the device can't be waited for (the driver would end the recording), so that nothing that needs it happens:
//! memory is not given back to the broker, and the job is not suspended.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::code::{Code, SUCCESS};
use crate::driver;
use crate::entries::real;
use crate::job;
use crate::pools;

/// Each with the context that it is of.
static STREAMS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Whether any stream of this process records.
pub(crate) fn is_under_way() -> bool {
    UNDER_WAY.load(Ordering::SeqCst) > 0
}

/// Whether this stream records, also where it was drawn in by another.
pub(crate) fn is_of(stream: *mut c_void) -> bool {
    let mut status: c_uint = 0;
    // SAFETY: the stream is the caller's; the pointer is to an int of ours.
    is_under_way() && unsafe { driver::cuStreamIsCapturing(stream, &mut status) } == SUCCESS && status != 0
}

macro_rules! begin {
    ($($name:ident => $real:ident($($argument:ident: $kind:ty),*);)*) => {$(
        pub(crate) unsafe fn $name(stream: *mut c_void $(, $argument: $kind)*) -> Code {
            let context = context_of(stream);
            // SAFETY: the caller's arguments, passed on.
            let code = unsafe { real::$real(stream $(, $argument)*) };
            if code == SUCCESS {
                change(|streams| streams.insert(stream as usize, context));
            }
            code
        }
    )*};
}

begin! {
    begin => cuStreamBeginCapture_v2(mode: c_uint);
    begin_per_thread => cuStreamBeginCapture_v2_ptsz(mode: c_uint);
    begin_v1 => cuStreamBeginCapture();
    begin_v1_per_thread => cuStreamBeginCapture_ptsz();
    begin_to_graph => cuStreamBeginCaptureToGraph(graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_uint);
    begin_to_graph_per_thread => cuStreamBeginCaptureToGraph_ptsz(graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_uint);
}

/// `cuStreamEndCapture`
pub(crate) unsafe fn end(stream: *mut c_void, graph: *mut *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    ended(stream, unsafe { real::cuStreamEndCapture(stream, graph) })
}

/// `cuStreamEndCapture` of the thread's own default stream.
pub(crate) unsafe fn end_per_thread(stream: *mut c_void, graph: *mut *mut c_void) -> Code {
    // SAFETY: the caller's arguments, passed on.
    ended(stream, unsafe { real::cuStreamEndCapture_ptsz(stream, graph) })
}

/// Whatever came of it, the stream records no more, unless it is another thread's to end.
fn ended(stream: *mut c_void, code: Code) -> Code {
    let mut status: c_uint = 0;
    // SAFETY: as in `is_of`.
    let asked = unsafe { driver::cuStreamIsCapturing(stream, &mut status) };
    if asked != SUCCESS || status == 0 {
        change(|streams| streams.remove(&(stream as usize)));
    }
    code
}

/// `cuStreamSynchronize`
pub(crate) unsafe fn wait(stream: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    pools::after_wait(unsafe { real::cuStreamSynchronize(stream) })
}

/// `cuStreamSynchronize` of the thread's own default stream.
pub(crate) unsafe fn wait_per_thread(stream: *mut c_void) -> Code {
    // SAFETY: the caller's argument, passed on.
    pools::after_wait(unsafe { real::cuStreamSynchronize_ptsz(stream) })
}

/// `cuStreamDestroy`: nobody can end its recording any more.
pub(crate) unsafe fn destroy(stream: *mut c_void) -> Code {
    change(|streams| streams.remove(&(stream as usize)));
    // SAFETY: the caller's argument, passed on.
    unsafe { real::cuStreamDestroy_v2(stream) }
}

/// A context ends, and its streams with it.
pub(crate) fn end_with(context: *mut c_void) {
    change(|streams| streams.retain(|_, of| *of != context as usize));
}

/// Zero where the driver does not say.
fn context_of(stream: *mut c_void) -> usize {
    let mut context = null_mut();
    if !job::is_of_no_matter() {
        // SAFETY: the stream is the caller's; the pointer is to a handle of ours.
        unsafe { driver::cuStreamGetCtx(stream, &mut context) };
    }
    context as usize
}

fn change<T>(change: impl FnOnce(&mut BTreeMap<usize, usize>) -> T) {
    if job::is_of_no_matter() {
        return;
    }
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut streams);
    UNDER_WAY.store(streams.len(), Ordering::SeqCst);
}
