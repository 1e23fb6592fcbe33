//! Multi-scale deformable attention on CUDA.

mod arguments;
mod backward;
mod fit;
mod forward;
mod kind;
mod matrix;
mod operands;
mod options;
mod prepare;
mod problem_desc;
mod projected;
mod schedule;
mod shared_levels;
mod specialised;
mod tuning;

pub use super::device_size::DeviceSize;
pub use backward::BackwardPlan;
pub use forward::Plan;
pub use kind::Kind;
pub use options::{KernelChoice, Options};
pub use problem_desc::{ProblemDesc, ProjectedDesc};
pub use specialised::{
    Channel, Gather, KernelVariant, Mask, ProjectedPass, Projection, SamplesChannel, SamplesGather,
    Sampling, Search, Sort, Sum, Types, shipped,
};
pub use tuning::{BackwardTuning, ForwardTuning};
