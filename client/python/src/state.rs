//! What the broker says of its leases and devices, as dictionaries.

use std::process;
use std::sync::Mutex;

use gpulease_client::blocking::Observer;
use gpulease_client::{AskError, Error, LeaseId, proto};
use pyo3::prelude::*;

use crate::error::{failed, raised};
use crate::job::lock;

/// The whole state; `gpulease/_native.pyi` has the types.
#[derive(IntoPyObject)]
pub(crate) struct State {
    broker: Broker,
    devices: Vec<Device>,
    leases: Vec<Lease>,
    waiting: Vec<Waiting>,
}

#[derive(IntoPyObject)]
struct Broker {
    version: String,
    pid: u32,
    socket: String,
    hold: String,
}

#[derive(IntoPyObject)]
struct Device {
    index: u32,
    kind: &'static str,
    uuid: String,
    name: String,
    total_bytes: u64,
    capacity_bytes: u64,
    free_bytes: u64,
    set_aside_bytes: u64,
    overhead_bytes: u64,
    held_bytes: u64,
    draining_bytes: u64,
    quarantined_bytes: u64,
    off_book_bytes: Option<u64>,
}

#[derive(IntoPyObject)]
struct Lease {
    id: u64,
    name: String,
    user: String,
    pid: u32,
    program: String,
    state: String,
    devices: Vec<u32>,
    reserve_bytes: u64,
    limit_bytes: u64,
    held_bytes: u64,
    held_peak_bytes: u64,
    overhead_bytes: u64,
    draining_bytes: u64,
    away_bytes: u64,
    guaranteed: bool,
    suspendable: bool,
    idle: bool,
    overdue: bool,
    suspensions: u32,
    segments: u32,
    age_seconds: f64,
    waited_seconds: f64,
    members: Vec<Member>,
}

#[derive(IntoPyObject)]
struct Member {
    pid: u32,
    command: String,
    overhead_bytes: u64,
    overhead_measured: bool,
}

#[derive(IntoPyObject)]
struct Waiting {
    id: u64,
    name: String,
    user: String,
    position: u32,
    reserve_bytes: u64,
    short_by_bytes: u64,
    waited_seconds: f64,
}

/// A connection that looks and holds nothing, of the process of this pid.
static LOOKING: Mutex<Option<(u32, Observer)>> = Mutex::new(None);

/// The state of the broker of this process, now.
#[pyfunction]
pub(crate) fn state(py: Python<'_>) -> PyResult<State> {
    let reply = py.detach(|| look(Observer::status)).map_err(|error| failed(&error))?;
    Ok(State::from(reply))
}

/// Why a lease is as it is: a sentence, and details of a sentence each.
#[pyfunction]
pub(crate) fn why(py: Python<'_>, lease: u64) -> PyResult<(String, Vec<String>)> {
    let ask = |observer: &Observer| match observer.why_lease(LeaseId::new(lease)) {
        Ok(why) => Ok(Ok(why)),
        Err(AskError::Denied(denied)) => Ok(Err(AskError::Denied(denied))),
        Err(AskError::Failed(error)) => Err(error),
    };
    let why = py.detach(|| look(ask)).map_err(|error| failed(&error))?.map_err(raised)?;
    Ok((why.summary, why.details))
}

/// Closes the connection.
pub(crate) fn forget() {
    drop(lock(&LOOKING).take());
}

/// Looks over the connection there is; one that broke, as after a restart of the broker, is made anew once.
fn look<T>(at: impl Fn(&Observer) -> Result<T, Error>) -> Result<T, Error> {
    let mut looking = lock(&LOOKING);
    let pid = process::id();
    if let Some((_, observer)) = looking.as_ref().filter(|(opened_by, _)| *opened_by == pid) {
        match at(observer) {
            Err(Error::Gone { .. }) => {}
            answer => return answer,
        }
    }
    let observer = Observer::connect()?;
    let answer = at(&observer);
    *looking = Some((pid, observer));
    answer
}

impl From<proto::StatusReply> for State {
    fn from(reply: proto::StatusReply) -> Self {
        Self {
            broker: Broker::from(reply.broker.unwrap_or_default()),
            devices: reply.devices.into_iter().map(Device::from).collect(),
            leases: reply.leases.into_iter().map(Lease::from).collect(),
            waiting: reply.waiting.into_iter().map(Waiting::from).collect(),
        }
    }
}

impl From<proto::BrokerStatus> for Broker {
    fn from(broker: proto::BrokerStatus) -> Self {
        Self { version: broker.version, pid: broker.pid, socket: broker.socket, hold: broker.hold }
    }
}

impl From<proto::DeviceStatus> for Device {
    fn from(device: proto::DeviceStatus) -> Self {
        let (info, memory) = (device.info.unwrap_or_default(), device.memory.unwrap_or_default());
        let kind = match info.kind() {
            proto::DeviceKind::Host => "host",
            proto::DeviceKind::Cuda => "cuda",
            proto::DeviceKind::Unspecified => "unknown",
        };
        Self {
            index: info.index,
            kind,
            uuid: info.uuid,
            name: info.name,
            total_bytes: memory.total_bytes,
            capacity_bytes: memory.capacity_bytes,
            free_bytes: memory.free_bytes,
            set_aside_bytes: memory.set_aside_bytes,
            overhead_bytes: memory.overhead_bytes,
            held_bytes: memory.held_bytes,
            draining_bytes: memory.draining_bytes,
            quarantined_bytes: memory.quarantined_bytes,
            off_book_bytes: memory.off_book_bytes,
        }
    }
}

impl From<proto::LeaseStatus> for Lease {
    fn from(lease: proto::LeaseStatus) -> Self {
        Self {
            id: lease.id,
            name: lease.name,
            user: lease.user,
            pid: lease.pid,
            program: lease.program,
            state: lease.state,
            devices: lease.device_indices,
            reserve_bytes: lease.reserve_bytes,
            limit_bytes: lease.limit_bytes,
            held_bytes: lease.held_bytes,
            held_peak_bytes: lease.held_peak_bytes,
            overhead_bytes: lease.overhead_bytes,
            draining_bytes: lease.draining_bytes,
            away_bytes: lease.away_bytes,
            guaranteed: lease.guaranteed,
            suspendable: lease.suspendable,
            idle: lease.idle,
            overdue: lease.overdue,
            suspensions: lease.suspensions,
            segments: lease.segments,
            age_seconds: seconds(lease.age_ms),
            waited_seconds: seconds(lease.waited_ms),
            members: lease.members.into_iter().map(Member::from).collect(),
        }
    }
}

impl From<proto::Member> for Member {
    fn from(member: proto::Member) -> Self {
        Self {
            pid: member.pid,
            command: member.command,
            overhead_bytes: member.overhead_bytes,
            overhead_measured: member.overhead_measured,
        }
    }
}

impl From<proto::WaitingStatus> for Waiting {
    fn from(waiting: proto::WaitingStatus) -> Self {
        Self {
            id: waiting.id,
            name: waiting.name,
            user: waiting.user,
            position: waiting.position,
            reserve_bytes: waiting.reserve_bytes,
            short_by_bytes: waiting.short_by_bytes,
            waited_seconds: seconds(waiting.waited_ms),
        }
    }
}

fn seconds(milliseconds: u64) -> f64 {
    std::time::Duration::from_millis(milliseconds).as_secs_f64()
}
