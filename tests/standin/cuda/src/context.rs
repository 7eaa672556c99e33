//! Primary contexts, and which one is current on a thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::code::{Code, Outcome};
use crate::driver::{Driver, entry_points, system};
use crate::pointer::put;

const DEVICES: usize = 64;

/// Contexts are told apart by addresses in here; nothing is behind them.
static PLACES: [u8; DEVICES] = [0; DEVICES];

/// How often each device's primary context is retained.
#[derive(Default)]
pub(crate) struct Contexts(BTreeMap<i32, u32>);

thread_local! {
    /// The devices whose contexts are current, the innermost last.
    static CURRENT: RefCell<Vec<Option<i32>>> = const { RefCell::new(Vec::new()) };
}

impl Driver {
    /// The card's number of the current context's device.
    pub(crate) fn current_device(&self) -> Result<u32, Code> {
        let ordinal = current().ok_or(Code::INVALID_CONTEXT)?;
        if !self.state().contexts.0.contains_key(&ordinal) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        self.device(ordinal)
    }

    fn retain(&self, ordinal: i32) -> Result<*mut c_void, Code> {
        let device = self.device(ordinal)?;
        let mut state = self.state();
        if !state.contexts.0.contains_key(&ordinal) {
            self.card.make_context(&self.process, device)?;
        }
        *state.contexts.0.entry(ordinal).or_insert(0) += 1;
        Ok(handle(ordinal))
    }

    fn release(&self, ordinal: i32) -> Outcome {
        let device = self.device(ordinal)?;
        let mut state = self.state();
        let retained = state.contexts.0.get_mut(&ordinal).ok_or(Code::INVALID_CONTEXT)?;
        *retained -= 1;
        if *retained > 0 {
            return Ok(());
        }
        state.contexts.0.remove(&ordinal);
        // What was allocated in a context ends with it.
        let of_context = |(at, mapping): (u64, &crate::addresses::Mapping)| {
            (mapping.origin != crate::addresses::Origin::Vmm && mapping.held.memory().device() == device)
                .then_some(at)
        };
        let allocated: Vec<u64> = state.addresses.all().filter_map(of_context).collect();
        for at in allocated {
            state.addresses.take(at)?;
        }
        self.card.end_context(&self.process, device).map_err(system)
    }
}

entry_points! {
    fn cuDevicePrimaryCtxRetain(driver, out: *mut *mut c_void, device: i32) {
        let context = driver.retain(device)?;
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, context) }
    }

    fn cuDevicePrimaryCtxRelease_v2(driver, device: i32) {
        driver.release(device)
    }

    fn cuDevicePrimaryCtxGetState(driver, device: i32, flags: *mut u32, active: *mut i32) {
        driver.device(device)?;
        let there = i32::from(driver.state().contexts.0.contains_key(&device));
        // SAFETY: the header wants pointers to ints, or null.
        unsafe { put(flags, 0).and_then(|()| put(active, there)) }
    }

    fn cuCtxGetCurrent(_driver, out: *mut *mut c_void) {
        let context = current().map_or(std::ptr::null_mut(), handle);
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, context) }
    }

    fn cuCtxSetCurrent(driver, context: *mut c_void) {
        let wanted = known(driver, context)?;
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            stack.push(wanted);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(driver, context: *mut c_void) {
        let wanted = known(driver, context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(wanted));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(_driver, out: *mut *mut c_void) {
        let top = CURRENT.with_borrow_mut(Vec::pop).flatten().ok_or(Code::INVALID_CONTEXT)?;
        if out.is_null() {
            return Ok(());
        }
        // SAFETY: the header wants a pointer to a context, or null.
        unsafe { put(out, handle(top)) }
    }

    fn cuCtxGetDevice(driver, out: *mut i32) {
        driver.current_device()?;
        // SAFETY: the header wants a pointer to a device, or null.
        unsafe { put(out, current().ok_or(Code::INVALID_CONTEXT)?) }
    }

    fn cuCtxSetFlags(driver, _flags: u32) {
        driver.current_device().map(drop)
    }

    fn cuCtxSynchronize(driver) {
        driver.current_device().map(drop)
    }

    fn cuMemGetInfo_v2(driver, free: *mut usize, total: *mut usize) {
        let device = driver.current_device()?;
        let left = driver.card.survey().map_err(system)?.free(device);
        let all = driver.card.settings().bytes;
        let size = |bytes: gpulease_words::Bytes| usize::try_from(bytes.get()).unwrap_or(usize::MAX);
        // SAFETY: the header wants pointers to sizes, or null.
        unsafe { put(free, size(left)).and_then(|()| put(total, size(all))) }
    }
}

fn current() -> Option<i32> {
    CURRENT.with_borrow(|stack| stack.last().copied().flatten())
}

fn handle(ordinal: i32) -> *mut c_void {
    let at = usize::try_from(ordinal).expect("devices are numbered from zero");
    (&raw const PLACES[at]).cast::<c_void>().cast_mut()
}

/// The device of a context handle, or none for null.
fn known(driver: &Driver, context: *mut c_void) -> Result<Option<i32>, Code> {
    if context.is_null() {
        return Ok(None);
    }
    // One that was released is known too; it is refused where it is used.
    let mut all = 0..i32::try_from(driver.count()).unwrap_or(0);
    all.find(|&ordinal| handle(ordinal) == context).map(Some).ok_or(Code::INVALID_CONTEXT)
}
