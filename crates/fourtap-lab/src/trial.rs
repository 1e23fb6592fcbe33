//! One pass over one problem, ready to be repeated.

use std::time::{Duration, Instant};

use fourtap::msda::{self, Backward, Gradients, Inputs, Problem, Sizes, Traffic};
use fourtap::{Backend, Layout, View, ViewMut};

use crate::array::Array;
use crate::cuda::DeviceTrial;
use crate::error::Result;

/// Queries of the first image that [`Trial::in_bounds_fraction`] looks at, at most.
const QUERIES_LOOKED_AT: usize = 1024;

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

    /// Share of corners inside their level, from evenly spaced queries of the first image: looking at every sample,
    /// one after another, would take longer than timing the problem.
    pub fn in_bounds_fraction(&self) -> Result<f64> {
        let Sizes { queries, .. } = *self.problem.sizes();
        let step = queries.div_ceil(QUERIES_LOOKED_AT).max(1);
        let inputs = Inputs {
            value: first_image(&self.inputs.value, 1),
            levels: self.inputs.levels,
            sampling_locations: first_image_every(&self.inputs.sampling_locations, step),
            attention_weights: first_image_every(&self.inputs.attention_weights, step),
        };
        Ok(msda::in_bounds_fraction(&inputs)?)
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

/// The part of a checked tensor that belongs to the first image.
fn first_image<'a>(view: &View<'a>, images: usize) -> View<'a> {
    let shape = view.shape();
    let mut sizes = shape.sizes().to_vec();
    sizes[0] = sizes[0].min(images);
    let layout = Layout::strided(view.dtype(), &sizes, view.layout().strides());
    // SAFETY: every index of the smaller shape is one of the checked view's, at the same strides.
    unsafe { View::from_raw(view.as_ptr(), layout) }
}

/// The same, with every `step`-th query only.
fn first_image_every<'a>(view: &View<'a>, step: usize) -> View<'a> {
    let image = first_image(view, 1);
    let (shape, mut strides) = (image.shape(), image.layout().strides().to_vec());
    let mut sizes = shape.sizes().to_vec();
    sizes[1] = sizes[1].div_ceil(step);
    strides[1] *= step as isize;
    let layout = Layout::strided(view.dtype(), &sizes, &strides);
    // SAFETY: query i of the new view is query i * step of the checked one, which exists.
    unsafe { View::from_raw(image.as_ptr(), layout) }
}
