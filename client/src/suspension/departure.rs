//! Leaving: the guards and the devices first, then one segment after the other.

use std::sync::Arc;
use std::time::Duration;

use gpulease_words::DurationText;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::lease_state::LeaseState;
use crate::suspension::body::{Body, Moved};
use crate::suspension::report::News;

/// After a suspension's deadline the broker says at once that it is cancelled. Where that word is lost the gate opens
/// by itself so much later.
const CANCELLED_WITHIN: Duration = Duration::from_secs(2);

/// Between two looks of a session without memory of the lease, for as long as a suspension begins.
const LOOK: Duration = Duration::from_millis(20);

/// Waits for the guards and the devices, says so, and waits for the word that follows.
pub(crate) async fn drain(lease: Arc<LeaseState>, within: Duration) {
    let deadline = Instant::now() + within;
    let drained = async {
        lease.gate().drained().await;
        memory_is_here(&lease).await;
        finish_work(&lease).await
    };
    let why = match timeout_at(deadline, drained).await {
        Ok(Ok(())) => match lease.session().report(lease.key(), &News::Drained).await {
            Ok(()) => {
                sleep_until(deadline + CANCELLED_WITHIN).await;
                "the broker said nothing more of it".to_owned()
            }
            Err(error) => error.to_string(),
        },
        Ok(Err(why)) => {
            lease.session().report_surely(lease.key(), &News::SwapFailed(why.clone())).await;
            why
        }
        Err(_) => format!("its guards or its device were not done within {}", DurationText(within)),
    };
    tracing::info!(lease = %lease.id(), why, "gpulease: a suspension came to nothing");
    lease.gate().reopen();
}

/// The broker takes a session's word for its whole process. Of several sessions in one process it is given by the one
/// that has the memory: waits until that is this one, for one that comes late or never.
async fn memory_is_here(lease: &Arc<LeaseState>) {
    while lease.bodies().is_empty() {
        sleep(LOOK).await;
    }
}

/// Waits until the devices have done all that was asked of them; off the library's thread.
async fn finish_work(lease: &Arc<LeaseState>) -> Result<(), String> {
    let bodies = lease.bodies();
    let finished = spawn_blocking(move || bodies.iter().try_for_each(|body| body.finish_work()));
    match finished.await {
        Ok(finished) => finished.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Takes one segment out, off the library's thread, and says so; or why it could not.
pub(crate) async fn leave(lease: Arc<LeaseState>, body: Arc<Body>) -> Result<(), String> {
    let (at_work, segment) = (Arc::clone(&lease), body.id());
    let moved = spawn_blocking(move || {
        let session = at_work.session();
        // SAFETY: the gate is away, so that no guard lives or comes, and safe code reaches the memory only under one;
        // the devices were waited for after the last guard.
        unsafe { body.leave(&session.gpus, &session.lanes) }
    });
    let moved = moved.await.map_err(|error| error.to_string())?;
    match moved.map_err(|error| error.to_string())? {
        Moved::There => lease.session().report_surely(lease.key(), &News::SwappedOut(segment)).await,
        // The segment was dropped, of which the broker is told by itself.
        Moved::Closed => {}
    }
    Ok(())
}

/// Why a segment did not leave.
pub(crate) fn left(gone: Option<Result<Result<(), String>, JoinError>>) -> Option<String> {
    match gone {
        Some(Ok(left)) => left.err(),
        Some(Err(error)) => Some(error.to_string()),
        None => None,
    }
}
