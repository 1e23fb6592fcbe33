//! One pass over one problem, ready to be repeated.

use std::time::{Duration, Instant};

use fourtap::msda::{self, Backward, Gradients, Inputs, Problem, Traffic};
use fourtap::{Backend, DType, Layout, View, ViewMut, bf16, f16};

use crate::array::{Array, bytes_of};
use crate::cuda::DeviceTrial;
use crate::error::Result;
use crate::touched::Touched;

/// What to compute, on what, with what.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    backend: Backend,
    inputs: Inputs<'a>,
    /// Only backward has one.
    grad_out: Option<View<'a>>,
    problem: Problem,
}

impl<'a> Trial<'a> {
    /// A forward pass, if the tensors fit each other.
    pub fn forward(backend: Backend, inputs: Inputs<'a>) -> fourtap::Result<Self> {
        let problem = Problem::new(&inputs)?;
        Ok(Trial {
            backend,
            inputs,
            grad_out: None,
            problem,
        })
    }

    /// A backward pass to all three gradients, if the tensors fit each other.
    pub fn backward(
        backend: Backend,
        inputs: Inputs<'a>,
        grad_out: View<'a>,
    ) -> fourtap::Result<Self> {
        Backward::new(inputs, grad_out, Gradients::default())?;
        let trial = Trial::forward(backend, inputs)?;
        Ok(Trial {
            grad_out: Some(grad_out),
            ..trial
        })
    }

    /// What is read.
    pub fn inputs(&self) -> &Inputs<'a> {
        &self.inputs
    }

    /// The gradient backward starts from; forward has none.
    pub fn grad_out(&self) -> Option<&View<'a>> {
        self.grad_out.as_ref()
    }

    /// The names of [`Trial::outputs`].
    pub fn output_names(&self) -> &'static [&'static str] {
        match self.grad_out {
            None => &["out"],
            Some(_) => &["grad_value", "grad_locations", "grad_weights"],
        }
    }

    /// What computes it.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// What was checked.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Bytes and operations.
    pub fn traffic(&self) -> Traffic {
        match self.grad_out {
            None => Traffic::of_forward(&self.problem),
            Some(_) => Traffic::of_backward(&self.problem),
        }
    }

    /// Tensors of NaN to compute into.
    pub fn outputs(&self) -> Result<Vec<Array>> {
        let (sizes, problem) = (self.problem.sizes(), &self.problem);
        let layouts = match self.grad_out {
            None => vec![Layout::contiguous(problem.value().dtype(), &sizes.out())],
            Some(_) => vec![
                *problem.value(),
                *problem.sampling_locations(),
                *problem.attention_weights(),
            ],
        };
        let pairs = self.output_names().iter().zip(layouts);
        pairs
            .map(|(name, like)| Array::poisoned(name, like.dtype(), like.shape().sizes()))
            .collect()
    }

    /// Computes once, in host memory, into what [`Trial::outputs`] gave.
    pub fn compute(&self, outputs: &mut [Array]) -> Result<()> {
        let outputs = outputs.iter_mut().map(Array::view_mut);
        call(&self.backend, self.inputs, self.grad_out, outputs)
    }

    /// Computes once, into new tensors, and says how long that took. On a CUDA device that includes loading its
    /// kernels, which may mean compiling them, but no copies.
    pub fn computed(&self) -> Result<(Vec<Array>, Duration)> {
        match self.backend {
            Backend::Cuda(cuda) => {
                let mut device = DeviceTrial::new(self, cuda.context())?;
                // What is never written is then NaN, not what somebody left there.
                device.poison(cuda.stream())?;
                let begun = Instant::now();
                device.queue(&cuda)?;
                cuda.context().synchronize()?;
                let took = begun.elapsed();
                Ok((device.download()?, took))
            }
            _ => {
                let mut outputs = self.outputs()?;
                let begun = Instant::now();
                self.compute(&mut outputs)?;
                Ok((outputs, begun.elapsed()))
            }
        }
    }

    /// What the points of the first image touch; none if they do not lie in row-major order in host memory.
    pub fn touched(&self) -> Option<Touched> {
        let sizes = self.problem.sizes();
        let locations = &self.inputs.sampling_locations;
        let bytes = bytes_of(locations)?;
        let image = bytes.len() / sizes.images.max(1);
        let number = locations.dtype().size();
        let points = bytes[..image].chunks_exact(2 * number).map(|point| {
            let (x, y) = point.split_at(number);
            [x, y].map(|bytes| nearest_f32(locations.dtype(), bytes))
        });
        Some(Touched::by(points, sizes, self.problem.levels()))
    }
}

/// The number in these little-endian bytes of a type.
fn nearest_f32(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::F64, bytes) => bytes
            .try_into()
            .map_or(f32::NAN, |eight| f64::from_le_bytes(eight) as f32),
        _ => f32::NAN,
    }
}

/// One call of the library; forward has one output, backward three.
pub fn call<'a>(
    backend: &Backend,
    inputs: Inputs<'a>,
    grad_out: Option<View<'a>>,
    outputs: impl IntoIterator<Item = ViewMut<'a>>,
) -> Result<()> {
    let mut outputs = outputs.into_iter();
    match grad_out {
        None => match outputs.next() {
            Some(out) => Ok(msda::forward(backend, inputs, out)?),
            None => Ok(()),
        },
        Some(grad_out) => Ok(msda::backward(
            backend,
            inputs,
            grad_out,
            gradients(outputs),
        )?),
    }
}

/// The outputs of backward, in the order of [`Trial::outputs`].
pub fn gradients<'a>(mut outputs: impl Iterator<Item = ViewMut<'a>>) -> Gradients<'a> {
    Gradients {
        value: outputs.next(),
        sampling_locations: outputs.next(),
        attention_weights: outputs.next(),
    }
}
