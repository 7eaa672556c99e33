//! A job that goes through the protocol itself, one step a command.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::OwnedFd;

use gpulease_proto::handover::Ticket;
use gpulease_proto::v1::acquire_update::Update;
use gpulease_proto::v1::{self, allocated::Handle};
use gpulease_tests::mapped::Mapped;
use gpulease_tests::wire::{HandOver, Wire, granted};
use gpulease_words::Bytes;
use tonic::Streaming;

use crate::{Reply, bytes, hex, socket, unhex};

/// What it has, by the names that the test gave.
#[derive(Default)]
pub(crate) struct Raw {
    wire: Option<Wire>,
    devices: Vec<v1::DeviceInfo>,
    asks: BTreeMap<String, (Update, Streaming<v1::AcquireUpdate>)>,
    leases: BTreeMap<String, v1::Granted>,
    segments: BTreeMap<String, Segment>,
    resumes: BTreeMap<String, Streaming<v1::ResumeUpdate>>,
    crowd: Vec<Wire>,
    names: u64,
}

/// A segment at whatever step.
struct Segment {
    lease: u64,
    id: u64,
    ticket: Vec<u8>,
    hand_over: Option<HandOver>,
    chunks: Vec<(OwnedFd, Bytes)>,
    mapped: Option<Mapped>,
}

type Said = Result<String, Box<dyn Error>>;

impl Raw {
    pub(crate) async fn obey(&mut self, words: &[&str], descriptor: Option<OwnedFd>) -> Reply {
        match words {
            // Gives a copy of a segment's first descriptor away.
            ["lend", name] => {
                let chunks = &self.segments.get(*name).ok_or("no such segment")?.chunks;
                let (descriptor, _) = chunks.first().ok_or("it has no descriptor")?;
                Ok((String::new(), Some(descriptor.try_clone()?)))
            }
            // Opens so many sessions, each with so many leases, and keeps them.
            ["crowd", sessions, leases, size] => {
                let said = self.crowd(sessions.parse()?, leases.parse()?, bytes(size)?).await?;
                Ok((said.to_string(), None))
            }
            // Connects, and gives the connection away.
            ["socket"] => {
                let stream = std::os::unix::net::UnixStream::connect(socket()?)?;
                Ok((String::new(), Some(stream.into())))
            }
            // Takes a descriptor of another process as a segment of this name, known to no lease.
            ["borrow", name, size] => {
                let chunks = vec![(descriptor.ok_or("there came no descriptor")?, bytes(size)?)];
                let ticket = Vec::new();
                let segment = Segment { lease: 0, id: 0, ticket, hand_over: None, chunks, mapped: None };
                self.segments.insert((*name).to_owned(), segment);
                Ok((String::new(), None))
            }
            [
                verb @ ("connect" | "open" | "who" | "pose" | "rejoin" | "hang-up" | "heard" | "close"),
                rest @ ..,
            ] => self.session(verb, rest).await.map(|said| (said, None)),
            [
                verb @ ("ask" | "standing" | "granted" | "drop-ask" | "withdraw" | "release" | "join"),
                rest @ ..,
            ] => self.lease(verb, rest).await.map(|said| (said, None)),
            [verb @ ("report" | "resume" | "resumed" | "told" | "back"), rest @ ..] => {
                self.suspension(verb, rest).await.map(|said| (said, None))
            }
            [verb, rest @ ..] => self.segment(verb, rest).await.map(|said| (said, None)),
            [] => Err("an empty command".into()),
        }
    }

    /// `connect`, `open`, `who`, `pose ID SECRET`, `rejoin ID SECRET`, `hang-up`, `heard`, `close`.
    async fn session(&mut self, verb: &str, words: &[&str]) -> Said {
        match (verb, words) {
            ("connect", []) => self.wire = Some(Wire::connect(&socket()?).await?),
            ("open", []) => {
                self.devices = self.wire_mut()?.open().await?.devices;
            }
            ("who", []) => {
                let session = self.wire()?.session().ok_or("no session is open")?;
                return Ok(format!("{} {}", session.session_id, hex(&session.secret)));
            }
            ("pose", [id, secret]) => {
                let session = reference(id, secret)?;
                self.wire_mut()?.pose_as(Some(session));
            }
            ("rejoin", [id, secret]) => {
                let session = reference(id, secret)?;
                self.devices = self.wire_mut()?.open_as(Some(session)).await?.devices;
            }
            ("hang-up", []) => self.wire_mut()?.hang_up(),
            ("heard", []) => return Ok(format!("{:?}", self.wire_mut()?.next_message().await?)),
            ("close", []) => self.wire()?.close().await?,
            _ => return Err(format!("wire {verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    /// `ask NAME RESERVE [LIMIT]`, `standing NAME`, `granted NAME`, `drop-ask NAME`, `withdraw NUMBER`, `release NAME`,
    /// `join NAME LEASE TOKEN`.
    async fn lease(&mut self, verb: &str, words: &[&str]) -> Said {
        match (verb, words) {
            ("ask", [name, reserve, limit @ ..]) => {
                self.names += 1;
                let limit = bytes(limit.first().unwrap_or(reserve))?;
                let request = self.wire()?.ask(self.names, bytes(reserve)?, limit);
                let ask = self.wire()?.acquire(request).await?;
                let said = told(&ask.0);
                self.asks.insert((*name).to_owned(), ask);
                return Ok(said);
            }
            ("standing", [name]) => return Ok(told(&self.asks.get(*name).ok_or("no such ask")?.0)),
            ("granted", [name]) => {
                let (first, mut updates) = self.asks.remove(*name).ok_or("no such ask")?;
                let granted = granted(first, &mut updates).await?;
                let said = format!("lease={} token={}", granted.lease_id, hex(&granted.token));
                self.leases.insert((*name).to_owned(), granted);
                return Ok(said);
            }
            ("drop-ask", [name]) => drop(self.asks.remove(*name).ok_or("no such ask")?),
            ("withdraw", [number]) => {
                let (session, ask_name) = (self.wire()?.session(), number.parse()?);
                self.wire()?.jobs().withdraw(v1::WithdrawRequest { session, ask_name }).await?;
            }
            ("release", [name]) => {
                let lease = self.leases.remove(*name).ok_or("no such lease")?;
                return Ok(self.wire()?.release(lease.lease_id).await?.get().to_string());
            }
            ("join", [name, lease_id, token]) => {
                let (session, token, lease_id) =
                    (self.wire()?.session(), unhex(token)?.into(), lease_id.parse()?);
                let request = v1::JoinRequest { session, lease_id, token };
                match self.wire()?.jobs().join(request).await?.into_inner().outcome {
                    Some(v1::join_reply::Outcome::Lease(_)) => {}
                    other => return Err(format!("{other:?}").into()),
                }
                self.leases.insert((*name).to_owned(), v1::Granted { lease_id, ..Default::default() });
            }
            _ => return Err(format!("wire {verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    /// `told NOTICE` (the next message is this notice), `report LEASE drained|busy|idle`, `report LEASE swapped-out|restored SEGMENT`,
    /// `report LEASE swap-failed`, `resume LEASE` (its wish stands in the line), `resumed LEASE` (and is fulfilled),
    /// `back SEGMENT` (the next message is its new ticket).
    async fn suspension(&mut self, verb: &str, words: &[&str]) -> Said {
        use v1::report_request::News;
        match (verb, words) {
            ("told", [notice]) => {
                let message = self.wire_mut()?.next_message().await?.and_then(|message| message.message);
                let word = message.as_ref().map_or("nothing", notice_word);
                if word != *notice {
                    return Err(format!("{message:?} is no {notice}").into());
                }
            }
            ("report", [lease, news, rest @ ..]) => {
                let lease = self.leases.get(*lease).ok_or("no such lease")?.lease_id;
                let segment = || -> Result<u64, Box<dyn Error>> {
                    let name = rest.first().ok_or("which segment?")?;
                    Ok(self.segments.get(*name).ok_or("no such segment")?.id)
                };
                let news = match *news {
                    "drained" => News::Drained(v1::Nothing {}),
                    "busy" => News::Busy(v1::Nothing {}),
                    "idle" => News::IdleForMs(1_000),
                    "swapped-out" => News::SwappedOutSegmentId(segment()?),
                    "restored" => News::RestoredSegmentId(segment()?),
                    "swap-failed" => News::SwapFailed("the test says so".to_owned()),
                    other => return Err(format!("{other} is no news").into()),
                };
                self.wire()?.report(lease, news).await?;
            }
            ("resume", [name]) => {
                let lease = self.leases.get(*name).ok_or("no such lease")?.lease_id;
                let mut updates = self.wire()?.resume(lease).await?;
                let first = updates.message().await?;
                self.resumes.insert((*name).to_owned(), updates);
                return Ok(format!("{first:?}"));
            }
            ("resumed", [name]) => {
                let mut updates = self.resumes.remove(*name).ok_or("no such wish")?;
                loop {
                    match updates.message().await?.and_then(|update| update.update) {
                        Some(v1::resume_update::Update::Waiting(_)) => {}
                        Some(v1::resume_update::Update::Resumed(_)) => break,
                        other => return Err(format!("{other:?}").into()),
                    }
                }
            }
            ("back", [name]) => {
                let message = self.wire_mut()?.next_message().await?.and_then(|message| message.message);
                let Some(v1::session_message::Message::SegmentBack(back)) = message else {
                    return Err(format!("{message:?} brings no segment back").into());
                };
                let segment = self.segments.get_mut(*name).ok_or("no such segment")?;
                if back.segment_id != segment.id {
                    return Err(format!("segment {} is back instead", back.segment_id).into());
                }
                segment.ticket = back.ticket.to_vec();
            }
            _ => return Err(format!("wire {verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    /// `allocate SEGMENT LEASE SIZE`, `ticket SEGMENT`, `claim SEGMENT [TICKET]`, `map SEGMENT`, `acknowledge SEGMENT`,
    /// `fill SEGMENT SEED`, `check SEGMENT SEED`, `zero SEGMENT`, `unmap SEGMENT`, `let-go SEGMENT` (its descriptors),
    /// `free SEGMENT` (the broker is told, whatever this process still has).
    async fn segment(&mut self, verb: &str, words: &[&str]) -> Said {
        let (name, rest) = words.split_first().ok_or("which segment?")?;
        if let ("allocate", [lease, size]) = (verb, rest) {
            return self.allocate(name, lease, bytes(size)?).await;
        }
        if let ("free", []) = (verb, rest) {
            let segment = self.segments.get(*name).ok_or("no such segment")?;
            self.wire()?.free(segment.lease, segment.id).await?;
            return Ok(String::new());
        }
        let socket = self.wire.as_ref().map(Wire::handoff);
        let uuid = self.devices.first().map(|device| (device.kind(), device.uuid.clone()));
        let segment = self.segments.get_mut(*name).ok_or("no such segment")?;
        match (verb, rest) {
            ("ticket", []) => return Ok(hex(&segment.ticket)),
            ("claim", ticket) => {
                let ticket = match ticket {
                    [foreign] => unhex(foreign)?,
                    _ => segment.ticket.clone(),
                };
                let hand_over = HandOver::connect(&socket.ok_or("it is not connected")?)?;
                segment.chunks = hand_over.claim(Ticket::try_from(ticket.as_slice())?)?;
                segment.hand_over = Some(hand_over);
            }
            ("map", []) => {
                segment.mapped = Some(match uuid {
                    Some((v1::DeviceKind::Cuda, uuid)) => Mapped::cuda(&uuid, &segment.chunks)?,
                    Some(_) | None => Mapped::host(&segment.chunks)?,
                });
            }
            ("acknowledge", []) => {
                let ticket = Ticket::try_from(segment.ticket.as_slice())?;
                segment.hand_over.as_ref().ok_or("it was not claimed")?.acknowledge(ticket)?;
            }
            ("fill", [seed]) => segment.mapped.as_mut().ok_or("it is not mapped")?.fill(seed.parse()?)?,
            ("check", [seed]) => {
                segment.mapped.as_ref().ok_or("it is not mapped")?.check(Some(seed.parse()?))?;
            }
            ("zero", []) => segment.mapped.as_ref().ok_or("it is not mapped")?.check(None)?,
            ("unmap", []) => drop(segment.mapped.take().ok_or("it is not mapped")?),
            ("let-go", []) => segment.chunks.clear(),
            _ => return Err(format!("wire {verb} {words:?} is no command").into()),
        }
        Ok(String::new())
    }

    async fn allocate(&mut self, name: &str, lease: &str, size: Bytes) -> Said {
        let lease = self.leases.get(lease).ok_or("no such lease")?.lease_id;
        let allocated = self.wire()?.allocate(lease, size).await?;
        let Some(Handle::Ticket(ticket)) = allocated.handle else {
            return Err("it came without a ticket".into());
        };
        let segment = Segment {
            lease,
            id: allocated.segment_id,
            ticket: ticket.to_vec(),
            hand_over: None,
            chunks: Vec::new(),
            mapped: None,
        };
        self.segments.insert(name.to_owned(), segment);
        Ok(allocated.segment_id.to_string())
    }

    async fn crowd(&mut self, sessions: u32, leases: u64, size: Bytes) -> Result<u64, Box<dyn Error>> {
        let mut granted_leases = 0;
        for _ in 0..sessions {
            let mut wire = Wire::connect(&socket()?).await?;
            wire.open().await?;
            for name in 1..=leases {
                let (first, mut updates) = wire.acquire(wire.ask(name, size, size)).await?;
                granted(first, &mut updates).await?;
                granted_leases += 1;
            }
            self.crowd.push(wire);
        }
        Ok(granted_leases)
    }

    fn wire(&self) -> Result<&Wire, Box<dyn Error>> {
        Ok(self.wire.as_ref().ok_or("it is not connected")?)
    }

    fn wire_mut(&mut self) -> Result<&mut Wire, Box<dyn Error>> {
        Ok(self.wire.as_mut().ok_or("it is not connected")?)
    }
}

fn reference(id: &str, secret: &str) -> Result<v1::SessionRef, Box<dyn Error>> {
    Ok(v1::SessionRef { session_id: id.parse()?, secret: unhex(secret)?.into() })
}

fn notice_word(message: &v1::session_message::Message) -> &'static str {
    use v1::session_message::Message;
    match message {
        Message::Opened(_) => "opened",
        Message::Recall(_) => "recall",
        Message::LeaseEnded(_) => "lease-ended",
        Message::Suspend(_) => "suspend",
        Message::SwapOut(_) => "swap-out",
        Message::SuspendCancelled(_) => "suspend-cancelled",
        Message::SegmentBack(_) => "segment-back",
        Message::Pinned(_) => "pinned",
        Message::Resized(_) => "resized",
    }
}

fn told(update: &Update) -> String {
    match update {
        Update::Waiting(waiting) => format!("waiting ask={} position={}", waiting.ask_id, waiting.position),
        Update::Granted(granted) => format!("granted lease={}", granted.lease_id),
        Update::Denied(denied) => format!("denied {}: {}", denied.reason, denied.message),
    }
}
