//! Keeping the session: its stream, its notices, and taking it up again when the stream breaks.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc as plain;
use std::time::Duration;

use gpulease_proto::handover::Ticket;
use gpulease_proto::refusal;
use gpulease_proto::v1;
use gpulease_proto::v1::session_message::Message;
use gpulease_words::{Reason, SegmentId};
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{Code, Status, Streaming};

use crate::device::Device;
use crate::engine::Done;
use crate::error::Error;
use crate::leases::{Epoch, Leases};
use crate::link::{Link, Trouble, causes, trouble};
use crate::place::{Place, find};
use crate::suspension::Order;

/// A broker opens a session in milliseconds; who takes longer is stopped, or no broker.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// The first try to take a session up again is made at once, the next after this, then twice as
/// long each time up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Whether the session is open.
#[derive(Clone, Debug)]
pub(crate) enum Connection {
    Open(Pass),
    /// The stream broke; the keeper tries to take the session up again.
    Adrift {
        why: String,
    },
    /// This process said good-bye.
    Parted,
}

/// Asks for the good-bye while there still are handles, as a process does that ends. What is sent is dropped when it was
/// said.
pub(crate) type Parting = plain::Sender<Infallible>;

/// What a request shows to the broker.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) reference: v1::SessionRef,
    pub(crate) epoch: Epoch,
}

/// What the keeper hands out once the session is open.
pub(crate) struct Started {
    pub(crate) link: Arc<Link>,
    pub(crate) devices: Vec<Device>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) connection: watch::Receiver<Connection>,
    pub(crate) part: mpsc::Sender<Parting>,
}

/// Opens a session, keeps it until nobody needs it, and closes it: the whole life of the library's
/// thread.
pub(crate) async fn keep(
    places: Vec<Place>,
    answer: oneshot::Sender<Result<Started, Error>>,
    mut done: Done,
) {
    let (mut keeper, mut partings, started) = match begin(places).await {
        Ok(begun) => begun,
        Err(error) => {
            // Nobody is left to tell where the connect was given up.
            let _ = answer.send(Err(error));
            return;
        }
    };
    let _ = answer.send(Ok(started));
    let said = tokio::select! {
        _ = done.recv() => None,
        parting = partings.recv() => parting,
        () = keeper.attend() => None,
    };
    keeper.close().await;
    if said.is_some() {
        keeper.connection.send_replace(Connection::Parted);
        drop(said);
        // The thread stays for the handles that there are.
        let _ = done.recv().await;
    }
}

async fn begin(places: Vec<Place>) -> Result<(Keeper, mpsc::Receiver<Parting>, Started), Error> {
    let (place, first) = find(places).await?;
    let link = Arc::new(Link::new(place.clone(), first));
    let opened = tokio::time::timeout(OPEN_WITHIN, open(&link, None)).await;
    let (opened, messages) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(trouble)) => return Err(no_session(&place, trouble)),
        Err(_) => {
            let (socket, request) = (place.socket, "the opening of a session");
            return Err(Error::Silent { socket, request, waited: OPEN_WITHIN });
        }
    };
    let devices = opened.devices.into_iter().map(Device::try_from).collect::<Result<_, _>>()?;
    let pass = Pass { reference: opened.session.unwrap_or_default(), epoch: Epoch::FIRST };
    let (connection, watched) = watch::channel(Connection::Open(pass.clone()));
    let leases = Arc::<Leases>::default();
    let idle_after = Duration::from_millis(opened.idle_after_ms);
    let (part, partings) = mpsc::channel(1);
    let started = Started {
        link: Arc::clone(&link),
        devices,
        leases: Arc::clone(&leases),
        idle_after: Some(idle_after).filter(|after| !after.is_zero()),
        connection: watched,
        part,
    };
    Ok((Keeper { link, leases, connection, pass, messages }, partings, started))
}

struct Keeper {
    link: Arc<Link>,
    leases: Arc<Leases>,
    connection: watch::Sender<Connection>,
    pass: Pass,
    /// Kept over the good-bye: where it ends before, the session looks adrift.
    messages: Streaming<v1::SessionMessage>,
}

impl Keeper {
    async fn attend(&mut self) {
        loop {
            let why = self.listen().await;
            tracing::debug!(why, "gpulease: the session is adrift");
            self.connection.send_replace(Connection::Adrift { why });
            self.messages = self.rejoin().await;
            self.connection.send_replace(Connection::Open(self.pass.clone()));
        }
    }

    /// Passes notices on until the stream ends; returns why.
    async fn listen(&mut self) -> String {
        loop {
            match self.messages.message().await {
                Ok(Some(message)) => self.notice(message),
                Ok(None) => return "it ended the session's stream".to_owned(),
                Err(status) => return causes(&status),
            }
        }
    }

    fn notice(&self, message: v1::SessionMessage) {
        match message.message {
            Some(Message::Recall(recall)) => self.leases.recalled(self.pass.epoch, &recall),
            Some(Message::LeaseEnded(ended)) => self.leases.ended(self.pass.epoch, ended),
            Some(Message::Suspend(suspend)) => {
                self.order(suspend.lease_id, Order::Suspend(Duration::from_millis(suspend.deadline_in_ms)));
            }
            Some(Message::SwapOut(out)) => self.order(out.lease_id, Order::SwapOut),
            Some(Message::SuspendCancelled(off)) => self.order(off.lease_id, Order::Cancelled(off.message)),
            Some(Message::SegmentBack(back)) => match Ticket::try_from(back.ticket.as_ref()) {
                Ok(ticket) => {
                    self.order(back.lease_id, Order::Back(SegmentId::new(back.segment_id), ticket));
                }
                Err(error) => {
                    tracing::error!(%error, "gpulease: a segment came back with a ticket of no use")
                }
            },
            Some(Message::Resized(sizes)) => self.leases.resized(self.pass.epoch, &sizes),
            Some(Message::Pinned(pinned)) => self.order(pinned.lease_id, Order::Pinned),
            // A second `opened` or a notice of a newer broker says nothing to act on.
            Some(Message::Opened(_)) | None => {}
        }
    }

    fn order(&self, lease: u64, order: Order) {
        self.leases.order(self.pass.epoch, lease, order);
    }

    /// Tries until the session, or a fresh one in its place, is open.
    async fn rejoin(&mut self) -> Streaming<v1::SessionMessage> {
        let mut pause = FIRST_PAUSE;
        loop {
            match tokio::time::timeout(OPEN_WITHIN, self.try_rejoin()).await {
                Ok(Ok(messages)) => return messages,
                Ok(Err(why)) => self.connection.send_replace(Connection::Adrift { why }),
                Err(_) => {
                    self.connection.send_replace(Connection::Adrift { why: "it does not answer".to_owned() })
                }
            };
            tokio::time::sleep(scattered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn try_rejoin(&mut self) -> Result<Streaming<v1::SessionMessage>, String> {
        let before = self.pass.reference.clone();
        let (opened, messages) = match open(&self.link, Some(before.clone())).await {
            Ok(opened) => opened,
            Err(status) if refusal::reason(&status) == Some(Reason::NoSuchSession) => {
                open(&self.link, None).await.map_err(|status| causes(&status))?
            }
            Err(status) => return Err(causes(&status)),
        };
        let reference = opened.session.unwrap_or_default();
        if reference.session_id != before.session_id || reference.secret != before.secret {
            self.leases.lost(self.pass.epoch);
            self.pass.epoch = self.pass.epoch.next();
        } else {
            self.leases.rejoined(self.pass.epoch, &opened.standings);
            opened.sizes.iter().for_each(|sizes| self.leases.resized(self.pass.epoch, sizes));
        }
        self.pass.reference = reference;
        Ok(messages)
    }

    /// Says good-bye where somebody listens. Where nobody does, the end of the process says it.
    async fn close(&self) {
        if !matches!(*self.connection.borrow(), Connection::Open(_)) {
            return;
        }
        let request = v1::CloseRequest { session: Some(self.pass.reference.clone()) };
        let mut jobs = self.link.jobs();
        if let Ok(Err(status)) = tokio::time::timeout(CLOSE_WITHIN, jobs.close(request)).await {
            tracing::debug!(%status, "gpulease: closing the session failed");
        }
    }
}

/// Opens or rejoins; the first message has to be `opened`.
async fn open(
    link: &Link,
    rejoin: Option<v1::SessionRef>,
) -> Result<(v1::Opened, Streaming<v1::SessionMessage>), Status> {
    let request = v1::OpenRequest {
        client_version: concat!("gpulease-client ", env!("CARGO_PKG_VERSION")).to_owned(),
        program: String::new(),
        rejoin,
    };
    let mut messages = link.jobs().open(request).await?.into_inner();
    match messages.message().await?.and_then(|first| first.message) {
        Some(Message::Opened(opened)) if opened.session.is_some() => Ok((opened, messages)),
        Some(_) | None => Err(Status::data_loss("its first message opens no session")),
    }
}

/// Why the first opening brought no session.
fn no_session(place: &Place, status: Status) -> Error {
    let socket = place.socket.clone();
    if status.code() == Code::Unimplemented {
        let why = "it has no service for jobs; admin.sock stands beside the one to name".to_owned();
        return Error::NotABroker { socket, why };
    }
    match trouble("the opening of a session", &status) {
        Trouble::Failed(Error::Refused(denied)) => Error::Refused(denied),
        Trouble::Failed(_) | Trouble::Broken(_) => Error::NotABroker { socket, why: causes(&status) },
    }
}

/// Pauses differ between processes, so that the clients of a broker that comes back do not all call
/// at once.
fn scattered(pause: Duration) -> Duration {
    pause * (64 + std::process::id() % 64) / 96
}
