//! The library's own thread, on which it talks to the broker.
//!
//! A training job blocks its threads for seconds and may have no runtime at all; notices, rejoining
//! and what `Drop` owes must not wait for that. So sockets and timers live here, and futures of this
//! crate can be polled from any executor.

use std::convert::Infallible;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::process;
use std::ptr;
use std::sync::mpsc as plain;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use gpulease_words::Pid;
use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc;
use tokio::time::{Sleep, Timeout};

use crate::error::Error;

/// So many segments are claimed and mapped, or unmapped, at the same time.
const BLOCKING: usize = 16;

/// How long the end of a program may be put off by a broker that does not answer; one that does takes a millisecond.
const FAREWELL: Duration = Duration::from_secs(1);

/// Says when nobody needs the thread any more: `recv` then returns `None`.
pub(crate) type Done = mpsc::Receiver<Infallible>;

/// A hold on the thread; it ends when this is dropped and its main future has returned.
#[derive(Debug)]
pub(crate) struct Engine {
    handle: Handle,
    opened_by: Pid,
    /// When the timer goes off that spares others a wake-up.
    pacer: Mutex<Option<Instant>>,
    _alive: mpsc::Sender<Infallible>,
}

impl Engine {
    /// Starts the thread with its main future, which should end soon after [`Done`] says so; and what tells that it has.
    pub(crate) fn start<F: Future<Output = ()>>(
        at_thread_start: Option<fn()>,
        main: impl FnOnce(Done) -> F + Send + 'static,
    ) -> Result<(Self, End), Error> {
        let mut builder = Builder::new_current_thread();
        builder.enable_all().max_blocking_threads(BLOCKING);
        if let Some(call) = at_thread_start {
            builder.on_thread_start(call);
        }
        let runtime = builder.build().map_err(Error::Thread)?;
        let (alive, done) = mpsc::channel(1);
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("gpulease".to_owned());
        let (running, ended) = plain::channel();
        let run = move || {
            take_no_signals();
            runtime.block_on(main(done));
            // Before the runtime goes, which waits for its blocking threads: one of them may wait for this.
            drop(running);
        };
        let thread = thread.spawn(run).map_err(Error::Thread)?;
        let end = End { ended: Mutex::new(ended), thread: thread.thread().id() };
        Ok((Self { handle, opened_by: this_process(), pacer: Mutex::default(), _alive: alive }, end))
    }

    /// Refuses to work in a forked child: the thread did not come along, and the session is the parent's.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let now = this_process();
        if now == self.opened_by { Ok(()) } else { Err(Error::Forked { opened_by: self.opened_by, now }) }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A timer of this thread, to be polled anywhere.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        let _context = self.handle.enter();
        tokio::time::sleep(duration)
    }

    /// A future with a deadline of this thread's clock, to be polled anywhere.
    pub(crate) fn within<F: Future>(&self, duration: Duration, future: F) -> Timeout<F> {
        self.pace(duration);
        let _context = self.handle.enter();
        tokio::time::timeout(duration, future)
    }

    /// Sees to it that the thread has a timer that goes off before this time from now.
    ///
    /// A deadline that is set from another thread wakes this one, which costs a quick request a third of its time,
    /// unless it sleeps towards an earlier one. Most deadlines are dropped long before they come; this timer stays.
    fn pace(&self, duration: Duration) {
        let (now, mut pacer) = (Instant::now(), self.pacer.lock().unwrap_or_else(PoisonError::into_inner));
        let serves = |at: Instant| at > now && at - now <= duration;
        if !pacer.is_some_and(serves)
            && let Some(at) = now.checked_add(duration / 2)
        {
            *pacer = Some(at);
            self.handle.spawn(async move { tokio::time::sleep_until(at.into()).await });
        }
    }
}

/// Tells when the main future of a thread has returned.
#[derive(Debug)]
pub(crate) struct End {
    ended: Mutex<plain::Receiver<Infallible>>,
    thread: ThreadId,
}

impl End {
    /// Waits for it, blocking this thread, but only for a moment.
    pub(crate) fn wait(&self) {
        if thread::current().id() != self.thread {
            // Nothing is ever sent: it returns when the other end is gone, or when the moment has passed.
            let _ = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(FAREWELL);
        }
    }
}

/// Signals are the program's: one that waits for them on a thread of its choice must not have them
/// come here, and a broker that goes away must not end a program by SIGPIPE.
fn take_no_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set that `pthread_sigmask` then reads; the mask is this
    // thread's own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

/// Something that belongs to this process alone.
///
/// In a forked child it is leaked instead of dropped: a lock inside may have been held by a thread
/// that does not exist there and would never open again, and what is mapped or owed is the parent's.
#[derive(Debug)]
pub(crate) struct Own<T> {
    value: ManuallyDrop<T>,
    opened_by: Pid,
}

/// A share in something that belongs to this process alone.
pub(crate) type Share<T> = Own<Arc<T>>;

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), opened_by: this_process() }
    }

    /// Whether this is another process than the one that made it.
    pub(crate) fn is_forked(&self) -> bool {
        self.opened_by != this_process()
    }
}

impl<T: Clone> Clone for Own<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), opened_by: self.opened_by }
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Own<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_forked() {
            // SAFETY: `value` is not used after this, as the struct itself goes away.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

pub(crate) fn this_process() -> Pid {
    Pid::new(process::id())
}
