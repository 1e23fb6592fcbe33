//! One pass over one problem from projections, ready to be repeated.

use fourtap::cuda::Cuda;
use fourtap::cuda::msda::KernelChoice;
use fourtap::msda::Traffic;
use fourtap::msda::projections::{
    self, Interpolation, ProjectedBackward, ProjectedProblem, ProjectionGradients, Projections,
    oracle::Reader,
};
use fourtap::tuning::Class;
use fourtap::{Backend, BoolView, Layout, Place, Prepared, View, ViewMut};

use super::verification::verify;
use crate::array::Array;
use crate::cli::InputsChoice;
use crate::computation::{Computation, CostEstimate, InputViews, TuningKey};
use crate::error::Result;
use crate::operators::msda::coverage::PixelCoverage;
use crate::operators::msda::kernels::{projected_backward_kernels, projected_forward_kernel};
use crate::operators::msda::least::least_of;
use crate::operators::msda::{ProblemSizes, trial::first};
use crate::record::{DTypes, KernelUsed, ProblemRecord};
use crate::verification::Verification;

/// What to compute, on what, with what.
#[derive(Clone, Debug)]
pub struct ProjectedTrial<'a> {
    backend: Backend,
    inputs: Projections<'a>,
    /// The tensor that offsets and logits are slices of, if they are.
    layer: Option<View<'a>>,
    /// Only backward has one.
    grad_out: Option<View<'a>>,
    problem: ProjectedProblem,
}

impl<'a> ProjectedTrial<'a> {
    /// A pass forward, or backward to all four gradients if there is a `grad_out`, if the tensors fit each other. With a
    /// `layer`, offsets and logits are its [`slices`].
    pub fn new(
        backend: Backend,
        inputs: Projections<'a>,
        layer: Option<View<'a>>,
        grad_out: Option<View<'a>>,
    ) -> fourtap::Result<Self> {
        if let Some(grad_out) = grad_out {
            ProjectedBackward::new(inputs, grad_out, ProjectionGradients::default())?;
        }
        Ok(ProjectedTrial {
            backend,
            problem: ProjectedProblem::new(&inputs)?,
            inputs,
            layer,
            grad_out,
        })
    }

    /// What is read.
    pub fn inputs(&self) -> &Projections<'a> {
        &self.inputs
    }

    /// The gradient backward starts from; forward has none.
    pub fn grad_out(&self) -> Option<&View<'a>> {
        self.grad_out.as_ref()
    }

    /// What was checked.
    pub fn problem(&self) -> &ProjectedProblem {
        &self.problem
    }

    /// The same pass over other tensors.
    fn with<'t>(&'t self, views: &InputViews<'t>) -> (Projections<'t>, Option<View<'t>>) {
        let mut inputs: Projections<'t> = self.inputs;
        let mut tensors = views.tensors.iter().copied();
        let mut take = |ours: &mut View<'t>| *ours = tensors.next().unwrap_or(*ours);
        take(&mut inputs.value);
        take(&mut inputs.reference_points);
        match self.layer {
            Some(mut layer) => {
                take(&mut layer);
                let sizes = [self.problem.sizes().heads, self.problem.samples()];
                [inputs.sampling_offsets, inputs.attention_logits] = slices(&layer, sizes);
            }
            None => {
                take(&mut inputs.sampling_offsets);
                take(&mut inputs.attention_logits);
            }
        }
        inputs.value_mask = views.mask;
        (inputs, self.grad_out.and_then(|_| tensors.next()))
    }

    fn traffic(&self) -> Traffic {
        match self.grad_out {
            None => Traffic::of_projected_forward(&self.problem),
            Some(_) => Traffic::of_projected_backward(&self.problem),
        }
    }

    /// What the points of the first image touch.
    fn touched(&self) -> Option<PixelCoverage> {
        let reader = Reader::new(&self.inputs).ok()?;
        let sizes = self.problem.sizes();
        let rows = (0..sizes.queries).flat_map(|q| (0..sizes.heads).map(move |m| [q, m]));
        let corners = match self.problem.interpolation() {
            Interpolation::Bilinear => 4,
            Interpolation::Nearest => 1,
        };
        let read = rows.map(|[q, m]| (m, reader.pixels([0, q, m])));
        let possible = corners * self.problem.samples();
        Some(PixelCoverage::of_rows(
            read,
            possible,
            sizes,
            self.problem.levels(),
        ))
        .filter(|_| sizes.images > 0)
    }
}

/// Offsets `[N, Q, M, K, 2]` and logits `[N, Q, M, K]` in a row-major tensor `[N, Q, 3*M*K]` that has both.
///
/// # Panics
/// If the tensor has another shape.
pub fn slices<'t>(layer: &View<'t>, [heads, samples]: [usize; 2]) -> [View<'t>; 2] {
    let shape = layer.shape();
    let &[images, queries, row] = shape.sizes() else {
        panic!("expected [N, Q, 3*M*K], found {shape}");
    };
    assert_eq!(row, 3 * heads * samples, "offsets and logits fill a row");
    let dtype = layer.dtype();
    let [by_image, by_query, k] = [queries * row, row, samples].map(|stride| stride as isize);
    let offsets = Layout::strided(
        dtype,
        &[images, queries, heads, samples, 2],
        &[by_image, by_query, 2 * k, 2, 1],
    );
    let logits = Layout::strided(
        dtype,
        &[images, queries, heads, samples],
        &[by_image, by_query, k, 1],
    );
    let part = |first: usize, layout: Layout| {
        let bytes = first * dtype.size();
        // SAFETY: every element lies in a row of `layer`, whose memory it borrows as `layer` does: a row is as long as was
        // checked above, and has offsets up to the first logit and logits from there on.
        unsafe {
            match layer.place() {
                Place::Cuda { ordinal } => {
                    View::on_cuda(ordinal, (layer.as_ptr() as usize + bytes) as u64, layout)
                }
                _ => View::from_raw(layer.as_ptr().wrapping_add(bytes), layout),
            }
        }
    };
    [part(0, offsets), part(2 * heads * samples, logits)]
}

impl Computation for ProjectedTrial<'_> {
    fn backend(&self) -> Backend {
        self.backend
    }

    fn tensors(&self) -> Vec<(&'static str, View<'_>)> {
        let inputs = &self.inputs;
        let mut tensors = vec![
            ("value", inputs.value),
            ("reference_points", inputs.reference_points),
        ];
        match self.layer {
            Some(layer) => tensors.push(("projections", layer)),
            None => tensors.extend([
                ("sampling_offsets", inputs.sampling_offsets),
                ("attention_logits", inputs.attention_logits),
            ]),
        }
        tensors.extend(self.grad_out.map(|grad_out| ("grad_out", grad_out)));
        tensors
    }

    fn mask(&self) -> Option<BoolView<'_>> {
        self.inputs.value_mask
    }

    fn output_names(&self) -> &'static [&'static str] {
        match self.grad_out {
            None => &["out"],
            Some(_) => &[
                "grad_value",
                "grad_references",
                "grad_offsets",
                "grad_logits",
            ],
        }
    }

    fn outputs(&self) -> Result<Vec<Array>> {
        let inputs = &self.inputs;
        let of =
            |name: &str, like: &View<'_>| Array::poisoned(name, like.dtype(), like.shape().sizes());
        match self.grad_out {
            None => {
                let shape = self.problem.sizes().out();
                Ok(vec![Array::poisoned("out", inputs.value.dtype(), &shape)?])
            }
            Some(_) => {
                let like = [
                    &inputs.value,
                    &inputs.reference_points,
                    &inputs.sampling_offsets,
                    &inputs.attention_logits,
                ];
                let pairs = self.output_names().iter().zip(like);
                pairs.map(|(name, like)| of(name, like)).collect()
            }
        }
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
            None => projections::prepare_forward(backend, inputs, first(&mut outputs)),
            Some(grad_out) => {
                projections::prepare_backward(backend, inputs, grad_out, gradients(outputs))
            }
        }?)
    }

    fn recorded(&self) -> (ProblemRecord, DTypes) {
        let problem = &self.problem;
        let sizes = ProblemSizes {
            inputs: InputsChoice::Projections,
            ..ProblemSizes::new(problem.sizes(), problem.levels())
        };
        (sizes.into(), problem.into())
    }

    fn compulsory_bytes(&self) -> u64 {
        self.traffic().compulsory_bytes
    }

    fn counted(&self) -> CostEstimate {
        let value = self.problem.value();
        let elements = value.shape().elements().unwrap_or(0);
        let value_bytes = (elements * value.dtype().size()) as f64;
        let touched = self.touched();
        let least = touched.as_ref().map(|touched| {
            least_of(
                self.traffic(),
                self.grad_out.is_some(),
                value_bytes,
                touched,
            )
        });
        CostEstimate {
            traffic: self.traffic().into(),
            in_bounds_fraction: touched.as_ref().map(|touched| touched.in_bounds),
            touched_fraction: touched.as_ref().map(|touched| touched.value),
            least,
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
            None => projected_forward_kernel(cuda, inputs, first(&mut outputs)),
            Some(grad_out) => {
                projected_backward_kernels(cuda, inputs, grad_out, gradients(outputs))
            }
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

/// The outputs of backward, in the order of [`Computation::outputs`].
fn gradients<'a>(mut outputs: impl Iterator<Item = ViewMut<'a>>) -> ProjectionGradients<'a> {
    ProjectionGradients {
        value: outputs.next(),
        reference_points: outputs.next(),
        sampling_offsets: outputs.next(),
        attention_logits: outputs.next(),
    }
}
