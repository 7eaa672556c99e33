//! The service for training jobs.

use gpulease_arbiter::{Denial, Place};
use gpulease_proto::v1;
use gpulease_proto::v1::jobs_server::Jobs;
use gpulease_words::{Bytes, LeaseId, Pid, SegmentId};
use tonic::{Request, Response, Status};

use super::decode::{news, rounded, segment_wish, session, terms};
use super::encode::{denied, lease_info};
use super::streams::{AskStream, SessionStream};
use super::{Services, caller, status};
use crate::driver::{Access, Guest, LeaseTerms, Refusal, Segment, Standing};
use crate::kernel::{self, command_name};
use crate::liveness::{Caller, Unmet};
use crate::text;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Jobs for Services {
    type OpenStream = SessionStream;
    type AcquireStream = AskStream<v1::AcquireUpdate>;
    type ResumeStream = AskStream<v1::ResumeUpdate>;

    async fn open(&self, request: Request<v1::OpenRequest>) -> Answer<SessionStream> {
        let caller = caller(&request)?;
        let v1::OpenRequest { program, rejoin, .. } = request.into_inner();
        let program = match text::shown(&program) {
            blank if blank.trim().is_empty() => program_of(caller.process.pid()),
            program => program,
        };
        let rejoin = rejoin
            .map(|reference| session(Some(reference)))
            .transpose()
            .map_err(|d| self.refused(d.into()))?;
        self.names.prepare([caller.uid]).await;
        let opened =
            self.desk.open(&caller, program, rejoin).await.map_err(|refusal| self.refused(refusal))?;
        Ok(Response::new(SessionStream::new(opened, &self.about)))
    }

    async fn close(&self, request: Request<v1::CloseRequest>) -> Answer<v1::CloseReply> {
        let caller = caller(&request)?;
        let shown = session(request.into_inner().session).map_err(|denial| self.refused(denial.into()))?;
        self.desk.close(&caller, shown).await.map_err(|refusal| self.refused(refusal))?;
        Ok(Response::new(v1::CloseReply {}))
    }

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Answer<Self::AcquireStream> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        Ok(Response::new(
            self.try_acquire(&caller, request)
                .await
                .unwrap_or_else(|refusal| AskStream::refused(denied(&refusal, &self.names))),
        ))
    }

    async fn withdraw(&self, request: Request<v1::WithdrawRequest>) -> Answer<v1::WithdrawReply> {
        let caller = caller(&request)?;
        let v1::WithdrawRequest { session: reference, ask_name } = request.into_inner();
        let shown = session(reference).map_err(|denial| self.refused(denial.into()))?;
        self.desk.withdraw(&caller, shown, ask_name).await.map_err(|refusal| self.refused(refusal))?;
        Ok(Response::new(v1::WithdrawReply {}))
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Answer<v1::JoinReply> {
        use v1::join_reply::Outcome;
        let caller = caller(&request)?;
        let outcome = match self.try_join(&caller, request.into_inner()).await {
            Ok(terms) => Outcome::Lease(lease_info(terms)),
            Err(refusal) => Outcome::Denied(denied(&refusal, &self.names)),
        };
        Ok(Response::new(v1::JoinReply { outcome: Some(outcome) }))
    }

    async fn admit(&self, request: Request<v1::AdmitRequest>) -> Answer<v1::AdmitReply> {
        let caller = caller(&request)?;
        let refusal = self.try_admit(&caller, request.into_inner()).await.err();
        Ok(Response::new(v1::AdmitReply { denied: refusal.map(|refusal| denied(&refusal, &self.names)) }))
    }

    async fn resize(&self, request: Request<v1::ResizeRequest>) -> Answer<v1::ResizeReply> {
        use v1::resize_reply::Outcome;
        let caller = caller(&request)?;
        let outcome = match self.try_resize(&caller, request.into_inner()).await {
            Ok(terms) => Outcome::Lease(lease_info(terms)),
            Err(refusal) => Outcome::Denied(denied(&refusal, &self.names)),
        };
        Ok(Response::new(v1::ResizeReply { outcome: Some(outcome) }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Answer<v1::ReleaseReply> {
        let caller = caller(&request)?;
        Ok(Response::new(match self.try_release(&caller, request.into_inner()).await {
            Ok(draining) => v1::ReleaseReply { denied: None, draining_bytes: draining.get() },
            Err(refusal) => {
                v1::ReleaseReply { denied: Some(denied(&refusal, &self.names)), draining_bytes: 0 }
            }
        }))
    }

    async fn allocate(&self, request: Request<v1::AllocateRequest>) -> Answer<v1::AllocateReply> {
        use v1::allocate_reply::Outcome;
        let caller = caller(&request)?;
        let outcome = match self.try_allocate(&caller, request.into_inner()).await {
            Ok(segment) => Outcome::Allocated(allocated(&segment)),
            Err(refusal) => Outcome::Denied(denied(&refusal, &self.names)),
        };
        Ok(Response::new(v1::AllocateReply { outcome: Some(outcome) }))
    }

    async fn free(&self, request: Request<v1::FreeRequest>) -> Answer<v1::FreeReply> {
        let caller = caller(&request)?;
        let refusal = self.try_free(&caller, request.into_inner()).await.err();
        Ok(Response::new(v1::FreeReply { denied: refusal.map(|refusal| denied(&refusal, &self.names)) }))
    }

    async fn report(&self, request: Request<v1::ReportRequest>) -> Answer<v1::ReportReply> {
        let caller = caller(&request)?;
        let refusal = self.try_report(&caller, request.into_inner()).await.err();
        Ok(Response::new(v1::ReportReply { denied: refusal.map(|refusal| denied(&refusal, &self.names)) }))
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Answer<Self::ResumeStream> {
        let caller = caller(&request)?;
        Ok(Response::new(
            self.try_resume(&caller, request.into_inner())
                .await
                .unwrap_or_else(|refusal| AskStream::refused(denied(&refusal, &self.names))),
        ))
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Answer<v1::PinReply> {
        let caller = caller(&request)?;
        let refusal = self.try_pin(&caller, request.into_inner()).await.err();
        Ok(Response::new(v1::PinReply { denied: refusal.map(|refusal| denied(&refusal, &self.names)) }))
    }
}

impl Services {
    async fn try_acquire(
        &self,
        caller: &Caller,
        request: v1::AcquireRequest,
    ) -> Result<AskStream<v1::AcquireUpdate>, Refusal> {
        let shown = session(request.session.clone())?;
        let ask_name = request.ask_name;
        let ask = self.desk.acquire(caller, shown, ask_name, terms(request)?).await?;
        Ok(AskStream::follow(ask, self).await)
    }

    async fn try_join(&self, caller: &Caller, request: v1::JoinRequest) -> Result<LeaseTerms, Refusal> {
        let (shown, lease) = (session(request.session)?, LeaseId::new(request.lease_id));
        let ancestors = kernel::ancestors(caller.process.pid());
        self.desk.join(caller, shown, lease, request.token.to_vec(), ancestors).await
    }

    async fn try_admit(&self, caller: &Caller, request: v1::AdmitRequest) -> Result<(), Refusal> {
        const NONE: Denial = Denial::NotAllowed("no process of that number and of your user is running");
        let shown = session(request.session)?;
        let pid = self.pid_of_child(caller.process.pid(), Pid::new(request.pid)).await.ok_or(NONE)?;
        let guest = self.liveness.find(pid).map_err(|unmet| match unmet {
            Unmet::Gone | Unmet::Hidden => NONE,
            Unmet::Kernel(_) => Denial::NotAllowed("the broker cannot watch one more process now; try again"),
        })?;
        if guest.uid != caller.uid {
            return Err(NONE.into());
        }
        let program = program_of(guest.process.pid());
        let place = if request.in_callers_place { Place::Callers } else { Place::Own };
        let guest = Guest { caller: guest, program, place };
        self.desk.admit(caller, shown, LeaseId::new(request.lease_id), guest).await
    }

    /// The number that the broker knows a process by which the caller knows by this one: the same, unless the caller is in
    /// a pid namespace of its own.
    async fn pid_of_child(&self, caller: Pid, pid: Pid) -> Option<Pid> {
        if kernel::is_in_own_namespace(caller) {
            return Some(pid);
        }
        // It takes a look at every process.
        tokio::task::spawn_blocking(move || kernel::pid_seen_from(caller, pid)).await.ok()?
    }

    async fn try_resize(&self, caller: &Caller, request: v1::ResizeRequest) -> Result<LeaseTerms, Refusal> {
        let shown = session(request.session)?;
        let sizes = (rounded(request.reserve_bytes), rounded(request.limit_bytes));
        self.desk.resize(caller, shown, LeaseId::new(request.lease_id), sizes).await
    }

    async fn try_release(&self, caller: &Caller, request: v1::ReleaseRequest) -> Result<Bytes, Refusal> {
        let lease = LeaseId::new(request.lease_id);
        match request.session {
            Some(reference) => self.desk.release(caller, session(Some(reference))?, lease).await,
            None => self.desk.end(caller, Standing::User, lease).await,
        }
    }

    async fn try_allocate(&self, caller: &Caller, request: v1::AllocateRequest) -> Result<Segment, Refusal> {
        let wish = segment_wish(&request)?;
        self.desk.allocate(caller, session(request.session)?, wish).await
    }

    async fn try_free(&self, caller: &Caller, request: v1::FreeRequest) -> Result<(), Refusal> {
        let shown = session(request.session)?;
        self.desk
            .free(caller, shown, LeaseId::new(request.lease_id), SegmentId::new(request.segment_id))
            .await
    }

    async fn try_report(&self, caller: &Caller, request: v1::ReportRequest) -> Result<(), Refusal> {
        let news = news(request.news)?;
        self.desk.report(caller, session(request.session)?, LeaseId::new(request.lease_id), news).await
    }

    async fn try_resume(
        &self,
        caller: &Caller,
        request: v1::ResumeRequest,
    ) -> Result<AskStream<v1::ResumeUpdate>, Refusal> {
        let shown = session(request.session)?;
        let ask = self.desk.resume(caller, shown, LeaseId::new(request.lease_id)).await?;
        Ok(AskStream::follow(ask, self).await)
    }

    async fn try_pin(&self, caller: &Caller, request: v1::PinRequest) -> Result<(), Refusal> {
        self.desk.pin(caller, session(request.session)?, LeaseId::new(request.lease_id)).await
    }

    fn refused(&self, refusal: Refusal) -> Status {
        match refusal {
            Refusal::Denied(denial) => status(&super::encode::with_names(&denial, &self.names).into()),
            Refusal::Stopping => status(&refusal),
        }
    }
}

fn program_of(pid: Pid) -> String {
    let name = command_name(pid).map(|name| text::shown(&name));
    name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| format!("pid-{pid}"))
}

fn allocated(segment: &Segment) -> v1::Allocated {
    use v1::allocated::Handle;
    let handle = match &segment.access {
        Access::Ticket(ticket) => Handle::Ticket(ticket.bytes().to_vec().into()),
        Access::CudaIpc(handle) => Handle::CudaIpcHandle(handle.0.to_vec().into()),
    };
    v1::Allocated {
        segment_id: segment.segment.get(),
        bytes: segment.bytes.get(),
        handle: Some(handle),
        movable: segment.movable,
    }
}
