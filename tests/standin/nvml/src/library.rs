//! Initialisation, and finding devices.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Mutex;
use std::sync::PoisonError;

use gpulease_standin_card::{Card, Survey};

use crate::answers::{Answer, Outcome, answer, put};

/// How often the library was initialised, and the card.
static LIBRARY: Mutex<Option<(u32, Card)>> = Mutex::new(None);

/// `nvmlDevice_t`: one more than the device's number, so that null is none.
pub(crate) type Device = *mut c_void;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInit_v2() -> c_uint {
    answer(initialise())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_uint {
    answer(initialise())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlShutdown() -> c_uint {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = match library.as_mut() {
        None => Err(Answer::Uninitialized),
        Some((times, _)) if *times > 1 => {
            *times -= 1;
            Ok(())
        }
        Some(_) => {
            *library = None;
            Ok(())
        }
    };
    answer(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> c_uint {
    // SAFETY: the header wants a pointer to a number, or null.
    answer(with_card(|card| unsafe { put(out, card.settings().devices) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Device) -> c_uint {
    answer(with_card(|card| {
        let device = (index < card.settings().devices).then_some(index).ok_or(Answer::InvalidArgument)?;
        // SAFETY: the header wants a pointer to a device, or null.
        unsafe { put(out, handle(device)) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut Device) -> c_uint {
    // SAFETY: the header wants a text, and a pointer to a device, or null.
    answer(unsafe { find(uuid, out, |card, device| card.settings().uuid_text(device)) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, out: *mut Device) -> c_uint {
    let short = |_: &Card, device| crate::names::pci_bus_id(device).split_off(4);
    // SAFETY: as above.
    let by_short = unsafe { find(bus_id, out, short) };
    // SAFETY: as above.
    let by_long = || unsafe { find(bus_id, out, |_, device| crate::names::pci_bus_id(device)) };
    answer(by_short.or_else(|_| by_long()))
}

/// # Safety
/// `name` is a NUL-terminated text or null, `out` is writable or null.
unsafe fn find(name: *const c_char, out: *mut Device, named: impl Fn(&Card, u32) -> String) -> Outcome {
    if name.is_null() {
        return Err(Answer::InvalidArgument);
    }
    // SAFETY: the caller's promise, and it is not null.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    with_card(|card| {
        let mut all = 0..card.settings().devices;
        let found =
            all.find(|&device| named(card, device).eq_ignore_ascii_case(&name)).ok_or(Answer::NotFound)?;
        // SAFETY: the caller's promise.
        unsafe { put(out, handle(found)) }
    })
}

fn initialise() -> Outcome {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let (times, card) = match library.take() {
        Some((times, card)) => (times, card),
        None => (0, Card::of_environment().map_err(Answer::from)?.ok_or(Answer::DriverNotLoaded)?),
    };
    *library = Some((times + 1, card));
    Ok(())
}

/// Does something with the card, once the library is initialised.
pub(crate) fn with_card(work: impl FnOnce(&Card) -> Outcome) -> Outcome {
    let library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, card) = library.as_ref().ok_or(Answer::Uninitialized)?;
    work(card)
}

/// Does something with the card and one of its devices.
pub(crate) fn with_device(device: Device, work: impl FnOnce(&Card, u32) -> Outcome) -> Outcome {
    with_card(|card| {
        let number = device.addr().checked_sub(1).and_then(|number| u32::try_from(number).ok());
        let known = number.filter(|&number| number < card.settings().devices);
        work(card, known.ok_or(Answer::InvalidArgument)?)
    })
}

/// Does something with what is used now.
pub(crate) fn with_survey(device: Device, work: impl FnOnce(&Card, u32, &Survey) -> Outcome) -> Outcome {
    with_device(device, |card, number| work(card, number, &card.survey().map_err(Answer::from)?))
}

fn handle(device: u32) -> Device {
    std::ptr::without_provenance_mut(device as usize + 1)
}
