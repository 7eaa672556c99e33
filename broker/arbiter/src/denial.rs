//! Refusals: what happened, in numbers, and what would help.

use std::fmt;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, DurationText, Reason};

/// A refusal. Its [`Reason`] is the stable word, its `Display` the sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The account's limit will never allow it.
    OverBudget { account: String, limit: Bytes, asked: Bytes, overhead: Bytes },
    /// The account is at its limit now, and the asker would not wait.
    AccountFull { account: String, limit: Bytes, charged: Bytes, asked: Bytes },
    /// The account has room, but asks that have waited longer are due it first, and the asker would not wait.
    AccountDue { account: String, limit: Bytes, charged: Bytes, asked: Bytes },
    /// No device (or not so many of them) can ever give it.
    TooLarge { asked: Bytes, overhead: Bytes, largest: Bytes },
    /// More devices are asked for than there are.
    TooManyDevices { asked: u32, present: u32 },
    /// The lease's own limit.
    BeyondLease { limit: Bytes, held: Bytes, asked: Bytes },
    /// There is no room now, and the asker would not wait.
    NoRoom { asked: Bytes, room: Bytes, device: DeviceId },
    /// The wait ran out.
    WaitOver { waited: Duration, short_by: Bytes },
    /// The wait for a lease of the account to end ran out.
    StillTooMany { waited: Duration, account: String, max: u32 },
    /// A bound of the broker or of an account on a count of things.
    TooMany { what: &'static str, account: String, max: u32 },
    /// Nothing of that id that the caller may use: the same answer for "none" and "not yours".
    NoSuchLease,
    /// No segment of that id in the lease.
    NoSuchSegment,
    /// No device of that number, or the lease is not on it.
    NoSuchDevice { device: DeviceId, devices: String },
    /// The session is not open.
    NoSuchSession,
    /// The request makes no sense; why.
    Malformed(&'static str),
    /// It would wait while its own process holds a guard.
    WouldDeadlock { asked: Bytes },
    /// The lease is being given back.
    Ending,
    /// The lease is overdue.
    Overdue,
    /// The device refused bytes that the book says are there.
    DeviceRefused { why: String },
    /// The device is lost.
    DeviceLost { device: DeviceId },
    /// The asker gave it up.
    Withdrawn,
    /// An operator or another program of the same user gave the lease back.
    EndedByOther,
    /// The id counter is used up.
    OutOfIds,
    /// The lease's memory is in host memory, or on its way there or back.
    Suspended,
    /// There is no host memory for a copy of so much, and without one it could not be suspended.
    ArenaFull { capacity: Bytes, free: Bytes, asked: Bytes },
    /// What can't be moved has reached its bound on the device.
    PinnedFull { device: DeviceId, pinned_max: Bytes, pinned: Bytes, asked: Bytes },
    /// The guarantees of all groups and users, and what may be pinned, are more than the device has.
    GuaranteesTooLarge {
        device: DeviceId,
        capacity: Bytes,
        guarantees: Bytes,
        pinned_max: Bytes,
        headroom: Bytes,
    },
    /// The guarantees of a group's users are more than its own.
    GuaranteeOverParent { account: String, guarantee: Bytes, children: Bytes },
    /// A guarantee is more than a limit above it or its own.
    GuaranteeOverLimit { account: String, guarantee: Bytes, limit: Bytes },
    /// Nobody can say how often this guarantee would have to be kept.
    GuaranteeUncounted { account: String },
    /// The caller may not do this.
    NotAllowed(&'static str),
}

impl Denial {
    /// The stable word.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            // A count of none is a budget that never allows it; every other bound gives way as things end.
            Self::OverBudget { .. } | Self::TooMany { max: 0, .. } => Reason::OverBudget,
            Self::AccountFull { .. } => Reason::AccountLimit,
            Self::AccountDue { .. } => Reason::BehindOthers,
            Self::TooLarge { .. } | Self::TooManyDevices { .. } => Reason::TooLarge,
            Self::BeyondLease { .. } => Reason::BeyondLease,
            Self::NoRoom { .. } => Reason::NoRoom,
            Self::WaitOver { .. } | Self::StillTooMany { .. } => Reason::WaitOver,
            Self::TooMany { .. } | Self::OutOfIds => Reason::TooMany,
            Self::NoSuchLease => Reason::NoSuchLease,
            Self::NoSuchSegment => Reason::NoSuchSegment,
            Self::NoSuchDevice { .. } => Reason::NoSuchDevice,
            Self::NoSuchSession => Reason::NoSuchSession,
            Self::Malformed(_) => Reason::Malformed,
            Self::WouldDeadlock { .. } => Reason::WouldDeadlock,
            Self::Ending | Self::EndedByOther => Reason::Ending,
            Self::Overdue => Reason::Overdue,
            Self::DeviceRefused { .. } => Reason::DeviceRefused,
            Self::DeviceLost { .. } => Reason::DeviceLost,
            Self::Withdrawn => Reason::Withdrawn,
            Self::NotAllowed(_) => Reason::NotAllowed,
            Self::Suspended => Reason::Suspended,
            Self::ArenaFull { .. } => Reason::ArenaFull,
            Self::PinnedFull { .. } => Reason::PinnedFull,
            Self::GuaranteesTooLarge { .. }
            | Self::GuaranteeOverParent { .. }
            | Self::GuaranteeOverLimit { .. }
            | Self::GuaranteeUncounted { .. } => Reason::ImpossibleBudget,
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(said) = self.say_of_shortage(f) {
            return said;
        }
        match self {
            Self::OverBudget { account, limit, asked, overhead } if overhead.is_zero() => {
                write!(f, "{asked} is over the limit of {limit} of {account}; ask for less, or ask the operator for a larger limit")
            }
            Self::OverBudget { account, limit, asked, overhead } => write!(
                f,
                "{asked} and {overhead} for the process's context are over the limit of {limit} of {account}; ask for at most {}, or ask the operator for a larger limit",
                limit.saturating_sub(*overhead)
            ),
            Self::AccountFull { account, limit, charged, asked } => write!(
                f,
                "{account} holds {charged} of its limit of {limit}, so {asked} more is over it now; wait for its other leases, or release one"
            ),
            Self::TooLarge { asked, overhead, largest } if overhead.is_zero() => {
                write!(f, "{asked} is more than any device here can give; ask for at most {largest}")
            }
            Self::TooLarge { asked, overhead, largest } => write!(
                f,
                "{asked} and {overhead} for the process's context are more than any device here can give; ask for at most {largest}"
            ),
            Self::TooManyDevices { asked, present } => {
                write!(f, "{asked} devices are asked for and this broker has {present}; ask for at most {present}")
            }
            Self::NoRoom { asked, room, device } => {
                write!(f, "{asked} is asked for and device {device} has {room} to give now; wait for it, ask for less, or see with `gpulease` who has the rest")
            }
            Self::TooMany { what, account, max } => say_too_many(f, what, account, *max),
            Self::StillTooMany { waited, account, max } => say_still_too_many(f, *waited, account, *max),
            Self::NoSuchLease => f.write_str("there is no such lease, or it is not yours; `gpulease` lists the leases"),
            Self::NoSuchSegment => f.write_str("the lease has no such segment; it may have been given back already"),
            Self::NoSuchDevice { device, devices } => write!(f, "there is no device {device} to use here; usable are {devices}"),
            Self::NoSuchSession => {
                f.write_str("the session is not open: the broker was restarted, or the session was closed; connect again")
            }
            Self::Malformed(why) => f.write_str(why),
            Self::WouldDeadlock { asked } => write!(
                f,
                "{asked} would have to wait while this process is inside a guard, which others may wait for; leave the guard first, or allocate without waiting"
            ),
            Self::Ending => f.write_str("the lease is being given back; ask for a new one"),
            Self::Overdue => f.write_str(
                "the lease is overdue: a recall's deadline passed, or its session stayed away; give surplus back first",
            ),
            Self::DeviceRefused { why } => {
                write!(f, "the device refused memory that should be there: {why}; try again, or tell the operator")
            }
            Self::DeviceLost { device } => write!(f, "device {device} is lost; use another, or ask the operator"),
            Self::Withdrawn => f.write_str("the ask was withdrawn"),
            Self::EndedByOther => f.write_str("the lease was given back from outside this program"),
            Self::OutOfIds => f.write_str("the ids of this broker are used up; the operator has to restart it"),
            Self::NotAllowed(why) => f.write_str(why),
            Self::AccountDue { .. }
            | Self::BeyondLease { .. }
            | Self::WaitOver { .. }
            | Self::Suspended
            | Self::ArenaFull { .. }
            | Self::PinnedFull { .. }
            | Self::GuaranteesTooLarge { .. }
            | Self::GuaranteeOverParent { .. }
            | Self::GuaranteeOverLimit { .. }
            | Self::GuaranteeUncounted { .. } => unreachable!("said above"),
        }
    }
}

impl Denial {
    /// The words about what is full or over for now, guarantees, what is pinned, the arena and what is away.
    fn say_of_shortage(&self, f: &mut fmt::Formatter<'_>) -> Option<fmt::Result> {
        if let Self::AccountDue { account, limit, charged, asked } = self {
            return Some(write!(
                f,
                "{account} holds {charged} of its limit of {limit}, but what is left is due to asks that have waited longer than this one for {asked}; wait for it"
            ));
        }
        if let Self::Suspended = self {
            return Some(
                f.write_str("the lease is suspended, or on its way out or back; wait for its memory first"),
            );
        }
        if let Self::ArenaFull { capacity, free, asked } = self {
            return Some(write!(
                f,
                "a host copy of {asked} is needed so that this can be suspended, and {free} of {capacity} of host memory are free; wait, ask for a pinned lease, or have the operator raise `arena`"
            ));
        }
        if let Self::PinnedFull { device, pinned_max, pinned, asked } = self {
            return Some(write!(
                f,
                "{asked} that can't be moved are asked for, and {pinned} of at most {pinned_max} of device {device} are pinned already; wait, ask for a lease that may be suspended, or have the operator raise `pinned_max`"
            ));
        }
        if let Self::GuaranteesTooLarge { device, capacity, guarantees, pinned_max, headroom } = self {
            return Some(write!(
                f,
                "guarantees of {guarantees}, {pinned_max} that may be pinned and {headroom} of headroom are more than the {capacity} of device {device}; lower one of them"
            ));
        }
        if let Self::GuaranteeOverParent { account, guarantee, children } = self {
            return Some(write!(
                f,
                "the users of {account} have guarantees of {children} together, and it has {guarantee}; raise its own, or lower one of theirs"
            ));
        }
        if let Self::GuaranteeOverLimit { account, guarantee, limit } = self {
            return Some(write!(
                f,
                "{account} has a guarantee of {guarantee} and may have at most {limit}; lower the guarantee, or raise the limit"
            ));
        }
        if let Self::GuaranteeUncounted { account } = self {
            return Some(write!(
                f,
                "a guarantee of {account} would be promised to any number of accounts; give it to a group or to a user by name"
            ));
        }
        if let Self::BeyondLease { limit, held, asked } = self {
            return Some(write!(
                f,
                "the lease's limit is {limit} a device and it holds {held}, so {asked} more is above it; free something, or resize the lease"
            ));
        }
        if let Self::WaitOver { waited, short_by } = self {
            return Some(write!(
                f,
                "after {} there are still {short_by} missing; wait longer, or ask for less",
                DurationText(*waited)
            ));
        }
        None
    }
}

fn say_still_too_many(f: &mut fmt::Formatter<'_>, waited: Duration, account: &str, max: u32) -> fmt::Result {
    let (waited, leases) = (DurationText(waited), if max == 1 { "lease" } else { "leases" });
    write!(
        f,
        "after {waited} {account} still has all of the {max} {leases} that it may have at one time; wait longer, or end one"
    )
}

/// A count at its bound, which may be none at all.
fn say_too_many(f: &mut fmt::Formatter<'_>, what: &str, account: &str, max: u32) -> fmt::Result {
    if max == 0 {
        return write!(f, "{account} may have no {what}; ask the operator to raise the bound");
    }
    let (what, one) = if max == 1 { (what.trim_end_matches('s'), "it") } else { (what, "one") };
    write!(f, "{account} may have at most {max} {what} at one time; end {one} first")
}
