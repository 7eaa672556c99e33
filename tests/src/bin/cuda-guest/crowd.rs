//! Threads that allocate at once.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::thread;

use gpulease_words::Bytes;

use crate::doors::{Driver, Failed, call};
use crate::linear::free;
use crate::ways::Take;

/// What a thread has at most at one time.
const AT_ONCE: usize = 8;

/// An allocation that is full of one byte.
struct Piece {
    at: u64,
    bytes: usize,
    mark: u8,
}

/// Has so many threads allocate, fill, check and free so many times each, of sizes from 1 byte to 1 MiB; no two pieces
/// may overlap.
pub(crate) fn crowd(driver: &Driver, threads: u64, times: u64) -> Result<String, Failed> {
    let context = current(driver)?;
    let failed = Mutex::new(Ok(()));
    thread::scope(|scope| {
        for number in 0..threads {
            let failed = &failed;
            scope.spawn(move || {
                let done = enter(driver, context).and_then(|()| one(driver, number, times));
                if let Err(why) = done {
                    *failed.lock().expect("nobody panics with it") = Err(why);
                }
            });
        }
    });
    failed.into_inner().expect("nobody panics with it").map(|()| String::new())
}

/// Takes memory by two ways at once and keeps it; says the code that each got.
pub(crate) fn at_once(driver: &Driver, ways: [Take; 2], bytes: Bytes) -> Result<String, Failed> {
    let context = current(driver)?;
    let bytes = usize::try_from(bytes.get()).expect("a size of this machine");
    let taken = |take: Take| {
        let taken = enter(driver, context).and_then(|()| take(driver, bytes, 1));
        taken.map_or_else(|failed| failed.code, |_| 0)
    };
    let codes = thread::scope(|scope| {
        let threads = ways.map(|take| scope.spawn(move || taken(take)));
        threads.map(|thread| thread.join().expect("it has a code"))
    });
    Ok(format!("{codes:?}"))
}

/// The context of this thread, as a number that other threads may have.
fn current(driver: &Driver) -> Result<usize, Failed> {
    let mut context = null_mut();
    call!(driver, "cuCtxGetCurrent" "" (*mut *mut c_void)(&raw mut context))?;
    Ok(context.expose_provenance())
}

fn enter(driver: &Driver, context: usize) -> Result<(), Failed> {
    let context: *mut c_void = std::ptr::with_exposed_provenance_mut(context);
    call!(driver, "cuCtxSetCurrent" "" (*mut c_void)(context))
}

fn one(driver: &Driver, number: u64, times: u64) -> Result<(), Failed> {
    let (mut lots, mut pieces) = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Vec::new());
    for turn in 0..times {
        lots = lots.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = 1 + (lots >> 33) as usize % (1 << (8 + turn % 13));
        let piece = Piece { at: 0, bytes, mark: (number * 31 + turn) as u8 };
        pieces.push(taken(driver, piece)?);
        if pieces.len() == AT_ONCE {
            let at = (lots >> 50) as usize % AT_ONCE;
            give(driver, pieces.swap_remove(at))?;
        }
    }
    pieces.into_iter().try_for_each(|piece| give(driver, piece))
}

fn taken(driver: &Driver, mut piece: Piece) -> Result<Piece, Failed> {
    call!(driver, "cuMemAlloc" "_v2" (*mut u64, usize)(&raw mut piece.at, piece.bytes))?;
    call!(driver, "cuMemsetD8" "_v2" (u64, u8, usize)(piece.at, piece.mark, piece.bytes))?;
    Ok(piece)
}

fn give(driver: &Driver, Piece { at, bytes, mark }: Piece) -> Result<(), Failed> {
    let mut back = vec![0_u8; bytes];
    call!(driver, "cuMemcpyDtoH" "_v2" (*mut c_void, u64, usize)(back.as_mut_ptr().cast(), at, bytes))?;
    assert!(back.iter().all(|&byte| byte == mark), "another thread wrote into {bytes} bytes at {at:#x}");
    free(driver, at)
}
