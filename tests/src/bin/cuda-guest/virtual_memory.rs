//! A program's own virtual memory management.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::doors::{Driver, Failed, call};
use crate::ways::Taken;

const PINNED: c_uint = 1;
const ON_DEVICE: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const DESCRIPTOR: c_uint = 1;
const READ_AND_WRITE: c_uint = 3;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_uint,
    id: c_int,
}

/// Device 0.
pub(crate) const HERE: Location = Location { kind: ON_DEVICE, id: 0 };

/// `CUmemAllocationProp`.
#[repr(C)]
struct Kind {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Right {
    location: Location,
    flags: c_uint,
}

pub(crate) fn create(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let handle = handle(driver, bytes, 0)?;
    let at = range(driver, bytes)?;
    map(driver, at, bytes, handle)?;
    allow(driver, at, bytes)?;
    same_again(driver, at, handle)?;
    Taken::at(driver, at, bytes, mark, move |driver| {
        unmap(driver, at, bytes)?;
        release(driver, handle)?;
        call!(driver, "cuMemAddressFree" "" (u64, usize)(at, bytes))
    })
}

/// As a growing segment does: pieces of 20 MiB in one range.
pub(crate) fn create_many(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    create_pieces(driver, bytes, mark, 20 << 20)
}

/// The same in the smallest pieces that there are.
pub(crate) fn create_small(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    create_pieces(driver, bytes, mark, 2 << 20)
}

fn create_pieces(driver: &Driver, bytes: usize, mark: u8, piece: usize) -> Result<Taken, Failed> {
    let at = range(driver, bytes)?;
    let mut pieces: Vec<(u64, usize, u64)> = Vec::new();
    let mut done = 0;
    while done < bytes {
        let size = piece.min(bytes - done);
        let place = at + done as u64;
        let made = handle(driver, size, 0).and_then(|handle| {
            map(driver, place, size, handle)?;
            allow(driver, place, size)?;
            Ok(handle)
        });
        match made {
            Ok(handle) => pieces.push((place, size, handle)),
            Err(failed) => {
                give_pieces(driver, &pieces)?;
                call!(driver, "cuMemAddressFree" "" (u64, usize)(at, bytes))?;
                return Err(failed);
            }
        }
        done += size;
    }
    Taken::at(driver, at, bytes, mark, move |driver| {
        give_pieces(driver, &pieces)?;
        call!(driver, "cuMemAddressFree" "" (u64, usize)(at, bytes))
    })
}

/// Two pieces side by side, whose mappings are given up by one call. Where that fails with the first, the second has left its
/// place and can be mapped there again.
pub(crate) fn create_pair(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let (at, half) = (range(driver, bytes)?, bytes / 2);
    let places = [at, at + half as u64];
    let handles = [handle(driver, half, 0)?, handle(driver, half, 0)?];
    for (place, handle) in places.into_iter().zip(handles) {
        map(driver, place, half, handle)?;
    }
    allow(driver, at, bytes)?;
    Taken::at(driver, at, bytes, mark, move |driver| {
        let unmapped = unmap(driver, at, bytes);
        if unmapped.is_err() {
            map(driver, places[1], half, handles[1])?;
            unmap(driver, at, bytes)?;
        }
        handles.into_iter().try_for_each(|handle| release(driver, handle))?;
        call!(driver, "cuMemAddressFree" "" (u64, usize)(at, bytes))?;
        unmapped
    })
}

/// Memory that other processes can have by a descriptor, which this one imports again.
pub(crate) fn create_exportable(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    exported(driver, handle(driver, bytes, DESCRIPTOR)?, bytes, mark)
}

/// The same, made by a library that has NCCL's names, as one has that NCCL was linked into.
pub(crate) fn create_by_nccl(driver: &Driver, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    type Create =
        unsafe extern "C" fn(create: *mut c_void, out: *mut u64, bytes: usize, kind: *const Kind) -> u32;
    // SAFETY: this is the type of that function of the library.
    let create: Create = unsafe { std::mem::transmute(driver.of_linked(c"linked_create")) };
    let (kind, mut handle) = (kind(DESCRIPTOR), 0);
    // SAFETY: the arguments are what `cuMemCreate` takes; what it writes to is ours.
    match unsafe { create(driver.find(c"cuMemCreate", ""), &raw mut handle, bytes, &raw const kind) } {
        0 => exported(driver, handle, bytes, mark),
        code => Err(Failed { call: "cuMemCreate", code }),
    }
}

fn exported(driver: &Driver, first: u64, bytes: usize, mark: u8) -> Result<Taken, Failed> {
    let mut descriptor: c_int = -1;
    call!(driver, "cuMemExportToShareableHandle" "" (*mut c_void, u64, c_uint, c_ulonglong)
        ((&raw mut descriptor).cast(), first, DESCRIPTOR, 0))
    .inspect_err(|_| drop(release(driver, first)))?;
    let mut second = 0;
    let by_number = std::ptr::without_provenance_mut(usize::try_from(descriptor).expect("it is open"));
    call!(driver, "cuMemImportFromShareableHandle" "" (*mut u64, *mut c_void, c_uint)
        (&raw mut second, by_number, DESCRIPTOR))?;
    // SAFETY: the driver gave it to us.
    unsafe { libc::close(descriptor) };
    let at = range(driver, bytes)?;
    map(driver, at, bytes, second)?;
    allow(driver, at, bytes)?;
    Taken::at(driver, at, bytes, mark, move |driver| {
        unmap(driver, at, bytes)?;
        release(driver, second)?;
        release(driver, first)?;
        call!(driver, "cuMemAddressFree" "" (u64, usize)(at, bytes))
    })
}

/// What is answered where mapped memory is to go to places that it can't be moved from. There are no such places; a card's driver
/// does not look at handles that are none.
pub(crate) fn elsewhere(driver: &Driver) -> Result<String, Failed> {
    const BYTES: usize = 2 << 20;
    const SPARSE: usize = 8;
    let (handle, at, mut descriptor) = (handle(driver, BYTES, 0)?, range(driver, BYTES)?, -1);
    map(driver, at, BYTES, handle)?;
    allow(driver, at, BYTES)?;
    let mut list = [0_u64; 12];
    list[SPARSE] = handle;
    let answers = [
        call!(driver, "cuMulticastBindMem" "" (u64, usize, u64, usize, usize, u64)(7, 0, handle, 0, BYTES, 0)),
        call!(driver, "cuMulticastBindAddr" "" (u64, usize, u64, usize, u64)(7, 0, at, BYTES, 0)),
        call!(driver, "cuMemMapArrayAsync" "" (*mut c_void, c_uint, *mut c_void)
            (list.as_mut_ptr().cast(), 1, std::ptr::null_mut())),
        call!(driver, "cuMemGetHandleForAddressRange" "" (*mut c_int, u64, usize, c_uint, c_ulonglong)
            (&raw mut descriptor, at, BYTES, 1, 0)),
    ];
    let codes = answers.map(|answer| answer.err().map_or(0, |failed| failed.code));
    Ok(format!("{codes:?}"))
}

fn give_pieces(driver: &Driver, pieces: &[(u64, usize, u64)]) -> Result<(), Failed> {
    pieces.iter().try_for_each(|&(at, size, handle)| {
        unmap(driver, at, size)?;
        release(driver, handle)
    })
}

fn handle(driver: &Driver, bytes: usize, handle_types: c_uint) -> Result<u64, Failed> {
    let (kind, mut handle) = (kind(handle_types), 0);
    call!(driver, "cuMemCreate" "" (*mut u64, usize, *const Kind, c_ulonglong)
        (&raw mut handle, bytes, &raw const kind, 0))?;
    Ok(handle)
}

fn kind(handle_types: c_uint) -> Kind {
    Kind { kind: PINNED, handle_types, location: HERE, win32: std::ptr::null_mut(), flags: [0; 8] }
}

fn range(driver: &Driver, bytes: usize) -> Result<u64, Failed> {
    let mut at = 0;
    call!(driver, "cuMemAddressReserve" "" (*mut u64, usize, usize, u64, c_ulonglong)(&raw mut at, bytes, 0, 0, 0))?;
    Ok(at)
}

fn map(driver: &Driver, at: u64, bytes: usize, handle: u64) -> Result<(), Failed> {
    call!(driver, "cuMemMap" "" (u64, usize, usize, u64, c_ulonglong)(at, bytes, 0, handle, 0))
}

fn allow(driver: &Driver, at: u64, bytes: usize) -> Result<(), Failed> {
    let right = Right { location: HERE, flags: READ_AND_WRITE };
    call!(driver, "cuMemSetAccess" "" (u64, usize, *const Right, usize)(at, bytes, &raw const right, 1))
}

fn unmap(driver: &Driver, at: u64, bytes: usize) -> Result<(), Failed> {
    call!(driver, "cuMemUnmap" "" (u64, usize)(at, bytes))
}

fn release(driver: &Driver, handle: u64) -> Result<(), Failed> {
    call!(driver, "cuMemRelease" "" (u64)(handle))
}

/// The handle behind an address is the one that was mapped there.
fn same_again(driver: &Driver, at: u64, handle: u64) -> Result<(), Failed> {
    let mut again = 0;
    let address: *mut c_void =
        std::ptr::with_exposed_provenance_mut(usize::try_from(at).expect("an address"));
    call!(driver, "cuMemRetainAllocationHandle" "" (*mut u64, *mut c_void)(&raw mut again, address))?;
    assert_eq!(again, handle, "another handle is behind {at:#x}");
    release(driver, again)
}
