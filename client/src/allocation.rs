//! Taking memory inside a lease.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use gpulease_cuda::{IpcHandle, Preload};
use gpulease_proto::handover::Ticket;
use gpulease_proto::v1::{self, allocate_reply::Outcome, allocated::Handle};
use gpulease_words::{Bytes, DeviceId, Reason, SegmentId};

use crate::ask::Wait;
use crate::asked::Asked;
use crate::charge::Charge;
use crate::device::{Device, DeviceKind};
use crate::engine::Share;
use crate::entry::until_here;
use crate::error::{AskError, Denied, Error};
use crate::handover::Claim;
use crate::keeper::Pass;
use crate::lease_state::LeaseState;
use crate::link::{Slot, Trouble};
use crate::memory::{Memory, map_chunks, open_ipc};
use crate::named::{Named, Unanswered};
use crate::resident::inside_a_guard;
use crate::segment::Segment;
use crate::session::Patience;
use crate::swap::HostCopy;

const REQUEST: &str = "an allocate";

/// The broker's word that a lease is being suspended takes less than this to come.
const CROSSING: Duration = Duration::from_millis(10);

/// After so many refusals it is no crossing: the memory that is away is another process's, and only the broker knows.
const CROSSINGS: u32 = 5;

/// An ask for a segment, put by [`Self::allocate`].
///
/// Within the lease's reserve it is never refused for want of room. Above it, up to the limit, it
/// waits for room without end where nothing else is said, but is refused at once as `would_deadlock`
/// while any thread of this process is inside a guard: the room could be this process's own. What the lease
/// has given back and the device has not proven free yet is waited for in any case.
#[derive(Debug)]
#[must_use = "an ask is put by `allocate`"]
pub struct Allocation<'l> {
    lease: &'l Share<LeaseState>,
    bytes: Bytes,
    device: Option<DeviceId>,
    wait: Wait,
    kind: v1::SegmentKind,
}

/// Whether an ask waits for what was given back before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Settle,
    /// It goes ahead, and is put again after the wait where it is refused.
    Ahead,
}

impl<'l> Allocation<'l> {
    pub(crate) fn new(lease: &'l Share<LeaseState>, bytes: Bytes) -> Self {
        Self { lease, bytes, device: None, wait: Wait::Forever, kind: v1::SegmentKind::Unspecified }
    }

    /// On this device of the lease; on its first where nothing is said.
    pub fn on(self, device: DeviceId) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Wait at most so long, from this call on.
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self { wait: Wait::at_most(wait), ..self }
    }

    /// Wait until granted or refused for good (the default). Dropping the future of
    /// [`Self::allocate`] withdraws the ask.
    pub fn wait_forever(self) -> Self {
        Self { wait: Wait::Forever, ..self }
    }

    /// Be refused at once where there is no room.
    pub fn no_wait(self) -> Self {
        Self { wait: Wait::Never, ..self }
    }

    /// By the 64-byte handle of `cuIpcGetMemHandle`, for programs that take nothing else. Such
    /// memory is never suspended, and who learns the handle can map it.
    pub fn cuda_ipc(self) -> Self {
        Self { kind: v1::SegmentKind::CudaIpc, ..self }
    }

    /// Puts the ask, waits for its answer, and maps the memory.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the ask; memory that crosses is given back.
    ///
    /// # Errors
    /// [`AskError::Denied`] with its [`Reason`]: beyond the lease, no room in time, would deadlock,
    /// and others. [`AskError::Failed`] with [`Error::HandOver`] or [`Error::Map`] where the memory
    /// could not be mapped here (it is given back then), [`Error::Lost`] after a restart of the
    /// broker, and where the broker went away or does not answer.
    pub async fn allocate(self) -> Result<Segment, AskError> {
        let device = self.device()?;
        if let Some(spare) = self.spare(device.id) {
            return Ok(spare);
        }
        self.stay_with_the_preload(&device).await?;
        let allocated = self.put_when_here(device.id).await?;
        let charge =
            Charge::new(self.lease, SegmentId::new(allocated.segment_id), Bytes::new(allocated.bytes));
        let mapping = self.lease.session().engine.handle().spawn_blocking(move || {
            // The charge is dropped with the task, and so given back, where nobody waits any more.
            match map(charge.lease(), &device, &allocated) {
                Ok((memory, copy)) => {
                    let segment = Segment::new(charge, Bytes::new(allocated.bytes), &device, memory, copy);
                    Ok(segment.with_ipc_handle(ipc_handle(&allocated)))
                }
                Err(error) => Err(Box::new((error, charge))),
            }
        });
        let died = |error| Error::Thread(std::io::Error::other(error));
        match mapping.await.map_err(died)? {
            Ok(segment) => Ok(segment),
            Err(failed) => {
                let (error, mut charge) = *failed;
                // Waited for, so that the same bytes can be asked for again at once. What fails here
                // is tried again in the background.
                let _ = charge.give_back().await;
                Err(error.into())
            }
        }
    }

    /// In a program under the preload library that has memory of the same lease, too, the broker would take the word of one
    /// for both: such a lease stays where it is.
    async fn stay_with_the_preload(&self, device: &Device) -> Result<(), AskError> {
        let preload = Preload::of_this_process().filter(|_| device.kind == DeviceKind::Cuda);
        match preload.filter(|preload| preload.has_memory_of(self.lease.id())) {
            Some(_) => self.lease.pin_once().await,
            None => Ok(()),
        }
    }

    /// A segment of this size that the program had no need of before.
    fn spare(&self, device: DeviceId) -> Option<Segment> {
        let wanted = self.bytes.round_up().filter(|_| self.kind == v1::SegmentKind::Unspecified)?;
        self.lease.spares().take(device, wanted)
    }

    fn device(&self) -> Result<Device, AskError> {
        let (session, terms) = (self.lease.session(), self.lease.terms());
        let id = self.device.or_else(|| terms.devices.first().copied());
        let id = id.filter(|id| terms.devices.contains(id));
        let known = id.and_then(|id| session.devices.iter().find(|device| device.id == id));
        known.cloned().ok_or_else(|| {
            let devices: Vec<String> = terms.devices.iter().map(DeviceId::to_string).collect();
            let asked = self.device.map_or_else(|| "any".to_owned(), |device| device.to_string());
            let message =
                format!("lease {} is on device {}, not on {asked}", self.lease.id(), devices.join(", "));
            AskError::Denied(Denied { reason: Reason::NoSuchDevice, message })
        })
    }

    /// Puts the ask when the lease's memory is here: what is swapped out comes back for it as for a guard. Who is
    /// inside a guard, or does not want to wait, hears at once that it is away.
    async fn put_when_here(&self, device: DeviceId) -> Result<v1::Allocated, AskError> {
        let mut refused = 0;
        loop {
            if self.may_wait() {
                self.within(until_here(self.lease, &mut |_| {})).await?;
            }
            match self.put(device).await {
                Err(AskError::Denied(denied)) if denied.reason == Reason::Suspended && self.may_wait() => {
                    refused += 1;
                }
                other => return other,
            }
            if refused < CROSSINGS {
                // The word of it crosses the ask.
                self.lease.session().engine.sleep(CROSSING).await;
            } else {
                self.within(self.lease.bring_others_home()).await?;
            }
        }
    }

    fn may_wait(&self) -> bool {
        let over = self.wait.end().is_some_and(|end| end <= Instant::now());
        !over && !inside_a_guard()
    }

    /// Waits for the lease's memory as long as the ask may wait.
    async fn within(&self, home: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let Some(end) = self.wait.end() else { return home.await };
        let (left, lease) = (end.saturating_duration_since(Instant::now()), self.lease.id());
        let home = self.lease.session().engine.within(left, home).await;
        home.unwrap_or_else(|_| Err(Error::StillAway { lease, waited: left, why: String::new() }))
    }

    /// Puts the ask, and again where the connection broke under it. A second asking could take memory
    /// twice, so that the first is withdrawn before.
    async fn put(&self, device: DeviceId) -> Result<v1::Allocated, AskError> {
        let session = self.lease.session();
        let mut course = self.course(device);
        if course == Course::Settle {
            session.settle().await?;
        }
        let mut patience = Patience::new(session);
        loop {
            let pass = session.pass_for(self.lease.key()).await?;
            let mut ask = Named::new(session);
            let request = self.request(&pass, device, ask.name);
            ask.put(pass.epoch, self.call(request));
            match self.answer(ask.pending()).await {
                Ok(allocated) => {
                    ask.settle();
                    return Ok(allocated);
                }
                Err(Unanswered::Denied(denied)) => {
                    ask.settle();
                    if course == Course::Settle {
                        return Err(AskError::refused(denied));
                    }
                    // Other members have the rest of the reserve.
                    course = Course::Settle;
                    session.settle().await?;
                }
                Err(Unanswered::Trouble(Trouble::Failed(error))) => return Err(error.into()),
                Err(Unanswered::Trouble(broken)) => {
                    ask.cut_off();
                    patience.after(broken).await?;
                    ask.withdraw().await?;
                }
            }
        }
    }

    /// What this process gave back a moment ago is told in the background, which takes as long as an ask. So an ask waits for
    /// it only where it may need just that: where it would not fit the reserve beside what is held and owed.
    fn course(&self, device: DeviceId) -> Course {
        let session = self.lease.session();
        if session.debts.are_settled() {
            return Course::Settle;
        }
        let here = self.lease.bodies().into_iter().filter(|body| body.device().id == device);
        let held: Bytes = here.map(|body| body.bytes()).sum();
        let sum = session.debts.memory().and_then(|owed| owed.checked_add(held)?.checked_add(self.bytes));
        let fits = sum.is_some_and(|sum| sum <= self.lease.sizes().0);
        if fits { Course::Ahead } else { Course::Settle }
    }

    fn request(&self, pass: &Pass, device: DeviceId, ask_name: u64) -> v1::AllocateRequest {
        v1::AllocateRequest {
            session: Some(pass.reference.clone()),
            lease_id: self.lease.id().get(),
            device_index: device.get(),
            bytes: self.bytes.get(),
            kind: self.kind.into(),
            wait: Some(self.wait.policy()),
            inside_guard: inside_a_guard(),
            ask_name,
        }
    }

    fn call(&self, request: v1::AllocateRequest) -> Asked {
        let session = self.lease.session();
        // What may wait goes where it can't hold up a release.
        let slot = (self.wait != Wait::Never).then(|| session.link.slot());
        let jobs = slot.as_ref().map_or_else(|| session.link.jobs(), Slot::jobs);
        Asked::new(self.lease.key(), jobs, slot, request)
    }

    async fn answer(&self, asked: &mut Asked) -> Result<v1::Allocated, Unanswered> {
        let session = self.lease.session();
        let answer = match self.wait.answer_within(session.wait()) {
            None => asked.outcome().await,
            Some(within) => {
                let silent = |_| Unanswered::failed(session.silent(REQUEST));
                session.engine.within(within, asked.outcome()).await.map_err(silent)?
            }
        };
        match answer.map_err(|status| Unanswered::from_status(REQUEST, &status))? {
            Some(Outcome::Allocated(allocated)) => Ok(allocated),
            Some(Outcome::Denied(denied)) => Err(Unanswered::from_denied(denied)),
            None => Err(Unanswered::failed(Error::Protocol("an allocate without an outcome".to_owned()))),
        }
    }
}

fn ipc_handle(allocated: &v1::Allocated) -> Option<IpcHandle> {
    match &allocated.handle {
        Some(Handle::CudaIpcHandle(handle)) => handle.as_ref().try_into().ok().map(IpcHandle::from_bytes),
        Some(Handle::Ticket(_)) | None => None,
    }
}

/// A segment's memory, and where its bytes go in a suspension.
type Mapped = (Memory, Option<HostCopy>);

/// Claims and maps; blocks.
fn map(lease: &LeaseState, device: &Device, allocated: &v1::Allocated) -> Result<Mapped, Error> {
    let (session, bytes) = (lease.session(), Bytes::new(allocated.bytes));
    match &allocated.handle {
        Some(Handle::Ticket(ticket)) => {
            let ticket = Ticket::try_from(ticket.as_ref());
            let ticket = ticket.map_err(|error| Error::Protocol(format!("a ticket of no use: {error}")))?;
            let place = session.link.place().handoff();
            let received = Claim::new(&place, &session.spare, ticket).receive(bytes)?;
            let memory = map_chunks(&session.gpus, device, &received.chunks)?;
            let copy = received.host_copy.as_ref().map(|copy| HostCopy::map(copy.as_fd(), bytes));
            let copy = copy.transpose()?;
            received.acknowledge();
            Ok((memory, copy))
        }
        Some(Handle::CudaIpcHandle(handle)) => Ok((open_ipc(&session.gpus, device, handle, bytes)?, None)),
        None => Err(Error::Protocol("a segment without a handle".to_owned())),
    }
}
