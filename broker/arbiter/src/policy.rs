//! What the operator decides: bounds and graces, and the budget of each account.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use gpulease_words::{Bytes, DeviceId, Uid};

use crate::Pinning;

/// Bounds and graces. Every queue, table and wait of the arbiter has its maximum here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// An ask that has waited so long is a barrier: nothing overtakes it on its devices.
    pub max_wait: Duration,
    /// How long a session whose stream broke may stay away before its leases are overdue.
    pub adrift_grace: Duration,
    /// How long an ask whose stream broke is kept for its client to come back to.
    pub unattended_grace: Duration,
    /// Open sessions of one user.
    pub sessions_per_uid: u32,
    /// Asks of one user that wait.
    pub asks_per_uid: u32,
    /// Leases of one user.
    pub leases_per_uid: u32,
    /// Segments of one lease.
    pub segments_per_lease: u32,
    /// Member processes of one lease.
    pub members_per_lease: u32,
    /// Open sessions of all users.
    pub sessions_max: u32,
    /// Asks of all users that wait.
    pub asks_max: u32,
    /// Leases of all users.
    pub leases_max: u32,
    /// How long a lease keeps its memory, at least, against all but guaranteed asks.
    pub min_residency: Duration,
    /// After so long without a guard a client calls its lease idle.
    pub idle_after: Duration,
    /// How long a holder has to give surplus back that the arbiter recalls.
    pub recall_deadline: Duration,
    /// How long members have to drain for a suspension.
    pub drain_deadline: Duration,
    /// How fast bytes move between a device and its host copies, each way; for the bound on waits.
    pub swap_bytes_per_second: Bytes,
    /// What may be pinned of each device beyond guarantees; `None`: what guarantees leave, and at most
    /// half the capacity where there is an arena.
    pub pinned_max: Option<Bytes>,
    /// What is kept of each device for contexts that are yet to come.
    pub headroom: Bytes,
    /// Host memory for the copies of suspended leases, all devices together; zero: nothing moves.
    pub arena: Bytes,
}

impl Default for Policy {
    /// Sized for a shared server: hundreds of users, none of whom can fill a table alone.
    fn default() -> Self {
        Self {
            max_wait: Duration::from_secs(300),
            adrift_grace: Duration::from_secs(60),
            unattended_grace: Duration::from_secs(10),
            sessions_per_uid: 1_024,
            asks_per_uid: 256,
            leases_per_uid: 1_024,
            segments_per_lease: 4_096,
            members_per_lease: 256,
            sessions_max: 65_536,
            asks_max: 131_072,
            leases_max: 131_072,
            min_residency: Duration::from_secs(30),
            idle_after: Duration::from_secs(300),
            recall_deadline: Duration::from_secs(10),
            drain_deadline: Duration::from_secs(10),
            swap_bytes_per_second: Bytes::new(20_000_000_000),
            pinned_max: None,
            headroom: Bytes::ZERO,
            arena: Bytes::ZERO,
        }
    }
}

/// What an account may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most it may be charged over all devices of the host; `None`: whatever its parent allows.
    pub limit: Option<Bytes>,
    /// Its share of what is contended, against its siblings'.
    pub weight: NonZeroU32,
    /// The most leases it may have at one time; `None`: no bound of its own.
    pub leases_max: Option<u32>,
    /// What is always available to it, on each device; for groups and users by name. A user's comes out of his group's.
    pub guarantee: Bytes,
    /// After so long its asks are barriers; `None`: as its parent says, and at last the policy.
    pub max_wait: Option<Duration>,
    /// Whether its leases may be suspended; pinned where any account of the path says so.
    pub pinning: Pinning,
    /// What becomes of a holder that lets a deadline pass; `None`: as its parent says, and at last `Keep`.
    pub on_overdue: Option<OnOverdue>,
}

/// What becomes of a holder that lets a deadline pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOverdue {
    /// It keeps what it has, and does not grow.
    #[default]
    Keep,
    /// It is told to end, and after the grace it is ended.
    Terminate {
        /// Between the two signals.
        grace: Duration,
    },
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            limit: None,
            weight: NonZeroU32::MIN,
            leases_max: None,
            guarantee: Bytes::ZERO,
            max_wait: None,
            pinning: Pinning::Movable,
            on_overdue: None,
        }
    }
}

/// The budgets of the account tree host > group > user > job.
///
/// A job's budget is that of the first pattern its name matches; `*` in a pattern stands for any
/// letters. Each user's job of that name has the budget for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// All leases together.
    pub host: Budget,
    /// Groups by name.
    pub groups: BTreeMap<String, Budget>,
    /// Users that have a budget of their own.
    pub users: BTreeMap<Uid, Budget>,
    /// Every other user, each.
    pub default_user: Budget,
    /// Patterns of job names, the first match counts.
    pub jobs: Vec<(String, Budget)>,
    /// Every other job, each.
    pub default_job: Budget,
    /// The group of each user who has a guarantee and a group, as his processes will name it.
    pub memberships: BTreeMap<Uid, String>,
}

impl Budgets {
    /// The budget of a job of that name.
    #[must_use]
    pub fn of_job(&self, name: &str) -> &Budget {
        let first = self.jobs.iter().find(|(pattern, _)| matches(pattern, name));
        first.map_or(&self.default_job, |(_, budget)| budget)
    }
}

/// Whether the name matches the pattern, in which `*` stands for any letters: the first piece
/// begins it, the last one ends it, and those between follow one another.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut left) = name.strip_prefix(first).and_then(|n| n.strip_suffix(last)) else {
        return false;
    };
    for piece in middle.split('*') {
        let Some(at) = left.find(piece) else {
            return false;
        };
        left = &left[at + piece.len()..];
    }
    true
}

/// A device as the arbiter is told of it at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its id.
    pub id: DeviceId,
    /// What may be leased of it.
    pub capacity: Bytes,
    /// What a member process's context and libraries are taken to cost until that is measured;
    /// zero for host memory.
    pub overhead_estimate: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in [
            ("", ""),
            ("a", "a"),
            ("*", ""),
            ("*", "abc"),
            ("a*", "a"),
            ("a*c", "abbc"),
            ("*b*b*", "abab"),
            ("a**c", "ac"),
            ("*ab*ba*", "xabybaz"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("", "a"), ("a", "ab"), ("a*a", "a"), ("a*c", "abcd"), ("*ab*ba*", "aba"), ("*b*b*", "aba")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
