//! Random problems of deformable attention from projections, and their expected results.

mod case;
mod check;
#[cfg(feature = "cuda")]
mod cuda;
mod mask;

pub use case::ProjectedCase;
pub use check::{ExpectedProjectedResults, ProjectedGradientSelection, ProjectedGradientTensors};
#[cfg(feature = "cuda")]
pub use cuda::{CudaProjectedCase, CudaProjectedGradients};
pub use mask::PaddingMask;
