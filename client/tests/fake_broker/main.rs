//! The client against a broker that misbehaves on demand.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, reason = "a test, helpers included")]

mod asking;
mod broker;
mod connecting;
mod forking;
mod handing_over;
mod handoff;
mod residing;
mod restarting;
mod service;
mod suspending;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use gpulease_client::{Client, Options};

use crate::broker::{Broker, DEADLINE};

/// Tests share a process. Who enters a guard holds this, as guards are counted per process; so does
/// who forks, and who looks whether descriptors are closed, as a forked child has copies of them all.
static GUARDS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A client that gives a broker up soon.
async fn connect(broker: &Broker) -> Client {
    let options = Options::default().socket(broker.socket()).broker_wait(Duration::from_secs(5));
    Client::connect_with(options).await.unwrap()
}

/// What does not come in time fails the test.
async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// Polls a future until it is done or `steps` have passed, each after the last wake-up or a
/// millisecond, and drops it. Returns what it came to.
async fn dropped_after<F: Future>(steps: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..steps {
        match poll_once(future.as_mut()) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => tokio::time::sleep(Duration::from_micros(200)).await,
        }
    }
    None
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// For a future on a thread of its own.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Waits for something that rings no bell.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "never happened: {what}");
        tokio::task::yield_now().await;
    }
}
