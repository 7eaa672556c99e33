//! The commands that become events.

use std::collections::BTreeSet;

use gpulease_arbiter::{
    Authority, DeviceWish, Event, Guard, Idleness, Patience, Peer, Pinning, Place, RequestId, SegmentKind,
    Terms,
};
use gpulease_words::{DeviceId, LeaseId, Pid, ProcessId, Uid};

use super::line::Line;

/// Who is on stage.
pub(super) trait Cast {
    /// The uid of a user.
    fn uid(&mut self, user: &str) -> Uid;
    /// A process of a user: the one of this id, or a new one.
    fn peer(&mut self, user: &str, process: Option<ProcessId>, program: Option<String>) -> Peer;
}

/// Reads a command as an event; `None`: there is no such command.
pub(super) fn event(
    verb: &str,
    line: &mut Line,
    request: RequestId,
    cast: &mut dyn Cast,
) -> Result<Option<Event>, String> {
    let event = match verb {
        "open" => {
            let user = line.word("a user")?;
            let (process, program) = (line.id_after("process")?, line.after("program")?);
            Event::Open { request, peer: cast.peer(&user, process, program) }
        }
        "adrift" => Event::Adrift { session: line.id("a session")? },
        "rejoin" => Event::Rejoined { session: line.id("a session")? },
        "close" => Event::Close { request, session: line.id("a session")? },
        "died" => Event::Died { process: line.id("a process")? },
        "acquire" => acquire(line, request, cast)?,
        "unattended" => {
            Event::Unattended { session: line.id("a session")?, ask_name: line.id("an ask's name")? }
        }
        "withdraw" => {
            let (session, ask_name) = (line.id("a session")?, line.id("an ask's name")?);
            Event::Withdraw { request, session, ask_name }
        }
        "join" => {
            let (session, lease) = (line.id("a session")?, line.id("a lease")?);
            Event::Join { request, session, lease, ancestors: Vec::new() }
        }
        "admit" => admit(line, request, cast)?,
        "resize" => resize(line, request)?,
        "release" => {
            let lease = line.id("a lease")?;
            Event::Release { request, authority: authority(line, cast)?, lease }
        }
        "allocate" => allocate(line, request)?,
        "abandon" => Event::Abandoned { request: RequestId(line.id("a request's number")?) },
        "free" => free(line, request)?,
        "recall" => recall(line, request)?,
        "resume" => Event::Resume { request, session: line.id("a session")?, lease: line.id("a lease")? },
        "pin" => Event::Pin { request, session: line.id("a session")?, lease: line.id("a lease")? },
        _ => return journey(verb, line),
    };
    Ok(Some(event))
}

/// What the clients of leases that move say.
fn journey(verb: &str, line: &mut Line) -> Result<Option<Event>, String> {
    let event = match verb {
        "drained" => Event::Drained { session: line.id("a session")?, lease: line.id("a lease")? },
        "swapped-out" => {
            let (session, lease) = (line.id("a session")?, line.id("a lease")?);
            Event::SwappedOut { session, lease, segment: line.id("a segment")? }
        }
        "swap-failed" => {
            let (session, lease) = (line.id("a session")?, line.id("a lease")?);
            Event::SwapFailed { session, lease, why: line.word("why")? }
        }
        "restored" => {
            let (session, lease) = (line.id("a session")?, line.id("a lease")?);
            Event::Restored { session, lease, segment: line.id("a segment")? }
        }
        "idle" | "busy" => {
            let idleness = if verb == "idle" { Idleness::Idle } else { Idleness::Busy };
            Event::Idle { session: line.id("a session")?, lease: line.id("a lease")?, idleness }
        }
        _ => return device(verb, line),
    };
    Ok(Some(event))
}

/// What devices, the hand-over and the witness say.
fn device(verb: &str, line: &mut Line) -> Result<Option<Event>, String> {
    let event = match verb {
        "created" => Event::Created { segment: line.id("a segment")? },
        "failed" => Event::CreateFailed { segment: line.id("a segment")?, why: line.word("why")? },
        "claimed" => Event::Claimed { segment: line.id("a segment")? },
        "freed" => Event::Freed { segment: line.id("a segment")? },
        "unproven" => {
            let (segment, pids) = (line.id("a segment")?, line.after("pids")?);
            Event::Unproven { segment, suspects: list(pids.as_deref().unwrap_or(""), Pid::new)? }
        }
        "off-book" => {
            let device = DeviceId::new(line.id("a device")?);
            let bytes = (!line.takes("unknown")).then(|| line.size("how much")).transpose()?;
            Event::OffBook { device, bytes }
        }
        "overhead" => Event::Overhead {
            process: line.id("a process")?,
            device: DeviceId::new(line.id("a device")?),
            bytes: line.size("how much")?,
        },
        "lost" => Event::DeviceLost { device: DeviceId::new(line.id("a device")?) },
        _ => return Ok(None),
    };
    Ok(Some(event))
}

fn acquire(line: &mut Line, request: RequestId, cast: &mut dyn Cast) -> Result<Event, String> {
    let (session, ask_name) = (line.id("a session")?, line.id("the ask's name, a number")?);
    let reserve = line.size_after("reserve")?.ok_or("reserve is missing")?;
    let devices = match (line.after("on")?, line.id_after("any")?) {
        (Some(these), None) => DeviceWish::These(list::<DeviceId, BTreeSet<_>>(&these, DeviceId::new)?),
        (None, any) => DeviceWish::Any(any.unwrap_or(std::num::NonZeroU32::MIN)),
        (Some(_), Some(_)) => return Err("on and any exclude each other".to_owned()),
    };
    let terms = Terms {
        name: line.after("name")?.unwrap_or_else(|| "job".to_owned()),
        reserve,
        limit: line.size_after("limit")?.unwrap_or(reserve),
        devices,
        patience: patience(line, Patience::Endless)?,
        pinning: if line.takes("pinned") { Pinning::Pinned } else { Pinning::Movable },
        guest: line.after("guest")?.map(|user| cast.uid(&user)),
    };
    Ok(Event::Acquire { request, session, ask_name, terms })
}

fn admit(line: &mut Line, request: RequestId, cast: &mut dyn Cast) -> Result<Event, String> {
    let (session, lease) = (line.id("a session")?, line.id("a lease")?);
    let user = line.word("a user")?;
    let process = line.id("a process")?;
    let place = if line.takes("in-place") { Place::Callers } else { Place::Own };
    Ok(Event::Admit { request, session, lease, peer: cast.peer(&user, Some(process), None), place })
}

fn resize(line: &mut Line, request: RequestId) -> Result<Event, String> {
    let (session, lease) = (line.id("a session")?, line.id("a lease")?);
    let reserve = line.size_after("reserve")?.ok_or("reserve is missing")?;
    let limit = line.size_after("limit")?.unwrap_or(reserve);
    Ok(Event::Resize { request, session, lease, reserve, limit })
}

fn authority(line: &mut Line, cast: &mut dyn Cast) -> Result<Authority, String> {
    match line.after("by")?.as_deref() {
        None => Err("by whom? write: by s1, by operator, or by user alice".to_owned()),
        Some("operator") => Ok(Authority::Operator),
        Some("user") => Ok(Authority::User(cast.uid(&line.word("a user")?))),
        Some(session) => session.parse().map(Authority::Session).map_err(|e| format!("{session:?}: {e}")),
    }
}

fn allocate(line: &mut Line, request: RequestId) -> Result<Event, String> {
    let (session, lease): (_, LeaseId) = (line.id("a session")?, line.id("a lease")?);
    Ok(Event::Allocate {
        request,
        session,
        lease,
        bytes: line.size("how much")?,
        device: DeviceId::new(line.id_after("on")?.unwrap_or(0)),
        kind: if line.takes("ipc") { SegmentKind::CudaIpc } else { SegmentKind::Descriptor },
        patience: patience(line, Patience::None)?,
        guard: if line.takes("inside-guard") { Guard::Inside } else { Guard::Outside },
    })
}

fn free(line: &mut Line, request: RequestId) -> Result<Event, String> {
    let (session, lease) = (line.id("a session")?, line.id("a lease")?);
    Ok(Event::Free { request, session, lease, segment: line.id("a segment")? })
}

fn recall(line: &mut Line, request: RequestId) -> Result<Event, String> {
    let (lease, bytes) = (line.id("a lease")?, line.size("how much")?);
    let within = line.span_after("within")?.ok_or("within is missing")?;
    Ok(Event::Recall { request, lease, bytes, within })
}

fn patience(line: &mut Line, unsaid: Patience) -> Result<Patience, String> {
    if line.takes("no-wait") {
        return Ok(Patience::None);
    }
    if line.takes("endless") {
        return Ok(Patience::Endless);
    }
    Ok(line.span_after("wait")?.map_or(unsaid, Patience::AtMost))
}

/// Numbers with commas between them.
fn list<T, C: FromIterator<T>>(text: &str, make: fn(u32) -> T) -> Result<C, String> {
    let words = text.split(',').filter(|word| !word.is_empty());
    words.map(|word| word.parse().map(make).map_err(|e| format!("{word:?}: {e}"))).collect()
}
