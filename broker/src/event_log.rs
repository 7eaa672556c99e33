//! What happened, for people: the last so many events, and those to come.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use gpulease_words::{AskId, Bytes, DeviceId, LeaseId, Pid, Reason, SessionId, Uid};
use tokio::sync::broadcast;

/// How many events are remembered: an afternoon of a busy server, a few megabytes.
const REMEMBERED: usize = 10_000;

/// How far a reader may lag behind before it loses events.
const LAG_MAX: usize = 1_024;

/// The kinds of events, each with its stable word.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $word:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

kinds! {
    Opened "opened";
    Waiting "waiting";
    Granted "granted";
    Denied "denied";
    Withdrawn "withdrawn";
    Joined "joined";
    Allocated "allocated";
    Refused "refused";
    Freed "freed";
    Released "released";
    Closed "closed";
    /// A process that had closed its sessions, or never had one.
    Ended "ended";
    /// A process whose session was open.
    Died "died";
    Adrift "adrift";
    Rejoined "rejoined";
    Quarantined "quarantined";
    Recalled "recalled";
    Overdue "overdue";
    OffBook "off_book";
    DeviceTrouble "device_trouble";
    Suspending "suspending";
    Suspended "suspended";
    Resuming "resuming";
    Resumed "resumed";
    SuspendCancelled "suspend_cancelled";
    SwapFailed "swap_failed";
    Pinned "pinned";
    Terminated "terminated";
    Budget "budget";
}

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// From 1, without gaps.
    pub(crate) number: u64,
    /// Wall-clock time.
    pub(crate) unix_ms: u64,
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) facts: Facts,
}

/// What an event is about, as far as it applies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) lease: Option<LeaseId>,
    pub(crate) ask: Option<AskId>,
    pub(crate) session: Option<SessionId>,
    pub(crate) uid: Option<Uid>,
    pub(crate) pid: Option<Pid>,
    pub(crate) device: Option<DeviceId>,
    pub(crate) bytes: Option<Bytes>,
    pub(crate) name: Option<String>,
    pub(crate) reason: Option<Reason>,
}

/// Where a reader wants to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// With all that is remembered.
    Start,
    /// After this event.
    After(u64),
    /// With what comes next.
    Now,
}

/// The log. Clones are one log.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug)]
struct Ring {
    next: u64,
    remembered: VecDeque<Arc<Entry>>,
    followers: broadcast::Sender<Arc<Entry>>,
}

impl EventLog {
    pub(crate) fn new() -> Self {
        let followers = broadcast::Sender::new(LAG_MAX);
        Self { ring: Arc::new(Mutex::new(Ring { next: 1, remembered: VecDeque::new(), followers })) }
    }

    /// Writes an event.
    pub(crate) fn write(&self, unix_ms: u64, kind: Kind, message: String, facts: Facts) {
        let mut ring = self.lock();
        let entry = Arc::new(Entry { number: ring.next, unix_ms, kind, message, facts });
        ring.next += 1;
        if ring.remembered.len() == REMEMBERED {
            ring.remembered.pop_front();
        }
        ring.remembered.push_back(entry.clone());
        // An error means that nobody follows.
        drop(ring.followers.send(entry));
    }

    /// What is remembered from there on, and what follows it without a gap.
    pub(crate) fn read(&self, from: From) -> (Vec<Arc<Entry>>, broadcast::Receiver<Arc<Entry>>) {
        let ring = self.lock();
        let after = match from {
            From::Start => 0,
            From::After(number) => number,
            From::Now => u64::MAX,
        };
        let start = ring.remembered.partition_point(|entry| entry.number <= after);
        (ring.remembered.range(start..).cloned().collect(), ring.followers.subscribe())
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("nothing panics while it holds the lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(log: &EventLog, count: usize) {
        for i in 0..count {
            log.write(0, Kind::Opened, format!("event {i}"), Facts::default());
        }
    }

    #[tokio::test]
    async fn what_is_remembered_and_what_follows_have_no_gap() {
        let log = EventLog::new();
        written(&log, 3);
        let (past, mut coming) = log.read(From::After(1));
        assert_eq!(past.iter().map(|e| e.number).collect::<Vec<_>>(), [2, 3]);
        written(&log, 1);
        assert_eq!(coming.recv().await.expect("sent").number, 4);
        assert!(log.read(From::Now).0.is_empty());
        assert_eq!(log.read(From::Start).0.len(), 4);
        assert!(log.read(From::After(99)).0.is_empty());
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let log = EventLog::new();
        written(&log, REMEMBERED + 5);
        let (past, _) = log.read(From::Start);
        assert_eq!(past.len(), REMEMBERED);
        assert_eq!(past.first().map(|e| e.number), Some(6));
    }
}
