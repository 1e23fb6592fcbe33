//! What a caller can choose about the kernels of dense attention.

use super::tuning::Tuning;

/// How calls of this operator are computed on CUDA, where the caller overrides the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Tuning of forward, overriding the tables; a call that cannot be computed with it is refused.
    pub forward: Option<Tuning>,
    /// Which kernels compute gradients; a call that they do not serve is refused.
    pub backward: Option<GradientKernels>,
}

/// Kernels that compute gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientKernels {
    /// Those that every device has, by `mma.sync`.
    Mma,
    /// Those for Hopper.
    Wgmma,
}
