//! The gradients of a case, and their expected values.

use super::case::Case;
use super::compare::{Failure, compare};
use super::rule::Pass;
use super::tensor::Tensor;
use crate::error::Result;
use crate::msda::{Gradients, oracle};

/// Which gradients a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientSelection {
    /// The gradient of `value`.
    pub value: bool,
    /// The gradient of `sampling_locations`.
    pub sampling_locations: bool,
    /// The gradient of `attention_weights`.
    pub attention_weights: bool,
}

impl GradientSelection {
    /// All of them.
    pub const ALL: GradientSelection = GradientSelection {
        value: true,
        sampling_locations: true,
        attention_weights: true,
    };

    /// Every selection of gradients, from none to all.
    pub fn choices() -> impl Iterator<Item = GradientSelection> {
        (0..8).map(|bits| GradientSelection {
            value: bits & 1 != 0,
            sampling_locations: bits & 2 != 0,
            attention_weights: bits & 4 != 0,
        })
    }

    /// In the order of [`GradientTensors::named`].
    pub fn each(&self) -> [bool; 3] {
        [self.value, self.sampling_locations, self.attention_weights]
    }
}

/// The gradients of a case; `None` for those not selected.
#[derive(Clone, Debug)]
pub struct GradientTensors {
    /// Like `value`.
    pub value: Option<Tensor>,
    /// Like `sampling_locations`.
    pub sampling_locations: Option<Tensor>,
    /// Like `attention_weights`.
    pub attention_weights: Option<Tensor>,
}

impl GradientTensors {
    /// NaN everywhere, laid out as the case says.
    pub fn poisoned(case: &Case, asked: GradientSelection) -> Self {
        let [_, of_value, of_locations, of_weights] = &case.outputs;
        let like = |asked: bool, tensor: &Tensor, storage| {
            asked.then(|| Tensor::poisoned(tensor.dtype(), tensor.shape().sizes(), storage))
        };
        GradientTensors {
            value: like(asked.value, &case.value, of_value),
            sampling_locations: like(
                asked.sampling_locations,
                &case.sampling_locations,
                of_locations,
            ),
            attention_weights: like(asked.attention_weights, &case.attention_weights, of_weights),
        }
    }

    /// The outputs of backward.
    pub fn views(&mut self) -> Gradients<'_> {
        Gradients {
            value: self.value.as_mut().map(Tensor::view_mut),
            sampling_locations: self.sampling_locations.as_mut().map(Tensor::view_mut),
            attention_weights: self.attention_weights.as_mut().map(Tensor::view_mut),
        }
    }

    /// Each with the name it has in errors.
    pub fn named(&self) -> [(&'static str, Option<&Tensor>); 3] {
        [
            ("grad_value", self.value.as_ref()),
            ("grad_locations", self.sampling_locations.as_ref()),
            ("grad_weights", self.attention_weights.as_ref()),
        ]
    }

    /// The same, to write.
    #[cfg(feature = "cuda")]
    pub(super) fn named_mut(&mut self) -> [(&'static str, Option<&mut Tensor>); 3] {
        [
            ("grad_value", self.value.as_mut()),
            ("grad_locations", self.sampling_locations.as_mut()),
            ("grad_weights", self.attention_weights.as_mut()),
        ]
    }
}

/// The expected gradients of a case, and their error tolerance.
#[derive(Clone, Debug)]
pub struct ExpectedGradients {
    /// The oracle's.
    pub exact: oracle::Gradients<f64>,
    /// The naive implementation's, whose error sets the error tolerance.
    pub naive: oracle::Gradients<f32>,
}

impl ExpectedGradients {
    /// For a case with levels in host memory.
    pub fn new(case: &Case) -> Result<Self> {
        let (inputs, grad_out) = (case.inputs(), case.grad_out());
        Ok(ExpectedGradients {
            exact: oracle::backward(&inputs, &grad_out)?,
            naive: oracle::backward(&inputs, &grad_out)?,
        })
    }

    /// The oracle's, in the order of [`GradientTensors::named`].
    pub fn each(&self) -> [&[oracle::Sum<f64>]; 3] {
        let exact = &self.exact;
        [
            &exact.value,
            &exact.sampling_locations,
            &exact.attention_weights,
        ]
    }

    /// Checks every element of the computed gradients against the error tolerance, and that the memory around them is unchanged.
    pub fn compare(&self, found: &GradientTensors) -> std::result::Result<(), Failure> {
        let naive = &self.naive;
        let naive = [
            &naive.value,
            &naive.sampling_locations,
            &naive.attention_weights,
        ];
        for (((name, found), exact), naive) in found.named().into_iter().zip(self.each()).zip(naive)
        {
            if let Some(found) = found {
                compare(name, Pass::Backward, found, exact, naive)?;
            }
        }
        Ok(())
    }
}
