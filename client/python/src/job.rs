//! This process's part in the lease that it was started in, joined at the first need.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpulease_client::AskError;
use gpulease_client::blocking::{Client, Lease};
use pyo3::prelude::*;

use crate::{pool, pressure, state};

/// The lease, joined by the process of this pid; a forked child joins anew.
struct Joined {
    pid: u32,
    lease: Arc<Lease>,
}

static JOINED: Mutex<Option<Joined>> = Mutex::new(None);

/// The lease of this process.
///
/// # Errors
/// Where the process was started in none, the broker can't be reached, or does not know the lease.
pub(crate) fn lease() -> Result<Arc<Lease>, AskError> {
    let mut joined = lock(&JOINED);
    let pid = process::id();
    if let Some(joined) = joined.as_ref().filter(|joined| joined.pid == pid) {
        return Ok(Arc::clone(&joined.lease));
    }
    let lease = Arc::new(Client::join_from_env()?);
    *joined = Some(Joined { pid, lease: Arc::clone(&lease) });
    Ok(lease)
}

/// Says good-bye to the broker at the end of the program, so that it does not look like a crash. What the pool has
/// mapped stays until the process ends.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) {
    // A callback under way may want the interpreter before it ends.
    py.detach(|| {
        pressure::end_all();
        pool::close();
        state::forget();
        drop(lock(&JOINED).take());
    });
}

/// A lock whose holder panicked is as good as any: what it guards is replaced as a whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
