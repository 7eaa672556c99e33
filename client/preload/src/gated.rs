//! Functions that pass the [gate](crate::gate) and else do what the driver does.
//!
//! All their arguments are whole numbers and addresses, each in a register or a stack slot of 8 bytes on the
//! processors that CUDA runs on, so that they can be passed on without a look at their types.

use crate::code::{Code, NOT_FOUND};
use crate::entries::{Entry, Streams, c_name, streams};
use crate::gate;
use crate::real::{CUDA, Slot};

macro_rules! gated {
    ($($since:literal $base:literal $symbol:ident $([$streams:ident])? ($($argument:ident)*);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($argument: usize),*) -> Code {
                static SLOT: Slot = Slot::new(&CUDA, c_name!($symbol));
                let found = SLOT.get();
                if found.is_null() {
                    return NOT_FOUND;
                }
                // SAFETY: the function takes so many arguments, each as wide as these at the most.
                let function = unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($(gated!(@usize $argument)),*) -> Code>(found)
                };
                // SAFETY: the caller's arguments, passed on.
                gate::pass(|| unsafe { function($($argument),*) })
            }
        )*

        /// All of them.
        pub(crate) static GATED: &[Entry] = &[$(Entry {
            library: &CUDA,
            symbol: c_name!($symbol),
            base: $base,
            since: $since,
            streams: streams!($($streams)?),
            ours: $symbol as *const std::ffi::c_void,
        }),*];
    };
    (@usize $argument:ident) => { usize };
}

gated! {
    10000 "cuGraphInstantiate" cuGraphInstantiate (a b c d e);
    11000 "cuGraphInstantiate" cuGraphInstantiate_v2 (a b c d e);
    11040 "cuGraphInstantiateWithFlags" cuGraphInstantiateWithFlags (a b c);
    12000 "cuGraphInstantiateWithParams" cuGraphInstantiateWithParams (a b);
    12000 "cuGraphInstantiateWithParams" cuGraphInstantiateWithParams_ptsz [per_thread] (a b);
    4000 "cuLaunchKernel" cuLaunchKernel (a b c d e f g h i j k);
    7000 "cuLaunchKernel" cuLaunchKernel_ptsz [per_thread] (a b c d e f g h i j k);
    11060 "cuLaunchKernelEx" cuLaunchKernelEx (a b c d);
    11060 "cuLaunchKernelEx" cuLaunchKernelEx_ptsz [per_thread] (a b c d);
    9000 "cuLaunchCooperativeKernel" cuLaunchCooperativeKernel (a b c d e f g h i j);
    9000 "cuLaunchCooperativeKernel" cuLaunchCooperativeKernel_ptsz [per_thread] (a b c d e f g h i j);
    9000 "cuLaunchCooperativeKernelMultiDevice" cuLaunchCooperativeKernelMultiDevice (a b c);
    2000 "cuLaunch" cuLaunch (a);
    2000 "cuLaunchGrid" cuLaunchGrid (a b c);
    2000 "cuLaunchGridAsync" cuLaunchGridAsync (a b c d);
    10000 "cuGraphLaunch" cuGraphLaunch (a b);
    10000 "cuGraphLaunch" cuGraphLaunch_ptsz [per_thread] (a b);
    11010 "cuGraphUpload" cuGraphUpload (a b);
    11010 "cuGraphUpload" cuGraphUpload_ptsz [per_thread] (a b);
    4000 "cuMemcpy" cuMemcpy (a b c);
    7000 "cuMemcpy" cuMemcpy_ptds [per_thread] (a b c);
    4000 "cuMemcpyAsync" cuMemcpyAsync (a b c d);
    7000 "cuMemcpyAsync" cuMemcpyAsync_ptsz [per_thread] (a b c d);
    4000 "cuMemcpyPeer" cuMemcpyPeer (a b c d e);
    7000 "cuMemcpyPeer" cuMemcpyPeer_ptds [per_thread] (a b c d e);
    4000 "cuMemcpyPeerAsync" cuMemcpyPeerAsync (a b c d e f);
    7000 "cuMemcpyPeerAsync" cuMemcpyPeerAsync_ptsz [per_thread] (a b c d e f);
    3020 "cuMemcpyHtoD" cuMemcpyHtoD_v2 (a b c);
    7000 "cuMemcpyHtoD" cuMemcpyHtoD_v2_ptds [per_thread] (a b c);
    3020 "cuMemcpyDtoH" cuMemcpyDtoH_v2 (a b c);
    7000 "cuMemcpyDtoH" cuMemcpyDtoH_v2_ptds [per_thread] (a b c);
    3020 "cuMemcpyDtoD" cuMemcpyDtoD_v2 (a b c);
    7000 "cuMemcpyDtoD" cuMemcpyDtoD_v2_ptds [per_thread] (a b c);
    3020 "cuMemcpyDtoA" cuMemcpyDtoA_v2 (a b c d);
    7000 "cuMemcpyDtoA" cuMemcpyDtoA_v2_ptds [per_thread] (a b c d);
    3020 "cuMemcpyAtoD" cuMemcpyAtoD_v2 (a b c d);
    7000 "cuMemcpyAtoD" cuMemcpyAtoD_v2_ptds [per_thread] (a b c d);
    3020 "cuMemcpyHtoA" cuMemcpyHtoA_v2 (a b c d);
    7000 "cuMemcpyHtoA" cuMemcpyHtoA_v2_ptds [per_thread] (a b c d);
    3020 "cuMemcpyAtoH" cuMemcpyAtoH_v2 (a b c d);
    7000 "cuMemcpyAtoH" cuMemcpyAtoH_v2_ptds [per_thread] (a b c d);
    3020 "cuMemcpyAtoA" cuMemcpyAtoA_v2 (a b c d e);
    7000 "cuMemcpyAtoA" cuMemcpyAtoA_v2_ptds [per_thread] (a b c d e);
    3020 "cuMemcpyHtoDAsync" cuMemcpyHtoDAsync_v2 (a b c d);
    7000 "cuMemcpyHtoDAsync" cuMemcpyHtoDAsync_v2_ptsz [per_thread] (a b c d);
    3020 "cuMemcpyDtoHAsync" cuMemcpyDtoHAsync_v2 (a b c d);
    7000 "cuMemcpyDtoHAsync" cuMemcpyDtoHAsync_v2_ptsz [per_thread] (a b c d);
    3020 "cuMemcpyDtoDAsync" cuMemcpyDtoDAsync_v2 (a b c d);
    7000 "cuMemcpyDtoDAsync" cuMemcpyDtoDAsync_v2_ptsz [per_thread] (a b c d);
    3020 "cuMemcpyHtoAAsync" cuMemcpyHtoAAsync_v2 (a b c d e);
    7000 "cuMemcpyHtoAAsync" cuMemcpyHtoAAsync_v2_ptsz [per_thread] (a b c d e);
    3020 "cuMemcpyAtoHAsync" cuMemcpyAtoHAsync_v2 (a b c d e);
    7000 "cuMemcpyAtoHAsync" cuMemcpyAtoHAsync_v2_ptsz [per_thread] (a b c d e);
    3020 "cuMemcpy2D" cuMemcpy2D_v2 (a);
    7000 "cuMemcpy2D" cuMemcpy2D_v2_ptds [per_thread] (a);
    3020 "cuMemcpy2DUnaligned" cuMemcpy2DUnaligned_v2 (a);
    7000 "cuMemcpy2DUnaligned" cuMemcpy2DUnaligned_v2_ptds [per_thread] (a);
    3020 "cuMemcpy2DAsync" cuMemcpy2DAsync_v2 (a b);
    7000 "cuMemcpy2DAsync" cuMemcpy2DAsync_v2_ptsz [per_thread] (a b);
    3020 "cuMemcpy3D" cuMemcpy3D_v2 (a);
    7000 "cuMemcpy3D" cuMemcpy3D_v2_ptds [per_thread] (a);
    3020 "cuMemcpy3DAsync" cuMemcpy3DAsync_v2 (a b);
    7000 "cuMemcpy3DAsync" cuMemcpy3DAsync_v2_ptsz [per_thread] (a b);
    4000 "cuMemcpy3DPeer" cuMemcpy3DPeer (a);
    7000 "cuMemcpy3DPeer" cuMemcpy3DPeer_ptds [per_thread] (a);
    4000 "cuMemcpy3DPeerAsync" cuMemcpy3DPeerAsync (a b);
    7000 "cuMemcpy3DPeerAsync" cuMemcpy3DPeerAsync_ptsz [per_thread] (a b);
    12080 "cuMemcpyBatchAsync" cuMemcpyBatchAsync (a b c d e f g h i);
    12080 "cuMemcpyBatchAsync" cuMemcpyBatchAsync_ptsz [per_thread] (a b c d e f g h i);
    13000 "cuMemcpyBatchAsync" cuMemcpyBatchAsync_v2 (a b c d e f g h);
    13000 "cuMemcpyBatchAsync" cuMemcpyBatchAsync_v2_ptsz [per_thread] (a b c d e f g h);
    12080 "cuMemcpy3DBatchAsync" cuMemcpy3DBatchAsync (a b c d e);
    12080 "cuMemcpy3DBatchAsync" cuMemcpy3DBatchAsync_ptsz [per_thread] (a b c d e);
    13000 "cuMemcpy3DBatchAsync" cuMemcpy3DBatchAsync_v2 (a b c d);
    13000 "cuMemcpy3DBatchAsync" cuMemcpy3DBatchAsync_v2_ptsz [per_thread] (a b c d);
    13020 "cuMemcpyWithAttributesAsync" cuMemcpyWithAttributesAsync (a b c d e);
    13020 "cuMemcpyWithAttributesAsync" cuMemcpyWithAttributesAsync_ptsz [per_thread] (a b c d e);
    13020 "cuMemcpy3DWithAttributesAsync" cuMemcpy3DWithAttributesAsync (a b c);
    13020 "cuMemcpy3DWithAttributesAsync" cuMemcpy3DWithAttributesAsync_ptsz [per_thread] (a b c);
    12060 "cuMemBatchDecompressAsync" cuMemBatchDecompressAsync (a b c d e);
    12060 "cuMemBatchDecompressAsync" cuMemBatchDecompressAsync_ptsz [per_thread] (a b c d e);
    3020 "cuMemsetD8" cuMemsetD8_v2 (a b c);
    7000 "cuMemsetD8" cuMemsetD8_v2_ptds [per_thread] (a b c);
    3020 "cuMemsetD8Async" cuMemsetD8Async (a b c d);
    7000 "cuMemsetD8Async" cuMemsetD8Async_ptsz [per_thread] (a b c d);
    3020 "cuMemsetD16" cuMemsetD16_v2 (a b c);
    7000 "cuMemsetD16" cuMemsetD16_v2_ptds [per_thread] (a b c);
    3020 "cuMemsetD16Async" cuMemsetD16Async (a b c d);
    7000 "cuMemsetD16Async" cuMemsetD16Async_ptsz [per_thread] (a b c d);
    3020 "cuMemsetD32" cuMemsetD32_v2 (a b c);
    7000 "cuMemsetD32" cuMemsetD32_v2_ptds [per_thread] (a b c);
    3020 "cuMemsetD32Async" cuMemsetD32Async (a b c d);
    7000 "cuMemsetD32Async" cuMemsetD32Async_ptsz [per_thread] (a b c d);
    3020 "cuMemsetD2D8" cuMemsetD2D8_v2 (a b c d e);
    7000 "cuMemsetD2D8" cuMemsetD2D8_v2_ptds [per_thread] (a b c d e);
    3020 "cuMemsetD2D8Async" cuMemsetD2D8Async (a b c d e f);
    7000 "cuMemsetD2D8Async" cuMemsetD2D8Async_ptsz [per_thread] (a b c d e f);
    3020 "cuMemsetD2D16" cuMemsetD2D16_v2 (a b c d e);
    7000 "cuMemsetD2D16" cuMemsetD2D16_v2_ptds [per_thread] (a b c d e);
    3020 "cuMemsetD2D16Async" cuMemsetD2D16Async (a b c d e f);
    7000 "cuMemsetD2D16Async" cuMemsetD2D16Async_ptsz [per_thread] (a b c d e f);
    3020 "cuMemsetD2D32" cuMemsetD2D32_v2 (a b c d e);
    7000 "cuMemsetD2D32" cuMemsetD2D32_v2_ptds [per_thread] (a b c d e);
    3020 "cuMemsetD2D32Async" cuMemsetD2D32Async (a b c d e f);
    7000 "cuMemsetD2D32Async" cuMemsetD2D32Async_ptsz [per_thread] (a b c d e f);
    8000 "cuStreamWriteValue32" cuStreamWriteValue32 (a b c d);
    8000 "cuStreamWriteValue32" cuStreamWriteValue32_ptsz [per_thread] (a b c d);
    11070 "cuStreamWriteValue32" cuStreamWriteValue32_v2 (a b c d);
    11070 "cuStreamWriteValue32" cuStreamWriteValue32_v2_ptsz [per_thread] (a b c d);
    8000 "cuStreamWaitValue32" cuStreamWaitValue32 (a b c d);
    8000 "cuStreamWaitValue32" cuStreamWaitValue32_ptsz [per_thread] (a b c d);
    11070 "cuStreamWaitValue32" cuStreamWaitValue32_v2 (a b c d);
    11070 "cuStreamWaitValue32" cuStreamWaitValue32_v2_ptsz [per_thread] (a b c d);
    9000 "cuStreamWriteValue64" cuStreamWriteValue64 (a b c d);
    9000 "cuStreamWriteValue64" cuStreamWriteValue64_ptsz [per_thread] (a b c d);
    11070 "cuStreamWriteValue64" cuStreamWriteValue64_v2 (a b c d);
    11070 "cuStreamWriteValue64" cuStreamWriteValue64_v2_ptsz [per_thread] (a b c d);
    9000 "cuStreamWaitValue64" cuStreamWaitValue64 (a b c d);
    9000 "cuStreamWaitValue64" cuStreamWaitValue64_ptsz [per_thread] (a b c d);
    11070 "cuStreamWaitValue64" cuStreamWaitValue64_v2 (a b c d);
    11070 "cuStreamWaitValue64" cuStreamWaitValue64_v2_ptsz [per_thread] (a b c d);
    8000 "cuStreamBatchMemOp" cuStreamBatchMemOp (a b c d);
    8000 "cuStreamBatchMemOp" cuStreamBatchMemOp_ptsz [per_thread] (a b c d);
    11070 "cuStreamBatchMemOp" cuStreamBatchMemOp_v2 (a b c d);
    11070 "cuStreamBatchMemOp" cuStreamBatchMemOp_v2_ptsz [per_thread] (a b c d);
}
