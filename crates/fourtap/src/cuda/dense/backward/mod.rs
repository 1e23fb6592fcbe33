//! Gradients of dense attention on CUDA.

mod arguments;
mod bias;
mod hopper;
mod kernels;
mod plan;
mod prepare;
#[cfg(test)]
mod tests;

pub use kernels::{
    BiasSum, GradientBias, GradientFinish, GradientMma, GradientStatistics, GradientWgmma,
};
pub use plan::BackwardPlan;

pub(super) use kernels::shipped;
pub(super) use prepare::prepare;
