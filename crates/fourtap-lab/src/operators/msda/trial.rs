//! One pass over one problem of deformable attention, ready to be repeated.

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::{self, Backward, Gradients, Inputs, Problem, Traffic};
use fourtap::tuning::Class;
use fourtap::{Backend, DType, Layout, Prepared, View, ViewMut, bf16, f16};

use super::ProblemSizes;
use super::coverage::PixelCoverage;
use super::kernels::{backward_kernels, forward_kernel};
use super::least::least;
use super::verification::verify;
use crate::array::{Array, bytes_of};
use crate::computation::{Computation, CostEstimate, InputViews, TuningKey};
use crate::error::Result;
use crate::record::{DTypes, KernelUsed, ProblemRecord};
use crate::verification::Verification;

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

    /// The same pass over other tensors.
    fn with<'t>(&'t self, views: &InputViews<'t>) -> (Inputs<'t>, Option<View<'t>>) {
        let mut inputs = self.inputs;
        let mut tensors = views.tensors.iter().copied();
        let ours = [
            &mut inputs.value,
            &mut inputs.sampling_locations,
            &mut inputs.attention_weights,
        ];
        for (ours, other) in ours.into_iter().zip(&mut tensors) {
            *ours = other;
        }
        (inputs, self.grad_out.and_then(|_| tensors.next()))
    }

    /// The names of [`Trial::outputs`].
    pub fn output_names(&self) -> &'static [&'static str] {
        match self.grad_out {
            None => &["out"],
            Some(_) => &["grad_value", "grad_locations", "grad_weights"],
        }
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

    /// What the points of the first image touch; none if they do not lie in row-major order in host memory.
    pub fn touched(&self) -> Option<PixelCoverage> {
        let sizes = self.problem.sizes();
        let locations = &self.inputs.sampling_locations;
        let bytes = bytes_of(locations)?;
        let image = bytes.len() / sizes.images.max(1);
        let number = locations.dtype().size();
        let points = bytes[..image].chunks_exact(2 * number).map(|point| {
            let (x, y) = point.split_at(number);
            [x, y].map(|bytes| nearest_f32(locations.dtype(), bytes))
        });
        Some(PixelCoverage::by(points, sizes, self.problem.levels()))
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

impl Computation for Trial<'_> {
    fn backend(&self) -> Backend {
        self.backend
    }

    fn tensors(&self) -> Vec<(&'static str, View<'_>)> {
        let inputs = &self.inputs;
        let mut tensors = vec![
            ("value", inputs.value),
            ("sampling_locations", inputs.sampling_locations),
            ("attention_weights", inputs.attention_weights),
        ];
        tensors.extend(self.grad_out.map(|grad_out| ("grad_out", grad_out)));
        tensors
    }

    fn output_names(&self) -> &'static [&'static str] {
        Trial::output_names(self)
    }

    fn outputs(&self) -> Result<Vec<Array>> {
        Trial::outputs(self)
    }

    fn prepare<'t>(
        &'t self,
        backend: &Backend,
        inputs: &InputViews<'t>,
        outputs: Vec<ViewMut<'t>>,
    ) -> Result<Prepared<'t>> {
        let (inputs, grad_out) = self.with(inputs);
        let mut outputs = outputs.into_iter();
        Ok(match grad_out {
            None => msda::prepare_forward(backend, inputs, first(&mut outputs)),
            Some(grad_out) => msda::prepare_backward(backend, inputs, grad_out, gradients(outputs)),
        }?)
    }

    fn recorded(&self) -> (ProblemRecord, DTypes) {
        let problem = &self.problem;
        (ProblemSizes::from(problem).into(), problem.into())
    }

    fn compulsory_bytes(&self) -> u64 {
        self.traffic().compulsory_bytes
    }

    fn counted(&self) -> CostEstimate {
        let touched = self.touched();
        CostEstimate {
            traffic: self.traffic().into(),
            in_bounds_fraction: touched.as_ref().map(|touched| touched.in_bounds),
            touched_fraction: touched.as_ref().map(|touched| touched.value),
            least: touched.as_ref().map(|touched| least(self, touched)),
        }
    }

    fn verified(&self, outputs: &[Array], seed: u64) -> Result<Verification> {
        verify(self, outputs, seed)
    }

    fn kernel<'t>(
        &'t self,
        cuda: &Cuda,
        inputs: &InputViews<'t>,
        outputs: Vec<ViewMut<'t>>,
    ) -> Result<KernelUsed> {
        let (inputs, grad_out) = self.with(inputs);
        let mut outputs = outputs.into_iter();
        match grad_out {
            None => forward_kernel(cuda, inputs, first(&mut outputs)),
            Some(grad_out) => backward_kernels(cuda, inputs, grad_out, &gradients(outputs)),
        }
    }

    fn tuned_as(&self) -> TuningKey {
        let kernel = match self.grad_out {
            None => "msda-forward",
            Some(_) => "msda-backward",
        };
        let class = Class::of_msda(self.problem.sizes());
        (kernel, class, self.problem.value().dtype())
    }

    fn has_modes(&self) -> bool {
        self.grad_out.is_some()
    }

    fn baseline(&self, cuda: &Cuda) -> Option<Cuda> {
        Some(cuda.with_msda(KernelChoice::Channel))
    }
}

/// The output of forward.
pub(super) fn first<'a>(outputs: &mut impl Iterator<Item = ViewMut<'a>>) -> ViewMut<'a> {
    outputs.next().expect("forward has one output")
}

/// The outputs of backward, in the order of [`Trial::outputs`].
fn gradients<'a>(mut outputs: impl Iterator<Item = ViewMut<'a>>) -> Gradients<'a> {
    Gradients {
        value: outputs.next(),
        sampling_locations: outputs.next(),
        attention_weights: outputs.next(),
    }
}
