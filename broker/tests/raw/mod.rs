//! A client made of nothing but the generated types and system calls.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use gpulease_proto::handover::{MAX_FRAME, Reply, Request, Ticket};
use gpulease_proto::v1;
use gpulease_proto::v1::acquire_update::Update;
use gpulease_proto::v1::jobs_client::JobsClient;
use gpulease_proto::v1::observer_client::ObserverClient;
use gpulease_words::Bytes;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

pub(crate) struct Client {
    pub(crate) jobs: JobsClient<Channel>,
    pub(crate) observer: ObserverClient<Channel>,
    pub(crate) session: Option<v1::SessionRef>,
    pub(crate) stream: Option<Streaming<v1::SessionMessage>>,
}

impl Client {
    pub(crate) async fn connect(socket: &Path) -> Self {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).expect("an address");
        let channel = endpoint.connect_lazy();
        let observer = ObserverClient::new(channel.clone());
        Self { jobs: JobsClient::new(channel), observer, session: None, stream: None }
    }

    pub(crate) async fn open(&mut self) {
        assert!(self.try_open().await, "the session opens");
    }

    pub(crate) async fn try_open(&mut self) -> bool {
        let Ok(reply) = self.jobs.open(v1::OpenRequest::default()).await else { return false };
        let mut stream = reply.into_inner();
        let Ok(Some(first)) = stream.message().await else { return false };
        let Some(v1::session_message::Message::Opened(opened)) = first.message else { panic!("{first:?}") };
        self.session = opened.session;
        self.stream = Some(stream);
        true
    }

    fn request(&self, ask_name: u64, reserve: Bytes, limit: Bytes) -> v1::AcquireRequest {
        let (reserve_bytes, limit_bytes) = (reserve.get(), limit.get());
        v1::AcquireRequest {
            session: self.session.clone(),
            ask_name,
            reserve_bytes,
            limit_bytes,
            ..Default::default()
        }
    }

    pub(crate) async fn ask(
        &mut self,
        name: u64,
        reserve: Bytes,
        limit: Bytes,
    ) -> Streaming<v1::AcquireUpdate> {
        self.jobs.acquire(self.request(name, reserve, limit)).await.expect("an answer").into_inner()
    }

    pub(crate) async fn acquire(&mut self, name: u64, reserve: Bytes, limit: Bytes) -> v1::Granted {
        let update = self.ask(name, reserve, limit).await.message().await.expect("an answer");
        match update.and_then(|update| update.update) {
            Some(Update::Granted(granted)) => granted,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn refused(&mut self, name: u64, reserve: Bytes) -> v1::Denied {
        let wait = Some(v1::WaitPolicy { policy: Some(v1::wait_policy::Policy::NoWait(true)) });
        let request = v1::AcquireRequest { wait, ..self.request(name, reserve, reserve) };
        let update = self.jobs.acquire(request).await.expect("an answer").into_inner().message().await;
        match update.expect("an answer").and_then(|update| update.update) {
            Some(Update::Denied(denied)) => denied,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn allocate(&mut self, lease: &v1::Granted, bytes: Bytes) -> (u64, Ticket) {
        let request = v1::AllocateRequest {
            session: self.session.clone(),
            lease_id: lease.lease_id,
            bytes: bytes.get(),
            ..Default::default()
        };
        let reply = self.jobs.allocate(request).await.expect("an answer").into_inner();
        let Some(v1::allocate_reply::Outcome::Allocated(made)) = reply.outcome else { panic!("{reply:?}") };
        let Some(v1::allocated::Handle::Ticket(ticket)) = made.handle else { panic!("a ticket") };
        (made.segment_id, Ticket::try_from(ticket.as_ref()).expect("16 bytes"))
    }

    pub(crate) async fn free(&mut self, lease: &v1::Granted, segment_id: u64) {
        let request = v1::FreeRequest { session: self.session.clone(), lease_id: lease.lease_id, segment_id };
        let reply = self.jobs.free(request).await.expect("an answer").into_inner();
        assert_eq!(reply.denied, None);
    }

    pub(crate) async fn release(&mut self, lease: &v1::Granted) {
        let request = v1::ReleaseRequest { session: self.session.clone(), lease_id: lease.lease_id };
        let reply = self.jobs.release(request).await.expect("an answer").into_inner();
        assert_eq!(reply.denied, None);
    }

    pub(crate) async fn close_with_wrong_secret(&mut self) -> Status {
        let session = self.session.clone().map(|s| v1::SessionRef { secret: vec![1; 16].into(), ..s });
        self.jobs.close(v1::CloseRequest { session }).await.expect_err("a wrong secret")
    }

    pub(crate) async fn memory(&mut self) -> v1::DeviceMemory {
        let status = self.observer.status(v1::StatusRequest {}).await.expect("an answer").into_inner();
        status.devices[0].memory.expect("a device has memory")
    }

    pub(crate) async fn until_memory(&mut self, is_so: impl Fn(&v1::DeviceMemory) -> bool) {
        self.until(|state| is_so(state.devices[0].memory.as_ref().expect("a device has memory"))).await;
    }

    async fn until(&mut self, is_so: impl Fn(&v1::StatusReply) -> bool) {
        let mut states = self.observer.watch(v1::WatchRequest {}).await.expect("an answer").into_inner();
        while !is_so(&states.message().await.expect("a stream").expect("it follows")) {}
    }

    pub(crate) async fn until_leases(&mut self, is_so: impl Fn(&[v1::LeaseStatus]) -> bool) {
        self.until(|state| is_so(&state.leases)).await;
    }

    pub(crate) async fn until_waiting(&mut self, count: usize) {
        self.until(|state| state.waiting.len() == count).await;
    }

    pub(crate) async fn why(&mut self, subject: v1::why_request::Subject) -> v1::Why {
        let reply = self.observer.why(v1::WhyRequest { subject: Some(subject) }).await.expect("an answer");
        match reply.into_inner().outcome {
            Some(v1::why_reply::Outcome::Why(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn events(&mut self) -> Vec<v1::EventMessage> {
        let request = v1::EventsRequest { from_start: true, no_follow: true, after: 0 };
        let mut stream = self.observer.events(request).await.expect("an answer").into_inner();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.expect("a stream") {
            events.push(event);
        }
        events
    }
}

pub(crate) fn connect_stream(path: &Path) -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(socket)
}

pub(crate) struct Handoff(OwnedFd);

impl Handoff {
    pub(crate) fn connect(directory: &Path) -> Self {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a socket");
        let address = SocketAddrUnix::new(directory.join("handoff.sock")).expect("an address");
        rustix::net::connect(&socket, &address).expect("a server");
        Self(socket)
    }

    pub(crate) fn ask(&mut self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        self.ask_bytes(&request.encode())
    }

    pub(crate) fn ask_bytes(&mut self, packet: &[u8]) -> (Reply, Vec<OwnedFd>) {
        let mut none = SendAncillaryBuffer::default();
        rustix::net::sendmsg(&self.0, &[IoSlice::new(packet)], &mut none, SendFlags::empty()).expect("sent");
        let mut buffer = [0; MAX_FRAME];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .expect("an answer");
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        (Reply::decode(&buffer[..got.bytes]).expect("a frame"), descriptors)
    }
}

/// A mapped segment, whose descriptor is closed.
pub(crate) struct Mapping {
    address: *mut u8,
    length: usize,
}

impl Mapping {
    pub(crate) fn new(descriptor: OwnedFd, bytes: Bytes) -> Self {
        use rustix::mm::{MapFlags, ProtFlags};
        let length = usize::try_from(bytes.get()).expect("it fits");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let address = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, descriptor.as_fd(), 0)
        };
        Self { address: address.expect("mapped").cast(), length }
    }

    pub(crate) fn write_and_read(&self) {
        // SAFETY: the mapping is ours alone, readable and writable over its whole length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.address, self.length) };
        assert_eq!((bytes[0], bytes[self.length - 1]), (0, 0));
        bytes[self.length - 1] = 7;
        assert_eq!(bytes[self.length - 1], 7);
        bytes[self.length - 1] = 0;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers to it any more.
        unsafe { rustix::mm::munmap(self.address.cast(), self.length).expect("unmapped") };
    }
}
