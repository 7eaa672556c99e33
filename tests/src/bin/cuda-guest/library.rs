//! The same program where it uses the gpulease library, too.

use std::ffi::c_void;

use gpulease_client::blocking::{Client, Lease, Segment};
use gpulease_words::Bytes;

use crate::doors::{Driver, Failed, call};

/// What it has by the library of the lease that its environment names.
pub(crate) struct Library {
    lease: Lease,
    taken: Vec<(Segment, u8)>,
}

impl Library {
    pub(crate) fn join() -> Self {
        let lease = Client::join_from_env().unwrap_or_else(|error| panic!("it can't be joined: {error}"));
        Self { lease, taken: Vec::new() }
    }

    /// Takes memory and fills it.
    pub(crate) fn take(&mut self, driver: &Driver, bytes: Bytes) -> Result<(), Failed> {
        let segment = self.lease.allocate(bytes).unwrap_or_else(|error| panic!("no memory: {error}"));
        let mark = u8::try_from(self.taken.len() % 250 + 1).expect("it is small");
        let size = usize::try_from(bytes.get()).expect("a size of this machine");
        let resident = self.lease.enter().unwrap_or_else(|error| panic!("not here: {error}"));
        let at = segment.device_ptr(&resident).unwrap_or_else(|error| panic!("no address: {error}"));
        call!(driver, "cuMemsetD8" "_v2" (u64, u8, usize)(at, mark, size))?;
        drop(resident);
        self.taken.push((segment, mark));
        Ok(())
    }

    /// Reads all that was taken, at its ends.
    pub(crate) fn check(&self, driver: &Driver) -> Result<(), Failed> {
        let resident = self.lease.enter().unwrap_or_else(|error| panic!("not here: {error}"));
        for (segment, mark) in &self.taken {
            let at = segment.device_ptr(&resident).unwrap_or_else(|error| panic!("no address: {error}"));
            for end in [at, at + segment.bytes().get() - 1] {
                let mut byte = 0_u8;
                call!(driver, "cuMemcpyDtoH" "_v2" (*mut c_void, u64, usize)((&raw mut byte).cast(), end, 1))?;
                assert_eq!(byte, *mark, "what was written at {end:#x} is not there any more");
            }
        }
        Ok(())
    }
}
