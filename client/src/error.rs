//! What can go wrong, apart from what can be refused.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use gpulease_proto::v1;
use gpulease_words::{DurationText, LeaseId, Pid, Reason, Uid};

use crate::handover::HandOverError;
use crate::memory::MapError;

/// The broker refused: an outcome, with its reason and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The word of the documented list.
    pub reason: Reason,
    /// What happened, in numbers, and what would help.
    pub message: String,
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.message, self.reason)
    }
}

impl TryFrom<v1::Denied> for Denied {
    type Error = Error;

    fn try_from(denied: v1::Denied) -> Result<Self, Error> {
        match denied.reason.parse() {
            Ok(reason) => Ok(Self { reason, message: denied.message }),
            Err(unknown) => Err(Error::Protocol(format!(
                "it refused with a reason of a newer version: {unknown}: {}",
                denied.message
            ))),
        }
    }
}

/// Why an ask brought nothing: it was refused, or it could not be put or answered.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The broker's answer is no.
    #[error("refused: {0}")]
    Denied(Denied),
    /// There is no answer.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// What [`LeaseBuilder::acquire`](crate::LeaseBuilder::acquire) returns where it returns no lease.
pub type AcquireError = AskError;

impl AskError {
    /// The refusal, where it is one.
    #[must_use]
    pub fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Denied(denied) => Some(denied),
            Self::Failed(_) => None,
        }
    }

    /// The refusal in a reply, or why it cannot be read.
    pub(crate) fn refused(denied: v1::Denied) -> Self {
        match Denied::try_from(denied) {
            Ok(denied) => Self::Denied(denied),
            Err(error) => Self::Failed(error),
        }
    }
}

/// A failure. Each message says what happened and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing listens where a broker could be.
    #[error(
        "no broker at {}; start one with `gpuleased`, or name its socket in GPULEASE_SOCKET",
        paths(tried)
    )]
    NoBroker {
        /// The sockets that were tried, in this order.
        tried: Vec<PathBuf>,
    },
    /// A broker runs, but nobody listens at its socket.
    #[error(
        "a broker{} runs, but nobody listens at its socket {}: it starts or ends just now, or the socket was deleted; a broker makes a deleted one anew within 5s, so try again, and restart it where that does not help",
        pid.map_or_else(String::new, |pid| format!(" (process {pid})")), socket.display()
    )]
    Deaf {
        /// Its socket.
        socket: PathBuf,
        /// Its process, as its lock says.
        pid: Option<Pid>,
    },
    /// The socket is there and may not be used by this process.
    #[error(
        "not allowed to use the socket {}; ask its owner for the group it belongs to, or start a broker of your own with `gpuleased` and name its socket in GPULEASE_SOCKET",
        socket.display()
    )]
    Permission {
        /// The socket.
        socket: PathBuf,
    },
    /// What is there is no broker of this version.
    #[error("{} is not the job socket of a broker: {why}", socket.display())]
    NotABroker {
        /// The path.
        socket: PathBuf,
        /// What was found instead.
        why: String,
    },
    /// The process that listens belongs to neither root nor this user.
    #[error(
        "the process that listens at {} belongs to uid {uid}, which is neither root nor yours; if you trust it, name the socket in GPULEASE_SOCKET",
        socket.display()
    )]
    WrongPeer {
        /// The socket.
        socket: PathBuf,
        /// The user of the listening process.
        uid: Uid,
    },
    /// The socket's directory belongs to neither root nor this user, so that anybody may have put it there.
    #[error(
        "the directory {} belongs to uid {uid}, which is neither root nor yours; if you trust it, name the socket in GPULEASE_SOCKET",
        directory.display()
    )]
    WrongDirectory {
        /// The directory.
        directory: PathBuf,
        /// Its owner.
        uid: Uid,
    },
    /// The socket could not be connected to for another reason.
    #[error("could not connect to {}: {source}", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The broker went away and did not come back in time. What is mapped keeps working.
    #[error(
        "the broker at {} is gone ({why}){}; memory that is mapped keeps working, new memory needs `gpuleased` running again",
        socket.display(), waited_text(*waited)
    )]
    Gone {
        /// The socket.
        socket: PathBuf,
        /// How long it was waited for; zero for one who only looks.
        waited: Duration,
        /// How the connection ended.
        why: String,
    },
    /// The broker took the request and did not answer in time.
    #[error(
        "the broker at {} did not answer {request} within {}; see with `gpulease doctor` whether it is stopped or overloaded",
        socket.display(), DurationText(*waited)
    )]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// What it was asked.
        request: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The broker was started anew and does not know this lease. What is mapped keeps working.
    #[error(
        "the broker was restarted and does not know lease {lease} any more; memory that is mapped keeps working, but nothing can be added: acquire a new lease"
    )]
    Lost {
        /// The lease.
        lease: LeaseId,
    },
    /// This process is about to end and has closed its session.
    #[error("this process has closed its session with the broker, since it is about to end")]
    Parted,
    /// The lease's memory is away and did not come back in time. It still may.
    #[error(
        "the memory of lease {lease} is swapped out and did not come back within {}{why}; see `gpulease why` for who has the room",
        DurationText(*waited)
    )]
    StillAway {
        /// The lease.
        lease: LeaseId,
        /// How long it was waited for.
        waited: Duration,
        /// What the broker said last, after ": "; empty where it said nothing.
        why: String,
    },
    /// What was swapped out could not be brought back: its bytes are lost, and only this lease's.
    #[error(
        "the memory of lease {lease} was swapped out and can't be brought back: {why}; what it held is lost, so release it and go on from a checkpoint"
    )]
    BytesLost {
        /// The lease.
        lease: LeaseId,
        /// What happened.
        why: String,
    },
    /// This process was forked from the one that connected; it has no part in that session.
    #[error(
        "this process ({now}) was forked from {opened_by}, which connected to the broker; connect anew here, and join the lease with its token"
    )]
    Forked {
        /// The process that connected.
        opened_by: Pid,
        /// This one.
        now: Pid,
    },
    /// The broker opens no session, or refused where the protocol has no place for a refusal.
    #[error("refused: {0}")]
    Refused(Denied),
    /// The broker answered something that this version can't read.
    #[error(
        "the broker's answer makes no sense to this version: {0}; are client and broker of the same version?"
    )]
    Protocol(String),
    /// The broker failed at a request.
    #[error("the broker failed at {request}: {message}")]
    Broker {
        /// What it was asked.
        request: &'static str,
        /// Its message.
        message: String,
    },
    /// The segment's descriptors did not arrive.
    #[error(transparent)]
    HandOver(#[from] HandOverError),
    /// The segment could not be mapped here.
    #[error(transparent)]
    Map(#[from] MapError),
    /// This process was not started as part of a job.
    #[error(
        "{variable} is not set, so this process is not part of a job; start it with `gpulease run`, or acquire a lease"
    )]
    NotInAJob {
        /// The variable that is missing.
        variable: &'static str,
    },
    /// A variable that `gpulease run` sets has a value that it never sets.
    #[error("{variable} is {value:?}, which is {why}; it is set by `gpulease run` and should be left alone")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value; empty where it is a secret.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The library's own thread could not be started.
    #[error("could not start the thread that talks to the broker: {0}")]
    Thread(#[source] io::Error),
}

fn waited_text(waited: Duration) -> String {
    if waited.is_zero() {
        return String::new();
    }
    format!(" and did not come back within {}", DurationText(waited))
}

fn paths(tried: &[PathBuf]) -> String {
    let tried: Vec<String> = tried.iter().map(|path| path.display().to_string()).collect();
    tried.join(" or ")
}
