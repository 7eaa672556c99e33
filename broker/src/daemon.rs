//! The daemon: everything put together, from settings to ready and from a signal to the end.

mod devices;
mod lifecycle;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use gpulease_words::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

pub(crate) use lifecycle::{main, supervise};

use crate::driver::{Desk, Driver, Parts, World};
use crate::entrance::{Bounds, Guests, Listener};
use crate::event_log::EventLog;
use crate::grpc::{About, Services, Socket};
use crate::handoff::Handoff;
use crate::liveness::Liveness;
use crate::settings::{BadSetting, Settings};
use crate::sockets::{Paths, Place, Rank, Unplaced};
use crate::tickets::Tickets;
use crate::users::Names;
use crate::witness::Roster;
use devices::Opened;

/// Hand-over connections: each lives for one claim.
const HANDOVERS: Bounds = Bounds { connections: 1_024, per_uid: 128 };

/// How long streams may take to end after their clients were told that the broker stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why a daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// The place of the sockets is taken or not fit.
    #[error(transparent)]
    Place(#[from] Unplaced),
    /// A device cannot be served; what to do.
    #[error("{0}")]
    Device(String),
    /// The system refused.
    #[error("the system refused: {0}")]
    System(#[from] std::io::Error),
}

/// Starts daemons.
#[derive(Debug)]
pub struct Daemon;

impl Daemon {
    /// Starts a daemon in this process, on threads of its own, and returns when it is ready.
    ///
    /// # Errors
    /// When it cannot serve; nothing is left behind.
    pub fn start(settings: Settings) -> Result<Running, StartError> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("gpuleased".into()).spawn(move || {
            let until = async { drop(stopped.await) };
            let outcome = runtime().map_err(StartError::from).and_then(|runtime| {
                runtime.block_on(serve(
                    settings,
                    |standing| drop(ready.send(Ok(standing.socket.clone()))),
                    until,
                ))
            });
            if let Err(error) = outcome {
                drop(ready.send(Err(error)));
            }
        })?;
        let socket = started.recv().expect("the thread says how it went before it ends")?;
        Ok(Running { socket, stop: Some(stop), thread: Some(thread) })
    }
}

/// A daemon in this process. Dropping it stops it.
#[derive(Debug)]
pub struct Running {
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Its job socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Stops it and waits for its end. What jobs have mapped stays theirs.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// What a daemon says of itself when it is ready.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) socket: PathBuf,
    /// A line for each device.
    pub(crate) devices: Vec<String>,
    pub(crate) desk: Desk,
}

/// The runtime of a daemon: few threads, since nothing on it takes long.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .thread_name("gpuleased-worker")
        .enable_all()
        .build()
}

/// Serves until `until` comes true; tells `ready` when it begins.
pub(crate) async fn serve(
    settings: Settings,
    ready: impl FnOnce(&Standing),
    until: impl Future<Output = ()>,
) -> Result<(), StartError> {
    let open_files = raise_open_files();
    let rank = Rank::own();
    let mut place = Place::take(paths(&settings, rank)?, rank)?;
    let opened = devices::open(&settings, open_files)?;
    let lines = opened.iter().map(|opened| report::device(&opened.facts)).collect();
    let house = House::furnish(settings, opened, &place)?;
    let guests = Guests::new(Bounds::within(open_files));
    let mut servers = JoinSet::new();
    let (farewell, leaving) = watch::channel(());
    let sockets = [(Socket::Jobs, place.jobs()?), (Socket::Operators, place.admin()?)];
    let handoff = Listener::new(place.handoff()?)?;
    for (socket, listener) in sockets {
        let mut leaving = leaving.clone();
        let stop = async move { drop(leaving.changed().await) };
        let served = crate::grpc::serve(
            house.services.clone(),
            socket,
            Listener::new(listener)?,
            guests.clone(),
            stop,
        );
        servers.spawn(served);
    }
    drop(leaving);
    let handoff = tokio::spawn(crate::handoff::serve(handoff, house.handoff.clone()));
    let driver = tokio::spawn(house.driver.run());
    let desk = house.services.desk;
    ready(&Standing { socket: place.paths().jobs.clone(), devices: lines, desk: desk.clone() });
    until.await;
    tracing::info!("stopping; what jobs have mapped stays theirs");
    desk.tell(World::Stop);
    drop(farewell);
    handoff.abort();
    let ended = async { while servers.join_next().await.is_some() {} };
    drop(tokio::time::timeout(FAREWELL, ended).await);
    servers.abort_all();
    driver.abort();
    // Its device threads end with it, before the sockets go.
    drop(driver.await);
    drop(place);
    Ok(())
}

/// The parts that know of each other.
struct House {
    driver: Driver,
    services: Services,
    handoff: Handoff,
}

impl House {
    fn furnish(settings: Settings, opened: Vec<Opened>, place: &Place) -> Result<Self, StartError> {
        let (world, news) = mpsc::unbounded_channel();
        let deaths = world.clone();
        let liveness = Arc::new(Liveness::new(move |process| drop(deaths.send(World::Died(process)))));
        let (tickets, names, events) =
            (Arc::new(Tickets::default()), Arc::new(Names::new()), EventLog::new());
        let capacity: Bytes = opened.iter().map(|opened| opened.facts.capacity).sum();
        let about = Arc::new(About {
            socket: place.paths().jobs.clone(),
            handoff: place.paths().handoff.clone(),
            unattended_grace: settings.policy.unattended_grace,
            adrift_grace: settings.policy.adrift_grace,
            devices: opened.iter().map(|opened| opened.info()).collect(),
        });
        let members = Roster::default();
        let parts = Parts {
            policy: settings.policy,
            budgets: settings.accounts.budgets(capacity),
            groups: settings.accounts.memberships().clone(),
            devices: devices::give_to_threads(opened, &world)?,
            liveness: liveness.clone(),
            tickets: tickets.clone(),
            names: names.clone(),
            events: events.clone(),
            members,
        };
        let (driver, desk) = Driver::new(parts, (world, news));
        let handoff = Handoff {
            liveness: liveness.clone(),
            tickets,
            guests: Guests::new(HANDOVERS),
            desk: desk.clone(),
        };
        Ok(Self { driver, services: Services { desk, names, events, liveness, about }, handoff })
    }
}

/// The paths of the sockets.
fn paths(settings: &Settings, rank: Rank) -> Result<Paths, StartError> {
    let socket = settings.socket.clone().map_or_else(|| crate::sockets::default_socket(rank), Ok)?;
    Ok(Paths::beside(&socket)?)
}

/// Takes all open files that the kernel allows, and says how many these are.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let allowed = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: allowed.maximum, maximum: allowed.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => allowed.maximum.unwrap_or(u64::MAX),
        Err(_) => allowed.current.unwrap_or(u64::MAX),
    }
}
