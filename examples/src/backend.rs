//! What a training step needs of a device, so that one program trains on a CPU and on a GPU.

mod arena;
pub mod cuda;
pub mod host;

use std::ops::Range;

use anyhow::Result;

pub use arena::{Arena, OutOfRoom};

/// A run of floats in a device's memory. Nobody else reaches them while it exists.
pub trait Span: Sized {
    /// Some of them, to read.
    type Read<'a>: Copy
    where
        Self: 'a;
    /// Some of them, to write.
    type Write<'a>
    where
        Self: 'a;

    /// How many floats it has.
    fn floats(&self) -> usize;

    /// The first `at` floats and the rest.
    ///
    /// # Panics
    /// When it has fewer.
    fn split(self, at: usize) -> (Self, Self);

    /// Those in `range`, counted in floats.
    ///
    /// # Panics
    /// When it has fewer.
    fn read(&self, range: Range<usize>) -> Self::Read<'_>;

    /// As [`read`](Self::read), to write.
    ///
    /// # Panics
    /// When it has fewer.
    fn write(&mut self, range: Range<usize>) -> Self::Write<'_>;
}

/// What a backend reads from.
pub type Read<'a, B> = <<B as Backend>::Span as Span>::Read<'a>;
/// What a backend writes to.
pub type Write<'a, B> = <<B as Backend>::Span as Span>::Write<'a>;

/// The sizes of a layer and of the batch that goes through it.
///
/// A layer is one row-major matrix of `inputs + 1` rows and `outputs` columns: the weights, and in the last row
/// the biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Samples in the batch.
    pub rows: usize,
    /// Values of a sample on the way in.
    pub inputs: usize,
    /// Values of a sample on the way out.
    pub outputs: usize,
}

impl Shape {
    /// Floats of the layer itself.
    #[must_use]
    pub const fn parameters(self) -> usize {
        (self.inputs + 1) * self.outputs
    }
}

/// What follows the weighted sum of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing: the last layer gives scores.
    Linear,
    /// Values below zero become zero.
    Rectified,
}

/// Which augmented samples to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Augmentation {
    /// Names the sequence of samples.
    pub seed: u64,
    /// The number of the first one.
    pub first: u64,
    /// Samples in a batch; images of a batch lie together, their classes behind them.
    pub batch: usize,
}

/// The moving parts of Adam (Kingma and Ba 2015).
pub struct Moments<'a, B: Backend + 'a> {
    /// Running mean of the gradient.
    pub mean: Write<'a, B>,
    /// Running mean of its square.
    pub square: Write<'a, B>,
}

/// How far a step of Adam goes, with the bias corrections of its moments (decays 0.9 and 0.999) in both numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stride {
    /// Step size.
    pub rate: f32,
    /// What keeps the division away from zero.
    pub epsilon: f32,
}

impl Stride {
    /// The stride of step `t`, which counts from 1, at the learning rate `rate`.
    #[must_use]
    pub fn at(rate: f32, t: u64) -> Self {
        // In f64, since 1 - 0.999^t cancels most digits of the first steps.
        let t = t as f64;
        let root = (1.0 - 0.999_f64.powf(t)).sqrt();
        Self {
            rate: (f64::from(rate) * root / (1.0 - 0.9_f64.powf(t))) as f32,
            epsilon: (1e-8 * root) as f32,
        }
    }
}

/// The operations of a training step. Each is deterministic: sums have a fixed order.
///
/// Sizes are the caller's to keep; a backend may panic where they do not fit.
///
/// # Errors
/// All of them: what the device reports. The host never does.
pub trait Backend: Sized {
    /// The memory it works on.
    type Span: Span;

    /// Copies `values` to the device.
    fn upload(&mut self, out: Write<'_, Self>, values: &[f32]) -> Result<()>;

    /// Waits for all that was begun and copies `from` into `values`.
    fn download(&mut self, values: &mut [f32], from: Read<'_, Self>) -> Result<()>;

    /// Fills `out` with whole batches of digits that are shifted by up to one pixel and grained.
    fn augment(
        &mut self,
        out: Write<'_, Self>,
        images: Read<'_, Self>,
        classes: Read<'_, Self>,
        which: Augmentation,
    ) -> Result<()>;

    /// `out = activation(x · weights + biases)`.
    fn forward(
        &mut self,
        out: Write<'_, Self>,
        x: Read<'_, Self>,
        layer: Read<'_, Self>,
        shape: Shape,
        activation: Activation,
    ) -> Result<()>;

    /// Adds each row's cross-entropy to `losses`, and replaces the scores by the derivative of the mean loss.
    fn softmax_loss(
        &mut self,
        scores: Write<'_, Self>,
        losses: Write<'_, Self>,
        classes: Read<'_, Self>,
    ) -> Result<()>;

    /// `out` = the layer's gradient, from what went in and the derivative by what came out.
    fn gradient(
        &mut self,
        out: Write<'_, Self>,
        x: Read<'_, Self>,
        delta: Read<'_, Self>,
        shape: Shape,
    ) -> Result<()>;

    /// Replaces rectified activations by the loss's derivative by what was rectified, given the derivative
    /// `delta` behind the next `layer`.
    fn backward(
        &mut self,
        activations: Write<'_, Self>,
        delta: Read<'_, Self>,
        layer: Read<'_, Self>,
        shape: Shape,
    ) -> Result<()>;

    /// One step of Adam on `parameters`.
    fn adam(
        &mut self,
        parameters: Write<'_, Self>,
        moments: Moments<'_, Self>,
        gradient: Read<'_, Self>,
        stride: Stride,
    ) -> Result<()>;
}
