//! The operations on a GPU: kernels that the driver compiles from the PTX shipped with this crate.

use std::ffi::{CString, c_void};
use std::ops::Range;

use anyhow::{Context as _, Result};
use gpulease_cuda::cudarc::driver::{result, sys};

use super::{Activation, Augmentation, Backend, Moments, Shape, Span, Stride};
use crate::digits::{CLASSES, PIXELS, SIDE};
use Argument::{Count, Real, Tensor, Wide};

const PTX: &str = include_str!("../../kernels/training.ptx");
/// Threads of a block: a few warps, since most launches have a few thousand threads for a whole card.
const BLOCK: u32 = 128;

/// Floats at a device address.
#[derive(Debug)]
pub struct DeviceFloats {
    address: u64,
    floats: usize,
}

impl DeviceFloats {
    /// `floats` floats at `address`.
    ///
    /// # Safety
    /// They are mapped for reading and writing in the context whose [`Kernels`] work on them, stay so until
    /// that work is done, and nothing else uses them meanwhile.
    #[must_use]
    pub unsafe fn new(address: u64, floats: usize) -> Self {
        Self { address, floats }
    }

    fn part(&self, range: Range<usize>) -> Part {
        assert!(range.start <= range.end && range.end <= self.floats, "{range:?} of {} floats", self.floats);
        Part { address: self.address + 4 * range.start as u64, floats: range.len() }
    }
}

/// Part of a [`DeviceFloats`]. Made by it alone, so it lies inside memory that may be used.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    address: u64,
    floats: usize,
}

impl Span for DeviceFloats {
    type Read<'a> = Part;
    type Write<'a> = Part;

    fn floats(&self) -> usize {
        self.floats
    }

    fn split(self, at: usize) -> (Self, Self) {
        assert!(at <= self.floats, "{at} of {} floats", self.floats);
        let rest = Self { address: self.address + 4 * at as u64, floats: self.floats - at };
        (Self { address: self.address, floats: at }, rest)
    }

    fn read(&self, range: Range<usize>) -> Part {
        self.part(range)
    }

    fn write(&mut self, range: Range<usize>) -> Part {
        self.part(range)
    }
}

/// The kernels, loaded into a context.
#[derive(Debug)]
pub struct Kernels {
    module: sys::CUmodule,
    augment: sys::CUfunction,
    forward: sys::CUfunction,
    softmax_loss: sys::CUfunction,
    gradient: sys::CUfunction,
    backward: sys::CUfunction,
    adam: sys::CUfunction,
}

impl Kernels {
    /// Loads them into the calling thread's current context.
    ///
    /// # Errors
    /// What the driver says, as that it is too old for the PTX or that there is no current context.
    ///
    /// # Panics
    /// When there is no driver: whoever made a context has seen to it.
    pub fn load() -> Result<Self> {
        let image = CString::new(PTX).expect("PTX is a text");
        // SAFETY: cuModuleLoadData takes a zero-terminated PTX text and has copied it when it returns.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .context("the driver does not take the training kernels")?;
        let function = |name: &str| {
            let symbol = CString::new(name).expect("a kernel's name is a word");
            // SAFETY: the module was loaded above and is unloaded only by `Drop`.
            unsafe { result::module::get_function(module, symbol) }.with_context(|| format!("kernel {name}"))
        };
        Ok(Self {
            module,
            augment: function("augment")?,
            forward: function("forward")?,
            softmax_loss: function("softmax_loss")?,
            gradient: function("gradient")?,
            backward: function("backward")?,
            adam: function("adam")?,
        })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: loaded by `load` and unloaded once. A failure means that the context is gone, module and all.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// What a kernel takes, by value.
enum Argument {
    Tensor(Part),
    Count(u32),
    Wide(u64),
    Real(f32),
}

impl Argument {
    fn pointer(&self) -> *mut c_void {
        match self {
            Self::Tensor(part) => (&raw const part.address).cast_mut().cast(),
            Self::Count(n) => (&raw const *n).cast_mut().cast(),
            Self::Wide(n) => (&raw const *n).cast_mut().cast(),
            Self::Real(x) => (&raw const *x).cast_mut().cast(),
        }
    }
}

fn count(n: usize) -> Argument {
    Count(u32::try_from(n).expect("a batch or layer has less than 2^32 elements"))
}

/// The GPU that the kernels are loaded on. Work is queued on the context's default stream, in order.
#[derive(Clone, Copy, Debug)]
pub struct Cuda<'k>(&'k Kernels);

impl<'k> Cuda<'k> {
    /// Works with `kernels`, whose context is current on the calling thread.
    #[must_use]
    pub fn new(kernels: &'k Kernels) -> Self {
        Self(kernels)
    }
}

/// Queues `kernel` with one thread for each of `threads` results; its parameters are the tensors and then the
/// sizes.
fn launch<const T: usize, const S: usize>(
    kernel: sys::CUfunction,
    threads: usize,
    tensors: [Argument; T],
    sizes: [Argument; S],
) -> Result<()> {
    if threads == 0 {
        return Ok(());
    }
    let blocks = u32::try_from(threads.div_ceil(BLOCK as usize)).expect("blocks of a launch are below 2^32");
    let mut pointers: Vec<*mut c_void> = tensors.iter().chain(&sizes).map(Argument::pointer).collect();
    // SAFETY: `pointers` has one entry of the right type for each parameter of the kernel (kernels/training.cu),
    // which the driver copies before it returns. The tensors lie in memory that `DeviceFloats::new` vouches for,
    // and the kernel stays within them where the sizes are those of the tensors, which the callers assert.
    unsafe {
        result::launch_kernel(kernel, (blocks, 1, 1), (BLOCK, 1, 1), 0, std::ptr::null_mut(), &mut pointers)
    }
    .context("the driver does not start a kernel")
}

impl Backend for Cuda<'_> {
    type Span = DeviceFloats;

    fn upload(&mut self, out: Part, values: &[f32]) -> Result<()> {
        assert_eq!(out.floats, values.len());
        // SAFETY: as many floats as `out` has, in memory that `DeviceFloats::new` vouches for.
        unsafe { result::memcpy_htod_sync(out.address, values) }.context("copy to the device")
    }

    fn download(&mut self, values: &mut [f32], from: Part) -> Result<()> {
        assert_eq!(from.floats, values.len());
        // SAFETY: as many floats as `from` has, in memory that `DeviceFloats::new` vouches for; the copy comes
        // after what is queued on the default stream, and is complete when the call returns.
        unsafe { result::memcpy_dtoh_sync(values, from.address) }.context("copy from the device")
    }

    fn augment(&mut self, out: Part, images: Part, classes: Part, which: Augmentation) -> Result<()> {
        let whole = which.batch * (PIXELS + 1);
        assert_eq!((out.floats % whole, images.floats), (0, classes.floats * PIXELS));
        let rows = out.floats / whole * which.batch * SIDE;
        let (seed, first) = (Wide(which.seed), Wide(which.first));
        let tensors = [Tensor(out), Tensor(images), Tensor(classes)];
        let sizes = [count(classes.floats), seed, first, count(which.batch), Wide(rows as u64)];
        launch(self.0.augment, rows, tensors, sizes)
    }

    fn forward(
        &mut self,
        out: Part,
        x: Part,
        layer: Part,
        shape: Shape,
        activation: Activation,
    ) -> Result<()> {
        let Shape { rows, inputs, outputs } = shape;
        assert_eq!((out.floats, x.floats, layer.floats), (rows * outputs, rows * inputs, shape.parameters()));
        let rectify = match activation {
            Activation::Linear => 0,
            Activation::Rectified => 1,
        };
        let tensors = [Tensor(out), Tensor(x), Tensor(layer)];
        launch(
            self.0.forward,
            out.floats,
            tensors,
            [count(rows), count(inputs), count(outputs), Count(rectify)],
        )
    }

    fn softmax_loss(&mut self, scores: Part, losses: Part, classes: Part) -> Result<()> {
        let rows = classes.floats;
        assert_eq!((scores.floats, losses.floats), (rows * CLASSES, rows));
        launch(self.0.softmax_loss, rows, [Tensor(scores), Tensor(losses), Tensor(classes)], [count(rows)])
    }

    fn gradient(&mut self, out: Part, x: Part, delta: Part, shape: Shape) -> Result<()> {
        let Shape { rows, inputs, outputs } = shape;
        assert_eq!((out.floats, x.floats, delta.floats), (shape.parameters(), rows * inputs, rows * outputs));
        let tensors = [Tensor(out), Tensor(x), Tensor(delta)];
        launch(self.0.gradient, out.floats, tensors, [count(rows), count(inputs), count(outputs)])
    }

    fn backward(&mut self, activations: Part, delta: Part, layer: Part, shape: Shape) -> Result<()> {
        let Shape { rows, inputs, outputs } = shape;
        let parameters = shape.parameters();
        assert_eq!(
            (activations.floats, delta.floats, layer.floats),
            (rows * inputs, rows * outputs, parameters)
        );
        let tensors = [Tensor(activations), Tensor(delta), Tensor(layer)];
        launch(self.0.backward, activations.floats, tensors, [count(rows), count(inputs), count(outputs)])
    }

    fn adam(
        &mut self,
        parameters: Part,
        moments: Moments<'_, Self>,
        gradient: Part,
        stride: Stride,
    ) -> Result<()> {
        let Moments { mean, square } = moments;
        let n = parameters.floats;
        assert_eq!((mean.floats, square.floats, gradient.floats), (n, n, n));
        let tensors = [Tensor(parameters), Tensor(mean), Tensor(square), Tensor(gradient)];
        launch(self.0.adam, n, tensors, [count(n), Real(stride.rate), Real(stride.epsilon)])
    }
}
