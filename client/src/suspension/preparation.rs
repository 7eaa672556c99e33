//! Getting ready for a swap ahead of time: the segments of a lease, one after the other.

use std::collections::VecDeque;
use std::sync::Weak;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::gate::Presence;
use crate::lease_state::LeaseState;
use crate::suspension::body::{Body, Prepared};

/// A host copy is page-locked once its segment is so old: memory that is given back soon is not worth it.
const PREPARE_AFTER: Duration = Duration::from_secs(1);

/// What is to be got ready, and when.
type Waiting = VecDeque<(Instant, Weak<Body>)>;

/// Makes lanes, and page-locks each host copy once its segment has lived for a while and the copy's pages are there. Ends
/// when nobody can name segments any more.
///
/// One at a time: a driver page-locks one after the other anyway, and programs take memory in hundreds of segments.
/// So many at once kept the program's own calls waiting, and took the threads that a suspension needs.
pub(crate) async fn prepare_all(lease: Weak<LeaseState>, mut landed: mpsc::UnboundedReceiver<Weak<Body>>) {
    let mut waiting = Waiting::new();
    loop {
        let body = tokio::select! {
            body = landed.recv() => body,
            body = due(&mut waiting) => match prepare(&lease, &body).await {
                Prepared::NotYet => Some(body),
                Prepared::Ready => continue,
            },
        };
        let Some(body) = body else { return };
        waiting.push_back((Instant::now() + PREPARE_AFTER, body));
    }
}

/// The first, when it is time; never without any.
async fn due(waiting: &mut Waiting) -> Weak<Body> {
    match waiting.front() {
        Some((when, _)) => sleep_until(*when).await,
        None => std::future::pending().await,
    }
    waiting.pop_front().expect("it was there before the wait").1
}

/// Not while the memory is wanted, or away: then its way is not to be blocked, and a swap does what is missing by itself.
async fn prepare(lease: &Weak<LeaseState>, body: &Weak<Body>) -> Prepared {
    let (Some(lease), Some(body)) = (lease.upgrade(), body.upgrade()) else { return Prepared::Ready };
    if lease.gate().presence() != Presence::Here {
        return Prepared::NotYet;
    }
    let prepared = spawn_blocking(move || {
        let session = lease.session();
        body.prepare(&session.gpus, &session.lanes)
    });
    match prepared.await {
        Ok(Ok(prepared)) => prepared,
        // A swap tries again, and says so where it fails; a panic is said on standard error.
        Ok(Err(error)) => {
            tracing::debug!(%error, "gpulease: a swap could not be prepared ahead of time");
            Prepared::Ready
        }
        Err(_) => Prepared::Ready,
    }
}
