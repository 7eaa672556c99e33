//! A memory barrier of all threads of this process, made by one of them: `membarrier(2)`.
//!
//! The kernel interrupts every processor that runs one of them. So a closer of the gate can do for all, once in a while,
//! what each would have to do at each call: whoever counted itself in before is seen by the closer from then on, and
//! whoever looks at the gate after it finds it closed.

use std::ffi::{c_int, c_long};

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED`
const NOW: c_int = 1 << 3;
/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`
const REGISTER: c_int = 1 << 4;

/// Tells the kernel that there will be such barriers. Not before Linux 4.14, nor where a sandbox forbids the call.
pub(super) fn is_to_be_had() -> bool {
    call(REGISTER) == 0 && of_all_threads()
}

/// Makes one; says whether the kernel did.
pub(super) fn of_all_threads() -> bool {
    call(NOW) == 0
}

fn call(command: c_int) -> c_long {
    // SAFETY: the call takes three numbers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}
