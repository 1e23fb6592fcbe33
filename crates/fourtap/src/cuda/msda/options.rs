//! What a caller can say about the kernels of deformable attention.

use super::tuning::{BackwardTuning, ForwardTuning};

/// Which kernels a call shall use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelChoice {
    /// The fastest that can serve it.
    #[default]
    Best,
    /// Sixteen bytes of channels a lane. Backward in f32, unless it shall be deterministic: by atomic additions.
    Gather,
    /// The same in its form for many rows, however few there are: what large problems run, on small ones.
    GatherMany,
    /// One thread a channel, the form everybody else ships: what speed is measured against.
    Channel,
}

/// How calls of this operator are computed on CUDA, where that is not left to the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The kernels; a call they cannot serve is refused.
    pub kernel: KernelChoice,
    /// How forward is cut, whatever tables say; a call that cannot be computed so is refused.
    pub forward: Option<ForwardTuning>,
    /// The same of backward.
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
