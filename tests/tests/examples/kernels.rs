//! The kernels of the training job beside the same operations on the host. They need a GPU.

use anyhow::Result;
use gpulease_cuda::Driver;
use gpulease_examples::backend::{Activation, Arena, Augmentation, Backend, Moments, Shape, Span, Stride};
use gpulease_examples::dice::uniform;
use gpulease_examples::digits::{CLASSES, Digits, PIXELS};
use gpulease_examples::gpu::Gpu;
use gpulease_examples::memory::Memory;
use gpulease_examples::trainer::{Filling, Trainer, Work};
use gpulease_words::mib;

/// Memory of the first GPU, or `None` (and a line) where there is none.
fn gpu_memory() -> Option<Memory> {
    if let Err(why) = Driver::load() {
        println!("skipped, for want of a GPU: {why}");
        return None;
    }
    let mut memory = Memory::bare_cuda(Gpu::numbered(0).expect("the GPU takes the kernels"));
    memory.grow(mib(8)).expect("the GPU has 8 MiB");
    Some(memory)
}

fn host_memory() -> Memory {
    let mut memory = Memory::bare_host();
    memory.grow(mib(8)).expect("the host has 8 MiB");
    memory
}

/// One operation on numbers that are the same each time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    Nothing,
    Augment,
    Forward(Activation),
    SoftmaxLoss,
    Gradient,
    Backward,
    Adam,
}

/// No size is a multiple of a block or a vector.
const SHAPE: Shape = Shape { rows: 37, inputs: 29, outputs: CLASSES };
const AUGMENTATION: Augmentation = Augmentation { seed: 5, first: 1 << 40, batch: 48 };

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|at| uniform(seed, at)).collect()
}

/// A tensor with these numbers in it.
fn placed<B: Backend>(backend: &mut B, arena: &mut Arena<B::Span>, values: &[f32]) -> Result<B::Span> {
    let mut tensor = arena.take(values.len())?;
    backend.upload(tensor.write(0..values.len()), values)?;
    Ok(tensor)
}

impl Work for Operation {
    /// All that it wrote.
    type Output = Vec<f32>;

    fn on<B: Backend>(self, backend: &mut B, mut arena: Arena<B::Span>) -> Result<Vec<f32>> {
        let Shape { rows, inputs, outputs } = SHAPE;
        let batches = numbers(9, 3 * AUGMENTATION.batch * (PIXELS + 1));
        let classes: Vec<f32> = (0..rows).map(|r| (r % CLASSES) as f32).collect();
        let digits = Digits::training();
        let mut out = placed(backend, &mut arena, &batches)?;
        let mut x = placed(backend, &mut arena, &numbers(1, rows * inputs))?;
        let layer = placed(backend, &mut arena, &numbers(2, SHAPE.parameters()))?;
        let mut scores = placed(backend, &mut arena, &numbers(3, rows * outputs))?;
        let mut losses = placed(backend, &mut arena, &numbers(4, rows))?;
        let classes = placed(backend, &mut arena, &classes)?;
        let images = placed(backend, &mut arena, &digits.images)?;
        let labels = placed(backend, &mut arena, &digits.classes)?;
        let (n, count) = (rows * inputs, rows * outputs);
        match self {
            Self::Nothing => {}
            Self::Augment => backend.augment(
                out.write(0..batches.len()),
                images.read(0..digits.images.len()),
                labels.read(0..digits.count()),
                AUGMENTATION,
            )?,
            Self::Forward(activation) => {
                let layer = layer.read(0..SHAPE.parameters());
                backend.forward(scores.write(0..count), x.read(0..n), layer, SHAPE, activation)?;
            }
            Self::SoftmaxLoss => {
                backend.softmax_loss(scores.write(0..count), losses.write(0..rows), classes.read(0..rows))?;
            }
            Self::Gradient => {
                let out = out.write(0..SHAPE.parameters());
                backend.gradient(out, x.read(0..n), scores.read(0..count), SHAPE)?;
            }
            Self::Backward => {
                let layer = layer.read(0..SHAPE.parameters());
                backend.backward(x.write(0..n), scores.read(0..count), layer, SHAPE)?;
            }
            Self::Adam => {
                // The second moment of real gradients is never negative; zero will do.
                backend.upload(losses.write(0..rows), &vec![0.0; rows])?;
                let moments = Moments { mean: scores.write(0..rows), square: losses.write(0..rows) };
                backend.adam(x.write(0..rows), moments, layer.read(0..rows), Stride::at(0.01, 3))?;
            }
        }
        let mut written = Vec::new();
        for (tensor, floats) in [(&out, batches.len()), (&x, n), (&scores, count), (&losses, rows)] {
            let mut values = vec![0.0; floats];
            backend.download(&mut values, tensor.read(0..floats))?;
            written.extend(values);
        }
        Ok(written)
    }
}

/// What the device has written, the operation done.
fn done(memory: &mut Memory, operation: Operation) -> Vec<f32> {
    memory.work(operation).expect("the device does it")
}

#[test]
fn each_kernel_does_what_the_host_does() {
    let Some(mut gpu) = gpu_memory() else { return };
    let mut host = host_memory();
    let before = done(&mut host, Operation::Nothing);
    for operation in [
        Operation::Augment,
        Operation::Forward(Activation::Linear),
        Operation::Forward(Activation::Rectified),
        Operation::SoftmaxLoss,
        Operation::Gradient,
        Operation::Backward,
        Operation::Adam,
    ] {
        let (ours, theirs) = (done(&mut host, operation), done(&mut gpu, operation));
        let changed = ours.iter().zip(&before).filter(|(now, then)| now != then).count();
        assert!(changed >= SHAPE.rows, "{operation:?} changed {changed} numbers");
        for (place, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            // A GPU fuses multiplication and addition, so the last bits differ; data must be the same to the bit.
            let near = (a - b).abs() <= 1e-5 * (1.0 + a.abs());
            let same = if operation == Operation::Augment { a == b } else { near };
            assert!(same, "{operation:?}: number {place} is {b} on the GPU and {a} on the host");
        }
    }
}

/// Losses of windows of 20 steps, the share of tests named rightly, and the fingerprint.
fn trained(memory: &mut Memory) -> (Vec<f64>, f64, u64) {
    let mut trainer = Trainer::new(1);
    memory.work(trainer.prepare()).expect("8 MiB suffice");
    assert_eq!(memory.work(trainer.fill()).expect("8 MiB suffice"), Filling::Done);
    let losses = (0..15).map(|_| memory.work(trainer.train(20)).expect("it was prepared")).collect();
    let accuracy = memory.work(trainer.test()).expect("it was prepared");
    (losses, accuracy, memory.work(trainer.fingerprint()).expect("it was prepared"))
}

#[test]
fn a_gpu_trains_as_the_host_does_and_the_same_each_time() {
    let Some(mut gpu) = gpu_memory() else { return };
    let (losses, accuracy, fingerprint) = trained(&mut gpu);
    assert!(losses[14] < 0.35 && accuracy > 0.9, "{losses:?} {accuracy}");
    assert_eq!(trained(&mut gpu).2, fingerprint);
    let (host, ..) = trained(&mut host_memory());
    for (a, b) in losses.iter().zip(&host) {
        assert!((a - b).abs() < 0.02, "{losses:?} on the GPU, {host:?} on the host");
    }
}
