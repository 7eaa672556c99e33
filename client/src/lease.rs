//! A right to device memory.

use std::ffi::OsString;
use std::time::Duration;

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, LeaseId};

use crate::allocation::Allocation;
use crate::blocking::park::block_on;
use crate::client::Client;
use crate::duty::Duty;
use crate::engine::Share;
use crate::entry::{Entry, until_here};
use crate::error::{AskError, Error};
use crate::gate::Presence;
use crate::lease_state::{LeaseState, Terms};
use crate::leases::Epoch;
use crate::place::SOCKET_VARIABLE;
use crate::presence::Presence as Handle;
use crate::pressure::{Pressure, PressureListener, Recall};
use crate::resident::Resident;
use crate::segment::Segment;
use crate::session::Jobs;
use crate::token::Token;

pub(crate) const LEASE_VARIABLE: &str = "GPULEASE_LEASE";
pub(crate) const TOKEN_VARIABLE: &str = "GPULEASE_TOKEN";
const MEMORY_VARIABLE: &str = "GPULEASE_MEMORY_BYTES";

/// A right to device memory: so many bytes set aside, and growth up to a limit.
///
/// Dropping the lease of the process that acquired it gives it back, in the background; a member's
/// handle just goes. Segments outlive it: what is mapped stays mapped, and counts, until they are
/// dropped.
#[derive(Debug)]
pub struct Lease {
    state: Share<LeaseState>,
    end: End,
}

/// What dropping a handle means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    GiveBack,
    Nothing,
}

/// Whether a lease can still grow. What is mapped keeps working in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can.
    Active,
    /// The broker ended it, for this reason.
    Ended {
        /// The word of the reason, as `gpulease events` shows it.
        reason: String,
        /// What happened.
        message: String,
    },
    /// The broker was restarted and does not know it.
    Lost,
}

impl Lease {
    /// Its id, as `gpulease status` shows it.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.state.id()
    }

    /// The name it was asked for with; empty where the broker chose one.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.terms().name
    }

    /// The devices it is on.
    #[must_use]
    pub fn devices(&self) -> &[DeviceId] {
        &self.state.terms().devices
    }

    /// What is set aside for it on each device: allocations within it are never refused for want of room.
    #[must_use]
    pub fn reserve(&self) -> Bytes {
        self.state.sizes().0
    }

    /// How far it may grow on each device.
    #[must_use]
    pub fn limit(&self) -> Bytes {
        self.state.sizes().1
    }

    /// How long it waited for its grant; zero for a member.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.state.terms().waited
    }

    /// Whether it can still grow, as far as is known here.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.state.standing()
    }

    /// The session that it belongs to.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::from(self.state.session().clone())
    }

    /// The secret with which other processes join it. Who knows it and has the same uid is a member.
    #[must_use]
    pub fn token(&self) -> Token {
        self.state.terms().token
    }

    /// What a child needs to join, for [`std::process::Command::envs`]: `GPULEASE_SOCKET`,
    /// `GPULEASE_LEASE`, `GPULEASE_TOKEN` (a secret) and `GPULEASE_MEMORY_BYTES` (the limit on each device).
    #[must_use]
    pub fn env(&self) -> [(&'static str, OsString); 4] {
        let socket = &self.state.session().link.place().socket;
        let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.clone());
        [
            (SOCKET_VARIABLE, socket.into()),
            (LEASE_VARIABLE, self.id().get().to_string().into()),
            (TOKEN_VARIABLE, self.token().to_text().into()),
            (MEMORY_VARIABLE, self.limit().get().to_string().into()),
        ]
    }

    /// Takes memory on its first device, and maps it; see [`Self::allocation`] for what waits and how.
    ///
    /// # Errors
    /// As [`Allocation::allocate`].
    pub async fn allocate(&self, bytes: Bytes) -> Result<Segment, AskError> {
        self.allocation(bytes).allocate().await
    }

    /// Takes memory on this device of the lease, and maps it.
    ///
    /// # Errors
    /// As [`Allocation::allocate`].
    pub async fn allocate_on(&self, device: DeviceId, bytes: Bytes) -> Result<Segment, AskError> {
        self.allocation(bytes).on(device).allocate().await
    }

    /// An ask for memory, rounded up to 2 MiB, that can say where, how long to wait, and of what kind.
    pub fn allocation(&self, bytes: Bytes) -> Allocation<'_> {
        Allocation::new(&self.state, bytes)
    }

    /// Waits until the lease's memory is here, and keeps it here while the guard lives. Where it was swapped out, the
    /// broker is asked for room; [`Self::entry`] can say how long to wait, and hears why.
    ///
    /// A suspension waits for all guards of the lease in this process: keep one for a step, and none over a wait for
    /// something else, another lease's `enter` included.
    ///
    /// # Errors
    /// As [`Entry::enter`], but for the wait that is over.
    pub async fn enter(&self) -> Result<Resident<'_>, Error> {
        self.entry().enter().await
    }

    /// Entering with a deadline, or with an ear for what it waits for.
    pub fn entry(&self) -> Entry<'_> {
        Entry::new(&self.state)
    }

    /// A guard, or `None` where it would have to wait. A lease that is swapped out does not come back by this.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child; where the memory is lost, as [`Entry::enter`].
    pub fn try_enter(&self) -> Result<Option<Resident<'_>>, Error> {
        self.state.session().engine.check()?;
        let entered = Resident::try_enter(&self.state);
        match self.state.gate().presence() {
            Presence::Lost if entered.is_none() => Err(self.state.loss()),
            Presence::Here | Presence::Leaving | Presence::Away | Presence::Lost => Ok(entered),
        }
    }

    /// Where its memory is. It may be elsewhere by the time this returns, but while a guard lives.
    #[must_use]
    pub fn presence(&self) -> Presence {
        self.state.gate().presence()
    }

    /// Where its memory is once that is not `now` any more, or after this time: for who keeps a guard over many steps and
    /// lets go when others want the memory ([`Presence::Leaving`]).
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub async fn presence_after(&self, now: Presence, within: Duration) -> Result<Presence, Error> {
        let engine = &self.state.session().engine;
        engine.check()?;
        let changed = engine.within(within, self.state.gate().changed_from(now)).await;
        Ok(changed.unwrap_or_else(|_| self.presence()))
    }

    /// Waits until the lease is not suspended. [`Self::enter`] does so too where this process has memory of it; where it
    /// has none yet, nobody tells it of a suspension, and only the broker knows.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub async fn come_home(&self) -> Result<(), Error> {
        self.state.session().engine.check()?;
        until_here(&self.state, &mut |_| {}).await?;
        self.state.bring_others_home().await
    }

    /// Gives up what the library has in the device's primary context, for a program that is about to reset that context
    /// (`cuDevicePrimaryCtxReset`). Segments on the device have to be dropped before; the next one makes all anew.
    pub fn forget_context(&self, device: DeviceId) {
        let session = self.state.session();
        if !self.state.is_forked() {
            session.lanes.forget(device);
            session.gpus.forget(device);
        }
    }

    /// Never to be suspended from now on, since something that knows of no suspension uses its memory.
    ///
    /// # Errors
    /// Denied as `pinned_full` where the device has no more room for what can't move; it is as it was then.
    pub async fn pin(&self) -> Result<(), AskError> {
        self.state.pin().await
    }

    /// As [`Self::enter`], blocking this thread.
    ///
    /// # Errors
    /// As [`Self::enter`].
    pub fn enter_blocking(&self) -> Result<Resident<'_>, Error> {
        block_on(self.enter())
    }

    /// Changes what is set aside for it, and how far it may grow, on each device.
    ///
    /// # Errors
    /// Denied where there is no room now, or beyond a budget; the lease is then as it was.
    pub async fn resize(&self, reserve: Bytes, limit: Bytes) -> Result<(), AskError> {
        let (session, key) = (self.state.session(), self.state.key());
        session.settle().await?;
        let call = |mut jobs: Jobs, session| async move {
            let (reserve_bytes, limit_bytes) = (reserve.get(), limit.get());
            let request = v1::ResizeRequest {
                session: Some(session),
                lease_id: key.id.get(),
                reserve_bytes,
                limit_bytes,
            };
            jobs.resize(request).await
        };
        match session.request("a resize", Some(key), call).await?.outcome {
            Some(v1::resize_reply::Outcome::Lease(lease)) => {
                self.state.resized(Bytes::new(lease.reserve_bytes), Bytes::new(lease.limit_bytes));
                Ok(())
            }
            Some(v1::resize_reply::Outcome::Denied(denied)) => Err(AskError::refused(denied)),
            None => Err(Error::Protocol("a resize without an outcome".to_owned()).into()),
        }
    }

    /// Gives the lease back, and returns how much of it is still mapped and drains as its holders
    /// unmap or die. A process that joined it can do that too, where the broker lets it.
    ///
    /// # Errors
    /// When the broker refuses or cannot be reached; it is then given back in the background as far
    /// as dropping does.
    pub async fn release(mut self) -> Result<Bytes, AskError> {
        let draining = self.state.session().release(self.state.key()).await?;
        self.end = End::Nothing;
        Ok(draining)
    }

    /// The broker's wishes for bytes of this lease, from now on. What the library knows to be free
    /// ([`Segment::spare`]) it has given back by itself by then.
    #[must_use]
    pub fn pressure(&self) -> Pressure {
        Pressure::new(self.state.notices())
    }

    /// Calls this at each such wish, on a thread of the library's, until the listener is dropped. It may free segments.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    pub fn on_pressure(
        &self,
        call: impl Fn(Recall) + Send + Sync + 'static,
    ) -> Result<PressureListener, Error> {
        let engine = &self.state.session().engine;
        engine.check()?;
        let _context = engine.handle().enter();
        Ok(PressureListener::start(self.pressure(), call))
    }

    pub(crate) fn granted(session: &Share<Handle>, epoch: Epoch, terms: Terms) -> Self {
        Self::of(LeaseState::admit(session, epoch, terms), End::GiveBack)
    }

    pub(crate) fn joined(session: &Share<Handle>, epoch: Epoch, terms: Terms) -> Self {
        Self::of(LeaseState::admit(session, epoch, terms), End::Nothing)
    }

    fn of(state: Share<LeaseState>, end: End) -> Self {
        state.spares().handle_made();
        Self { state, end }
    }

    pub(crate) fn state(&self) -> &Share<LeaseState> {
        &self.state
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.state.is_forked() {
            return;
        }
        self.state.spares().handle_gone();
        if self.end == End::GiveBack {
            Duty::Release(self.state.key()).discharge(self.state.session());
        }
    }
}
