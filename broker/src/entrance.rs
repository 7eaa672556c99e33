//! Where connections come in: how many there may be, and what happens when files run out.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::Duration;

use gpulease_words::Uid;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::liveness::{Caller, Liveness, Unmet};

/// Without a pause, an accept that fails for want of descriptors would be tried without end.
const PAUSE: Duration = Duration::from_millis(100);

/// A training job has two connections; this is room for the sessions that one user may have.
const PER_UID: u32 = 4_096;

/// What there may be in any case, however few files may be open.
const FEW: u32 = 16;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Of all users.
    pub(crate) connections: u32,
    /// Of one user.
    pub(crate) per_uid: u32,
}

impl Bounds {
    /// Connections get two fifths of the open files; as many again may go to the pidfds of their processes, and the
    /// rest to segments. No user gets more than a quarter of them.
    pub(crate) fn within(open_files: u64) -> Self {
        let connections = u32::try_from(open_files / 5 * 2).unwrap_or(u32::MAX).max(FEW);
        Self { connections, per_uid: PER_UID.min(connections / 4).max(FEW) }
    }
}

/// Why a connection is closed again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TurnedAway {
    /// Nobody knows who it is.
    #[error("{0}")]
    Unmet(#[from] Unmet),
    /// His user has too many.
    #[error("user {0} has too many connections")]
    TooMany(Uid),
    /// The system has no room.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Connections that are open, by user.
#[derive(Debug)]
pub(crate) struct Guests {
    bounds: Bounds,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    total: u32,
    by_uid: BTreeMap<Uid, u32>,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    guests: Arc<Guests>,
    uid: Uid,
}

impl Guests {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, present: Mutex::default() })
    }

    /// A place for one more connection of this user, unless there are too many.
    fn seat(self: &Arc<Self>, uid: Uid) -> Option<Seat> {
        let mut present = self.lock();
        let of_user = present.by_uid.get(&uid).copied().unwrap_or(0);
        if present.total >= self.bounds.connections || of_user >= self.bounds.per_uid {
            return None;
        }
        present.total += 1;
        present.by_uid.insert(uid, of_user + 1);
        Some(Seat { guests: self.clone(), uid })
    }

    /// Who is at the other end of a new connection, and his place.
    ///
    /// # Errors
    /// When he may not come in.
    pub(crate) fn admit(
        self: &Arc<Self>,
        liveness: &Liveness,
        socket: BorrowedFd<'_>,
    ) -> Result<(Caller, Seat), TurnedAway> {
        let caller = liveness.meet(socket)?;
        let seat = self.seat(caller.uid).ok_or(TurnedAway::TooMany(caller.uid))?;
        Ok((caller, seat))
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        self.present.lock().expect("nothing panics while it holds the lock")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut present = self.guests.lock();
        present.total -= 1;
        match present.by_uid.get_mut(&self.uid) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(present.by_uid.remove(&self.uid)),
        }
    }
}

/// A listening socket that survives a shortage of descriptors.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: AsyncFd<OwnedFd>,
    /// Given up for a moment to accept one connection and close it, so that its client is told rather than left waiting.
    spare: Option<OwnedFd>,
}

impl Listener {
    /// Listens on a bound socket, which has to be non-blocking.
    ///
    /// # Errors
    /// When the kernel cannot watch one more file.
    pub(crate) fn new(socket: OwnedFd) -> std::io::Result<Self> {
        // SAFETY: the descriptor stays the same and open for the whole life of the AsyncFd, which owns it.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket, spare: spare() })
    }

    /// The next connection, non-blocking. Errors are waited out here.
    pub(crate) async fn accept(&mut self) -> OwnedFd {
        loop {
            let Ok(mut ready) = self.socket.readable().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let accepted = ready.try_io(|socket| Ok(accept(socket.get_ref())?));
            match accepted {
                Ok(Ok(connection)) => return connection,
                Ok(Err(error)) => self.bear(&error).await,
                Err(_would_block) => {}
            }
        }
    }

    async fn bear(&mut self, error: &std::io::Error) {
        match Errno::from_io_error(error) {
            Some(Errno::INTR | Errno::CONNABORTED) => return,
            Some(Errno::MFILE | Errno::NFILE) => {
                tracing::warn!("no descriptor is left for a new connection; it is turned away");
                self.turn_away();
            }
            _ => tracing::warn!(%error, "a connection could not be accepted"),
        }
        tokio::time::sleep(PAUSE).await;
    }

    /// After a connection that was closed again. Where the broker lacks something, it says so and lets time pass, so that
    /// neither the processor nor the log is flooded.
    pub(crate) async fn regret(&self, why: &TurnedAway) {
        match why {
            TurnedAway::Unmet(Unmet::Kernel(_)) | TurnedAway::System(_) => {
                tracing::warn!(%why, "no descriptor is left to look after a new connection; it is turned away");
                tokio::time::sleep(PAUSE).await;
            }
            TurnedAway::Unmet(Unmet::Hidden) => {
                // Its client cannot be told, so the operator is; each time would flood the log.
                static ONCE: Once = Once::new();
                ONCE.call_once(
                    || tracing::warn!(%why, "a connection was turned away; others like it are not mentioned"),
                );
            }
            TurnedAway::Unmet(Unmet::Gone) | TurnedAway::TooMany(_) => {
                tracing::debug!(%why, "a connection was turned away");
            }
        }
    }

    fn turn_away(&mut self) {
        drop(self.spare.take());
        drop(accept(self.socket.get_ref()));
        self.spare = spare();
    }
}

fn accept(socket: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_all_together_have_a_bound() {
        let guests = Guests::new(Bounds { connections: 3, per_uid: 2 });
        let (a, b) = (Uid::new(1), Uid::new(2));
        let first = guests.seat(a).expect("a seat");
        let _second = guests.seat(a).expect("a seat");
        assert!(guests.seat(a).is_none());
        let _third = guests.seat(b).expect("a seat");
        assert!(guests.seat(b).is_none());
        drop(first);
        assert!(guests.seat(a).is_some());
        assert_eq!(guests.lock().by_uid.len(), 2);
    }

    #[test]
    fn bounds_follow_the_open_files() {
        assert_eq!(Bounds::within(20_000), Bounds { connections: 8_000, per_uid: 2_000 });
        assert_eq!(Bounds::within(10), Bounds { connections: 16, per_uid: 16 });
        assert_eq!(Bounds::within(u64::MAX).per_uid, 4_096);
    }
}
