//! A program for the device, of one function.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::{CUfunction, CUmodule};

use crate::context::Context;
use crate::driver::call;
use crate::error::CudaError;
use crate::stream::Stream;

/// A function that the driver compiled for the context's device. It is unloaded when dropped.
#[derive(Debug)]
pub(crate) struct Kernel {
    context: Context,
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: the driver allows modules and functions to be used from any thread, and their handles are only names.
unsafe impl Send for Kernel {}
// SAFETY: as above; launches from several threads are allowed.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Compiles a PTX text (0.1 s) and looks up the function of this name in it.
    ///
    /// # Errors
    /// What the driver says, for example of a device that is older than the text.
    pub(crate) fn load(context: &Context, ptx: &CStr, name: &CStr) -> Result<Self, CudaError> {
        let _current = context.enter()?;
        let (driver, mut module) = (context.driver(), null_mut());
        // SAFETY: the text ends with a zero, and the driver has copied it when it returns; a context is current.
        unsafe { call!(driver, cuModuleLoadData(&mut module, ptx.as_ptr().cast())) }?;
        let mut kernel = Self { context: context.clone(), module, function: null_mut() };
        // SAFETY: the module is loaded, and the name ends with a zero.
        unsafe { call!(driver, cuModuleGetFunction(&mut kernel.function, module, name.as_ptr())) }?;
        Ok(kernel)
    }

    /// Queues it: so many blocks of so many threads each.
    ///
    /// # Errors
    /// What the driver says. What goes wrong later, the stream's next wait says.
    ///
    /// # Safety
    /// There is one pointer for each parameter of the function, to a value of its type; what the function does with
    /// them is allowed until the stream has been waited for. The stream is one of the kernel's context.
    pub(crate) unsafe fn launch<const N: usize>(
        &self,
        stream: &Stream,
        (blocks, threads): (u32, u32),
        mut arguments: [*mut c_void; N],
    ) -> Result<(), CudaError> {
        let _current = self.context.enter()?;
        let (function, arguments) = (self.function, arguments.as_mut_ptr());
        // SAFETY: the caller's promise; the driver has copied the values when it returns.
        unsafe {
            call!(
                self.context.driver(),
                cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream.raw(), arguments, null_mut())
            )
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let driver = self.context.driver();
        driver.keep(self.context.enter().and_then(|_current| {
            // SAFETY: the module is ours and is unloaded once; who launched has waited.
            unsafe { call!(driver, cuModuleUnload(self.module)) }
        }));
    }
}
