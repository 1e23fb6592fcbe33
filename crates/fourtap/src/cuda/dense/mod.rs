//! Dense attention on CUDA.

mod arguments;
mod conversion;
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

pub use hopper::GroupTile;
pub use options::Options;
pub use plan::{Plan, ProblemDesc};
pub use specialised::{
    AttnKind, Combine, KernelVariant, Mma, Plain, PrepareF32, PrepareMask, Wgmma, shipped,
};
pub use tile::Tile;
pub use tuning::Tuning;
