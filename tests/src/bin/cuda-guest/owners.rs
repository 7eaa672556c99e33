//! Whose the functions are that a door leads to.

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;

use crate::doors::Driver;

/// Functions that take memory by its size or give it back, say how much there is, or work on it: by the name without a version, and
/// the version that programs of today mean.
const FUNCTIONS: &[(&str, &str)] = &[
    ("cuInit", ""),
    ("cuGetProcAddress", "_v2"),
    ("cuMemGetInfo", "_v2"),
    ("cuDeviceTotalMem", "_v2"),
    ("cuMemAlloc", "_v2"),
    ("cuMemAllocPitch", "_v2"),
    ("cuMemAllocManaged", ""),
    ("cuMemFree", "_v2"),
    ("cuMemGetAddressRange", "_v2"),
    ("cuIpcGetMemHandle", ""),
    ("cuMemAllocAsync", ""),
    ("cuMemAllocFromPoolAsync", ""),
    ("cuMemFreeAsync", ""),
    ("cuMemPoolCreate", ""),
    ("cuMemPoolDestroy", ""),
    ("cuMemPoolTrimTo", ""),
    ("cuMemCreate", ""),
    ("cuMemRelease", ""),
    ("cuMemMap", ""),
    ("cuMemUnmap", ""),
    ("cuMemRetainAllocationHandle", ""),
    ("cuMemExportToShareableHandle", ""),
    ("cuMulticastBindMem", ""),
    ("cuMulticastBindAddr", ""),
    ("cuMemMapArrayAsync", ""),
    ("cuMemGetHandleForAddressRange", ""),
    ("cuMemBatchDecompressAsync", ""),
    ("cuMemGetDefaultMemPool", ""),
    ("cuArrayCreate", "_v2"),
    ("cuArray3DCreate", "_v2"),
    ("cuArrayDestroy", ""),
    ("cuMipmappedArrayCreate", ""),
    ("cuMipmappedArrayDestroy", ""),
    ("cuGraphAddMemAllocNode", ""),
    ("cuGraphAddNode", "_v2"),
    ("cuGraphLaunch", ""),
    ("cuDevicePrimaryCtxReset", "_v2"),
    ("cuCtxDestroy", "_v2"),
    ("cuLaunchKernel", ""),
    ("cuLaunchKernelEx", ""),
    ("cuLaunchCooperativeKernel", ""),
    ("cuMemcpy", ""),
    ("cuMemcpyAsync", ""),
    ("cuMemcpyPeer", ""),
    ("cuMemcpyPeerAsync", ""),
    ("cuMemcpyHtoD", "_v2"),
    ("cuMemcpyHtoDAsync", "_v2"),
    ("cuMemcpyDtoH", "_v2"),
    ("cuMemcpyDtoHAsync", "_v2"),
    ("cuMemcpyDtoD", "_v2"),
    ("cuMemcpyDtoDAsync", "_v2"),
    ("cuMemcpyHtoA", "_v2"),
    ("cuMemcpyHtoAAsync", "_v2"),
    ("cuMemcpyAtoH", "_v2"),
    ("cuMemcpyAtoHAsync", "_v2"),
    ("cuMemcpyDtoA", "_v2"),
    ("cuMemcpyAtoD", "_v2"),
    ("cuMemcpyAtoA", "_v2"),
    ("cuMemcpy2D", "_v2"),
    ("cuMemcpy2DUnaligned", "_v2"),
    ("cuMemcpy2DAsync", "_v2"),
    ("cuMemcpy3D", "_v2"),
    ("cuMemcpy3DAsync", "_v2"),
    ("cuMemcpy3DPeer", ""),
    ("cuMemcpy3DPeerAsync", ""),
    ("cuMemcpyBatchAsync", ""),
    ("cuMemsetD8", "_v2"),
    ("cuMemsetD8Async", ""),
    ("cuMemsetD16", "_v2"),
    ("cuMemsetD16Async", ""),
    ("cuMemsetD32", "_v2"),
    ("cuMemsetD32Async", ""),
    ("cuMemsetD2D8", "_v2"),
    ("cuMemsetD2D8Async", ""),
    ("cuMemsetD2D16", "_v2"),
    ("cuMemsetD2D16Async", ""),
    ("cuMemsetD2D32", "_v2"),
    ("cuMemsetD2D32Async", ""),
    ("cuStreamWriteValue32", "_v2"),
    ("cuStreamWriteValue64", "_v2"),
    ("cuStreamWaitValue32", "_v2"),
    ("cuStreamWaitValue64", "_v2"),
];

/// The functions that this door finds in another library than the one whose file's name begins so. What the driver or
/// the linked library does not have is left out.
pub(crate) fn not_of(driver: &Driver, library: &str) -> String {
    let strange = FUNCTIONS.iter().filter_map(|&(base, version)| {
        let found = driver.look_for(&CString::new(base).expect("no name has a zero in it"), version);
        let file = if found.is_null() { return None } else { file_of(found) };
        (!file.starts_with(library)).then(|| format!("{base} of {file}"))
    });
    strange.collect::<Vec<_>>().join(", ")
}

/// The name of the file that has this code.
fn file_of(code: *mut c_void) -> String {
    let mut about = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader looks for an address and writes what it finds.
    let known = unsafe { libc::dladdr(code, about.as_mut_ptr()) };
    assert_ne!(known, 0, "there is no code at {code:?}");
    // SAFETY: the loader has filled it in; the name is a text that lives as long as the library.
    let path = unsafe { CStr::from_ptr(about.assume_init().dli_fname) }.to_string_lossy();
    path.rsplit('/').next().unwrap_or_default().to_owned()
}
