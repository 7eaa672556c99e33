//! The one list of reasons: why an ask waits, why a request was refused.

use std::fmt;
use std::str::FromStr;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $word:literal;)*) => {
        /// Why an ask waits or a request was refused, as a stable word.
        ///
        /// The word is what `--json`, the protocol and the documentation use; a sentence with the
        /// numbers goes with it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// Every reason, in the order of the list.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

reasons! {
    // Why an ask waits.
    /// The devices have too little room for it now.
    NoRoom "no_room";
    /// Its account is at its limit; it moves when that account gives something back.
    AccountLimit "account_limit";
    /// There is room, but asks before it in the line are due first.
    BehindOthers "behind_others";
    /// An ask that has waited too long is collecting the bytes that this one would use.
    Barrier "barrier";
    /// The bytes it needs were given back and are on their way through the driver.
    Draining "draining";
    /// Bytes were asked of their holders, or a holder is being swapped out for it.
    Recalled "recalled";
    /// There is no host memory left for a copy of it, so it could not be suspended.
    ArenaFull "arena_full";
    /// What can't be moved has reached its bound on the device.
    PinnedFull "pinned_full";
    /// Its lease is suspended, or on its way out or back.
    Suspended "suspended";

    // Why a request was refused.
    /// It is more than a limit of its account will ever allow.
    OverBudget "over_budget";
    /// It is more than the device can ever give.
    TooLarge "too_large";
    /// It is above the limit of its own lease.
    BeyondLease "beyond_lease";
    /// It was asked not to wait longer, and there was no room in time.
    WaitOver "wait_over";
    /// A count is at its bound: leases, asks, segments, sessions, members.
    TooMany "too_many";
    /// Nothing of that id that the caller may use.
    NoSuchLease "no_such_lease";
    /// No segment of that id in the lease.
    NoSuchSegment "no_such_segment";
    /// No device of that number or name, or the lease is not on it.
    NoSuchDevice "no_such_device";
    /// The session is not open (any more), or the secret is not its own.
    NoSuchSession "no_such_session";
    /// The request makes no sense as it stands.
    Malformed "malformed";
    /// It would have waited while its own process holds a guard that others may wait for.
    WouldDeadlock "would_deadlock";
    /// The lease is being given back.
    Ending "ending";
    /// The holder let a recall's deadline pass.
    Overdue "overdue";
    /// The device refused memory that the book says is there.
    DeviceRefused "device_refused";
    /// The device is lost or was never usable.
    DeviceLost "device_lost";
    /// The caller withdrew it.
    Withdrawn "withdrawn";
    /// The broker is stopping.
    Stopping "stopping";
    /// Budgets promise more than there is.
    ImpossibleBudget "impossible_budget";
    /// The caller is not allowed to do this.
    NotAllowed "not_allowed";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// A word that is not in the list, as from a newer broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownReason(
    /// The word.
    pub String,
);

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a known reason", self.0)
    }
}

impl std::error::Error for UnknownReason {}

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(word: &str) -> Result<Self, UnknownReason> {
        let known = Self::ALL.iter().find(|reason| reason.word() == word);
        known.copied().ok_or_else(|| UnknownReason(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_reads_back_and_stands_once() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.word().parse(), Ok(*reason));
            assert!(Reason::ALL[..i].iter().all(|other| other.word() != reason.word()));
        }
        assert!("no_rooom".parse::<Reason>().is_err());
    }
}
