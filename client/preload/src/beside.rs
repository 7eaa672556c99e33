//! Programs that use the client library themselves, in a process of ours: what it asks of us.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::charged;
use crate::code::Code;
use crate::job::{self, Job};
use crate::real;

/// The lease of which the program has memory by its own library; zero, which is no lease's number, for none.
static BESIDE: AtomicU64 = AtomicU64::new(0);

/// The program's library is about to have memory of a lease; whether this one has memory of it, so that it has to stay.
#[unsafe(no_mangle)]
extern "C" fn gpulease_preload_beside(lease: u64) -> c_int {
    BESIDE.store(lease, Ordering::SeqCst);
    let ours = job::if_joined().is_some_and(|job| job.lease.id().get() == lease && job.keeper.has_begun());
    c_int::from(ours)
}

/// This thread moves memory of a lease away or back from now on, or does not any more; what was so before.
#[unsafe(no_mangle)]
extern "C" fn gpulease_preload_moves(now: c_int) -> c_int {
    c_int::from(real::set_within(now != 0))
}

/// Memory of the lease is about to be this library's; where the program has some by its own library, the lease stays where it
/// is: the broker takes one's word for both.
///
/// # Errors
/// Where it can't be pinned.
pub(crate) fn stay_together(job: &'static Job) -> Result<(), Code> {
    if BESIDE.load(Ordering::SeqCst) != job.lease.id().get() {
        return Ok(());
    }
    charged::pin(job, "memory beside that of the program's own gpulease library")
}
