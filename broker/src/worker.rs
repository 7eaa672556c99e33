//! A thread that ends when its handle is dropped, and that is not waited for without end.
//!
//! It may be in the driver, and a driver may hang. Whoever stops the broker is not to wait for that:
//! the thread ends with the process.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A call into a driver that works takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// The running thread.
#[derive(Debug)]
pub(crate) struct Worker {
    thread: JoinHandle<()>,
    /// Its other end goes when the work is done.
    ended: Receiver<Infallible>,
}

impl Worker {
    /// Starts one.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub(crate) fn start(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (running, ended) = channel();
        let run = move || {
            work();
            drop(running);
        };
        let thread = Builder::new().name(name).spawn(run)?;
        Ok(Self { thread, ended })
    }

    /// Waits until it has ended, which it was told to; but not for one that hangs.
    pub(crate) fn end(self) {
        match self.ended.recv_timeout(PATIENCE) {
            Ok(never) => match never {},
            // A panic of its was said on standard error.
            Err(RecvTimeoutError::Disconnected) => drop(self.thread.join()),
            Err(RecvTimeoutError::Timeout) => {
                let thread = self.thread.thread().name().unwrap_or_default();
                tracing::warn!(
                    thread,
                    "a thread hangs, in its driver perhaps, and is left to the end of the process"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn one_that_ends_is_waited_for_and_one_that_hangs_is_left() {
        let (tell, told) = channel();
        let quick = Worker::start("quick".into(), move || tell.send(()).expect("the test listens"))
            .expect("a thread");
        quick.end();
        told.try_recv().expect("its work was done");
        let (hold, held) = channel::<()>();
        let hangs = Worker::start("hangs".into(), move || assert!(held.recv().is_err(), "nobody sends"))
            .expect("a thread");
        let before = Instant::now();
        hangs.end();
        assert!(before.elapsed() >= PATIENCE);
        drop(hold);
    }
}
