//! Coming into a lease's memory, after a wait where it is away.

use std::fmt;
use std::time::Duration;

use crate::engine::Share;
use crate::error::Error;
use crate::gate::Presence;
use crate::lease_state::LeaseState;
use crate::resident::Resident;
use crate::waiting::Waiting;

type Ear<'l> = Box<dyn FnMut(&Waiting) + Send + 'l>;

/// Entering a lease, by [`Self::enter`]. It waits without end where nothing else is said.
#[must_use = "a lease is entered by `enter`"]
pub struct Entry<'l> {
    lease: &'l Share<LeaseState>,
    wait: Option<Duration>,
    on_waiting: Ear<'l>,
}

impl<'l> Entry<'l> {
    pub(crate) fn new(lease: &'l Share<LeaseState>) -> Self {
        Self { lease, wait: None, on_waiting: Box::new(|_| {}) }
    }

    /// Wait at most so long, from the call of [`Self::enter`] on.
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Called with each update while the lease stands in the line for its return: place, what is short, who has it.
    pub fn on_waiting(self, update: impl FnMut(&Waiting) + Send + 'l) -> Self {
        Self { on_waiting: Box::new(update), ..self }
    }

    /// Waits until the lease's memory is here, and keeps it here while the guard lives.
    ///
    /// # Cancel safety
    /// Dropping the future stops the wait. Where the broker was asked for the memory already, it comes back all the
    /// same, and may leave again.
    ///
    /// # Errors
    /// [`Error::StillAway`] where the wait is over; [`Error::Refused`] where the broker refuses, or ended the lease;
    /// [`Error::BytesLost`] where the bytes could not be brought back; [`Error::Lost`] after a restart of the broker
    /// that forgot a lease which was swapped out; [`Error::Gone`] and [`Error::Silent`] where it is swapped out and the
    /// broker went away or does not answer; [`Error::Forked`] in a forked child.
    pub async fn enter(self) -> Result<Resident<'l>, Error> {
        let Self { lease, wait, mut on_waiting } = self;
        let session = lease.session();
        session.engine.check()?;
        let mut why = String::new();
        let mut hear = |waiting: &Waiting| {
            why = format!(": {}", waiting.message);
            on_waiting(waiting);
        };
        let Some(wait) = wait else { return enter(lease, &mut hear).await };
        let entered = session.engine.within(wait, enter(lease, &mut hear)).await;
        entered.unwrap_or_else(|_| Err(Error::StillAway { lease: lease.id(), waited: wait, why }))
    }
}

async fn enter<'l>(
    lease: &'l LeaseState,
    on_waiting: &mut (dyn FnMut(&Waiting) + Send),
) -> Result<Resident<'l>, Error> {
    loop {
        if let Some(resident) = Resident::try_enter(lease) {
            return Ok(resident);
        }
        until_here(lease, on_waiting).await?;
    }
}

/// Returns when the lease's memory is here, which by then it may not be any more. Where it is away it is asked for.
pub(crate) async fn until_here(
    lease: &LeaseState,
    on_waiting: &mut (dyn FnMut(&Waiting) + Send),
) -> Result<(), Error> {
    loop {
        match lease.gate().absence() {
            (Presence::Here, _) => return Ok(()),
            (Presence::Leaving, _) => drop(lease.gate().settled().await),
            (Presence::Away, absence) => lease.bring_home(absence, on_waiting).await?,
            (Presence::Lost, _) => return Err(lease.loss()),
        }
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("lease", &self.lease.id())
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}
