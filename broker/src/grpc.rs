//! The gRPC services: decode, ask the driver, encode.

mod budgets;
mod connection;
mod decode;
mod encode;
mod jobs;
mod observer;
mod operators;
mod streams;
mod waiting;
mod why;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpulease_proto::refusal::refusal;
use gpulease_proto::v1::jobs_server::JobsServer;
use gpulease_proto::v1::observer_server::ObserverServer;
use gpulease_proto::v1::operators_server::OperatorsServer;
use gpulease_proto::{FILE_DESCRIPTOR_SET, v1};
use gpulease_words::Reason;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Code, Request, Status};

pub(crate) use encode::device_info;

use crate::arena::Gauge;
use crate::budgets::Budgets;
use crate::driver::{Desk, Refusal};
use crate::entrance::{Guests, Listener};
use crate::event_log::EventLog;
use crate::liveness::{Caller, Liveness};
use crate::users::Names;

/// The largest request, in bytes: the longest has a name and a list of devices.
const REQUEST_MAX: usize = 64 << 10;

/// Calls of one connection that may be under way.
const STREAMS_MAX: u32 = 256;

/// Names and values of a request's headers together, in bytes.
const HEADERS_MAX: u32 = 16 << 10;

/// Connections that were accepted and not taken up by the server yet.
const ACCEPTED_WAITING: usize = 16;

/// What every service needs.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    pub(crate) desk: Desk,
    pub(crate) names: Arc<Names>,
    pub(crate) events: EventLog,
    pub(crate) budgets: Budgets,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) about: Arc<About>,
    /// Changes when the broker stops.
    pub(crate) leaving: watch::Receiver<()>,
}

impl Services {
    /// Comes true when the broker stops.
    async fn stopping(&self) {
        // The sender says nothing; it is dropped.
        drop(self.leaving.clone().changed().await);
    }
}

/// What the broker says of itself.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) socket: PathBuf,
    pub(crate) handoff: PathBuf,
    pub(crate) unattended_grace: Duration,
    pub(crate) adrift_grace: Duration,
    pub(crate) idle_after: Duration,
    pub(crate) devices: Vec<v1::DeviceInfo>,
    /// Where there is host memory for suspended leases.
    pub(crate) arena: Option<Gauge>,
}

/// Which socket is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// Anybody's.
    Jobs,
    /// The operators'.
    Operators,
}

/// Serves a socket until the broker stops.
pub(crate) async fn serve(
    services: Services,
    socket: Socket,
    listener: Listener,
    guests: Arc<Guests>,
) -> Result<(), tonic::transport::Error> {
    let (accepted, incoming) = tokio::sync::mpsc::channel(ACCEPTED_WAITING);
    let entrance = tokio::spawn(connection::accept(listener, services.liveness.clone(), guests, accepted));
    let routes = routes(services.clone(), socket).await;
    let stop = services.stopping();
    let served = routes.serve_with_incoming_shutdown(ReceiverStream::new(incoming), stop).await;
    entrance.abort();
    served
}

async fn routes(services: Services, socket: Socket) -> Router {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<ObserverServer<Services>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the protocol's own description is sound");
    let observer = ObserverServer::new(services.clone()).max_decoding_message_size(REQUEST_MAX);
    let common = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADERS_MAX)
        .add_service(health)
        .add_service(reflection)
        .add_service(observer);
    match socket {
        Socket::Jobs => {
            reporter.set_serving::<JobsServer<Services>>().await;
            common.add_service(JobsServer::new(services).max_decoding_message_size(REQUEST_MAX))
        }
        Socket::Operators => {
            reporter.set_serving::<OperatorsServer<Services>>().await;
            common.add_service(OperatorsServer::new(services).max_decoding_message_size(REQUEST_MAX))
        }
    }
}

/// Who called, as the kernel said when he connected.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::internal("the connection has no known peer"))
}

/// A refusal as the status of a call whose reply has no place for one.
fn status(refused: &Refusal) -> Status {
    let reason = refused.reason();
    refusal(code(reason), reason, refused.to_string())
}

/// The one table from reasons to codes.
const fn code(reason: Reason) -> Code {
    match reason {
        Reason::NoRoom
        | Reason::AccountLimit
        | Reason::BehindOthers
        | Reason::Barrier
        | Reason::Draining
        | Reason::OverBudget
        | Reason::TooLarge
        | Reason::BeyondLease
        | Reason::TooMany
        | Reason::Recalled
        | Reason::ArenaFull
        | Reason::PinnedFull
        | Reason::DeviceRefused => Code::ResourceExhausted,
        Reason::WaitOver => Code::DeadlineExceeded,
        Reason::NoSuchLease | Reason::NoSuchSegment | Reason::NoSuchDevice => Code::NotFound,
        Reason::NoSuchSession => Code::Unauthenticated,
        Reason::Malformed => Code::InvalidArgument,
        Reason::WouldDeadlock
        | Reason::Ending
        | Reason::Overdue
        | Reason::Suspended
        | Reason::ImpossibleBudget => Code::FailedPrecondition,
        Reason::DeviceLost | Reason::Stopping => Code::Unavailable,
        Reason::Withdrawn => Code::Cancelled,
        Reason::NotAllowed => Code::PermissionDenied,
    }
}
