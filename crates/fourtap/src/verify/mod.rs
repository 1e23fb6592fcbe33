//! Verification of backends: random problems from a seed, checked against the f64 oracle within the error tolerance.
//! The tests and `fourtap check` use the same code.

mod case;
mod check;
mod compare;
#[cfg(feature = "cuda")]
mod cuda;
mod dense;
#[cfg(feature = "cuda")]
mod dense_cuda;
mod dense_gradients;
#[cfg(feature = "cuda")]
mod dense_gradients_cuda;
mod dense_mask;
#[cfg(feature = "cuda")]
mod device_tensor;
mod gradients;
mod points;
mod projections;
mod rule;
mod tensor;

pub use case::{Case, HOSTILE};
pub use check::{ExpectedResults, backends, check};
pub use compare::Failure;
#[cfg(feature = "cuda")]
pub use cuda::{CudaCase, CudaGradients, LevelsIn, check_backward_on_cuda, check_forward_on_cuda};
pub use dense::{DenseCase, ExpectedDenseResults};
#[cfg(feature = "cuda")]
pub use dense_cuda::{DenseOnCuda, check_dense_on_cuda};
pub use dense_gradients::{
    DenseBackwardCase, DenseGradientSelection, DenseGradientTensors, ExpectedDenseGradients,
};
#[cfg(feature = "cuda")]
pub use dense_gradients_cuda::{DenseGradientsOnCuda, check_dense_gradients_on_cuda};
pub use dense_mask::RandomMask;
pub use gradients::{ExpectedGradients, GradientSelection, GradientTensors};
pub use points::{Distribution, QueryBox};
#[cfg(feature = "cuda")]
pub use projections::{CudaProjectedCase, CudaProjectedGradients};
pub use projections::{
    ExpectedProjectedResults, PaddingMask, ProjectedCase, ProjectedGradientSelection,
    ProjectedGradientTensors,
};
pub use rule::{Judgement, Pass, judge};
pub use tensor::{Storage, Tensor};
