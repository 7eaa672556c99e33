//! What this process knows of the driver: the card, its visible devices, its state.

use std::env;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gpulease_standin_card::{Card, Failed, Faults, Holding, Memory, Process, Settings};

use crate::addresses::Addresses;
use crate::arrays::Arrays;
use crate::capture::Captures;
use crate::code::{Code, Outcome};
use crate::context::Contexts;
use crate::entry::{Entry, injected};
use crate::graph::Graphs;
use crate::graph_memory::GraphMemory;
use crate::host::HostMemory;
use crate::modules::Modules;
use crate::pointer::put;
use crate::pools::Pools;
use crate::stream::Queues;
use crate::vmm::Handles;

/// The initialised driver.
pub(crate) struct Driver {
    pub(crate) card: Card,
    pub(crate) process: Process,
    /// The card's number of each device that this process sees, in CUDA's order.
    visible: Vec<u32>,
    pub(crate) faults: Mutex<Faults>,
    state: Mutex<State>,
}

/// What changes from call to call.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) handles: Handles,
    pub(crate) addresses: Addresses,
    pub(crate) contexts: Contexts,
    pub(crate) queues: Queues,
    pub(crate) captures: Captures,
    pub(crate) graphs: Graphs,
    pub(crate) graph_memory: GraphMemory,
    pub(crate) pools: Pools,
    pub(crate) arrays: Arrays,
    pub(crate) host: HostMemory,
    pub(crate) modules: Modules,
}

impl State {
    /// Ends what lives no longer than a context.
    pub(crate) fn forget_context(&mut self, handle: usize) -> Outcome {
        self.queues.forget_context(handle);
        self.end_captures_without_stream();
        self.modules.forget_context(handle);
        self.arrays.forget_context(handle);
        self.pools.forget_context(&self.addresses, handle);
        self.addresses.take_of_context(handle)
    }
}

/// Memory that this process holds, booked on it until dropped.
#[derive(Debug)]
pub(crate) struct Held(Option<(Memory, Holding)>);

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Set in a child of a fork, by itself: a question to the kernel at each call would cost more than most calls.
static FORKED: AtomicBool = AtomicBool::new(false);
static STARTING: Mutex<()> = Mutex::new(());

/// What can be called before `cuInit`.
pub(crate) static ENTRIES: &[Entry] = &[
    Entry::new("cuInit", 2000, cuInit as *const ()),
    Entry::new("cuDriverGetVersion", 2020, cuDriverGetVersion as *const ()),
];

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(flags: u32) -> u32 {
    if flags != 0 {
        return Code::INVALID_VALUE.0;
    }
    let started = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = match DRIVER.get() {
        Some(driver) => driver.is_this_process(),
        None => Driver::start().map(|driver| {
            let _first = DRIVER.set(driver);
        }),
    };
    drop(started);
    outcome.err().map_or(0, |code| code.0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(out: *mut i32) -> u32 {
    // SAFETY: the header wants a pointer to an int, or null.
    unsafe { put(out, i32::try_from(version()).unwrap_or(0)) }.err().map_or(0, |code| code.0)
}

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The CUDA version that the driver speaks.
pub(crate) fn version() -> u32 {
    match Card::of_environment() {
        Ok(Some(card)) => card.settings().version,
        Ok(None) | Err(_) => 12_080,
    }
}

impl Driver {
    /// The driver, where `cuInit` was called in this very process.
    pub(crate) fn started() -> Result<&'static Self, Code> {
        let driver = DRIVER.get().ok_or(Code::NOT_INITIALIZED)?;
        driver.is_this_process().map(|()| driver)
    }

    fn start() -> Result<Self, Code> {
        let card = Card::of_environment().map_err(system)?.ok_or(Code::NO_DEVICE)?;
        let faults = Mutex::new(Faults::of_card(card.directory()));
        injected(&faults, "cuInit")?;
        let visible = visible(card.settings(), env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
        if visible.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        // The driver says so too where /proc is another pid namespace's.
        let process = card.enter().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Code::OPERATING_SYSTEM,
            _ => system(error),
        })?;
        // SAFETY: the function only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        Ok(Self { card, process, visible, faults, state: Mutex::default() })
    }

    /// A forked child has the memory of its parent and nothing of its standing with the driver.
    fn is_this_process(&self) -> Outcome {
        if FORKED.load(Ordering::Relaxed) { Err(Code::NOT_INITIALIZED) } else { Ok(()) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many devices this process sees.
    pub(crate) fn count(&self) -> usize {
        self.visible.len()
    }

    /// The card's number of a device, by this process's.
    pub(crate) fn device(&self, ordinal: i32) -> Result<u32, Code> {
        let ordinal = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        self.visible.get(ordinal).copied().ok_or(Code::INVALID_DEVICE)
    }

    /// This process's number of a device, by the card's.
    pub(crate) fn ordinal(&self, device: u32) -> Option<i32> {
        let at = self.visible.iter().position(|&seen| seen == device)?;
        i32::try_from(at).ok()
    }
}

impl Held {
    pub(crate) fn new((memory, holding): (Memory, Holding)) -> Self {
        Self(Some((memory, holding)))
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.0.as_ref().expect("it is taken only when dropped").0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (Some(driver), Some((memory, holding))) = (DRIVER.get(), self.0.take()) else { return };
        if let Err(error) = driver.card.release(&driver.process, memory, &holding) {
            system(error);
        }
    }
}

/// The devices of `CUDA_VISIBLE_DEVICES`: numbers or UUIDs, up to the first that makes no sense.
fn visible(settings: &Settings, list: Option<&str>) -> Vec<u32> {
    let Some(list) = list else { return (0..settings.devices).collect() };
    let mut devices: Vec<u32> = Vec::new();
    for item in list.split(',').map(str::trim) {
        let by_number = item.parse().ok().filter(|&device| device < settings.devices);
        let by_uuid = || (0..settings.devices).find(|&device| settings.uuid_text(device).starts_with(item));
        let found = by_number.or_else(|| if item.starts_with("GPU-") { by_uuid() } else { None });
        match found.filter(|device| !devices.contains(device)) {
            Some(device) => devices.push(device),
            None => break,
        }
    }
    devices
}

/// A failure of the system under the stand-in: said aloud, for whoever debugs the test.
pub(crate) fn system(error: io::Error) -> Code {
    eprintln!("the stand-in CUDA driver failed: {error}");
    Code::OPERATING_SYSTEM
}

impl From<Failed> for Code {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::NoRoom => Self::OUT_OF_MEMORY,
            Failed::System(error) => system(error),
        }
    }
}
