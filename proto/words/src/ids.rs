//! Ids. Each comes from a counter inside the arbiter and is never used twice by one broker.

use std::fmt;

/// A counter of ids ran out of 64 bits, or was asked for more devices than it can number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyIds;

impl fmt::Display for TooManyIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ids of this broker are used up; restart it")
    }
}

impl std::error::Error for TooManyIds {}

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The id with this number.
            #[must_use]
            pub const fn new(n: u64) -> Self {
                Self(n)
            }

            /// Its number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The id after this one.
            ///
            /// # Errors
            /// Past 2^64 - 1.
            pub fn next(self) -> Result<Self, TooManyIds> {
                self.0.checked_add(1).map(Self).ok_or(TooManyIds)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, "{}"), self.0))
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;

            /// Reads the number with or without its letter, as a person would type it.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.strip_prefix($prefix).unwrap_or(text).parse().map(Self)
            }
        }
    )*};
}

counted! {
    /// A process the broker watches through a pidfd, from first sight to death; printed `p7`.
    /// Unlike a pid it is never used again.
    ProcessId "p";
    /// One client process's standing with the broker; printed `s7`.
    SessionId "s";
    /// A request for a lease or for growth that may wait in the line; printed `a7`.
    AskId "a";
    /// A right to device memory; printed `L7`.
    LeaseId "L";
    /// A piece of memory inside a lease; printed `m7`.
    SegmentId "m";
}

/// A device of this broker, by its place in the broker's list from 0 (not the CUDA ordinal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u32);

impl DeviceId {
    /// The device at this place.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its place.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

macro_rules! kernel {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The id with this number.
            #[must_use]
            pub const fn new(n: u32) -> Self {
                Self(n)
            }

            /// Its number.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0.to_string())
            }
        }
    )*};
}

kernel! {
    /// A user, as the kernel numbers it in the broker's user namespace.
    Uid;
    /// A group, as the kernel numbers it in the broker's user namespace.
    Gid;
    /// A process, as the kernel numbers it in the broker's pid namespace. Numbers come round
    /// again: a pid says who is meant to a person, a pidfd to the program.
    Pid;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_printed() {
        assert_eq!(LeaseId::new(7).to_string(), "L7");
        assert_eq!("L7".parse(), Ok(LeaseId::new(7)));
        assert_eq!("7".parse(), Ok(LeaseId::new(7)));
        assert!("m7".parse::<LeaseId>().is_err());
        assert_eq!(format!("{:<4}|", LeaseId::new(7)), "L7  |");
    }

    #[test]
    fn the_last_id_is_not_followed_by_the_first() {
        assert_eq!(SegmentId::new(u64::MAX).next(), Err(TooManyIds));
        assert_eq!(SegmentId::new(1).next(), Ok(SegmentId::new(2)));
    }
}
