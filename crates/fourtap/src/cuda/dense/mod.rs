//! Dense attention on CUDA.

mod arguments;
mod folded;
mod options;
mod plan;
mod prepare;
mod specialised;
mod tile;
mod tuning;

pub use options::Options;
pub use plan::{Plan, ProblemDesc};
pub use specialised::{Combine, KernelVariant, Mma, shipped};
pub use tile::Tile;
pub use tuning::Tuning;
