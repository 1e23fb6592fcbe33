//! Dense attention on CUDA.

mod arguments;
mod conversion;
mod folded;
mod mask;
mod options;
mod plan;
mod prepare;
mod specialised;
mod tile;
mod tuning;
mod workspace;

pub use options::Options;
pub use plan::{Plan, ProblemDesc};
pub use specialised::{
    AttnKind, Combine, KernelVariant, Mma, Plain, PrepareF32, PrepareMask, shipped,
};
pub use tile::Tile;
pub use tuning::Tuning;
