//! The broker's wishes for bytes, as calls of a Python function.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use gpulease_client::blocking::Lease;
use gpulease_client::{AskError, PressureListener, Recall};
use pyo3::prelude::*;

use crate::error::{failed, raised};
use crate::job::{self, lock};

/// The listeners in force, here rather than in their Python objects: these may be collected, and the calls go on.
static LISTENERS: Mutex<BTreeMap<u64, PressureListener>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A function that is called when bytes are wanted, until it is closed.
#[pyclass(frozen, module = "gpulease._native")]
pub(crate) struct Listener {
    number: u64,
}

#[pymethods]
impl Listener {
    /// No call begins after this one returns. Closing twice is no error.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&LISTENERS).remove(&self.number)));
    }

    /// Whether calls still come.
    #[getter]
    fn is_open(&self) -> bool {
        lock(&LISTENERS).contains_key(&self.number)
    }
}

/// The preload library, where `gpulease run` has put it before this program.
const PRELOAD: &str = "libgpulease_preload";

/// Calls `call(device, bytes, seconds)` on a thread of the library's whenever the broker wants bytes of this process's
/// lease back: on this device, at least so many, within so many seconds.
#[pyfunction]
pub(crate) fn listen(py: Python<'_>, call: Py<PyAny>) -> PyResult<Listener> {
    let lease = py.detach(joined).map_err(raised)?;
    let listener = lease.on_pressure(move |recall| tell(&call, &recall)).map_err(|error| failed(&error))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&LISTENERS).insert(number, listener);
    Ok(Listener { number })
}

/// The lease, to listen in. The broker takes one session's word that a process has drained for the whole process, and
/// this session has no memory to drain: it must not speak for the preload library's, so the lease stays where it is.
fn joined() -> Result<Arc<Lease>, AskError> {
    let lease = job::lease()?;
    if std::env::var_os("LD_PRELOAD").is_some_and(|list| list.to_string_lossy().contains(PRELOAD)) {
        lease.pin()?;
    }
    Ok(lease)
}

/// An interpreter that is ending takes no calls any more.
fn tell(call: &Py<PyAny>, recall: &Recall) {
    let left = recall.deadline.saturating_duration_since(Instant::now()).as_secs_f64();
    let words = (recall.device.get(), recall.bytes.get(), left);
    Python::try_attach(|py| {
        if let Err(error) = call.call1(py, words) {
            // As Python does with what a thread raises: it is told, and the next call comes all the same.
            error.write_unraisable(py, Some(call.bind(py)));
        }
    });
}

/// No calls any more.
pub(crate) fn end_all() {
    drop(std::mem::take(&mut *lock(&LISTENERS)));
}
