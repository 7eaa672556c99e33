//! The fake's service for jobs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use gpulease_client::proto::{self as v1, jobs_server};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};

use crate::broker::{Ask, Segment, Shared, Wish, made, ticket};
use crate::handoff::still_in_use;

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

pub struct Jobs {
    shared: Arc<Shared>,
}

impl Jobs {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn denied(reason: &str) -> v1::Denied {
        v1::Denied { reason: reason.to_owned(), message: format!("the fake says {reason}") }
    }
}

fn stream<T: Send + 'static>() -> (UnboundedSender<Result<T, Status>>, Messages<T>) {
    let (sender, receiver) = unbounded_channel();
    (sender, Box::pin(UnboundedReceiverStream::new(receiver)))
}

#[tonic::async_trait]
impl jobs_server::Jobs for Jobs {
    type OpenStream = Messages<v1::SessionMessage>;
    type AcquireStream = Messages<v1::AcquireUpdate>;
    type ResumeStream = Messages<v1::ResumeUpdate>;

    async fn report(&self, request: Request<v1::ReportRequest>) -> Answer<v1::ReportReply> {
        let request = request.into_inner();
        self.shared.change(|book| {
            book.session(request.session)?;
            book.reports.push((request.lease_id, request.news.unwrap()));
            Ok(Response::new(v1::ReportReply { denied: None }))
        })
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Answer<Self::ResumeStream> {
        let request = request.into_inner();
        let (updates, messages) = stream();
        self.shared.change(|book| {
            book.session(request.session)?;
            let update = match book.refusal.take() {
                Some(denied) => v1::resume_update::Update::Denied(denied),
                None => v1::resume_update::Update::Waiting(v1::Waiting { position: 1, ..Default::default() }),
            };
            updates.send(Ok(v1::ResumeUpdate { update: Some(update) })).unwrap();
            book.wishes.push(Wish { lease: request.lease_id, updates: Some(updates) });
            Ok(Response::new(messages))
        })
    }

    async fn pin(&self, request: Request<v1::PinRequest>) -> Answer<v1::PinReply> {
        let request = request.into_inner();
        self.shared.change(|book| {
            book.session(request.session)?;
            book.pins.push(request.lease_id);
            Ok(Response::new(v1::PinReply { denied: book.refusal.take() }))
        })
    }

    async fn open(&self, request: Request<v1::OpenRequest>) -> Answer<Self::OpenStream> {
        let rejoin = request.into_inner().rejoin;
        let (sender, messages) = stream();
        self.shared.change(|book| {
            let id = match rejoin {
                Some(before) => {
                    let id = book.session(Some(before))?;
                    book.rejoined += 1;
                    id
                }
                None => {
                    let id = book.id();
                    book.sessions.insert(id, vec![u8::try_from(id).unwrap(); 16]);
                    id
                }
            };
            let secret = book.sessions[&id].clone().into();
            let opened = v1::Opened {
                session: Some(v1::SessionRef { session_id: id, secret }),
                broker_version: "fake".to_owned(),
                broker_pid: std::process::id(),
                handoff_socket: String::new(),
                devices: vec![v1::DeviceInfo {
                    index: 0,
                    kind: v1::DeviceKind::Host.into(),
                    uuid: "host-0".to_owned(),
                    name: "host memory".to_owned(),
                    capacity_bytes: 1 << 30,
                }],
                unattended_grace_ms: 1_000,
                adrift_grace_ms: 1_000,
                idle_after_ms: book.idle_after_ms,
                standings: book.standings.clone(),
                sizes: book.sizes.clone(),
            };
            let message = Some(v1::session_message::Message::Opened(opened));
            sender.send(Ok(v1::SessionMessage { message })).unwrap();
            book.streams.insert(id, sender);
            Ok(Response::new(messages))
        })
    }

    async fn close(&self, request: Request<v1::CloseRequest>) -> Answer<v1::CloseReply> {
        self.shared.change(|book| {
            let session = book.session(request.into_inner().session)?;
            book.closed.push(session);
            Ok(Response::new(v1::CloseReply {}))
        })
    }

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Answer<Self::AcquireStream> {
        let request = request.into_inner();
        let gate = self.shared.change(|book| {
            book.acquires_at_the_gate += u32::from(book.gate.is_some());
            book.gate.clone()
        });
        if let Some(mut gate) = gate {
            gate.wait_for(|open| *open).await.unwrap();
        }
        let (updates, messages) = stream();
        let messages: Self::AcquireStream = Box::pin(AskStream {
            messages,
            name: request.ask_name,
            ended: false,
            shared: Arc::clone(&self.shared),
        });
        self.shared.change(|book| {
            let key = (book.session(request.session.clone())?, request.ask_name);
            if request.name.starts_with("deny") {
                let update = v1::acquire_update::Update::Denied(Self::denied("over_budget"));
                updates.send(Ok(v1::AcquireUpdate { update: Some(update) })).unwrap();
                return Ok(Response::new(messages));
            }
            let waiting = v1::Waiting { ask_id: book.id(), position: 1, ..Default::default() };
            let update = v1::acquire_update::Update::Waiting(waiting);
            updates.send(Ok(v1::AcquireUpdate { update: Some(update) })).unwrap();
            book.asks.insert(key, Ask { updates: Some(updates), lease: None });
            if !request.name.starts_with("wait") {
                book.grant(key);
            }
            Ok(Response::new(messages))
        })
    }

    async fn withdraw(&self, request: Request<v1::WithdrawRequest>) -> Answer<v1::WithdrawReply> {
        let request = request.into_inner();
        self.shared.change(|book| {
            let session = book.session(request.session)?;
            book.withdrawn.push(request.ask_name);
            if let Some(ask) = book.asks.remove(&(session, request.ask_name)) {
                if let Some(lease) = ask.lease {
                    book.leases.remove(&lease);
                }
                let update = v1::acquire_update::Update::Denied(Self::denied("withdrawn"));
                let told = |updates: UnboundedSender<_>| {
                    updates.send(Ok(v1::AcquireUpdate { update: Some(update) }))
                };
                let _ = ask.updates.map(told);
            }
            if let Some(waiting) = book.allocates_waiting.remove(&request.ask_name) {
                let _ = waiting.send(());
            }
            book.segments.retain(|_, segment| segment.acknowledged || segment.ask_name != request.ask_name);
            Ok(Response::new(v1::WithdrawReply {}))
        })
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Answer<v1::JoinReply> {
        let request = request.into_inner();
        self.shared.change(|book| {
            book.session(request.session)?;
            let lease = v1::LeaseInfo {
                lease_id: request.lease_id,
                name: "joined".to_owned(),
                device_indices: vec![0],
                reserve_bytes: 8 << 20,
                limit_bytes: 16 << 20,
            };
            let outcome = match book.leases.contains(&request.lease_id) && request.token == [7; 16].as_slice()
            {
                true => v1::join_reply::Outcome::Lease(lease),
                false => v1::join_reply::Outcome::Denied(Self::denied("no_such_lease")),
            };
            Ok(Response::new(v1::JoinReply { outcome: Some(outcome) }))
        })
    }

    async fn admit(&self, request: Request<v1::AdmitRequest>) -> Answer<v1::AdmitReply> {
        let request = request.into_inner();
        self.shared.book().session(request.session)?;
        let denied = (request.pid == 0).then(|| Self::denied("not_allowed"));
        Ok(Response::new(v1::AdmitReply { denied }))
    }

    async fn resize(&self, request: Request<v1::ResizeRequest>) -> Answer<v1::ResizeReply> {
        let request = request.into_inner();
        self.shared.book().session(request.session)?;
        let lease = v1::LeaseInfo {
            lease_id: request.lease_id,
            name: String::new(),
            device_indices: vec![0],
            reserve_bytes: request.reserve_bytes.next_multiple_of(2 << 20),
            limit_bytes: request.limit_bytes,
        };
        Ok(Response::new(v1::ResizeReply { outcome: Some(v1::resize_reply::Outcome::Lease(lease)) }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Answer<v1::ReleaseReply> {
        let request = request.into_inner();
        self.shared.change(|book| {
            book.session(request.session)?;
            book.released.push(request.lease_id);
            book.asks.retain(|_, ask| ask.lease != Some(request.lease_id));
            let denied = (!book.leases.remove(&request.lease_id)).then(|| Self::denied("no_such_lease"));
            Ok(Response::new(v1::ReleaseReply { denied, draining_bytes: 0 }))
        })
    }

    async fn allocate(&self, request: Request<v1::AllocateRequest>) -> Answer<v1::AllocateReply> {
        let request = request.into_inner();
        let withdrawal = self.shared.change(|book| {
            book.session(request.session.clone())?;
            book.allocates.push(request.clone());
            let (withdraw, withdrawal) = oneshot::channel();
            let waits = book.allocations_wait;
            waits.then(|| book.allocates_waiting.insert(request.ask_name, withdraw));
            Ok::<_, Status>(waits.then_some(withdrawal))
        })?;
        if let Some(withdrawal) = withdrawal {
            let _waiting = WaitingAllocate(request.ask_name, Arc::clone(&self.shared));
            let _ = withdrawal.await;
            let outcome = Some(v1::allocate_reply::Outcome::Denied(Self::denied("withdrawn")));
            return Ok(Response::new(v1::AllocateReply { outcome }));
        }
        self.shared.change(|book| {
            if request.bytes >= book.refused_from {
                let outcome = Some(v1::allocate_reply::Outcome::Denied(Self::denied("beyond_lease")));
                return Ok(Response::new(v1::AllocateReply { outcome }));
            }
            let id = book.id();
            // One chunk of 2 MiB, and one for the rest.
            let sizes = [2 << 20, request.bytes.next_multiple_of(2 << 20).saturating_sub(2 << 20)];
            let chunks = sizes.into_iter().filter(|size| *size > 0).map(|size| (made(size), size));
            let (chunks, ask_name): (Vec<_>, _) = (chunks.collect(), request.ask_name);
            let (bytes, movable) = (chunks.iter().map(|(_, size)| size).sum(), book.movable);
            let host_copy = movable.then(|| made(bytes));
            let segment = Segment { ask_name, chunks, acknowledged: false, host_copy, returns: 0 };
            book.segments.insert(id, segment);
            let handle = Some(v1::allocated::Handle::Ticket(ticket(id).into()));
            let allocated = v1::Allocated { segment_id: id, bytes, handle, movable };
            let outcome = Some(v1::allocate_reply::Outcome::Allocated(allocated));
            Ok(Response::new(v1::AllocateReply { outcome }))
        })
    }

    async fn free(&self, request: Request<v1::FreeRequest>) -> Answer<v1::FreeReply> {
        let request = request.into_inner();
        let gate = self.shared.book().gate_of_frees.clone();
        if let Some(mut gate) = gate {
            gate.wait_for(|open| *open).await.unwrap();
        }
        self.shared.change(|book| {
            book.session(request.session)?;
            let segment = book.segments.remove(&request.segment_id);
            let denied = segment.is_none().then(|| Self::denied("no_such_segment"));
            if segment.is_some_and(|segment| still_in_use(&segment)) {
                book.freed_too_early.push(request.segment_id);
            }
            Ok(Response::new(v1::FreeReply { denied }))
        })
    }
}

/// Forgets an allocate that waits when its caller is gone.
struct WaitingAllocate(u64, Arc<Shared>);

impl Drop for WaitingAllocate {
    fn drop(&mut self) {
        self.1.change(|book| book.allocates_waiting.remove(&self.0));
    }
}

/// Notes whether the client read it to its end.
struct AskStream {
    messages: Messages<v1::AcquireUpdate>,
    name: u64,
    ended: bool,
    shared: Arc<Shared>,
}

impl Stream for AskStream {
    type Item = Result<v1::AcquireUpdate, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.messages.as_mut().poll_next(cx);
        self.ended |= matches!(next, Poll::Ready(None));
        next
    }
}

impl Drop for AskStream {
    fn drop(&mut self) {
        self.shared.change(|book| match self.ended {
            true => book.ended_asks.push(self.name),
            false => book.broken_asks.push(self.name),
        });
    }
}
