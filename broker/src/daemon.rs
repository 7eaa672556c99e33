//! The daemon: everything put together, from settings to ready and from a signal to the end.

mod devices;
mod first_look;
mod lifecycle;
mod log;
mod report;
mod rules;

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpulease_words::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

pub(crate) use lifecycle::main;

use crate::arena::Arena;
use crate::budgets::Budgets;
use crate::driver::{Desk, Driver, Parts, World};
use crate::entrance::{Bounds, Guests, Listener};
use crate::event_log::EventLog;
use crate::grpc::{About, Services, Socket};
use crate::handoff::Handoff;
use crate::liveness::Liveness;
use crate::settings::{BadSetting, Settings};
use crate::sockets::{Door, Paths, Place, Rank, Unplaced};
use crate::tickets::Tickets;
use crate::users::Names;
use crate::witness::{Cards, Roster, Witness};
use devices::Opened;
use first_look::FirstLook;
use rules::Rules;

/// Hand-over connections: each lives for one claim.
const HANDOVERS: Bounds = Bounds { connections: 4_096, per_uid: 1_024 };

/// Threads of the runtime. What is asked goes from its connection to the driver and back: between threads each of
/// these hops costs more than the decision itself. What takes longer is done beside, by `spawn_blocking`.
const WORKERS: usize = 1;

/// How often it is seen to that the sockets are there: a few looks at a directory in memory each time, microseconds.
const LOOK_AFTER_SOCKETS: Duration = Duration::from_secs(3);

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
    thread: Option<std::thread::JoinHandle<()>>,
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
    /// A line for each device, and what an operator should know of it.
    pub(crate) devices: Vec<String>,
    pub(crate) remarks: Vec<String>,
    /// What is kept of the devices, and what that means.
    pub(crate) hold: &'static str,
    pub(crate) desk: Desk,
    pub(crate) budgets: Budgets,
}

/// The runtime of a daemon.
pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
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
    let paths = paths(&settings, rank)?;
    // A start that fails leaves nothing behind, and one beside a running broker fails before it troubles a card.
    Place::check(&paths)?;
    let mut opened = devices::open(&settings, open_files)?;
    let rules = Rules::settle(&settings, &opened)?;
    // Held until the end.
    let _claims: Vec<_> = opened.iter_mut().filter_map(devices::Opened::take_claim).collect();
    let mut place = Place::take(paths, rank)?;
    let devices = opened.iter().map(|opened| report::device(&opened.facts)).collect();
    let hold = report::hold(opened.iter().map(|opened| &opened.facts));
    let remarks = report::remarks(&settings, &opened);
    let (farewell, leaving) = watch::channel(());
    let House { driver, services, handoff, mut looked } = House::furnish(rules, opened, &place, leaving)?;
    let (desk, budgets) = (services.desk.clone(), services.budgets.clone());
    let driver = tokio::spawn(driver.run());
    looked.wait().await;
    let mut servers = Servers::start(&mut place, services, handoff, Guests::new(Bounds::within(open_files)))?;
    ready(&Standing {
        socket: place.paths().jobs.clone(),
        devices,
        remarks,
        hold,
        desk: desk.clone(),
        budgets,
    });
    tokio::select! {
        () = until => {}
        never = stay_reachable(&mut place, &mut servers) => match never {},
    }
    tracing::info!("stopping; what jobs have mapped stays theirs");
    desk.tell(World::Stop);
    drop(farewell);
    servers.end().await;
    driver.abort();
    // Its device threads end with it, before the sockets go. One that hangs in its driver is not waited for.
    drop(tokio::time::timeout(FAREWELL, driver).await);
    Ok(())
}

/// Makes sockets anew that somebody deletes: without them the broker would hold its devices and hear nobody. Each trouble is
/// said once.
async fn stay_reachable(place: &mut Place, servers: &mut Servers) -> Infallible {
    let mut said = String::new();
    let mut looks = tokio::time::interval(LOOK_AFTER_SOCKETS);
    loop {
        looks.tick().await;
        let mended = look_after(place, servers);
        let trouble = mended.err().map(|why| why.to_string()).unwrap_or_default();
        if !trouble.is_empty() && trouble != said {
            tracing::error!("clients may not reach this broker any more: {trouble}");
        }
        said = trouble;
    }
}

fn look_after(place: &mut Place, servers: &mut Servers) -> Result<(), StartError> {
    while let Some((door, listener)) = place.mend()? {
        servers.open(door, listener)?;
        tracing::warn!(?door, "a socket of this broker was deleted from outside, and is made anew");
    }
    Ok(())
}

/// The tasks that serve the sockets.
struct Servers {
    services: Services,
    claims: Handoff,
    guests: Arc<Guests>,
    grpc: JoinSet<Result<(), tonic::transport::Error>>,
    handoff: JoinSet<()>,
}

impl Servers {
    fn start(
        place: &mut Place,
        services: Services,
        handoff: Handoff,
        guests: Arc<Guests>,
    ) -> Result<Self, StartError> {
        let (grpc, tasks) = (JoinSet::new(), JoinSet::new());
        let mut servers = Self { services, claims: handoff, guests, grpc, handoff: tasks };
        for door in [Door::Jobs, Door::Admin, Door::Handoff] {
            servers.open(door, place.open(door)?)?;
        }
        Ok(servers)
    }

    /// Serves a socket. Who came in by an earlier one of the same name stays.
    fn open(&mut self, door: Door, listener: OwnedFd) -> Result<(), StartError> {
        let listener = Listener::new(listener)?;
        let socket = match door {
            Door::Jobs => Socket::Jobs,
            Door::Admin => Socket::Operators,
            Door::Handoff => {
                self.handoff.spawn(crate::handoff::serve(listener, self.claims.clone()));
                return Ok(());
            }
        };
        let (services, guests) = (self.services.clone(), self.guests.clone());
        self.grpc.spawn(crate::grpc::serve(services, socket, listener, guests));
        Ok(())
    }

    /// Lets what is under way come to its end, for a moment.
    async fn end(mut self) {
        self.handoff.abort_all();
        let ended = async { while self.grpc.join_next().await.is_some() {} };
        drop(tokio::time::timeout(FAREWELL, ended).await);
    }
}

/// The parts that know of each other.
struct House {
    driver: Driver,
    services: Services,
    handoff: Handoff,
    looked: FirstLook,
}

impl House {
    fn furnish(
        rules: Rules,
        opened: Vec<Opened>,
        place: &Place,
        leaving: watch::Receiver<()>,
    ) -> Result<Self, StartError> {
        let (world, news) = mpsc::unbounded_channel();
        let deaths = world.clone();
        let liveness = Arc::new(Liveness::new(move |process| drop(deaths.send(World::Died(process)))));
        let (tickets, names, events) =
            (Arc::new(Tickets::default()), Arc::new(Names::new()), EventLog::new());
        let Rules { policy, measure, kept, in_force, accounts } = rules;
        let arena = arena(policy.arena, &world)?;
        let about = Arc::new(About {
            socket: place.paths().jobs.clone(),
            handoff: place.paths().handoff.clone(),
            unattended_grace: policy.unattended_grace,
            adrift_grace: policy.adrift_grace,
            idle_after: policy.idle_after,
            devices: opened.iter().map(|opened| opened.info()).collect(),
            arena: arena.as_ref().map(Arena::gauge),
        });
        let members = Roster::default();
        let (witness, looked) = watch_cards(&opened, &members, &world)?;
        let parts = Parts {
            policy,
            budgets: accounts.budgets(measure),
            groups: accounts.memberships().clone(),
            devices: devices::give_to_threads(opened, &world)?,
            liveness: liveness.clone(),
            tickets: tickets.clone(),
            names: names.clone(),
            events: events.clone(),
            members,
            witness,
            arena,
        };
        let (driver, desk) = Driver::new(parts, (world, news));
        let budgets = Budgets::new(desk.clone(), events.clone(), measure, kept, in_force);
        let guests = Guests::new(HANDOVERS);
        let handoff = Handoff { liveness: liveness.clone(), tickets, guests, desk: desk.clone() };
        Ok(Self {
            driver,
            services: Services { desk, names, events, budgets, liveness, about, leaving },
            handoff,
            looked,
        })
    }
}

/// Host memory for suspended leases, where there is to be some.
fn arena(size: Bytes, world: &mpsc::UnboundedSender<World>) -> Result<Option<Arena>, StartError> {
    if size.is_zero() {
        return Ok(None);
    }
    let world = world.clone();
    Ok(Some(Arena::start(size, move || drop(world.send(World::Arena)))?))
}

/// Starts the witness where there is a card to watch.
fn watch_cards(
    opened: &[Opened],
    members: &Roster,
    world: &mpsc::UnboundedSender<World>,
) -> Result<(Option<Witness>, FirstLook), StartError> {
    let watched: Vec<_> = opened.iter().filter_map(Opened::watched).collect();
    let (seen, looks) = mpsc::unbounded_channel();
    let looked = FirstLook { awaited: watched.iter().map(|watched| watched.device).collect(), looks };
    let cards = if watched.is_empty() { None } else { Cards::open().ok() };
    let Some(cards) = cards else {
        return Ok((None, looked));
    };
    let world = world.clone();
    let tell = move |device, testimony| {
        drop(world.send(World::Witness(device, testimony)));
        // Nobody listens any more after the first look.
        let _ = seen.send(device);
    };
    Ok((Some(Witness::start(cards, watched, members.clone(), tell)?), looked))
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
