//! What the broker's calls cost at least: a tonic server over a Unix socket that decides nothing,
//! with a hand-over socket that gives a new memory file to whoever asks.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::pin::Pin;

use gpulease_proto::handover::{MAX_FRAME, Reply, Request};
use gpulease_proto::v1;
use gpulease_proto::v1::jobs_server::{Jobs, JobsServer};
use gpulease_words::{Bytes, mib};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept, bind, listen, recv, sendmsg, socket_with,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, once};
use tonic::transport::Server;
use tonic::{Response, Status};

/// The size of what is handed over.
pub const SIZE: Bytes = mib(2);

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves in a folder, as the broker would, until it is killed.
///
/// # Errors
/// Where the system fails.
pub fn serve(folder: &Path) -> io::Result<()> {
    let handoff = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&handoff, &SocketAddrUnix::new(folder.join("handoff.sock"))?)?;
    listen(&handoff, 64)?;
    std::thread::spawn(move || hand_over(&handoff));
    // As the broker has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let incoming = UnixListenerStream::new(UnixListener::bind(folder.join("gpulease.sock"))?);
        println!("ready");
        let served = Server::builder().add_service(JobsServer::new(Echo)).serve_with_incoming(incoming);
        served.await.map_err(io::Error::other)
    })
}

/// One connection after the other, each of one claim and one acknowledgement.
fn hand_over(socket: &OwnedFd) {
    while let Ok(connection) = accept(socket) {
        // Who goes away half-way was no contestant.
        let _ = visit(&connection);
    }
}

fn visit(connection: &OwnedFd) -> io::Result<()> {
    loop {
        let mut packet = [0; MAX_FRAME];
        let (length, _) = recv(connection, &mut packet, RecvFlags::empty())?;
        match Request::decode(&packet[..length]) {
            Ok(Request::Claim(_)) => {
                let file = memfd_create("bare", MemfdFlags::CLOEXEC)?;
                ftruncate(&file, SIZE.get())?;
                answer(connection, &Reply::Segment(vec![SIZE]), Some(&file))?;
            }
            Ok(Request::Acknowledge(_)) => answer(connection, &Reply::Done, None)?,
            Err(_) => return Ok(()),
        }
    }
}

fn answer(connection: &OwnedFd, reply: &Reply, file: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    sendmsg(connection, &[IoSlice::new(&reply.encode())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

struct Echo;

#[tonic::async_trait]
impl Jobs for Echo {
    type OpenStream = Streamed<v1::SessionMessage>;
    type AcquireStream = Streamed<v1::AcquireUpdate>;
    type ResumeStream = Streamed<v1::ResumeUpdate>;

    async fn acquire(&self, request: tonic::Request<v1::AcquireRequest>) -> Answer<Self::AcquireStream> {
        let request = request.into_inner();
        let granted = v1::Granted {
            lease_id: request.ask_name,
            token: vec![7; 16].into(),
            device_indices: vec![0],
            reserve_bytes: request.reserve_bytes,
            limit_bytes: request.limit_bytes,
            waited_ms: 0,
        };
        let update = Some(v1::acquire_update::Update::Granted(granted));
        Ok(Response::new(Box::pin(once(Ok(v1::AcquireUpdate { update })))))
    }

    async fn allocate(&self, request: tonic::Request<v1::AllocateRequest>) -> Answer<v1::AllocateReply> {
        let request = request.into_inner();
        let handle = Some(v1::allocated::Handle::Ticket(vec![7; 16].into()));
        let allocated =
            v1::Allocated { segment_id: request.lease_id, bytes: request.bytes, handle, movable: false };
        let outcome = Some(v1::allocate_reply::Outcome::Allocated(allocated));
        Ok(Response::new(v1::AllocateReply { outcome }))
    }

    async fn open(&self, _: tonic::Request<v1::OpenRequest>) -> Answer<Self::OpenStream> {
        Err(Status::unimplemented("bare"))
    }

    async fn report(&self, _: tonic::Request<v1::ReportRequest>) -> Answer<v1::ReportReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn resume(&self, _: tonic::Request<v1::ResumeRequest>) -> Answer<Self::ResumeStream> {
        Err(Status::unimplemented("bare"))
    }

    async fn pin(&self, _: tonic::Request<v1::PinRequest>) -> Answer<v1::PinReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn close(&self, _: tonic::Request<v1::CloseRequest>) -> Answer<v1::CloseReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn withdraw(&self, _: tonic::Request<v1::WithdrawRequest>) -> Answer<v1::WithdrawReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn join(&self, _: tonic::Request<v1::JoinRequest>) -> Answer<v1::JoinReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn admit(&self, _: tonic::Request<v1::AdmitRequest>) -> Answer<v1::AdmitReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn resize(&self, _: tonic::Request<v1::ResizeRequest>) -> Answer<v1::ResizeReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn release(&self, _: tonic::Request<v1::ReleaseRequest>) -> Answer<v1::ReleaseReply> {
        Err(Status::unimplemented("bare"))
    }

    async fn free(&self, _: tonic::Request<v1::FreeRequest>) -> Answer<v1::FreeReply> {
        Err(Status::unimplemented("bare"))
    }
}
