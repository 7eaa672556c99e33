//! A process's standing with the broker.

use std::env::var_os;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpulease_proto::v1;
use gpulease_words::{Bytes, DeviceId, LeaseId, Pid};
use tokio::sync::oneshot;

use crate::ask::LeaseBuilder;
use crate::device::Device;
use crate::engine::{Engine, Share};
use crate::error::{AskError, Error};
use crate::keeper;
use crate::lease::{LEASE_VARIABLE, Lease, TOKEN_VARIABLE};
use crate::lease_state::Terms;
use crate::observer::Observer;
use crate::place::candidates;
use crate::presence::Presence;
use crate::session::{Jobs, Session};
use crate::token::Token;

/// How long a request waits for a broker that went away, and for an answer, where nothing is said:
/// longer than a restart takes, shorter than a person's patience.
const BROKER_WAIT: Duration = Duration::from_secs(30);

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct Options {
    socket: Option<PathBuf>,
    broker_wait: Option<Duration>,
    at_thread_start: Option<fn()>,
}

impl Options {
    /// The job socket to use. Like one that `GPULEASE_SOCKET` names it is believed whoever listens.
    #[must_use]
    pub fn socket(self, socket: impl Into<PathBuf>) -> Self {
        Self { socket: Some(socket.into()), ..self }
    }

    /// How long a request waits for a broker that went away after the connect, and for an answer;
    /// 30 s where nothing is said. How long an ask waits in the line is the ask's own matter.
    #[must_use]
    pub fn broker_wait(self, wait: Duration) -> Self {
        Self { broker_wait: Some(wait), ..self }
    }

    /// Called at the start of each thread of the library's own: for a program whose CUDA calls have to be set up for each
    /// thread (`cuThreadExchangeStreamCaptureMode`, say).
    #[must_use]
    pub fn at_thread_start(self, call: fn()) -> Self {
        Self { at_thread_start: Some(call), ..self }
    }
}

/// A session with the broker. Clones share it; the last handle to go, leases and segments
/// included, closes it, and blocks until the broker has heard so: about a millisecond, at most a second where
/// it does not answer.
///
/// The library talks to the broker on a thread of its own, so that its futures can be awaited on
/// any executor and a busy one delays nothing. A session belongs to the process that opened it: in
/// a forked child every call answers [`Error::Forked`].
#[derive(Clone, Debug)]
pub struct Client {
    session: Share<Presence>,
}

impl Client {
    /// Connects to the socket that `GPULEASE_SOCKET` names, else to the system's broker
    /// (`/run/gpulease/gpulease.sock`), else to the user's own
    /// (`$XDG_RUNTIME_DIR/gpulease/gpulease.sock`), and opens a session.
    ///
    /// Unless the socket was named, who listens and whose directory it is has to be root or this user.
    ///
    /// # Errors
    /// [`Error::NoBroker`], [`Error::Permission`], [`Error::NotABroker`], [`Error::WrongPeer`],
    /// [`Error::WrongDirectory`], [`Error::Unreachable`]; [`Error::Silent`] where the other side says
    /// nothing for 10 s; [`Error::Refused`] where it opens no session for this process.
    pub async fn connect() -> Result<Self, Error> {
        Self::connect_with(Options::default()).await
    }

    /// Connects to the broker at this job socket, whoever listens there.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_to(socket: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(Options::default().socket(socket.as_ref())).await
    }

    /// Connects with options.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_with(options: Options) -> Result<Self, Error> {
        let places = candidates(options.socket, |name| var_os(name));
        let (answer, started) = oneshot::channel();
        let (engine, end) =
            Engine::start(options.at_thread_start, move |done| keeper::keep(places, answer, done))?;
        let ended = |_| Error::Thread(io::Error::other("it ended"));
        let started = started.await.map_err(ended)??;
        let wait = options.broker_wait.unwrap_or(BROKER_WAIT);
        let session = Share::new(Arc::new(Session::new(engine, started, wait)));
        Ok(Share::new(Arc::new(Presence::new(session, end))).into())
    }

    /// Connects and joins the lease of the job that this process was started in, by what
    /// [`Lease::env`] or `gpulease run` put into its environment.
    ///
    /// # Errors
    /// [`Error::NotInAJob`], [`Error::Environment`]; else as [`Self::connect`] and [`Self::join`].
    pub async fn join_from_env() -> Result<Lease, AskError> {
        let (lease, token) = job_of(|name| var_os(name))?;
        Self::connect().await?.join(lease, token).await
    }

    /// The broker's devices, as they were when this session was first opened.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.session.devices
    }

    /// The job socket of this session.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.session.link.place().socket
    }

    /// An ask for a lease with this much set aside on each of its devices, rounded up to 2 MiB.
    pub fn lease(&self, reserve: Bytes) -> LeaseBuilder<'_> {
        LeaseBuilder::new(self, reserve)
    }

    /// Makes this process a member of a lease. Joining twice gives a second handle to the same.
    ///
    /// # Errors
    /// Denied as `no_such_lease` where there is none, or the token or the user do not match.
    pub async fn join(&self, lease: LeaseId, token: Token) -> Result<Lease, AskError> {
        let call = |mut jobs: Jobs, session| async move {
            let token = token.bytes().to_vec().into();
            jobs.join(v1::JoinRequest { session: Some(session), lease_id: lease.get(), token }).await
        };
        let (epoch, reply) = self.session.put("a join", None, call).await?;
        match reply.outcome {
            Some(v1::join_reply::Outcome::Lease(lease)) => {
                Ok(Lease::joined(&self.session, epoch, terms(lease, token)))
            }
            Some(v1::join_reply::Outcome::Denied(denied)) => Err(AskError::refused(denied)),
            None => Err(Error::Protocol("a join without an outcome".to_owned()).into()),
        }
    }

    /// Makes another process of this user, such as a child about to exec, a member of a lease of
    /// this session, so that the lease lives as long as that process does.
    ///
    /// # Errors
    /// Denied where there is no such process of this user, or the lease has too many members.
    pub async fn admit(&self, lease: &Lease, pid: Pid) -> Result<(), AskError> {
        self.admit_as(lease, v1::AdmitRequest { pid: pid.get(), ..Default::default() }).await
    }

    /// As [`Self::admit`], for a process that only starts the other one and uses no device itself, as `gpulease run`
    /// does: what is set aside for this process's context goes over to the other, which needs no more room.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub async fn admit_in_my_place(&self, lease: &Lease, pid: Pid) -> Result<(), AskError> {
        let request = v1::AdmitRequest { pid: pid.get(), in_callers_place: true, ..Default::default() };
        self.admit_as(lease, request).await
    }

    async fn admit_as(&self, lease: &Lease, request: v1::AdmitRequest) -> Result<(), AskError> {
        let key = lease.state().key();
        let call = |mut jobs: Jobs, session| async move {
            jobs.admit(v1::AdmitRequest { session: Some(session), lease_id: key.id.get(), ..request }).await
        };
        let reply = self.session.request("an admission", Some(key), call).await?;
        reply.denied.map_or(Ok(()), |denied| Err(AskError::refused(denied)))
    }

    /// Closes the session although handles of it are left, for a process that is about to end and will not drop them: one that
    /// ends without this looks to the broker like one that crashed. What is mapped stays mapped, and every later call answers
    /// [`Error::Parted`]. Blocks until the broker has heard it, for so long at the most; it may be called in an exit handler,
    /// and does nothing in a forked child.
    pub fn part(&self, within: Duration) {
        self.session.part(within);
    }

    /// A connection of its own to the same broker, to look at its state.
    ///
    /// # Errors
    /// As [`Observer::connect`].
    pub async fn observe(&self) -> Result<Observer, Error> {
        Observer::at(vec![self.session.link.place().clone()]).await
    }

    /// The failures that `Drop` met since the last call (at most 16 are kept). CUDA's own are kept by
    /// [`gpulease_cuda::Driver::take_kept_errors`].
    #[must_use]
    pub fn take_kept_errors(&self) -> Vec<Error> {
        self.session.take_kept()
    }

    pub(crate) fn session(&self) -> &Share<Presence> {
        &self.session
    }
}

impl From<Share<Presence>> for Client {
    fn from(session: Share<Presence>) -> Self {
        Self { session }
    }
}

fn terms(lease: v1::LeaseInfo, token: Token) -> Terms {
    Terms {
        id: LeaseId::new(lease.lease_id),
        name: lease.name,
        devices: lease.device_indices.into_iter().map(DeviceId::new).collect(),
        token,
        reserve: Bytes::new(lease.reserve_bytes),
        limit: Bytes::new(lease.limit_bytes),
        waited: Duration::ZERO,
    }
}

/// The lease and token in an environment.
fn job_of(variable: impl Fn(&str) -> Option<OsString>) -> Result<(LeaseId, Token), Error> {
    let text = |name| {
        let value = variable(name).ok_or(Error::NotInAJob { variable: name })?;
        Ok::<_, Error>(value.to_string_lossy().into_owned())
    };
    let (lease, token) = (text(LEASE_VARIABLE)?, text(TOKEN_VARIABLE)?);
    let wrong = |variable, value, why: &dyn std::fmt::Display| Error::Environment {
        variable,
        value,
        why: why.to_string(),
    };
    Ok((
        lease.parse().map_err(|_| wrong(LEASE_VARIABLE, lease.clone(), &"not the number of a lease"))?,
        token.parse().map_err(|error| wrong(TOKEN_VARIABLE, String::new(), &error))?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_is_read_from_the_environment_and_the_secret_not_shown() {
        let job = |lease: Option<&'static str>, token: Option<&'static str>| {
            job_of(move |name| if name == LEASE_VARIABLE { lease } else { token }.map(OsString::from))
        };
        let token = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(job(Some("7"), Some(token)).unwrap().0, LeaseId::new(7));
        assert!(matches!(job(None, Some(token)), Err(Error::NotInAJob { variable: LEASE_VARIABLE })));
        let error = job(Some("seven"), Some(token)).unwrap_err().to_string();
        assert!(error.contains("\"seven\""), "{error}");
        let error = job(Some("7"), Some("my-secret")).unwrap_err().to_string();
        assert!(!error.contains("my-secret") && error.contains("32 hexadecimal"), "{error}");
    }
}
