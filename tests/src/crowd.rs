//! Many sessions with many leases each, on one daemon.

use std::os::unix::process::CommandExt as _;

use gpulease_words::{Bytes, mib};

use crate::daemon::Daemon;
use crate::member::{Member, Stage};

/// What the crowd is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Processes, each of another user where this one may start them.
    pub processes: u32,
    /// Sessions of each process.
    pub sessions: u32,
    /// Leases of each session, of 2 MiB.
    pub leases: u32,
}

/// 1,000 sessions with 10 leases each.
pub const LARGE: Size = Size { processes: 10, sessions: 100, leases: 10 };

impl Size {
    /// This size, or a tenth of it where one user would have to have it all, or the host has less memory.
    #[must_use]
    pub fn permitted(self) -> Self {
        let info = rustix::system::sysinfo();
        let present = info.totalram.saturating_mul(u64::from(info.mem_unit));
        if !rustix::process::geteuid().is_root() {
            println!("one user may have 1,024 leases, and only root can start others: a tenth of the crowd");
        } else if Bytes::new(present) < self.room() {
            println!("the host has less than {}: a tenth of the crowd", self.room());
        } else {
            return self;
        }
        Self { processes: self.processes.div_ceil(10), ..self }
    }

    /// All leases together.
    #[must_use]
    pub const fn total(self) -> u32 {
        self.processes * self.sessions * self.leases
    }

    /// What a device needs for all leases and a few more.
    #[must_use]
    pub fn room(self) -> Bytes {
        Bytes::new(mib(2).get() * u64::from(self.total()) + mib(64).get())
    }

    /// Comes together at a daemon.
    ///
    /// # Panics
    /// Where not everybody is let in.
    #[must_use]
    pub fn gather(self, daemon: &Daemon) -> Vec<Member> {
        let start = |n| {
            Stage::Host.member_with(&daemon.socket(), &[], |command| match self.processes {
                1 => command,
                _ => command.uid(61_000 + n).gid(61_000 + n),
            })
        };
        let members: Vec<Member> = (0..self.processes).map(start).collect();
        members.iter().for_each(|m| m.begin(&format!("wire crowd {} {} 2MiB", self.sessions, self.leases)));
        for member in &members {
            let said = member.answer().unwrap_or_else(|error| panic!("the crowd is not let in: {error}"));
            assert_eq!(said, (self.sessions * self.leases).to_string());
        }
        members
    }
}
