//! Launches of kernels. Two kinds run here: the check sums of a swap, and those whose body is a `ret` alone.

use std::ffi::c_void;

use crate::capture::Step;
use crate::code::{Code, Outcome};
use crate::driver::Driver;
use crate::entry::entry_points;
use crate::graph::{Kind, Node};
use crate::pointer::{handle, put};
use crate::sums::Sums;

/// What a function does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Sums,
    Nothing,
}

/// A launch with its arguments.
#[derive(Clone, Copy)]
enum Job {
    Sums(Sums, u32),
    Nothing,
}

/// How many blocks of how many threads.
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: *mut c_void,
    attributes: *mut c_void,
    attributes_count: u32,
}

/// `CUDA_KERNEL_NODE_PARAMS` of version 2.
#[repr(C)]
struct NodeParameters {
    function: *mut c_void,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: *mut c_void,
    context: *mut c_void,
}

impl Job {
    /// # Safety
    /// `arguments` has a pointer for each parameter of the function, or is null.
    unsafe fn of(
        driver: &Driver,
        function: *mut c_void,
        shape: &Shape,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Self, Code> {
        let body = driver.state().modules.body(function)?;
        let threads = shape.block.iter().try_fold(1_u32, |product, &extent| product.checked_mul(extent));
        if shape.grid.contains(&0) || shape.block.contains(&0) || threads.is_none_or(|threads| threads > 1024)
        {
            return Err(Code::INVALID_VALUE);
        }
        match body {
            Body::Nothing => return Ok(Self::Nothing),
            Body::Sums if arguments.is_null() || !extra.is_null() => return Err(Code::INVALID_VALUE),
            Body::Sums => {}
        }
        let ([blocks, 1, 1], [threads, 1, 1], 0) = (shape.grid, shape.block, shape.shared) else {
            return Err(Code::NOT_SUPPORTED);
        };
        if !threads.is_multiple_of(32) {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: the caller's promise; this function has four parameters of 64 bits.
        let [at, words, piece, to] = std::array::from_fn(|index| unsafe {
            arguments.add(index).read().cast::<u64>().read_unaligned()
        });
        Ok(Self::Sums(Sums { at, words, piece, to }, blocks))
    }

    fn run(self, driver: &Driver) -> Outcome {
        match self {
            Self::Sums(sums, blocks) => sums.make(driver, blocks),
            Self::Nothing => Ok(()),
        }
    }

    fn submit(self, driver: &Driver, stream: *mut c_void) -> Outcome {
        driver.submit(stream, Kind::Kernel, move |driver| self.run(driver))
    }
}

entry_points! {
    4000 & cuLaunchKernel_ptsz fn cuLaunchKernel(
        driver,
        function: *mut c_void,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: *mut c_void,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        // SAFETY: the header wants a pointer for each parameter of the function.
        unsafe { Job::of(driver, function, &shape, arguments, extra) }?.submit(driver, stream)
    }

    9000 & cuLaunchCooperativeKernel_ptsz fn cuLaunchCooperativeKernel(
        driver,
        function: *mut c_void,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: *mut c_void,
        arguments: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        // SAFETY: as above.
        unsafe { Job::of(driver, function, &shape, arguments, std::ptr::null_mut()) }?.submit(driver, stream)
    }

    11060 & cuLaunchKernelEx_ptsz fn cuLaunchKernelEx(
        driver, config: *const Config, function: *mut c_void, arguments: *mut *mut c_void, extra: *mut *mut c_void,
    ) {
        // SAFETY: the header wants a pointer to a configuration, or null.
        let config = unsafe { config.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let shape = Shape { grid: config.grid, block: config.block, shared: config.shared };
        // SAFETY: as above.
        unsafe { Job::of(driver, function, &shape, arguments, extra) }?.submit(driver, config.stream)
    }

    12000 fn cuGraphAddKernelNode_v2(
        driver, out: *mut *mut c_void, graph: *mut c_void, _before: *const c_void, _count: usize, parameters: *const NodeParameters,
    ) {
        // SAFETY: the header wants a pointer to parameters, or null.
        let given = unsafe { parameters.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let shape = Shape { grid: given.grid, block: given.block, shared: given.shared };
        let function = if given.function.is_null() { given.kernel } else { given.function };
        // SAFETY: as above.
        let job = unsafe { Job::of(driver, function, &shape, given.arguments, given.extra) }?;
        let work = std::sync::Arc::new(move |driver: &Driver| job.run(driver));
        let node = driver.state().graphs.add(graph.addr(), Node::new(Step::Work { kind: Kind::Kernel, work }))?;
        // SAFETY: the header wants a pointer to a node, or null.
        unsafe { put(out, handle(node)) }
    }
}
