//! Contexts, and which one is current on a thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::sync::Arc;

use crate::code::{Code, Outcome};
use crate::driver::{Driver, Held, State, system};
use crate::entry::entry_points;
use crate::limits::Limit;
use crate::pointer::put;

const DEVICES: usize = 64;

/// Primary contexts are told apart by addresses in here; nothing is behind them.
static PLACES: [u8; DEVICES] = [0; DEVICES];

/// The contexts of this process, by the number that their handle is.
#[derive(Default)]
pub(crate) struct Contexts {
    alive: BTreeMap<usize, Context>,
    made: usize,
}

pub(crate) struct Context {
    ordinal: i32,
    life: Life,
    flags: u32,
    /// What its limits are set to, and the memory that they cost.
    pub(crate) limits: BTreeMap<Limit, (usize, Option<Arc<Held>>)>,
}

/// When a context ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// When it was released as often as it was retained, or is reset.
    Primary { retained: u32 },
    /// When it is destroyed.
    Made,
}

thread_local! {
    /// The contexts that are current, the innermost last; zero for none.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Contexts {
    /// The context of this handle.
    pub(crate) fn get(&mut self, handle: usize) -> Result<&mut Context, Code> {
        self.alive.get_mut(&handle).ok_or(Code::CONTEXT_IS_DESTROYED)
    }

    fn ordinal(&self, handle: usize) -> Result<i32, Code> {
        self.alive.get(&handle).map(|context| context.ordinal).ok_or(Code::CONTEXT_IS_DESTROYED)
    }
}

impl Context {
    fn new(ordinal: i32, life: Life, flags: u32) -> Self {
        Self { ordinal, life, flags, limits: BTreeMap::new() }
    }
}

impl Driver {
    /// The card's number of the current context's device.
    pub(crate) fn current_device(&self) -> Result<u32, Code> {
        let handle = current().ok_or(Code::INVALID_CONTEXT)?;
        let ordinal = self.state().contexts.ordinal(handle)?;
        self.device(ordinal)
    }

    /// The handle of the current context, which is alive.
    pub(crate) fn current_context(&self) -> Result<usize, Code> {
        let handle = current().ok_or(Code::INVALID_CONTEXT)?;
        self.state().contexts.ordinal(handle).map(|_| handle)
    }

    fn retain(&self, ordinal: i32) -> Result<*mut c_void, Code> {
        let device = self.device(ordinal)?;
        let mut state = self.state();
        let handle = primary(ordinal);
        let context = match state.contexts.alive.entry(handle) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                self.card.make_context(&self.process, device)?;
                place.insert(Context::new(ordinal, Life::Primary { retained: 0 }, 0))
            }
        };
        if let Life::Primary { retained } = &mut context.life {
            *retained += 1;
        }
        Ok(pointer(handle))
    }

    fn release(&self, ordinal: i32) -> Outcome {
        self.device(ordinal)?;
        let handle = primary(ordinal);
        let mut state = self.state();
        let context = state.contexts.alive.get_mut(&handle).ok_or(Code::INVALID_CONTEXT)?;
        match &mut context.life {
            Life::Primary { retained } if *retained > 1 => {
                *retained -= 1;
                Ok(())
            }
            Life::Primary { .. } | Life::Made => self.end_context(state, handle),
        }
    }

    fn make(&self, ordinal: i32, flags: u32) -> Result<*mut c_void, Code> {
        let device = self.device(ordinal)?;
        let mut state = self.state();
        self.card.make_context(&self.process, device)?;
        state.contexts.made += 1;
        let handle = 0x20_0000 + state.contexts.made * 16;
        state.contexts.alive.insert(handle, Context::new(ordinal, Life::Made, flags));
        CURRENT.with_borrow_mut(|stack| stack.push(handle));
        Ok(pointer(handle))
    }

    fn destroy(&self, handle: usize) -> Outcome {
        let state = self.state();
        match state.contexts.alive.get(&handle).map(|context| context.life) {
            Some(Life::Made) => self.end_context(state, handle)?,
            Some(Life::Primary { .. }) | None => return Err(Code::INVALID_CONTEXT),
        }
        CURRENT.with_borrow_mut(|stack| {
            if stack.last() == Some(&handle) {
                stack.pop();
            }
        });
        Ok(())
    }

    /// Ends a context and what was allocated in it.
    fn end_context(&self, mut state: std::sync::MutexGuard<'_, State>, handle: usize) -> Outcome {
        let context = state.contexts.alive.remove(&handle).ok_or(Code::INVALID_CONTEXT)?;
        let ordinal = context.ordinal;
        drop(context);
        state.forget_context(handle)?;
        drop(state);
        self.card.end_context(&self.process, self.device(ordinal)?).map_err(system)
    }
}

entry_points! {
    7000 fn cuDevicePrimaryCtxRetain(driver, out: *mut *mut c_void, device: i32) {
        let context = driver.retain(device)?;
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, context) }
    }

    11000 fn cuDevicePrimaryCtxRelease_v2(driver, device: i32) {
        driver.release(device)
    }

    11000 fn cuDevicePrimaryCtxReset_v2(driver, device: i32) {
        driver.device(device)?;
        let state = driver.state();
        // Where it is not active there is nothing to clean up.
        if state.contexts.alive.contains_key(&primary(device)) { driver.end_context(state, primary(device)) } else { Ok(()) }
    }

    11000 fn cuDevicePrimaryCtxSetFlags_v2(driver, device: i32, _flags: u32) {
        driver.device(device).map(drop)
    }

    7000 fn cuDevicePrimaryCtxGetState(driver, device: i32, flags: *mut u32, active: *mut i32) {
        driver.device(device)?;
        let there = i32::from(driver.state().contexts.alive.contains_key(&primary(device)));
        // SAFETY: the header wants pointers to ints, or null.
        unsafe { put(flags, 0).and_then(|()| put(active, there)) }
    }

    3020 fn cuCtxCreate_v2(driver, out: *mut *mut c_void, flags: u32, device: i32) {
        let context = driver.make(device, flags)?;
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, context) }
    }

    11040 fn cuCtxCreate_v3(driver, out: *mut *mut c_void, _affinity: *mut c_void, _count: i32, flags: u32, device: i32) {
        let context = driver.make(device, flags)?;
        // SAFETY: as above.
        unsafe { put(out, context) }
    }

    12050 fn cuCtxCreate_v4(driver, out: *mut *mut c_void, _parameters: *mut c_void, flags: u32, device: i32) {
        let context = driver.make(device, flags)?;
        // SAFETY: as above.
        unsafe { put(out, context) }
    }

    4000 fn cuCtxDestroy_v2(driver, context: *mut c_void) {
        driver.destroy(context.addr())
    }

    4000 fn cuCtxGetCurrent(_driver, out: *mut *mut c_void) {
        let context = current().map_or(std::ptr::null_mut(), pointer);
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, context) }
    }

    4000 fn cuCtxSetCurrent(driver, context: *mut c_void) {
        let wanted = known(driver, context)?;
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            stack.push(wanted);
        });
        Ok(())
    }

    4000 fn cuCtxPushCurrent_v2(driver, context: *mut c_void) {
        let wanted = known(driver, context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(wanted));
        Ok(())
    }

    4000 fn cuCtxPopCurrent_v2(_driver, out: *mut *mut c_void) {
        let top = CURRENT.with_borrow_mut(Vec::pop).filter(|&top| top != 0).ok_or(Code::INVALID_CONTEXT)?;
        if out.is_null() {
            return Ok(());
        }
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, pointer(top)) }
    }

    2000 fn cuCtxGetDevice(driver, out: *mut i32) {
        let handle = driver.current_context()?;
        // SAFETY: the header wants a pointer to a device, or null.
        unsafe { put(out, driver.state().contexts.ordinal(handle)?) }
    }

    7000 fn cuCtxGetFlags(driver, out: *mut u32) {
        let handle = driver.current_context()?;
        // SAFETY: the header wants a pointer to flags, or null.
        unsafe { put(out, driver.state().contexts.get(handle)?.flags) }
    }

    12010 fn cuCtxSetFlags(driver, flags: u32) {
        let handle = driver.current_context()?;
        driver.state().contexts.get(handle)?.flags = flags;
        Ok(())
    }

    3020 fn cuCtxGetApiVersion(driver, context: *mut c_void, out: *mut u32) {
        let handle = if context.is_null() { driver.current_context()? } else { context.addr() };
        driver.state().contexts.ordinal(handle)?;
        // SAFETY: the header wants a pointer to a version, or null.
        unsafe { put(out, 3020) }
    }

    12000 fn cuCtxGetId(driver, context: *mut c_void, out: *mut u64) {
        let handle = if context.is_null() { driver.current_context()? } else { context.addr() };
        driver.state().contexts.ordinal(handle)?;
        // SAFETY: the header wants a pointer to a number, or null.
        unsafe { put(out, handle as u64) }
    }

    2000 fn cuCtxSynchronize(driver) {
        driver.current_device()?;
        driver.drain()
    }

    13000 fn cuCtxSynchronize_v2(driver, context: *mut c_void) {
        let handle = if context.is_null() { driver.current_context()? } else { context.addr() };
        driver.state().contexts.ordinal(handle)?;
        driver.drain()
    }

    3020 fn cuMemGetInfo_v2(driver, free: *mut usize, total: *mut usize) {
        let device = driver.current_device()?;
        let left = driver.card.survey().map_err(system)?.free(device);
        let all = driver.card.settings().bytes;
        let size = |bytes: gpulease_words::Bytes| usize::try_from(bytes.get()).unwrap_or(usize::MAX);
        // SAFETY: the header wants pointers to sizes, or null.
        unsafe { put(free, size(left)).and_then(|()| put(total, size(all))) }
    }
}

/// The handle of the context that is current on this thread, alive or not.
pub(crate) fn current() -> Option<usize> {
    CURRENT.with_borrow(|stack| stack.last().copied()).filter(|&handle| handle != 0)
}

fn primary(ordinal: i32) -> usize {
    let at = usize::try_from(ordinal).expect("devices are numbered from zero");
    (&raw const PLACES[at]).addr()
}

fn pointer(handle: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(handle)
}

/// The handle of a context, or zero for null.
fn known(driver: &Driver, context: *mut c_void) -> Result<usize, Code> {
    let handle = context.addr();
    // A primary context that was released is known too; it is refused where it is used.
    let mut ordinals = 0..i32::try_from(driver.count()).unwrap_or(0);
    let known = handle == 0
        || ordinals.any(|ordinal| primary(ordinal) == handle)
        || driver.state().contexts.alive.contains_key(&handle);
    if known { Ok(handle) } else { Err(Code::INVALID_CONTEXT) }
}
