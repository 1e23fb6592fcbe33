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
pub use plan::{Described, Plan};
pub use specialised::{Combine, Mma, Specialised, shipped};
pub use tile::Tile;
pub use tuning::Tuning;
