//! Dense attention on CUDA.

mod arguments;
mod auxiliary;
mod backward;
mod conversion;
mod described;
mod folded;
mod hopper;
mod maps;
mod mask;
mod options;
mod plan;
mod prepare;
mod specialised;
mod tile;
mod tuning;
mod workspace;

pub use auxiliary::{Combine, PrepareF32, PrepareMask};
pub use backward::{
    BackwardPlan, BiasSum, GradientBias, GradientFinish, GradientMma, GradientStatistics,
    GradientWgmma,
};
pub use described::ProblemDesc;
pub use hopper::GroupTile;
pub use options::{GradientKernels, Options};
pub use plan::Plan;
pub use specialised::{AttnKind, KernelVariant, Mma, Plain, Wgmma, shipped};
pub use tile::Tile;
pub use tuning::Tuning;
