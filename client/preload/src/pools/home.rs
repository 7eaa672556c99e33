//! Where the memory of the pools comes from that a program makes.

use std::ffi::{c_int, c_uint};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`: memory that stays where it is.
const PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: c_uint = 1;

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: c_uint,
    device: c_int,
}

/// Where a pool takes memory from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The lease, on this device.
    Lease(c_int),
    /// The driver, on this device: counted.
    Driver(c_int),
    /// The host: nothing of the lease.
    Host,
}

impl Properties {
    /// Memory that is to be exported, and memory that moves by itself, can't be a segment.
    pub(super) fn home(&self) -> Home {
        match (self.location, self.kind) {
            (ON_DEVICE, PINNED) if self.handle_types == 0 => Home::Lease(self.device),
            (ON_DEVICE, _) => Home::Driver(self.device),
            _ => Home::Host,
        }
    }

    /// Whether others are to have it.
    pub(super) fn is_for_export(&self) -> bool {
        self.handle_types != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_memory_of_a_device_comes_from_the_lease() {
        let pool =
            |kind, handle_types, location| Properties { kind, handle_types, location, device: 1 }.home();
        assert_eq!(pool(PINNED, 0, ON_DEVICE), Home::Lease(1));
        assert_eq!(pool(PINNED, 1, ON_DEVICE), Home::Driver(1));
        // Managed memory, from CUDA 13 on.
        assert_eq!(pool(2, 0, ON_DEVICE), Home::Driver(1));
        for of_host in 2..=4 {
            assert_eq!(pool(PINNED, 0, of_host), Home::Host);
        }
    }
}
