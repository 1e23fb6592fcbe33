//! One case through one backend, every element of every output compared.

use super::case::ProjectedCase;
use crate::backend::Backend;
use crate::error::Result;
use crate::msda::projections::{self, ProjectedProblem, ProjectionGradients, oracle};
use crate::oracle::Sum;
use crate::verify::compare::{Failure, compare};
use crate::verify::rule::Pass;
use crate::verify::tensor::Tensor;

/// Which gradients a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectedGradientSelection {
    /// The gradient of `value`.
    pub value: bool,
    /// The gradient of `reference_points`.
    pub reference_points: bool,
    /// The gradient of `sampling_offsets`.
    pub sampling_offsets: bool,
    /// The gradient of `attention_logits`.
    pub attention_logits: bool,
}

impl ProjectedGradientSelection {
    /// All of them.
    pub const ALL: ProjectedGradientSelection = ProjectedGradientSelection {
        value: true,
        reference_points: true,
        sampling_offsets: true,
        attention_logits: true,
    };

    /// Every selection of gradients, from none to all.
    pub fn choices() -> impl Iterator<Item = ProjectedGradientSelection> {
        (0..16).map(|bits| ProjectedGradientSelection {
            value: bits & 1 != 0,
            reference_points: bits & 2 != 0,
            sampling_offsets: bits & 4 != 0,
            attention_logits: bits & 8 != 0,
        })
    }

    /// In the order of [`ProjectedGradientTensors::named`].
    pub fn each(&self) -> [bool; 4] {
        [
            self.value,
            self.reference_points,
            self.sampling_offsets,
            self.attention_logits,
        ]
    }
}

/// The gradients of a case; `None` for those not selected.
#[derive(Clone, Debug)]
pub struct ProjectedGradientTensors {
    /// In the order of [`ProjectedGradientTensors::named`].
    pub tensors: [Option<Tensor>; 4],
}

/// The names of the gradients in errors.
const NAMES: [&str; 4] = [
    "grad_value",
    "grad_references",
    "grad_offsets",
    "grad_logits",
];

impl ProjectedGradientTensors {
    /// NaN everywhere, laid out as the case says.
    pub fn poisoned(case: &ProjectedCase, asked: ProjectedGradientSelection) -> Self {
        let like = [
            &case.value,
            &case.reference_points,
            &case.sampling_offsets,
            &case.attention_logits,
        ];
        let [_, storages @ ..] = &case.outputs;
        let asked = asked.each();
        let poisoned = |i: usize| {
            let (like, shape) = (like[i], like[i].shape());
            Tensor::poisoned(like.dtype(), shape.sizes(), &storages[i])
        };
        ProjectedGradientTensors {
            tensors: [0, 1, 2, 3].map(|i| asked[i].then(|| poisoned(i))),
        }
    }

    /// The outputs of backward.
    pub fn views(&mut self) -> ProjectionGradients<'_> {
        let [value, reference_points, sampling_offsets, attention_logits] = self
            .tensors
            .each_mut()
            .map(|tensor| tensor.as_mut().map(Tensor::view_mut));
        ProjectionGradients {
            value,
            reference_points,
            sampling_offsets,
            attention_logits,
        }
    }

    /// Each with the name it has in errors: those of value, reference points, offsets and logits.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, Option<&Tensor>)> {
        NAMES
            .into_iter()
            .zip(self.tensors.iter().map(Option::as_ref))
    }

    /// The same, to write.
    #[cfg(feature = "cuda")]
    pub(super) fn named_mut(
        &mut self,
    ) -> impl Iterator<Item = (&'static str, Option<&mut Tensor>)> {
        NAMES
            .into_iter()
            .zip(self.tensors.iter_mut().map(Option::as_mut))
    }
}

/// The expected results of forward and backward of a case, and their error tolerance: computed once, to check many
/// backends.
#[derive(Clone, Debug)]
pub struct ExpectedProjectedResults {
    exact: Vec<Sum<f64>>,
    naive: Vec<Sum<f32>>,
    exact_gradients: oracle::Gradients<f64>,
    naive_gradients: oracle::Gradients<f32>,
}

impl ExpectedProjectedResults {
    /// Computed by the oracle, and by the naive implementation, whose error sets the error tolerance.
    pub fn new(case: &ProjectedCase) -> Result<Self> {
        let (inputs, grad_out) = (case.inputs(), case.grad_out());
        Ok(ExpectedProjectedResults {
            exact: oracle::forward(&inputs)?,
            naive: oracle::forward(&inputs)?,
            exact_gradients: oracle::backward(&inputs, &grad_out)?,
            naive_gradients: oracle::backward(&inputs, &grad_out)?,
        })
    }

    /// Forward and backward of the case on `backend`, every element compared.
    pub fn check(
        &self,
        case: &ProjectedCase,
        backend: &Backend,
    ) -> std::result::Result<(), Failure> {
        let inputs = case.inputs();
        let sizes = *ProjectedProblem::new(&inputs)?.sizes();
        let mut out = Tensor::poisoned(case.value.dtype(), &sizes.out(), &case.outputs[0]);
        projections::forward(backend, inputs, out.view_mut())?;
        self.compare_forward(&out)?;

        let all = ProjectedGradientSelection::ALL;
        let mut gradients = ProjectedGradientTensors::poisoned(case, all);
        projections::backward(backend, inputs, case.grad_out(), gradients.views())?;
        self.compare_backward(&gradients)
    }

    /// Checks every element of `out`, and that the memory around it is unchanged.
    pub fn compare_forward(&self, out: &Tensor) -> std::result::Result<(), Failure> {
        compare("out", Pass::Forward, out, &self.exact, &self.naive)
    }

    /// Checks every element of the computed gradients, and that the memory around them is unchanged.
    pub fn compare_backward(
        &self,
        found: &ProjectedGradientTensors,
    ) -> std::result::Result<(), Failure> {
        let (exact, naive) = (each(&self.exact_gradients), each(&self.naive_gradients));
        for (((name, found), exact), naive) in found.named().zip(exact).zip(naive) {
            if let Some(found) = found {
                compare(name, Pass::Backward, found, exact, naive)?;
            }
        }
        Ok(())
    }
}

/// In the order of [`ProjectedGradientTensors::named`].
fn each<R>(gradients: &oracle::Gradients<R>) -> [&[Sum<R>]; 4] {
    [
        &gradients.value,
        &gradients.reference_points,
        &gradients.sampling_offsets,
        &gradients.attention_logits,
    ]
}
