//! Threads that work on the pieces of one copy as they become ready.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// One thread sums about 10 GB/s, a link brings 55 GB/s: more than these would wait for memory.
const THREADS_MAX: usize = 8;

/// The pieces 0, 1, 2 .. of a copy, each taken once, and not before it is ready.
pub(crate) struct Pieces {
    count: usize,
    next: AtomicUsize,
    ready: Mutex<usize>,
    bell: Condvar,
}

impl Pieces {
    /// Pieces of which none is ready yet.
    pub(crate) fn coming(count: usize) -> Self {
        Self { count, next: AtomicUsize::new(0), ready: Mutex::new(0), bell: Condvar::new() }
    }

    /// Pieces that are all ready.
    pub(crate) fn all(count: usize) -> Self {
        Self { ready: Mutex::new(count), ..Self::coming(count) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// One more is ready, in order.
    pub(crate) fn arrived(&self) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        // All: who waits longest does not wait for this one in particular.
        self.bell.notify_all();
    }

    /// No more come, however many are missing; those that wait for them go home.
    pub(crate) fn over(&self) {
        self.next.store(self.count, Ordering::Relaxed);
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = self.count;
        self.bell.notify_all();
    }

    /// The next piece, once it is ready; `None` where there is none left. It ends the wait that [`Self::over`] ends.
    fn take(&self) -> Option<usize> {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        if piece >= self.count {
            return None;
        }
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = self.bell.wait_while(ready, |ready| *ready <= piece);
        drop(ready.unwrap_or_else(PoisonError::into_inner));
        Some(piece)
    }
}

/// Works on the pieces on several threads while `meanwhile` runs on this one; returns when both are done. Work stops
/// at the first piece that fails.
pub(crate) fn work<E: Send, R>(
    pieces: &Pieces,
    piece: impl Fn(usize) -> Result<(), E> + Sync,
    meanwhile: impl FnOnce() -> R,
) -> (Result<(), E>, R) {
    let failed = Mutex::new(None);
    let done = thread::scope(|scope| {
        for _ in 0..threads(pieces.count()) {
            scope.spawn(|| {
                while let Some(index) = pieces.take() {
                    if let Err(error) = piece(index) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        pieces.over();
                    }
                }
            });
        }
        // Those who wait for pieces must not wait for one who panicked.
        let over = Over(pieces);
        let done = meanwhile();
        std::mem::forget(over);
        done
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    (failed.map_or(Ok(()), Err), done)
}

/// Sends everybody home when it is dropped.
struct Over<'p>(&'p Pieces);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over();
    }
}

fn threads(pieces: usize) -> usize {
    // Half of them at most: the job has work of its own, and so has who comes in as this one leaves.
    let half = thread::available_parallelism().map_or(1, NonZero::get) / 2;
    half.clamp(1, THREADS_MAX).min(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_piece_is_worked_on_once_and_not_before_it_is_ready() {
        for count in [0, 1, 2, 3, 100] {
            let (pieces, ready) = (Pieces::coming(count), AtomicUsize::new(0));
            let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            let one = |piece: usize| {
                assert!(piece < ready.load(Ordering::SeqCst), "it is not here yet");
                done[piece].fetch_add(1, Ordering::SeqCst);
                Ok::<_, ()>(())
            };
            let (worked, ()) = work(&pieces, one, || {
                for _ in 0..count {
                    thread::yield_now();
                    ready.fetch_add(1, Ordering::SeqCst);
                    pieces.arrived();
                }
            });
            assert_eq!(worked, Ok(()));
            assert!(done.iter().all(|times| times.load(Ordering::SeqCst) == 1), "{done:?}");
        }
    }

    #[test]
    fn a_failure_ends_the_work_and_so_does_a_copy_that_stops() {
        let (worked, ()) =
            work(&Pieces::all(1000), |piece| if piece == 3 { Err(piece) } else { Ok(()) }, || ());
        assert_eq!(worked, Err(3));
        let panicked = std::panic::catch_unwind(|| {
            work(&Pieces::coming(10), |_| Ok::<_, ()>(()), || panic!("in the middle"))
        });
        assert!(panicked.is_err(), "and nobody waits for ever");
        let pieces = Pieces::coming(1000);
        let (_, ()) = work(
            &pieces,
            |_| Ok::<_, ()>(()),
            || {
                pieces.arrived();
                pieces.over();
            },
        );
    }
}
