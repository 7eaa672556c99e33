//! What all handles of one connection share, and how a request goes out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as plain;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpulease_proto::v1;
use gpulease_proto::v1::jobs_client::JobsClient;
use tokio::sync::{mpsc, watch};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::debts::Debts;
use crate::device::Device;
use crate::engine::Engine;
use crate::error::Error;
use crate::gpus::Gpus;
use crate::handover::Spare;
use crate::keeper::{Connection, Parting, Pass, Started};
use crate::leases::{Epoch, LeaseKey, Leases};
use crate::link::{Link, Trouble, trouble};
use crate::reply::{Reply, passing};
use crate::suspension::Lanes;

/// How many failures of `Drop` are kept.
const KEPT_AT_MOST: usize = 16;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The service for jobs, over one connection.
pub(crate) type Jobs = JobsClient<Channel>;

/// One session and what stands on it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) engine: Engine,
    pub(crate) link: Arc<Link>,
    pub(crate) devices: Vec<Device>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) gpus: Gpus,
    pub(crate) lanes: Lanes,
    pub(crate) spare: Spare,
    /// How long a lease has no guard before the broker is told; `None`: it does not want to know.
    pub(crate) idle_after: Option<Duration>,
    pub(crate) debts: Debts,
    wait: Duration,
    connection: watch::Receiver<Connection>,
    part: mpsc::Sender<Parting>,
    names: AtomicU64,
    kept: Mutex<Vec<Error>>,
}

impl Session {
    pub(crate) fn new(engine: Engine, started: Started, wait: Duration) -> Self {
        Self {
            engine,
            link: started.link,
            devices: started.devices,
            leases: started.leases,
            gpus: Gpus::default(),
            lanes: Lanes::default(),
            spare: Spare::default(),
            idle_after: started.idle_after,
            debts: Debts::default(),
            wait,
            connection: started.connection,
            part: started.part,
            names: AtomicU64::new(1),
            kept: Mutex::default(),
        }
    }

    /// How long a request waits for a broker that went away, and for an answer.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// A name for an ask that no other ask of this session has.
    pub(crate) fn next_name(&self) -> u64 {
        self.names.fetch_add(1, Ordering::Relaxed)
    }

    /// The open session, waited for where it is adrift.
    pub(crate) async fn pass(&self) -> Result<Pass, Error> {
        self.engine.check()?;
        let mut connection = self.connection.clone();
        let settled = connection.wait_for(|connection| !matches!(connection, Connection::Adrift { .. }));
        if let Ok(Ok(settled)) = self.engine.within(self.wait, settled).await
            && let Connection::Open(pass) = &*settled
        {
            return Ok(pass.clone());
        }
        let why = match &*self.connection.borrow() {
            Connection::Parted => return Err(Error::Parted),
            Connection::Adrift { why } => why.clone(),
            Connection::Open(_) => "the session was lost again and again".to_owned(),
        };
        Err(self.gone(why))
    }

    /// Says good-bye while there still are handles, and waits for it, blocking this thread for so long at the most.
    pub(crate) fn part(&self, within: Duration) {
        let (said, heard) = plain::channel();
        if self.engine.check().is_ok() && self.part.try_send(said).is_ok() {
            // Nothing is ever sent: it returns when the other end is gone, or when the time is over.
            let _ = heard.recv_timeout(within);
        }
    }

    /// The open session, as long as it is the one that this lease belongs to.
    pub(crate) async fn pass_for(&self, lease: LeaseKey) -> Result<Pass, Error> {
        let pass = self.pass().await?;
        if pass.epoch == lease.epoch { Ok(pass) } else { Err(Error::Lost { lease: lease.id }) }
    }

    /// Waits until the broker has heard of all that was given back and given up before this. To be called before an
    /// ask is put: it may need just that.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        self.engine.check()?;
        if self.debts.are_settled() {
            return Ok(());
        }
        // Says why where the broker is gone.
        self.pass().await?;
        let settled = self.engine.within(self.wait, self.debts.settled()).await;
        settled.map_err(|_| self.silent("an earlier release or withdrawal"))
    }

    /// Puts a request that may be put twice, and again where the connection broke under it.
    pub(crate) async fn request<T: Reply, F, Answer>(
        &self,
        request: &'static str,
        of: Option<LeaseKey>,
        call: F,
    ) -> Result<T, Error>
    where
        F: Fn(Jobs, v1::SessionRef) -> Answer,
        Answer: Future<Output = Result<Response<T>, Status>>,
    {
        self.put(request, of, call).await.map(|(_, reply)| reply)
    }

    /// As [`Self::request`]; says in which session it was answered, too.
    pub(crate) async fn put<T: Reply, F, Answer>(
        &self,
        request: &'static str,
        of: Option<LeaseKey>,
        call: F,
    ) -> Result<(Epoch, T), Error>
    where
        F: Fn(Jobs, v1::SessionRef) -> Answer,
        Answer: Future<Output = Result<Response<T>, Status>>,
    {
        let mut patience = Patience::new(self);
        loop {
            let pass = match of {
                Some(lease) => self.pass_for(lease).await?,
                None => self.pass().await?,
            };
            let answer = self.engine.within(self.wait, call(self.link.jobs(), pass.reference)).await;
            let trouble = match answer.map_err(|_| self.silent(request))? {
                Ok(reply) => match reply.get_ref().denied().and_then(passing) {
                    Some(why) => Trouble::Broken(why.to_owned()),
                    None => return Ok((pass.epoch, reply.into_inner())),
                },
                Err(status) => trouble(request, &status),
            };
            patience.after(trouble).await?;
        }
    }

    pub(crate) fn gone(&self, why: String) -> Error {
        Error::Gone { socket: self.link.place().socket.clone(), waited: self.wait, why }
    }

    pub(crate) fn silent(&self, request: &'static str) -> Error {
        Error::Silent { socket: self.link.place().socket.clone(), request, waited: self.wait }
    }

    /// Keeps a failure that `Drop` could not return.
    pub(crate) fn keep(&self, error: Error) {
        tracing::warn!(%error, "gpulease: giving something back failed");
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_AT_MOST {
            kept.push(error);
        }
    }

    pub(crate) fn take_kept(&self) -> Vec<Error> {
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How long a request is tried again over connections that break.
pub(crate) struct Patience<'s> {
    session: &'s Session,
    since: Option<Instant>,
    pause: Duration,
}

impl<'s> Patience<'s> {
    pub(crate) fn new(session: &'s Session) -> Self {
        Self { session, since: None, pause: FIRST_PAUSE }
    }

    /// The other side answers again.
    pub(crate) fn restored(&mut self) {
        *self = Self::new(self.session);
    }

    /// Pauses before another try, or says why there is none.
    pub(crate) async fn after(&mut self, trouble: Trouble) -> Result<(), Error> {
        let why = match trouble {
            Trouble::Broken(why) => why,
            Trouble::Failed(error) => return Err(error),
        };
        if self.since.get_or_insert_with(Instant::now).elapsed() >= self.session.wait {
            return Err(self.session.gone(why));
        }
        self.session.engine.sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
