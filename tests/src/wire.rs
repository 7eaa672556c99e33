//! The protocol as it goes over the sockets, step by step and without the client library: for
//! clients that stop half-way, lie, or are none.

use std::io::{IoSliceMut, Result as IoResult};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpulease_proto::handover::{MAX_DESCRIPTORS, MAX_FRAME, Reply, Request, Ticket};
use gpulease_proto::v1::jobs_client::JobsClient;
use gpulease_proto::v1::{self, acquire_update::Update};
use gpulease_words::Bytes;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recvmsg, send, socket_with,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::daemon::PATIENCE;

/// One connection to the job socket, and the session that it speaks for.
#[derive(Debug)]
pub struct Wire {
    socket: PathBuf,
    channel: Channel,
    session: Option<v1::SessionRef>,
    stream: Option<Streaming<v1::SessionMessage>>,
}

impl Wire {
    /// Connects, and says nothing yet.
    ///
    /// # Errors
    /// Where nobody listens.
    pub async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let channel = endpoint.connect().await?;
        Ok(Self { socket: socket.to_owned(), channel, session: None, stream: None })
    }

    /// Speaks over a connection that somebody made.
    ///
    /// # Errors
    /// Where the other side does not speak HTTP/2.
    pub async fn over(stream: UnixStream, socket: &Path) -> Result<Self, tonic::transport::Error> {
        let once = Arc::new(Mutex::new(Some(stream)));
        let connector = tower::service_fn(move |_| {
            let stream = once.lock().expect("nobody panics with it").take();
            async move {
                let stream = stream.ok_or_else(|| std::io::Error::other("the one connection is used up"))?;
                stream.set_nonblocking(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(tokio::net::UnixStream::from_std(stream)?))
            }
        });
        let endpoint = Endpoint::from_static("http://gpulease");
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(Self { socket: socket.to_owned(), channel, session: None, stream: None })
    }

    /// Opens a session and keeps its stream.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn open(&mut self) -> Result<v1::Opened, Status> {
        self.open_as(None).await
    }

    /// Opens a session, or takes one up again.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn open_as(&mut self, rejoin: Option<v1::SessionRef>) -> Result<v1::Opened, Status> {
        let request = v1::OpenRequest { client_version: "test".into(), rejoin, ..Default::default() };
        let mut stream = self.jobs().open(request).await?.into_inner();
        let first = stream.message().await?.and_then(|message| message.message);
        let Some(v1::session_message::Message::Opened(opened)) = first else {
            return Err(Status::data_loss("the first message opens no session"));
        };
        self.session = opened.session.clone();
        self.stream = Some(stream);
        Ok(opened)
    }

    /// Drops the session's stream: the session is adrift.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }

    /// Waits for the next message of the session's stream; `None` at its end.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn next_message(&mut self) -> Result<Option<v1::SessionMessage>, Status> {
        let stream = self.stream.as_mut().ok_or_else(|| Status::internal("no session is open"))?;
        stream.message().await
    }

    /// What requests name the session by; `None` before it is opened.
    #[must_use]
    pub fn session(&self) -> Option<v1::SessionRef> {
        self.session.clone()
    }

    /// Lets requests name another session.
    pub fn pose_as(&mut self, session: Option<v1::SessionRef>) {
        self.session = session;
    }

    /// The generated client over this connection.
    #[must_use]
    pub fn jobs(&self) -> JobsClient<Channel> {
        JobsClient::new(self.channel.clone())
    }

    /// The connection itself.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// An ask for any one device that waits until it is granted.
    #[must_use]
    pub fn ask(&self, name: u64, reserve: Bytes, limit: Bytes) -> v1::AcquireRequest {
        v1::AcquireRequest {
            session: self.session(),
            ask_name: name,
            name: format!("wire-{name}"),
            reserve_bytes: reserve.get(),
            limit_bytes: limit.get(),
            wait: Some(forever()),
            ..Default::default()
        }
    }

    /// Puts an ask and reads its first answer.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn acquire(
        &self,
        request: v1::AcquireRequest,
    ) -> Result<(Update, Streaming<v1::AcquireUpdate>), Status> {
        let mut updates = self.jobs().acquire(request).await?.into_inner();
        let update = next_update(&mut updates).await?;
        Ok((update, updates))
    }

    /// A segment of a lease.
    ///
    /// # Errors
    /// What the broker says, or its refusal.
    pub async fn allocate(&self, lease: u64, bytes: Bytes) -> Result<v1::Allocated, Status> {
        let request = v1::AllocateRequest {
            session: self.session(),
            lease_id: lease,
            bytes: bytes.get(),
            wait: Some(forever()),
            ..Default::default()
        };
        match self.jobs().allocate(request).await?.into_inner().outcome {
            Some(v1::allocate_reply::Outcome::Allocated(allocated)) => Ok(allocated),
            Some(v1::allocate_reply::Outcome::Denied(denied)) => Err(refused(&denied)),
            None => Err(Status::data_loss("no outcome")),
        }
    }

    /// Gives a segment back.
    ///
    /// # Errors
    /// What the broker says, or its refusal.
    pub async fn free(&self, lease: u64, segment: u64) -> Result<(), Status> {
        let request = v1::FreeRequest { session: self.session(), lease_id: lease, segment_id: segment };
        let denied = self.jobs().free(request).await?.into_inner().denied;
        denied.map_or(Ok(()), |denied| Err(refused(&denied)))
    }

    /// Gives a lease back; what still drains.
    ///
    /// # Errors
    /// What the broker says, or its refusal.
    pub async fn release(&self, lease: u64) -> Result<Bytes, Status> {
        let request = v1::ReleaseRequest { session: self.session(), lease_id: lease };
        let reply = self.jobs().release(request).await?.into_inner();
        reply.denied.map_or(Ok(Bytes::new(reply.draining_bytes)), |denied| Err(refused(&denied)))
    }

    /// Says how a suspension of a lease stands.
    ///
    /// # Errors
    /// What the broker says, or its refusal.
    pub async fn report(&self, lease: u64, news: v1::report_request::News) -> Result<(), Status> {
        let request = v1::ReportRequest { session: self.session(), lease_id: lease, news: Some(news) };
        let denied = self.jobs().report(request).await?.into_inner().denied;
        denied.map_or(Ok(()), |denied| Err(refused(&denied)))
    }

    /// Wants the memory of a suspended lease; the stream says when it is there.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn resume(&self, lease: u64) -> Result<Streaming<v1::ResumeUpdate>, Status> {
        let request = v1::ResumeRequest { session: self.session(), lease_id: lease };
        Ok(self.jobs().resume(request).await?.into_inner())
    }

    /// Ends the session in good order.
    ///
    /// # Errors
    /// What the broker says.
    pub async fn close(&self) -> Result<(), Status> {
        self.jobs().close(v1::CloseRequest { session: self.session() }).await.map(drop)
    }

    /// The hand-over socket beside the job socket.
    #[must_use]
    pub fn handoff(&self) -> PathBuf {
        self.socket.with_file_name("handoff.sock")
    }
}

/// The next update of an ask.
///
/// # Errors
/// What the broker says; also where it ends the stream without an answer.
pub async fn next_update(updates: &mut Streaming<v1::AcquireUpdate>) -> Result<Update, Status> {
    let update = updates.message().await?.and_then(|update| update.update);
    update.ok_or_else(|| Status::data_loss("the ask's stream ended without an answer"))
}

/// Reads an ask's updates up to its grant.
///
/// # Errors
/// What the broker says, or its refusal.
pub async fn granted(
    first: Update,
    updates: &mut Streaming<v1::AcquireUpdate>,
) -> Result<v1::Granted, Status> {
    let mut update = first;
    loop {
        match update {
            Update::Granted(granted) => return Ok(granted),
            Update::Denied(denied) => return Err(refused(&denied)),
            Update::Waiting(_) => update = next_update(updates).await?,
        }
    }
}

/// Wait without end.
#[must_use]
pub fn forever() -> v1::WaitPolicy {
    v1::WaitPolicy { policy: Some(v1::wait_policy::Policy::Forever(true)) }
}

/// A refusal as a status, its reason first.
fn refused(denied: &v1::Denied) -> Status {
    Status::failed_precondition(format!("{}: {}", denied.reason, denied.message))
}

/// One connection to the hand-over socket.
#[derive(Debug)]
pub struct HandOver(OwnedFd);

/// What came back: the packet, and the descriptors with it. An empty packet is the end.
pub type Packet = (Vec<u8>, Vec<OwnedFd>);

impl HandOver {
    /// Connects.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn connect(socket: &Path) -> IoResult<Self> {
        let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&connection, Timeout::Recv, Some(PATIENCE))?;
        set_socket_timeout(&connection, Timeout::Send, Some(PATIENCE))?;
        connect(&connection, &SocketAddrUnix::new(socket)?)?;
        Ok(Self(connection))
    }

    /// Sends a packet as it is.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn send(&self, packet: &[u8]) -> IoResult<()> {
        send(&self.0, packet, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a packet.
    ///
    /// # Errors
    /// What the kernel says: that none came in time, for example.
    pub fn receive(&self) -> IoResult<Packet> {
        let mut packet = [0_u8; MAX_FRAME + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut packet)];
        let received = recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = rights.flatten().collect();
        Ok((packet[..received.bytes].to_vec(), descriptors))
    }

    /// Claims a ticket: the chunks in address order.
    ///
    /// # Errors
    /// The broker's refusal, or what went wrong.
    pub fn claim(&self, ticket: Ticket) -> Result<Vec<(OwnedFd, Bytes)>, String> {
        match self.exchange(Request::Claim(ticket))? {
            (Reply::Segment(sizes), descriptors) if sizes.len() == descriptors.len() => {
                Ok(descriptors.into_iter().zip(sizes).collect())
            }
            // What is asked for here are the chunks; the host copy behind them is let go.
            (Reply::Movable(sizes), descriptors) if sizes.len() + 1 == descriptors.len() => {
                Ok(descriptors.into_iter().zip(sizes).collect())
            }
            (reply, descriptors) => Err(format!("{reply:?} with {} descriptors", descriptors.len())),
        }
    }

    /// Acknowledges a ticket.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn acknowledge(&self, ticket: Ticket) -> Result<(), String> {
        match self.exchange(Request::Acknowledge(ticket))? {
            (Reply::Done, _) => Ok(()),
            (reply, _) => Err(format!("{reply:?}")),
        }
    }

    /// Hears the broker hang up.
    ///
    /// # Errors
    /// What came instead.
    pub fn is_hung_up(&self) -> Result<(), String> {
        match self.receive() {
            Ok((packet, _)) if packet.is_empty() => Ok(()),
            Ok((packet, _)) => Err(format!("{:?}", Reply::decode(&packet))),
            Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Lets a send or a receive fail after so long.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn patience(&self, patience: Duration) -> IoResult<()> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(patience))?;
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(patience))?)
    }

    fn exchange(&self, request: Request) -> Result<(Reply, Vec<OwnedFd>), String> {
        self.send(&request.encode()).map_err(|error| error.to_string())?;
        let (packet, descriptors) = self.receive().map_err(|error| error.to_string())?;
        let reply = Reply::decode(&packet).map_err(|error| error.to_string())?;
        Ok((reply, descriptors))
    }
}

impl AsFd for HandOver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
