//! The state as JSON: stable names, sizes in bytes, times in seconds, null for what nobody knows.

use gpulease_proto::v1;
use gpulease_words::{AskId, LeaseId};
use serde::Serialize;

/// Grows when a field changes its meaning or goes away; new fields do not count.
pub(crate) const SCHEMA_VERSION: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct State<'a> {
    schema_version: u32,
    generation: u64,
    broker: Option<Broker<'a>>,
    devices: Vec<Device<'a>>,
    leases: Vec<Lease<'a>>,
    waiting: Vec<Waiting<'a>>,
    accounts: Vec<Account<'a>>,
}

#[derive(Debug, Serialize)]
struct Broker<'a> {
    version: &'a str,
    pid: u32,
    uptime_seconds: f64,
    socket: &'a str,
    hold: &'a str,
    helpers: Vec<Helper<'a>>,
    arena: Option<Arena>,
}

#[derive(Debug, Serialize)]
struct Arena {
    capacity_bytes: u64,
    free_bytes: u64,
    set_aside_bytes: u64,
    filled_bytes: u64,
    draining_bytes: u64,
    touched_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Helper<'a> {
    role: &'a str,
    pid: u32,
    device: u32,
    overhead_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Device<'a> {
    index: Option<u32>,
    uuid: Option<&'a str>,
    name: Option<&'a str>,
    kind: Option<&'static str>,
    memory: Option<Memory>,
    strangers: Option<Vec<Stranger<'a>>>,
    trouble: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Memory {
    total_bytes: u64,
    capacity_bytes: u64,
    free_bytes: u64,
    set_aside_bytes: u64,
    overhead_bytes: u64,
    held_bytes: u64,
    draining_bytes: u64,
    quarantined_bytes: u64,
    off_book_bytes: Option<u64>,
    unbacked_bytes: u64,
    peak_charged_bytes: u64,
    device_used_bytes: Option<u64>,
    hold_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Stranger<'a> {
    pid: u32,
    uid: Option<u32>,
    user: &'a str,
    command: &'a str,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Lease<'a> {
    id: String,
    name: &'a str,
    user: &'a str,
    uid: u32,
    pid: u32,
    program: &'a str,
    members: Vec<Member<'a>>,
    state: &'a str,
    devices: &'a [u32],
    reserve_bytes: u64,
    limit_bytes: u64,
    held_bytes: u64,
    held_peak_bytes: u64,
    overhead_bytes: u64,
    draining_bytes: u64,
    quarantined_bytes: u64,
    guaranteed: bool,
    suspendable: bool,
    overdue: bool,
    adrift: bool,
    used: bool,
    segments: u32,
    away_bytes: u64,
    idle: bool,
    suspensions: u32,
    age_seconds: f64,
    waited_seconds: f64,
}

#[derive(Debug, Serialize)]
struct Member<'a> {
    pid: u32,
    command: &'a str,
    overhead_bytes: u64,
    overhead_measured: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Waiting<'a> {
    id: String,
    name: &'a str,
    user: &'a str,
    uid: u32,
    pid: u32,
    position: u32,
    reserve_bytes: u64,
    limit_bytes: u64,
    devices_wanted: u32,
    growth_of: Option<String>,
    return_of: Option<String>,
    short_by_bytes: u64,
    reason: &'a str,
    barrier: bool,
    waited_seconds: f64,
    at_latest_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Account<'a> {
    path: &'a str,
    limit_bytes: Option<u64>,
    charged_bytes: u64,
    weight: u32,
    leases: u32,
    leases_max: Option<u32>,
    guarantee_bytes: Option<u64>,
}

/// Milliseconds as seconds.
pub(crate) fn seconds(ms: u64) -> f64 {
    // Exact up to 2^53 ms, which is 285,000 years.
    ms as f64 / 1_000.0
}

impl<'a> From<&'a v1::StatusReply> for State<'a> {
    fn from(reply: &'a v1::StatusReply) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            generation: reply.generation,
            broker: reply.broker.as_ref().map(Broker::from),
            devices: reply.devices.iter().map(Device::from).collect(),
            leases: reply.leases.iter().map(Lease::from).collect(),
            waiting: reply.waiting.iter().map(Waiting::from).collect(),
            accounts: reply.accounts.iter().map(Account::from).collect(),
        }
    }
}

impl<'a> From<&'a v1::BrokerStatus> for Broker<'a> {
    fn from(broker: &'a v1::BrokerStatus) -> Self {
        Self {
            version: &broker.version,
            pid: broker.pid,
            uptime_seconds: seconds(broker.uptime_ms),
            socket: &broker.socket,
            hold: &broker.hold,
            helpers: broker.helpers.iter().map(Helper::from).collect(),
            arena: broker.arena.as_ref().map(Arena::from),
        }
    }
}

impl From<&v1::ArenaStatus> for Arena {
    fn from(arena: &v1::ArenaStatus) -> Self {
        Self {
            capacity_bytes: arena.capacity_bytes,
            free_bytes: arena.free_bytes,
            set_aside_bytes: arena.set_aside_bytes,
            filled_bytes: arena.filled_bytes,
            draining_bytes: arena.draining_bytes,
            touched_bytes: arena.touched_bytes,
        }
    }
}

impl<'a> From<&'a v1::HelperProcess> for Helper<'a> {
    fn from(helper: &'a v1::HelperProcess) -> Self {
        Self {
            role: &helper.role,
            pid: helper.pid,
            device: helper.device_index,
            overhead_bytes: helper.overhead_bytes,
        }
    }
}

impl<'a> From<&'a v1::DeviceStatus> for Device<'a> {
    fn from(device: &'a v1::DeviceStatus) -> Self {
        let info = device.info.as_ref();
        let strangers = || device.strangers.iter().map(Stranger::from).collect();
        Self {
            index: info.map(|info| info.index),
            uuid: info.map(|info| info.uuid.as_str()),
            name: info.map(|info| info.name.as_str()),
            kind: info.and_then(|info| kind_word(info.kind())),
            memory: device.memory.as_ref().map(Memory::from),
            strangers: device.strangers_known.then(strangers),
            trouble: Some(device.trouble.as_str()).filter(|trouble| !trouble.is_empty()),
        }
    }
}

/// The word for a kind of device; `None` where it is not told.
pub(crate) const fn kind_word(kind: v1::DeviceKind) -> Option<&'static str> {
    match kind {
        v1::DeviceKind::Unspecified => None,
        v1::DeviceKind::Host => Some("host"),
        v1::DeviceKind::Cuda => Some("cuda"),
    }
}

impl From<&v1::DeviceMemory> for Memory {
    fn from(memory: &v1::DeviceMemory) -> Self {
        Self {
            total_bytes: memory.total_bytes,
            capacity_bytes: memory.capacity_bytes,
            free_bytes: memory.free_bytes,
            set_aside_bytes: memory.set_aside_bytes,
            overhead_bytes: memory.overhead_bytes,
            held_bytes: memory.held_bytes,
            draining_bytes: memory.draining_bytes,
            quarantined_bytes: memory.quarantined_bytes,
            off_book_bytes: memory.off_book_bytes,
            unbacked_bytes: memory.unbacked_bytes,
            peak_charged_bytes: memory.peak_charged_bytes,
            device_used_bytes: memory.device_used_bytes,
            hold_bytes: memory.hold_bytes,
        }
    }
}

impl<'a> From<&'a v1::Stranger> for Stranger<'a> {
    fn from(stranger: &'a v1::Stranger) -> Self {
        Self {
            pid: stranger.pid,
            uid: stranger.uid,
            user: &stranger.user,
            command: &stranger.command,
            bytes: stranger.bytes,
        }
    }
}

impl<'a> From<&'a v1::LeaseStatus> for Lease<'a> {
    fn from(lease: &'a v1::LeaseStatus) -> Self {
        Self {
            id: LeaseId::new(lease.id).to_string(),
            name: &lease.name,
            user: &lease.user,
            uid: lease.uid,
            pid: lease.pid,
            program: &lease.program,
            members: lease.members.iter().map(Member::from).collect(),
            state: &lease.state,
            devices: &lease.device_indices,
            reserve_bytes: lease.reserve_bytes,
            limit_bytes: lease.limit_bytes,
            held_bytes: lease.held_bytes,
            held_peak_bytes: lease.held_peak_bytes,
            overhead_bytes: lease.overhead_bytes,
            draining_bytes: lease.draining_bytes,
            quarantined_bytes: lease.quarantined_bytes,
            guaranteed: lease.guaranteed,
            suspendable: lease.suspendable,
            overdue: lease.overdue,
            adrift: lease.adrift,
            used: lease.used,
            segments: lease.segments,
            away_bytes: lease.away_bytes,
            idle: lease.idle,
            suspensions: lease.suspensions,
            age_seconds: seconds(lease.age_ms),
            waited_seconds: seconds(lease.waited_ms),
        }
    }
}

impl<'a> From<&'a v1::Member> for Member<'a> {
    fn from(member: &'a v1::Member) -> Self {
        Self {
            pid: member.pid,
            command: &member.command,
            overhead_bytes: member.overhead_bytes,
            overhead_measured: member.overhead_measured,
        }
    }
}

impl<'a> From<&'a v1::WaitingStatus> for Waiting<'a> {
    fn from(ask: &'a v1::WaitingStatus) -> Self {
        Self {
            id: AskId::new(ask.id).to_string(),
            name: &ask.name,
            user: &ask.user,
            uid: ask.uid,
            pid: ask.pid,
            position: ask.position,
            reserve_bytes: ask.reserve_bytes,
            limit_bytes: ask.limit_bytes,
            devices_wanted: ask.devices_wanted,
            growth_of: ask.lease_id.filter(|_| !ask.resume).map(|id| LeaseId::new(id).to_string()),
            return_of: ask.lease_id.filter(|_| ask.resume).map(|id| LeaseId::new(id).to_string()),
            short_by_bytes: ask.short_by_bytes,
            reason: &ask.reason,
            barrier: ask.barrier,
            waited_seconds: seconds(ask.waited_ms),
            at_latest_seconds: ask.at_latest_ms.map(seconds),
        }
    }
}

impl<'a> From<&'a v1::AccountStatus> for Account<'a> {
    fn from(account: &'a v1::AccountStatus) -> Self {
        Self {
            path: &account.path,
            limit_bytes: account.limit_bytes,
            charged_bytes: account.charged_bytes,
            weight: account.weight,
            leases: account.leases,
            leases_max: account.leases_max,
            guarantee_bytes: account.guarantee_bytes,
        }
    }
}
