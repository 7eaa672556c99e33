//! The driver's entry points: one list, looked up once.
//!
//! What is called is what was looked up, so that no later call can meet a missing symbol. Types of
//! arguments are cudarc's; results are plain numbers (see [`Code`]).

#![allow(non_snake_case, reason = "they are the driver's own names")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUipcMemHandle,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmodule, CUstream, CUuuid,
};
use libloading::Library;

use crate::error::{Code, CudaVersion};

/// A symbol that the driver does not have, and the CUDA version that brought it.
pub(crate) struct Missing {
    pub(crate) symbol: &'static str,
    pub(crate) needed: CudaVersion,
}

macro_rules! symbols {
    ($($since:literal $name:ident($($argument:ty),*);)*) => {
        /// Every driver function of this crate.
        pub(crate) struct Symbols {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Symbols {
            /// Looks all of them up.
            pub(crate) fn probe(library: &'static Library) -> Result<Self, Missing> {
                $(
                    // SAFETY: the type is that of the driver's header for this name; the library
                    // is never unloaded, so that the pointer stays good.
                    let $name = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> Code>(stringify!($name)) }
                        .map(|found| *found)
                        .map_err(|_| Missing { symbol: stringify!($name), needed: CudaVersion::from_number($since) })?;
                )*
                Ok(Self { $($name,)* })
            }
        }
    };
}

// Each with the CUDA version that introduced it.
symbols! {
    6000 cuGetErrorName(Code, *mut *const c_char);
    6000 cuGetErrorString(Code, *mut *const c_char);
    2000 cuInit(c_uint);
    2020 cuDriverGetVersion(*mut c_int);
    2000 cuDeviceGetCount(*mut c_int);
    2000 cuDeviceGet(*mut CUdevice, c_int);
    2000 cuDeviceGetName(*mut c_char, c_int, CUdevice);
    11040 cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    4010 cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    3020 cuDeviceTotalMem_v2(*mut usize, CUdevice);
    2000 cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);

    10020 cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
    10020 cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, u64);
    10020 cuMemRelease(CUmemGenericAllocationHandle);
    10020 cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, u64);
    10020 cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
    10020 cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, u64);
    10020 cuMemAddressFree(CUdeviceptr, usize);
    10020 cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, u64);
    10020 cuMemUnmap(CUdeviceptr, usize);
    11000 cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
    10020 cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);

    7000 cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    11000 cuDevicePrimaryCtxRelease_v2(CUdevice);
    4000 cuCtxGetCurrent(*mut CUcontext);
    4000 cuCtxSetCurrent(CUcontext);
    2000 cuCtxSynchronize();
    3020 cuMemGetInfo_v2(*mut usize, *mut usize);

    3020 cuMemAlloc_v2(*mut CUdeviceptr, usize);
    3020 cuMemFree_v2(CUdeviceptr);
    3020 cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    4010 cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    11000 cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    4010 cuIpcCloseMemHandle(CUdeviceptr);

    3020 cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize);
    3020 cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    3020 cuMemcpyDtoD_v2(CUdeviceptr, CUdeviceptr, usize);
    3020 cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    3020 cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    3020 cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    3020 cuMemsetD8_v2(CUdeviceptr, u8, usize);
    3020 cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);

    2020 cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    2000 cuMemFreeHost(*mut c_void);
    6050 cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    4000 cuMemHostUnregister(*mut c_void);

    2000 cuStreamCreate(*mut CUstream, c_uint);
    4000 cuStreamDestroy_v2(CUstream);
    2000 cuStreamSynchronize(CUstream);
    2000 cuEventCreate(*mut CUevent, c_uint);
    4000 cuEventDestroy_v2(CUevent);
    2000 cuEventRecord(CUevent, CUstream);
    2000 cuEventSynchronize(CUevent);
    2000 cuEventElapsedTime(*mut f32, CUevent, CUevent);

    2000 cuModuleLoadData(*mut CUmodule, *const c_void);
    2000 cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    2000 cuModuleUnload(CUmodule);
    4000 cuLaunchKernel(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);
}

/// What cudarc's own context, streams, slices, modules and launches call beyond the list above.
/// cudarc panics where one is missing, so they are looked up before it is used.
const CUDARC: &[(&str, u32)] = &[
    ("cuStreamWaitEvent", 3020),
    ("cuStreamIsCapturing", 10_000),
    ("cuEventQuery", 2000),
    ("cuMemAllocAsync", 11_020),
    ("cuMemFreeAsync", 11_020),
];

/// Looks up what cudarc calls by itself.
pub(crate) fn probe_cudarc(library: &'static Library) -> Result<(), Missing> {
    for &(symbol, since) in CUDARC {
        // SAFETY: only whether the name exists is asked; the pointer is not called.
        unsafe { library.get::<unsafe extern "C" fn()>(symbol) }
            .map_err(|_| Missing { symbol, needed: CudaVersion::from_number(since) })?;
    }
    Ok(())
}
