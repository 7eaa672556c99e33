//! `cuMemCreate`, and whether what it makes is to be exported.
//!
//! Frameworks ask for all their memory in a form that could be exported and then never do that: PyTorch's
//! `expandable_segments`, for one. Memory that is exported can't be a segment of the lease, so what is made for export
//! is taken to be meant only where libraries ask that live by it, or where the user says so.

use std::arch::naked_asm;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use gpulease_client::Bytes;

use super::{ON_DEVICE, Properties};
use crate::budget::put;
use crate::charged::{self, Given};
use crate::code::{Code, INVALID_VALUE, check, code_of};
use crate::driver;
use crate::elf;
use crate::job;
use crate::piece::Piece;

/// Libraries that export what they create: NCCL, NVSHMEM, UCX.
const EXPORTERS: [&[u8]; 4] = [b"libnccl", b"libnvshmem", b"libuct", b"libucp"];
/// What they are known by where they were linked into another library.
const EXPORTED: [&CStr; 3] = [c"ncclGetUniqueId", c"nvshmem_malloc", c"ucp_init_version"];

/// Set to 1: all that could be exported will be.
const EXPORT: &str = "GPULEASE_EXPORT";

/// `cuMemCreate`, with the address that called it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuMemCreate(
    out: *mut u64,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
) -> Code {
    #[cfg(target_arch = "x86_64")]
    naked_asm!("mov r8, qword ptr [rsp]", "jmp {create}", create = sym create);
    #[cfg(target_arch = "aarch64")]
    naked_asm!("mov x4, x30", "b {create}", create = sym create);
}

unsafe extern "C" fn create(
    out: *mut u64,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
    caller: *const c_void,
) -> Code {
    let served = || {
        // SAFETY: the caller's arguments, passed on.
        let ask = || unsafe { driver::cuMemCreate(out, bytes, properties.cast(), flags) };
        // SAFETY: a pointer to properties as in the header, or null.
        let (job, asked) = (job::current()?, unsafe { properties.as_ref() });
        let (Some(job), Some(asked)) = (job, asked.filter(|asked| asked.location == ON_DEVICE)) else {
            return check(ask());
        };
        let exported = asked.handle_types != 0 && is_meant(caller);
        if !exported
            && asked.is_plain()
            && let Some(device) = job.device(asked.device)
        {
            let size = Bytes::new(bytes as u64);
            if out.is_null() || flags != 0 || size.is_zero() || !size.is_granular() {
                return Err(INVALID_VALUE);
            }
            let piece = Piece::take(job, device.id, size)?;
            // SAFETY: it is not null, so that it is to a handle.
            return unsafe { put(out, job.vmm.add(piece, *asked)) };
        }
        if exported {
            charged::pin(job, "memory for export")?;
        }
        // SAFETY: on success the driver has written the handle.
        let given = || Given::Handle(unsafe { *out });
        check(job.charges.take(job, asked.device, Bytes::new(bytes as u64), ask, given))?;
        // SAFETY: as above.
        job.vmm.lock().of_driver.made(unsafe { *out });
        Ok(())
    };
    code_of(served())
}

/// Whether memory that could be exported will be, by who asks for it.
fn is_meant(caller: *const c_void) -> bool {
    static ALWAYS: OnceLock<bool> = OnceLock::new();
    let always = *ALWAYS.get_or_init(|| std::env::var_os(EXPORT).is_some_and(|value| value == "1"));
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and the record is ours; all zeros are one.
    let (found, about) = unsafe { (libc::dladdr(caller, about.as_mut_ptr()), about.assume_init()) };
    if always || found == 0 || about.dli_fname.is_null() {
        return always;
    }
    // SAFETY: the name of a loaded library is a string.
    let path = unsafe { CStr::from_ptr(about.dli_fname) }.to_bytes();
    let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    EXPORTERS.iter().any(|exporter| file.starts_with(exporter)) || elf::defines(caller, &EXPORTED)
}
