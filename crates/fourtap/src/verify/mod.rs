//! What backends are held to: random problems from a seed, and the rule that says how near the f64 oracle a result
//! must be. The tests and `fourtap check` use the same code.

mod case;
mod check;
#[cfg(feature = "cuda")]
mod cuda;
mod dense;
mod gradients;
mod rule;
mod tensor;

pub use case::{Case, HOSTILE};
pub use check::{Failure, backends, check};
#[cfg(feature = "cuda")]
pub use cuda::{CudaCase, CudaGradients, LevelsIn, check_backward_on_cuda, check_forward_on_cuda};
pub use dense::{DenseCase, DenseExpected};
pub use gradients::{Asked, ExpectedGradients, GradientTensors};
pub use rule::{Judgement, Pass, judge};
pub use tensor::{Storage, Tensor};
