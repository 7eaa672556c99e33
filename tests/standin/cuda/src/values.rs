//! Values that a stream writes to memory or waits for.

use std::ffi::c_void;

use crate::addresses::{Access, pointer};
use crate::code::{Code, Outcome};
use crate::copy::check;
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph::Kind;

/// How a value is waited for.
const GREATER_OR_EQUAL: u32 = 0;
const EQUAL: u32 = 1;

/// How wide a value is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Narrow,
    Wide,
}

impl Width {
    fn bytes(self) -> usize {
        match self {
            Self::Narrow => 4,
            Self::Wide => 8,
        }
    }
}

fn write(driver: &Driver, stream: *mut c_void, at: u64, value: u64, width: Width) -> Outcome {
    driver.submit(stream, Kind::Fill, move |driver| {
        check(driver, at, width.bytes(), Access::Write)?;
        // SAFETY: the range is mapped for writing.
        unsafe { pointer(at).cast::<u8>().copy_from(value.to_le_bytes().as_ptr(), width.bytes()) };
        Ok(())
    })
}

/// Work is done when its call returns, so what is not there yet would never come.
fn wait(driver: &Driver, stream: *mut c_void, at: u64, value: u64, flags: u32, width: Width) -> Outcome {
    driver.submit(stream, Kind::Empty, move |driver| {
        check(driver, at, width.bytes(), Access::Read)?;
        let mut there = [0; 8];
        // SAFETY: the range is mapped for reading.
        unsafe { pointer(at).cast::<u8>().copy_to(there.as_mut_ptr(), width.bytes()) };
        let there = u64::from_le_bytes(there);
        let met = match flags & 3 {
            GREATER_OR_EQUAL => there >= value,
            EQUAL => there == value,
            _ => there & value != 0,
        };
        if met { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
    })
}

entry_points! {
    8000 & cuStreamWriteValue32_ptsz fn cuStreamWriteValue32(driver, stream: *mut c_void, at: u64, value: u32, _flags: u32) {
        write(driver, stream, at, u64::from(value), Width::Narrow)
    }

    11070 & cuStreamWriteValue32_v2_ptsz fn cuStreamWriteValue32_v2(driver, stream: *mut c_void, at: u64, value: u32, _flags: u32) {
        write(driver, stream, at, u64::from(value), Width::Narrow)
    }

    9000 & cuStreamWriteValue64_ptsz fn cuStreamWriteValue64(driver, stream: *mut c_void, at: u64, value: u64, _flags: u32) {
        write(driver, stream, at, value, Width::Wide)
    }

    11070 & cuStreamWriteValue64_v2_ptsz fn cuStreamWriteValue64_v2(driver, stream: *mut c_void, at: u64, value: u64, _flags: u32) {
        write(driver, stream, at, value, Width::Wide)
    }

    8000 & cuStreamWaitValue32_ptsz fn cuStreamWaitValue32(driver, stream: *mut c_void, at: u64, value: u32, flags: u32) {
        wait(driver, stream, at, u64::from(value), flags, Width::Narrow)
    }

    11070 & cuStreamWaitValue32_v2_ptsz fn cuStreamWaitValue32_v2(driver, stream: *mut c_void, at: u64, value: u32, flags: u32) {
        wait(driver, stream, at, u64::from(value), flags, Width::Narrow)
    }

    9000 & cuStreamWaitValue64_ptsz fn cuStreamWaitValue64(driver, stream: *mut c_void, at: u64, value: u64, flags: u32) {
        wait(driver, stream, at, value, flags, Width::Wide)
    }

    11070 & cuStreamWaitValue64_v2_ptsz fn cuStreamWaitValue64_v2(driver, stream: *mut c_void, at: u64, value: u64, flags: u32) {
        wait(driver, stream, at, value, flags, Width::Wide)
    }
}
