//! Keeps work from the device while the memory is away.
//!
//! While the job is resident it holds one guard of its lease for all its threads, and every call that makes the device
//! touch memory passes here: it counts itself in, looks whether the gate is open, works, and counts itself out. What is
//! counted and what is looked at must not change places, or who closes the gate and finds nobody inside would be followed
//! in. For that the closer pays ([`barrier`]), so that whoever passes needs no more than two stores and a relaxed look.
//!
//! When the memory is wanted by others, [`Keeper`] closes the gate, waits until nobody is inside, and lets go of the
//! guard; the client library drains the device, and swaps out. Who comes to the closed gate enters the lease again, which
//! waits in line until every byte is back at its address.

mod barrier;

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gpulease_client::{Presence, Resident, blocking};

use crate::beside;
use crate::capture;
use crate::code::{Code, UNKNOWN};
use crate::contexts;
use crate::job::{self, Job};
use crate::real::is_within;
use crate::report::say;

/// Threads that count on the same line wait for each other's caches; so many lines are enough.
const LINES: usize = 128;
/// The first threads have a line each, on which nobody else counts; those that come later share the others.
const OWN: usize = 64;

/// How often a look is taken at who is still inside. Only while the memory is wanted.
const LOOK: Duration = Duration::from_micros(50);

/// After so long without a call the guard is given up, so that the lease counts as idle.
const QUIET: Duration = Duration::from_secs(5);

/// How many have come in and gone out.
#[repr(align(128))]
struct Line {
    entered: AtomicU64,
    left: AtomicU64,
}

static COUNTS: [Line; LINES] =
    [const { Line { entered: AtomicU64::new(0), left: AtomicU64::new(0) } }; LINES];
static NEXT_LINE: AtomicUsize = AtomicUsize::new(0);

/// The gate itself: zero is open, and nothing else to think of. Who finds something else takes the long way.
static GATE: AtomicU8 = AtomicU8::new(FENCED);
const CLOSED: u8 = 1;
/// The closer can't see to the order of others' counting and looking, so that each has to. So it is until the kernel was
/// asked.
const FENCED: u8 = 2;

thread_local! {
    /// This thread's line, and how deep inside it is where it shares one. Without destructors: a thread may call CUDA until
    /// its very end.
    static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Does what makes the device touch memory. An error is of memory that does not come back.
#[inline]
pub(crate) fn pass(work: impl FnOnce() -> Code) -> Code {
    match inside(work) {
        Ok(code) | Err(code) => code,
    }
}

/// As [`pass`], for work with a result of its own.
///
/// # Errors
/// Where the memory does not come back.
#[inline]
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> Result<T, Code> {
    let Some(line) = COUNTS[..OWN].get(MINE.get()) else { return inside_shared(work) };
    let before = line.entered.load(Ordering::Relaxed);
    // Who is inside already must not wait for itself.
    if line.left.load(Ordering::Relaxed) != before {
        return Ok(work());
    }
    line.entered.store(before + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if GATE.load(Ordering::Relaxed) != 0 {
        come_in(line)?;
    }
    let result = work();
    line.go_out();
    Ok(result)
}

/// The same on a line that other threads count on, too; and for a thread that has none yet.
#[cold]
#[inline(never)]
fn inside_shared<T>(work: impl FnOnce() -> T) -> Result<T, Code> {
    let mine = match MINE.get() {
        usize::MAX => {
            let turn = NEXT_LINE.fetch_add(1, Ordering::Relaxed);
            MINE.set(if turn < OWN { turn } else { OWN + turn % (LINES - OWN) });
            return inside(work);
        }
        mine => mine,
    };
    let (line, depth) = (&COUNTS[mine], DEPTH.get());
    if depth > 0 {
        return Ok(work());
    }
    line.entered.fetch_add(1, Ordering::SeqCst);
    if GATE.load(Ordering::SeqCst) != 0 {
        come_in(line)?;
    }
    DEPTH.set(depth + 1);
    let result = work();
    DEPTH.set(depth);
    line.left.fetch_add(1, Ordering::Release);
    Ok(result)
}

impl Line {
    /// For the one thread that counts here.
    fn go_out(&self) {
        self.left.store(self.left.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// At the closed gate: steps back, opens it, and comes in again. Or the gate is open and the order is to be seen to.
#[cold]
#[inline(never)]
fn come_in(line: &Line) -> Result<(), Code> {
    loop {
        // Makes this thread's counting seen before its look is taken.
        if line.entered.fetch_add(0, Ordering::SeqCst) > 0 && GATE.load(Ordering::SeqCst) & CLOSED == 0 {
            return Ok(());
        }
        // Who brings memory away or back must not wait for it.
        if is_within() {
            return Ok(());
        }
        // A forked child has nothing to wait for: the driver answers it.
        let Some(job) = job::if_joined() else { return Ok(()) };
        line.left.fetch_add(1, Ordering::SeqCst);
        job.keeper.open(&job.lease)?;
        line.entered.fetch_add(1, Ordering::SeqCst);
    }
}

/// Nobody comes in from now on; or it can't be closed, and is open as before.
fn shut() -> bool {
    let before = GATE.fetch_or(CLOSED, Ordering::SeqCst);
    let ordered = before & FENCED != 0 || barrier::of_all_threads();
    if !ordered {
        unshut();
        say("this job can't be suspended: the kernel orders its threads no more");
    }
    ordered
}

fn unshut() {
    GATE.fetch_and(!CLOSED, Ordering::SeqCst);
}

/// How many calls there were; and whether one is under way.
fn traffic() -> (u64, bool) {
    // Those who left first: who is counted in between counts as inside.
    let left: u64 = COUNTS.iter().map(|line| line.left.load(Ordering::SeqCst)).sum();
    let entered: u64 = COUNTS.iter().map(|line| line.entered.load(Ordering::SeqCst)).sum();
    (entered, entered != left)
}

/// The one guard of this process, and who opens and closes the gate.
#[derive(Default)]
pub(crate) struct Keeper {
    guard: Mutex<Guard>,
}

#[derive(Default)]
enum Guard {
    /// No memory of the lease was taken yet: nothing to guard, and the gate is open.
    #[default]
    Unneeded,
    Held {
        _guard: Resident<'static>,
    },
    /// The gate is closed.
    GivenUp,
}

/// Why a gate is to be closed, which says when it need not be any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Others want the memory, unless they think better of it.
    Wanted,
    /// Nobody has called for a while, unless somebody does.
    Quiet(u64),
    /// This thread is to wait in line, which a process must not that holds a guard.
    InLine,
}

/// How an attempt to close the gate ended.
enum Closing {
    /// It is closed, or need not be.
    Over,
    Later,
}

impl Cause {
    fn is_gone(self, lease: &blocking::Lease) -> bool {
        match self {
            Self::Wanted => lease.presence() == Presence::Here,
            Self::Quiet(then) => traffic().0 != then,
            Self::InLine => false,
        }
    }
}

impl Keeper {
    /// Sees to it that there is a guard: from the first memory of the lease on there is something to guard.
    ///
    /// # Errors
    /// Where the lease can't be entered.
    pub(crate) fn begin(&self, job: &'static Job) -> Result<(), Code> {
        let (mut guard, lease) = (self.lock(), &job.lease);
        if let Guard::Unneeded = *guard {
            beside::stay_together(job)?;
            if barrier::is_to_be_had() {
                GATE.fetch_and(!FENCED, Ordering::SeqCst);
            }
            *guard = Guard::Held { _guard: enter(lease)? };
            drop(guard);
            keep_watch(lease);
        }
        Ok(())
    }

    /// Whether there is memory to guard, or was.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(*self.lock(), Guard::Unneeded)
    }

    /// Opens a closed gate, when the memory is here.
    fn open(&self, lease: &'static blocking::Lease) -> Result<(), Code> {
        let mut guard = self.lock();
        if let Guard::GivenUp = *guard {
            *guard = Guard::Held { _guard: enter(lease)? };
            unshut();
        }
        Ok(())
    }

    /// Gives the guard up, to be called by a thread that is not inside.
    pub(crate) fn step_back(&self, lease: &'static blocking::Lease) {
        self.close(lease, Cause::InLine);
    }

    /// Closes the gate, waits for those inside, and gives the guard up; or leaves all as it is where the cause is gone.
    fn close(&self, lease: &blocking::Lease, cause: Cause) {
        while let Closing::Later = self.try_to_close(lease, cause) {
            thread::sleep(LOOK);
        }
    }

    /// What is being recorded into a graph is not done yet, and the device can't be waited for meanwhile: who records must
    /// find the gate open.
    fn try_to_close(&self, lease: &blocking::Lease, cause: Cause) -> Closing {
        let mut guard = self.lock();
        if !matches!(*guard, Guard::Held { .. }) || cause.is_gone(lease) {
            return Closing::Over;
        }
        if capture::is_under_way() {
            return Closing::Later;
        }
        if !shut() {
            return Closing::Over;
        }
        let closing = loop {
            if capture::is_under_way() {
                break Closing::Later;
            }
            if cause.is_gone(lease) {
                break Closing::Over;
            }
            if !traffic().1 {
                // The client library waits for the primary contexts alone.
                contexts::synchronize();
                *guard = Guard::GivenUp;
                return Closing::Over;
            }
            thread::sleep(LOOK);
        };
        unshut();
        closing
    }

    fn lock(&self) -> MutexGuard<'_, Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn enter(lease: &'static blocking::Lease) -> Result<Resident<'static>, Code> {
    lease.enter().map_err(|error| {
        say(&format!("the memory of lease {} is not here: {error}", lease.id()));
        UNKNOWN
    })
}

/// Watches for others who want the memory, on a thread of its own for as long as the process lives.
fn keep_watch(lease: &'static blocking::Lease) {
    let watch = move || {
        take_no_signals();
        while let Some(job) = job::if_joined() {
            let (calls, _) = traffic();
            match lease.presence_after(Presence::Here, QUIET) {
                Ok(Presence::Here) if traffic() == (calls, false) => {
                    job.keeper.close(lease, Cause::Quiet(calls));
                    // Nothing to watch for until somebody comes in, and then only after a while.
                }
                Ok(Presence::Here) => {}
                Ok(Presence::Leaving) => {
                    job.keeper.close(lease, Cause::Wanted);
                    settle(lease, Presence::Leaving);
                }
                Ok(Presence::Away) => settle(lease, Presence::Away),
                Ok(Presence::Lost) | Err(_) => return,
            }
        }
    };
    // Without the thread the job is never suspended, which is said.
    if let Err(error) = thread::Builder::new().name("gpulease-gate".into()).spawn(watch) {
        say(&format!("this job can't be suspended: no thread: {error}"));
    }
}

/// Waits until the memory is somewhere else. An error is seen at the next look.
fn settle(lease: &blocking::Lease, now: Presence) {
    let _ = lease.presence_after(now, QUIET);
}

fn take_no_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set that `pthread_sigmask` then reads; the mask is this thread's own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
