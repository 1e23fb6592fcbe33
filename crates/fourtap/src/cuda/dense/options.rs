//! What a caller can choose about the kernels of dense attention.

use super::tuning::Tuning;

/// How calls of this operator are computed on CUDA, where the caller overrides the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Tuning of forward, overriding the tables; a call that cannot be computed with it is refused.
    pub forward: Option<Tuning>,
}
