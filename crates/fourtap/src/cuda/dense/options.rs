//! What a caller can say about the kernels of dense attention.

use super::tuning::Tuning;

/// How calls of this operator are computed on CUDA, where that is not left to the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How forward is cut, whatever tables say; a call that cannot be computed so is refused.
    pub forward: Option<Tuning>,
}
