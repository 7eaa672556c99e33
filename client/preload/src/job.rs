//! The job that this process belongs to: the lease that its environment names, joined at the first `cuInit`.

use std::env::var_os;
use std::ffi::c_uint;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpulease_client::{Bytes, DeviceId, DeviceKind, LeaseId, Options, PressureListener, Token, blocking};
use gpulease_cuda::{Driver, Uuid};

use crate::charged::{Charges, Pinned};
use crate::code::{Code, NOT_PERMITTED, SUCCESS};
use crate::driver;
use crate::entries::real;
use crate::fork;
use crate::gate::Keeper;
use crate::heap::Heap;
use crate::piece::Count;
use crate::pools::Pools;
use crate::real::{is_within, within};
use crate::report::{Once, say};
use crate::vmm::Vmm;

/// What `gpulease run` put into the environment. Read early, since programs change theirs.
struct Named {
    lease: String,
    token: String,
    socket: Option<std::path::PathBuf>,
    memory: Option<Bytes>,
}

/// A device of the lease that this process sees.
pub(crate) struct Leased {
    pub(crate) id: DeviceId,
    /// CUDA's number of it in this process.
    pub(crate) number: i32,
    pub(crate) uuid: Uuid,
    held: Count,
}

/// The lease, joined, and what this process has of it.
pub(crate) struct Job {
    pub(crate) lease: blocking::Lease,
    pub(crate) devices: Vec<Leased>,
    pub(crate) heap: Heap,
    pub(crate) vmm: Vmm,
    pub(crate) pools: Pools,
    pub(crate) keeper: Keeper,
    pub(crate) charges: Charges,
    pub(crate) pinned: Pinned,
    _pressure: PressureListener,
}

/// How this process stands.
enum Standing {
    /// No lease is named, or one without a GPU.
    NoJob,
    Joined(Box<Job>),
    /// A lease is named and could not be joined: no memory without it.
    Refused,
}

/// How long the end of a program may be put off by a broker that does not answer; one that does takes a millisecond.
const FAREWELL: Duration = Duration::from_secs(1);

/// The dynamic loader calls it when the program ends in good order, after what the program itself has to do then.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = part;

/// Says good-bye: a process that ends without looks to the broker like one that crashed. A forked child has nobody to
/// say it to.
extern "C" fn part() {
    if let Some(job) = if_joined() {
        job.lease.client().part(FAREWELL);
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`
const RELAXED: c_uint = 2;

static NAMED: OnceLock<Option<Named>> = OnceLock::new();
static STANDING: OnceLock<Standing> = OnceLock::new();

/// `cuInit`: the real one, and after its first success the join.
pub(crate) unsafe fn init(flags: c_uint) -> Code {
    // SAFETY: the caller's argument, passed on.
    let code = unsafe { real::cuInit(flags) };
    if code != SUCCESS || is_within() {
        return code;
    }
    match standing() {
        Standing::NoJob | Standing::Joined(_) => SUCCESS,
        Standing::Refused => NOT_PERMITTED,
    }
}

/// The job, `None` where the driver is to be asked as if we were not there. A process that began to use CUDA by other
/// doors than `cuInit` joins here.
///
/// # Errors
/// Where the lease could not be joined; what a driver says that was not initialised.
pub(crate) fn current() -> Result<Option<&'static Job>, Code> {
    if !is_named() || is_within() {
        return Ok(None);
    }
    if STANDING.get().is_none() {
        let mut count = 0;
        // SAFETY: the pointer is to an int of ours. In a forked child, and before `cuInit`, the driver says no.
        crate::code::check(unsafe { driver::cuDeviceGetCount(&mut count) })?;
    }
    match standing() {
        Standing::NoJob => Ok(None),
        // In a forked child the driver answers as it does there.
        Standing::Joined(_) if fork::is_child() => Ok(None),
        Standing::Joined(job) => Ok(Some(job)),
        Standing::Refused => Err(NOT_PERMITTED),
    }
}

/// Whether the environment named a lease when that was first asked.
pub(crate) fn is_named() -> bool {
    named().is_some()
}

/// Whether this process has no lease, or was forked from one that has: then no book is kept, and no lock taken that another
/// thread of the parent may have had at the fork.
pub(crate) fn is_of_no_matter() -> bool {
    !is_named() || fork::is_child()
}

/// The limit that the environment tells, for who asks before the lease is joined.
pub(crate) fn limit_told() -> Option<Bytes> {
    named()?.memory
}

/// The job, where it was joined already by this process.
pub(crate) fn if_joined() -> Option<&'static Job> {
    match STANDING.get()? {
        Standing::Joined(job) if !fork::is_child() => Some(job),
        Standing::Joined(_) | Standing::NoJob | Standing::Refused => None,
    }
}

fn named() -> Option<&'static Named> {
    NAMED.get_or_init(of_environment).as_ref()
}

fn of_environment() -> Option<Named> {
    let text = |name| var_os(name).map(|value| value.to_string_lossy().into_owned());
    Some(Named {
        lease: text("GPULEASE_LEASE")?,
        token: text("GPULEASE_TOKEN").unwrap_or_default(),
        socket: var_os("GPULEASE_SOCKET").map(Into::into),
        memory: text("GPULEASE_MEMORY_BYTES").and_then(|bytes| bytes.parse().ok()).map(Bytes::new),
    })
}

fn standing() -> &'static Standing {
    static REFUSED: Once = Once::new();
    STANDING.get_or_init(|| match named() {
        None => Standing::NoJob,
        Some(named) => match join(named) {
            Ok(Some(job)) => Standing::Joined(Box::new(job)),
            Ok(None) => Standing::NoJob,
            Err(why) => {
                REFUSED.say(|| {
                    format!(
                        "this program gets no GPU memory: lease {} could not be joined: {why}",
                        named.lease
                    )
                });
                Standing::Refused
            }
        },
    })
}

/// Joins; `None` where the lease has no GPU.
fn join(named: &Named) -> Result<Option<Job>, String> {
    let lease: LeaseId =
        named.lease.parse().map_err(|_| "GPULEASE_LEASE is not the number of a lease".to_owned())?;
    let token: Token = named.token.parse().map_err(|why| format!("GPULEASE_TOKEN: {why}"))?;
    // Looks up every function that the client library calls, so that it never comes to our doors.
    let driver = within(Driver::load).map_err(|why| why.to_string())?;
    let options = Options::default().at_thread_start(relax_captures);
    let options = named.socket.iter().fold(options, |options, socket| options.socket(socket));
    let client = blocking::Client::connect_with(options).map_err(|why| why.to_string())?;
    fork::leave_nothing_to_children(client.socket());
    let lease = client.join(lease, token).map_err(|why| why.to_string())?;
    let devices = leased(driver, &client, &lease)?;
    if devices.is_empty() {
        return Ok(None);
    }
    let pressure = lease.face().on_pressure(|_| give_way()).map_err(|why| why.to_string())?;
    Ok(Some(Job {
        lease,
        devices,
        heap: Heap::new(),
        vmm: Vmm::default(),
        pools: Pools::default(),
        keeper: Keeper::default(),
        charges: Charges::default(),
        pinned: Pinned::default(),
        _pressure: pressure,
    }))
}

/// What threads of ours do to the driver must not end the recording of another thread's stream.
fn relax_captures() {
    let mut mode = RELAXED;
    // SAFETY: the pointer is to an int of ours. A driver without the call has no such recordings.
    unsafe { driver::cuThreadExchangeStreamCaptureMode(&mut mode) };
}

/// Others want memory of the lease: what is kept for later goes, and what was freed while a stream recorded.
fn give_way() {
    if let Some(job) = if_joined() {
        job.pools.reclaim(job);
        job.heap.leave_limbo(job);
    }
}

/// The lease's GPUs that this process sees.
fn leased(
    driver: &'static Driver,
    client: &blocking::Client,
    lease: &blocking::Lease,
) -> Result<Vec<Leased>, String> {
    let mut found = Vec::new();
    let mut hidden = Vec::new();
    for device in client.devices() {
        if device.kind != DeviceKind::Cuda || !lease.devices().contains(&device.id) {
            continue;
        }
        let uuid: Uuid = device.uuid.parse().map_err(|why: gpulease_cuda::ParseUuidError| why.to_string())?;
        match within(|| driver.device(uuid)).map_err(|why| why.to_string())? {
            Some(here) => {
                let number = i32::try_from(here.ordinal()).expect("CUDA counts devices by ints");
                found.push(Leased { id: device.id, number, uuid, held: Count::default() });
            }
            None => hidden.push(device.uuid.clone()),
        }
    }
    if found.is_empty() && !hidden.is_empty() {
        return Err(format!(
            "this process sees none of its devices; CUDA_VISIBLE_DEVICES has to list {}",
            hidden.join(", ")
        ));
    }
    if !hidden.is_empty() {
        say(&format!("this process does not see {}, on which the lease has memory too", hidden.join(", ")));
    }
    Ok(found)
}

impl Job {
    /// The leased device with this number of CUDA's.
    pub(crate) fn device(&self, number: i32) -> Option<&Leased> {
        self.devices.iter().find(|device| device.number == number)
    }

    /// Waits for all work on a leased device.
    ///
    /// # Errors
    /// What the driver says, which includes errors of work that ran before.
    pub(crate) fn synchronize(&self, id: DeviceId) -> Result<(), Code> {
        driver::synchronize_on(self.number(id))
    }

    /// CUDA's number of a leased device.
    pub(crate) fn number(&self, id: DeviceId) -> i32 {
        let leased = self.devices.iter().find(|leased| leased.id == id);
        leased.expect("segments are asked for on leased devices").number
    }

    /// How much this process has of a device of the lease.
    pub(crate) fn held(&self, device: DeviceId) -> Bytes {
        Bytes::new(self.count(device).load(Ordering::Relaxed))
    }

    /// Where that is counted.
    pub(crate) fn count(&self, device: DeviceId) -> Count {
        let leased = self.devices.iter().find(|leased| leased.id == device);
        Arc::clone(&leased.expect("segments are asked for on leased devices").held)
    }

    /// The device's primary context is about to be reset: its memory goes, as the driver's own would.
    pub(crate) fn let_go(&self, number: i32) {
        let Some(device) = self.device(number) else { return };
        self.pools.let_go(number);
        self.heap.let_go(device.id);
        self.lease.forget_context(device.id);
    }

    /// How much the lease may have on each device.
    pub(crate) fn limit(&self) -> Bytes {
        self.lease.limit()
    }
}
