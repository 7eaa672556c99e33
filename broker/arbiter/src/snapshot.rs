//! The state as plain data, for everyone who shows it.

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, Reason, SessionId, Uid};

use crate::Time;

/// The whole state at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Grows with each mutation.
    pub generation: u64,
    /// When it was made.
    pub at: Time,
    /// In order of their ids.
    pub devices: Vec<DeviceView>,
    /// In order of their ids.
    pub leases: Vec<LeaseView>,
    /// In the order of the line: the first is next.
    pub waiting: Vec<AskView>,
    /// Every account that is charged, waits or has a limit; parents first.
    pub accounts: Vec<AccountView>,
    /// Open sessions.
    pub sessions: u32,
    /// Host memory for copies.
    pub arena: ArenaView,
}

/// One device's book: `capacity + unbacked` is the sum of the other figures but `peak_charged`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceView {
    /// Which.
    pub id: DeviceId,
    /// Whether it can be used.
    pub usable: bool,
    /// What may be leased.
    pub capacity: Bytes,
    /// Not promised to anyone.
    pub free: Bytes,
    /// Promised to leases and not yet held.
    pub set_aside: Bytes,
    /// Contexts and libraries of members.
    pub overhead: Bytes,
    /// In segments.
    pub held: Bytes,
    /// Given back and not yet proven free.
    pub draining: Bytes,
    /// Could not be proven free.
    pub quarantined: Bytes,
    /// Taken by outsiders; `None`: nobody can tell, and none is counted.
    pub off_book: Option<Bytes>,
    /// Promised bytes that outsiders have taken.
    pub unbacked: Bytes,
    /// The most that was set aside, overhead, held, draining and quarantined at one time.
    pub peak_charged: Bytes,
    /// What can't be moved and no guarantee covers.
    pub pinned: Bytes,
    /// The most that may be so.
    pub pinned_max: Bytes,
}

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Granted and usable.
    Active,
    /// On its way to host memory.
    Suspending,
    /// In host memory.
    Suspended,
    /// On its way back.
    Resuming,
    /// Given back; what is still mapped drains.
    Draining,
}

impl LeaseState {
    /// The stable word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Resuming => "resuming",
            Self::Draining => "draining",
        }
    }
}

/// One lease. Sizes per device where it says so, else over its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Which.
    pub id: LeaseId,
    /// Name.
    pub name: String,
    /// Owner's user.
    pub uid: Uid,
    /// Owner's process.
    pub pid: Pid,
    /// Owner's command.
    pub program: String,
    /// Owner's session, while it is open.
    pub session: Option<SessionId>,
    /// State.
    pub state: LeaseState,
    /// No growth: a deadline passed.
    pub overdue: bool,
    /// The owner's stream is broken.
    pub adrift: bool,
    /// Where.
    pub devices: Vec<DeviceId>,
    /// Per device.
    pub reserve: Bytes,
    /// Per device.
    pub limit: Bytes,
    /// Promised and not yet held.
    pub set_aside: Bytes,
    /// In segments.
    pub held: Bytes,
    /// Members' contexts.
    pub overhead: Bytes,
    /// On its way back.
    pub draining: Bytes,
    /// Not proven free.
    pub quarantined: Bytes,
    /// Processes suspected of still mapping quarantined bytes.
    pub suspects: Vec<Pid>,
    /// The most it held at one time.
    pub held_peak: Bytes,
    /// Segments.
    pub segments: u32,
    /// Whether a segment was ever claimed.
    pub used: bool,
    /// When it was granted.
    pub granted_at: Time,
    /// How long it had waited.
    pub waited: std::time::Duration,
    /// Living member processes.
    pub members: Vec<MemberView>,
    /// It was asked for as one that never moves.
    pub pinned: bool,
    /// It can be suspended.
    pub movable: bool,
    /// Its account's guarantee covered it when it was granted or came back.
    pub guaranteed: bool,
    /// No guard of it has lived for a while.
    pub idle: bool,
    /// In host memory.
    pub swapped: Bytes,
    /// Since when it has its memory; `None` while it is suspended or on its way.
    pub resident_since: Option<Time>,
    /// How often all of it was swapped out.
    pub suspensions: u32,
}

/// A member process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its number.
    pub pid: Pid,
    /// Its command.
    pub program: String,
    /// What its context and libraries are charged, over the lease's devices.
    pub overhead: Bytes,
    /// Whether that was measured.
    pub measured: bool,
}

/// One ask in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskView {
    /// Which.
    pub id: AskId,
    /// Growth of this lease, or a lease of its own.
    pub lease: Option<LeaseId>,
    /// Name.
    pub name: String,
    /// Who.
    pub uid: Uid,
    /// Which process.
    pub pid: Pid,
    /// Per device.
    pub reserve: Bytes,
    /// Per device.
    pub limit: Bytes,
    /// How many devices.
    pub devices_wanted: u32,
    /// The devices it is bound to or named; empty: any.
    pub devices: Vec<DeviceId>,
    /// When it joined the line.
    pub since: Time,
    /// When it gives up.
    pub deadline: Option<Time>,
    /// Nothing overtakes it.
    pub barrier: bool,
    /// When it becomes, or became, a barrier.
    pub barrier_at: Time,
    /// Why it waits.
    pub reason: Reason,
    /// What is missing where least is missing, its context included.
    pub short_by: Bytes,
    /// The device that figure is of.
    pub device: Option<DeviceId>,
    /// The account at its limit, where that is why.
    pub account: Option<String>,
    /// What it is for.
    pub purpose: Purpose,
    /// Its account's guarantee covers it: it goes first.
    pub guaranteed: bool,
    /// Leases that are asked for bytes, or swapped out, on a device it waits for.
    pub recalled: Vec<LeaseId>,
    /// When it is granted at the latest (I6); `None` where nothing bounds the wait.
    pub at_latest: Option<Time>,
}

/// What an ask is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A lease of its own.
    Lease,
    /// More for a lease that is there.
    Growth,
    /// The memory of a suspended lease.
    Resume,
}

/// The host memory for copies: `capacity` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaView {
    /// All of it.
    pub capacity: Bytes,
    /// Not set aside for any lease.
    pub free: Bytes,
    /// For leases that may be suspended.
    pub set_aside: Bytes,
    /// Of leases that are swapped out.
    pub filled: Bytes,
}

/// One account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountView {
    /// `host`, `group.NAME`, `user.UID`, `user.UID/job.NAME`.
    pub path: String,
    /// The user it is of, where it is a user's or a job's.
    pub uid: Option<Uid>,
    /// Limit.
    pub limit: Option<Bytes>,
    /// Charged over all devices.
    pub charged: Bytes,
    /// Weight.
    pub weight: u32,
    /// Leases.
    pub leases: u32,
    /// The most leases.
    pub leases_max: Option<u32>,
    /// What is always available to it on each device.
    pub guarantee: Bytes,
}
