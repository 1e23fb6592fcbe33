//! What a caller can choose about the kernels of deformable attention.

use super::tuning::{BackwardTuning, ForwardTuning};

/// Which kernels a call uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelChoice {
    /// The fastest that can serve the call.
    #[default]
    Best,
    /// Sixteen bytes of channels per lane. Backward uses the variants for small problems: in f32 atomic additions unless it must be
    /// deterministic, otherwise sums by bands of pixels.
    Gather,
    /// As `Gather`, with the variant for large problems even if there are few rows: to test it on small ones.
    GatherMany,
    /// Forward on tensor cores, even where another kernel is faster: to test it on small problems. Levels in device memory that do
    /// not suit it are left to `Gather`, on the device. Backward as `Best`.
    Matrix,
    /// One thread per channel, as other implementations do: the baseline that speed is measured against.
    Channel,
}

/// How calls of this operator are computed on CUDA, where the caller overrides the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The kernels; a call they cannot serve is refused.
    pub kernel: KernelChoice,
    /// Tuning of forward, overriding the tables; a call that cannot be computed with it is refused.
    pub forward: Option<ForwardTuning>,
    /// The same for backward.
    pub backward: Option<BackwardTuning>,
}

impl From<KernelChoice> for Options {
    fn from(kernel: KernelChoice) -> Self {
        Options {
            kernel,
            ..Options::default()
        }
    }
}
