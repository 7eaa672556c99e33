//! A multilayer perceptron: rectified layers, softmax with cross-entropy, Adam. All of its state lies in the
//! memory that it is laid out in.

use std::ops::Range;

use anyhow::Result;

use crate::backend::{Activation, Arena, Backend, Moments, OutOfRoom, Read, Shape, Span, Stride};
use crate::dice::uniform;

/// The sizes of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Values in, of each hidden layer, and out.
    pub widths: Vec<usize>,
    /// Samples of a batch.
    pub batch: usize,
}

/// A layer's place among all parameters, and its sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its floats within the tensors of parameters, gradient and moments.
    pub place: Range<usize>,
    /// Its sizes for a whole batch.
    pub shape: Shape,
}

impl Plan {
    /// The layers from first to last.
    #[must_use]
    pub fn layers(&self) -> Vec<Layer> {
        let mut end = 0;
        let layer = |pair: &[usize]| {
            let shape = Shape { rows: self.batch, inputs: pair[0], outputs: pair[1] };
            let start = end;
            end += shape.parameters();
            Layer { place: start..end, shape }
        };
        self.widths.windows(2).map(layer).collect()
    }

    /// How many parameters there are.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.layers().last().map_or(0, |layer| layer.place.end)
    }

    /// The parameters to begin with: weights uniform with variance `2 / inputs` (He et al. 2015), biases zero.
    #[must_use]
    pub fn initial_parameters(&self, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; self.parameters()];
        for layer in self.layers() {
            let bound = (6.0 / layer.shape.inputs as f32).sqrt();
            let weights = layer.shape.inputs * layer.shape.outputs;
            for (place, value) in values.iter_mut().enumerate().skip(layer.place.start).take(weights) {
                *value = bound * uniform(seed, place as u64);
            }
        }
        values
    }
}

/// A network laid out in memory.
pub struct Network<S> {
    layers: Vec<Layer>,
    parameters: S,
    gradient: S,
    mean: S,
    square: S,
    /// What each layer puts out, and on the way back the derivative of the loss by it.
    activations: Vec<S>,
    losses: S,
}

impl<S: Span> Network<S> {
    /// Takes its tensors out of `arena`. The same memory gives the same network again, trained as far as it was.
    ///
    /// # Errors
    /// The arena has too little room.
    pub fn lay_out(plan: &Plan, arena: &mut Arena<S>) -> Result<Self, OutOfRoom> {
        let parameters = plan.parameters();
        Ok(Self {
            layers: plan.layers(),
            parameters: arena.take(parameters)?,
            gradient: arena.take(parameters)?,
            mean: arena.take(parameters)?,
            square: arena.take(parameters)?,
            activations: plan.widths[1..]
                .iter()
                .map(|width| arena.take(plan.batch * width))
                .collect::<Result<_, _>>()?,
            losses: arena.take(plan.batch)?,
        })
    }

    /// Writes `values` as the parameters and forgets what the optimizer knew.
    ///
    /// # Errors
    /// What the device reports.
    pub fn reset<B: Backend<Span = S>>(&mut self, backend: &mut B, values: &[f32]) -> Result<()> {
        let zeros = vec![0.0; values.len()];
        backend.upload(whole_mut(&mut self.parameters), values)?;
        backend.upload(whole_mut(&mut self.mean), &zeros)?;
        backend.upload(whole_mut(&mut self.square), &zeros)?;
        self.forget_losses(backend)
    }

    /// One step on one batch; its losses are added to those of the steps before.
    ///
    /// # Errors
    /// What the device reports.
    pub fn step<B: Backend<Span = S>>(
        &mut self,
        backend: &mut B,
        images: Read<'_, B>,
        classes: Read<'_, B>,
        stride: Stride,
    ) -> Result<()> {
        self.differentiate(backend, images, classes)?;
        let moments = Moments { mean: whole_mut(&mut self.mean), square: whole_mut(&mut self.square) };
        backend.adam(whole_mut(&mut self.parameters), moments, whole(&self.gradient), stride)
    }

    /// Computes the gradient of the batch's mean loss.
    fn differentiate<B: Backend<Span = S>>(
        &mut self,
        backend: &mut B,
        images: Read<'_, B>,
        classes: Read<'_, B>,
    ) -> Result<()> {
        self.forward(backend, images, self.losses.floats())?;
        let scores = self.activations.last_mut().expect("a network has a layer");
        backend.softmax_loss(whole_mut(scores), whole_mut(&mut self.losses), classes)?;
        for (n, layer) in self.layers.iter().enumerate().rev() {
            let (before, after) = self.activations.split_at_mut(n);
            let delta = whole(&after[0]);
            let out = self.gradient.write(layer.place.clone());
            let Some(input) = before.last_mut() else {
                backend.gradient(out, images, delta, layer.shape)?;
                continue;
            };
            backend.gradient(out, whole(input), delta, layer.shape)?;
            backend.backward(
                whole_mut(input),
                delta,
                self.parameters.read(layer.place.clone()),
                layer.shape,
            )?;
        }
        Ok(())
    }

    fn forward<B: Backend<Span = S>>(
        &mut self,
        backend: &mut B,
        images: Read<'_, B>,
        rows: usize,
    ) -> Result<()> {
        let last = self.layers.len() - 1;
        for (n, layer) in self.layers.iter().enumerate() {
            let shape = Shape { rows, ..layer.shape };
            let (before, after) = self.activations.split_at_mut(n);
            let out = after[0].write(0..rows * shape.outputs);
            let weights = self.parameters.read(layer.place.clone());
            let activation = if n == last { Activation::Linear } else { Activation::Rectified };
            match before.last() {
                None => backend.forward(out, images, weights, shape, activation)?,
                Some(x) => {
                    backend.forward(out, x.read(0..rows * shape.inputs), weights, shape, activation)?
                }
            }
        }
        Ok(())
    }

    /// The scores of `rows` images, at most a batch of them, one row each.
    ///
    /// # Errors
    /// What the device reports.
    pub fn scores<B: Backend<Span = S>>(
        &mut self,
        backend: &mut B,
        images: Read<'_, B>,
        rows: usize,
    ) -> Result<Vec<f32>> {
        self.forward(backend, images, rows)?;
        let scores = self.activations.last().expect("a network has a layer");
        let width = self.layers.last().expect("a network has a layer").shape.outputs;
        let mut values = vec![0.0; rows * width];
        backend.download(&mut values, scores.read(0..rows * width))?;
        Ok(values)
    }

    /// The sum of the losses of all samples since they were last forgotten.
    ///
    /// # Errors
    /// What the device reports.
    pub fn losses<B: Backend<Span = S>>(&self, backend: &mut B) -> Result<f64> {
        let mut values = vec![0.0; self.losses.floats()];
        backend.download(&mut values, whole(&self.losses))?;
        Ok(values.into_iter().map(f64::from).sum())
    }

    /// Begins the sum of losses anew.
    ///
    /// # Errors
    /// What the device reports.
    pub fn forget_losses<B: Backend<Span = S>>(&mut self, backend: &mut B) -> Result<()> {
        let zeros = vec![0.0; self.losses.floats()];
        backend.upload(whole_mut(&mut self.losses), &zeros)
    }

    /// The parameters.
    ///
    /// # Errors
    /// What the device reports.
    pub fn parameters<B: Backend<Span = S>>(&self, backend: &mut B) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.parameters.floats()];
        backend.download(&mut values, whole(&self.parameters))?;
        Ok(values)
    }
}

fn whole<S: Span>(span: &S) -> S::Read<'_> {
    span.read(0..span.floats())
}

fn whole_mut<S: Span>(span: &mut S) -> S::Write<'_> {
    span.write(0..span.floats())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::host::Host;

    /// The mean loss in f64, written as the textbook has it.
    fn reference_loss(plan: &Plan, parameters: &[f64], images: &[f32], classes: &[f32]) -> f64 {
        let mut loss = 0.0;
        for (image, class) in images.chunks(plan.widths[0]).zip(classes) {
            let mut x: Vec<f64> = image.iter().map(|v| f64::from(*v)).collect();
            for (n, layer) in plan.layers().iter().enumerate() {
                let Shape { inputs, outputs, .. } = layer.shape;
                let w = &parameters[layer.place.clone()];
                x = (0..outputs)
                    .map(|j| {
                        w[inputs * outputs + j] + (0..inputs).map(|k| x[k] * w[k * outputs + j]).sum::<f64>()
                    })
                    .map(|sum| if n + 2 < plan.widths.len() { sum.max(0.0) } else { sum })
                    .collect();
            }
            loss += x.iter().map(|s| s.exp()).sum::<f64>().ln() - x[*class as usize];
        }
        loss / classes.len() as f64
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let plan = Plan { widths: vec![7, 9, 6, 10], batch: 5 };
        let parameters = plan.initial_parameters(3);
        let images: Vec<f32> = (0..35).map(|at| uniform(11, at)).collect();
        let classes = [0.0, 9.0, 4.0, 4.0, 7.0];

        let mut memory = vec![f32::NAN; 4096];
        let mut network = Network::lay_out(&plan, &mut Arena::new([&mut memory[..]])).expect("4096 suffice");
        let mut host = Host::default();
        network.reset(&mut host, &parameters).expect("the host does not fail");
        network.differentiate(&mut host, &images, &classes).expect("the host does not fail");

        let exact: Vec<f64> = parameters.iter().map(|p| f64::from(*p)).collect();
        let loss = network.losses(&mut host).expect("the host does not fail") / 5.0;
        assert!((loss - reference_loss(&plan, &exact, &images, &classes)).abs() < 1e-6);
        let mut largest = 0.0_f64;
        for (n, analytic) in network.gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut parameters = exact.clone();
                parameters[n] += by;
                reference_loss(&plan, &parameters, &images, &classes)
            };
            let numeric = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((f64::from(*analytic) - numeric).abs() < 1e-5, "{n}: {analytic} is not {numeric}");
            largest = largest.max(numeric.abs());
        }
        assert!(largest > 0.01, "the check saw no gradient to speak of");
    }

    #[test]
    fn adam_is_the_published_algorithm() {
        let (mut p, mut m, mut v) = ([1.0_f32], [0.0_f32], [0.0_f32]);
        let (mut rp, mut rm, mut rv) = (1.0_f64, 0.0_f64, 0.0_f64);
        for t in 1..=50 {
            let g = uniform(5, t) + 0.3;
            let moments = Moments { mean: &mut m[..], square: &mut v[..] };
            Host::default().adam(&mut p, moments, &[g], Stride::at(0.01, t)).expect("the host does not fail");
            let (g, t) = (f64::from(g), t as i32);
            rm = 0.9 * rm + 0.1 * g;
            rv = 0.999 * rv + 0.001 * g * g;
            let (mean, square) = (rm / (1.0 - 0.9_f64.powi(t)), rv / (1.0 - 0.999_f64.powi(t)));
            rp -= 0.01 * mean / (square.sqrt() + 1e-8);
            assert!((f64::from(p[0]) - rp).abs() < 1e-5, "step {t}: {} is not {rp}", p[0]);
        }
        assert!(rp < 0.9, "the steps went somewhere: {rp}");
    }
}
