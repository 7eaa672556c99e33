//! The operations on the CPU, over slices of mapped memory. One thread; the inner loops are written so that
//! the compiler turns them into vector instructions without changing the order of a sum.

use std::marker::PhantomData;
use std::ops::Range;

use anyhow::Result;

use super::{Activation, Augmentation, Backend, Moments, Shape, Span, Stride};
use crate::dice::mix;
use crate::digits::{CLASSES, PIXELS, SIDE};

impl<'g> Span for &'g mut [f32] {
    type Read<'a>
        = &'a [f32]
    where
        'g: 'a;
    type Write<'a>
        = &'a mut [f32]
    where
        'g: 'a;

    fn floats(&self) -> usize {
        self.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }

    fn read(&self, range: Range<usize>) -> &[f32] {
        &self[range]
    }

    fn write(&mut self, range: Range<usize>) -> &mut [f32] {
        &mut self[range]
    }
}

/// The CPU, working on memory that is borrowed for `'g`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host<'g>(PhantomData<&'g mut [f32]>);

impl<'g> Backend for Host<'g> {
    type Span = &'g mut [f32];

    fn upload(&mut self, out: &mut [f32], values: &[f32]) -> Result<()> {
        out.copy_from_slice(values);
        Ok(())
    }

    fn download(&mut self, values: &mut [f32], from: &[f32]) -> Result<()> {
        values.copy_from_slice(from);
        Ok(())
    }

    fn augment(
        &mut self,
        out: &mut [f32],
        images: &[f32],
        classes: &[f32],
        which: Augmentation,
    ) -> Result<()> {
        let mut sample = which.first;
        for whole in out.chunks_exact_mut(which.batch * (PIXELS + 1)) {
            let (batch, labels) = whole.split_at_mut(which.batch * PIXELS);
            for (image, label) in batch.chunks_exact_mut(PIXELS).zip(labels) {
                let roll = mix(which.seed ^ mix(sample));
                let digit = (((roll >> 32) * classes.len() as u64) >> 32) as usize;
                shift_and_grain(image, &images[digit * PIXELS..][..PIXELS], roll);
                *label = classes[digit];
                sample += 1;
            }
        }
        Ok(())
    }

    fn forward(
        &mut self,
        out: &mut [f32],
        x: &[f32],
        layer: &[f32],
        shape: Shape,
        activation: Activation,
    ) -> Result<()> {
        let (weights, biases) = layer.split_at(shape.inputs * shape.outputs);
        for (sums, inputs) in out.chunks_exact_mut(shape.outputs).zip(x.chunks_exact(shape.inputs)) {
            sums.copy_from_slice(biases);
            for (input, row) in inputs.iter().zip(weights.chunks_exact(shape.outputs)) {
                add_scaled(sums, row, *input);
            }
        }
        match activation {
            Activation::Linear => {}
            Activation::Rectified => out.iter_mut().for_each(|value| *value = value.max(0.0)),
        }
        Ok(())
    }

    fn softmax_loss(&mut self, scores: &mut [f32], losses: &mut [f32], classes: &[f32]) -> Result<()> {
        let rows = classes.len() as f32;
        for ((score, loss), class) in scores.chunks_exact_mut(CLASSES).zip(losses).zip(classes) {
            let right = *class as usize;
            let highest = score.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let above = score[right] - highest;
            score.iter_mut().for_each(|s| *s = (*s - highest).exp());
            let sum: f32 = score.iter().sum();
            *loss += sum.ln() - above;
            score.iter_mut().for_each(|s| *s /= sum * rows);
            score[right] -= 1.0 / rows;
        }
        Ok(())
    }

    fn gradient(&mut self, out: &mut [f32], x: &[f32], delta: &[f32], shape: Shape) -> Result<()> {
        out.fill(0.0);
        let (weights, biases) = out.split_at_mut(shape.inputs * shape.outputs);
        for (inputs, delta) in x.chunks_exact(shape.inputs).zip(delta.chunks_exact(shape.outputs)) {
            for (input, row) in inputs.iter().zip(weights.chunks_exact_mut(shape.outputs)) {
                add_scaled(row, delta, *input);
            }
            add_scaled(biases, delta, 1.0);
        }
        Ok(())
    }

    fn backward(
        &mut self,
        activations: &mut [f32],
        delta: &[f32],
        layer: &[f32],
        shape: Shape,
    ) -> Result<()> {
        let rows = activations.chunks_exact_mut(shape.inputs).zip(delta.chunks_exact(shape.outputs));
        for (activations, delta) in rows {
            for (activation, weights) in activations.iter_mut().zip(layer.chunks_exact(shape.outputs)) {
                *activation = if *activation > 0.0 { dot(delta, weights) } else { 0.0 };
            }
        }
        Ok(())
    }

    fn adam(
        &mut self,
        parameters: &mut [f32],
        moments: Moments<'_, Self>,
        gradient: &[f32],
        stride: Stride,
    ) -> Result<()> {
        let state = moments.mean.iter_mut().zip(moments.square.iter_mut());
        for ((parameter, (mean, square)), g) in parameters.iter_mut().zip(state).zip(gradient) {
            *mean = 0.9 * *mean + 0.1 * g;
            *square = 0.999 * *square + 0.001 * (g * g);
            *parameter -= stride.rate * *mean / (square.sqrt() + stride.epsilon);
        }
        Ok(())
    }
}

/// `image` = `source` shifted by up to one pixel each way, with grain. All values are multiples of 2^-10 below 2,
/// so a GPU writes the same bits.
fn shift_and_grain(image: &mut [f32], source: &[f32], roll: u64) {
    let third = |bits: u64| (((bits & 0xffff) * 3) >> 16) as usize;
    let (left, up) = (third(roll), third(roll >> 16));
    for (y, row) in image.chunks_exact_mut(SIDE).enumerate() {
        // One blank pixel on each side, so that the shifted row is a slice.
        let mut ink = [0.0; SIDE + 2];
        if let Some(from) = (y + 1).checked_sub(up).filter(|from| *from < SIDE) {
            ink[1..=SIDE].copy_from_slice(&source[from * SIDE..][..SIDE]);
        }
        let noise = mix(roll.wrapping_add(1 + y as u64)).to_le_bytes();
        for ((pixel, ink), noise) in row.iter_mut().zip(&ink[2 - left..]).zip(noise) {
            let grain = (f32::from(noise) - 128.0) / 1024.0;
            *pixel = (ink + grain).clamp(0.0, 1.0);
        }
    }
}

/// `sums += row * factor`. Nothing is added for a factor of zero, which half of all rectified values are.
fn add_scaled(sums: &mut [f32], row: &[f32], factor: f32) {
    if factor != 0.0 {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * factor);
    }
}

/// The sum of products, in eight partial sums so that it fills a vector register.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    let (a_whole, a_rest) = a.split_at(a.len() - a.len() % LANES);
    let (b_whole, b_rest) = b.split_at(a_whole.len());
    for (a, b) in a_whole.chunks_exact(LANES).zip(b_whole.chunks_exact(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}
